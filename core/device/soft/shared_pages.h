// Pages of a memfd under memory of the application.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/device/soft/address_space.h"
#include "core/device/soft/page_swap.h"
#include "core/device/soft/peer_memory.h"

namespace ringsock::soft {

/// Makes [start, start + bytes) shared memory while it lives. The application may unmap, replace, move, or protect
/// (parts of) the memory meanwhile; what is still there, wherever it is, keeps its contents and permissions.
/// Threads: all functions, the destructor too, with lock() held.
class SharedPages : public std::enable_shared_from_this<SharedPages> {
 public:
  static constexpr std::string_view kNameInMaps = "/memfd:ringsock-riomap";

  /// Held over fork(2), too.
  static std::mutex& lock();
  /// Pages that hold all of [start, end) and are still there; may be null.
  static std::shared_ptr<SharedPages> find(std::uint64_t start, std::uint64_t end);
  /// Exchanges the pages of private anonymous memory. Null, with nothing changed, where the kernel does not let us.
  static std::shared_ptr<SharedPages> put_under(std::uint64_t start, std::uint64_t bytes, OtherWriters writers);

  SharedPages(UniqueFd memfd, const SharedPlace& place, std::uint64_t device);
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;
  /// The memory is private again, and behaves as anonymous memory does; its contents stay.
  ~SharedPages();

  [[nodiscard]] const SharedPlace& place() const { return place_; }

 private:
  struct ForkHandlers;
  /// Whether memfd_ is still the file. A program may close every descriptor that it does not know, and open others
  /// under their numbers: such a number is neither used nor closed, and the memory stays shared.
  bool has_file();
  /// Where these pages are now: all shared mappings of the file in this process.
  [[nodiscard]] std::vector<MemoryArea> areas() const;

  UniqueFd memfd_;  ///< none in a child of fork(2): there the memory is private already
  SharedPlace place_;
  std::uint64_t device_;
  bool child_needs_file_ = false;  ///< there was no memory for the copy of a child of fork(2)
};

}  // namespace ringsock::soft
