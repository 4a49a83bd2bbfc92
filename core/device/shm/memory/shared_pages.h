// Memory of the application that consists of a memfd's pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/device/shm/memory/address_space.h"
#include "core/device/shm/memory/page_swap.h"
#include "core/device/shm/memory/peer_memory.h"

namespace ringsock::soft {

/// Makes [start, start + bytes) shared memory while it exists. The application may unmap, replace, move or protect
/// parts of the memory meanwhile; the remaining parts, wherever they are, keep their contents and permissions.
/// Threads: all functions, the destructor too, with lock() held.
class SharedPages : public std::enable_shared_from_this<SharedPages> {
 public:
  static constexpr std::string_view kNameInMaps = "/memfd:ringsock-riomap";

  /// It is also held across fork(2).
  static std::mutex& lock();
  /// Returns pages that contain all of [start, end) and are still mapped, or null.
  static std::shared_ptr<SharedPages> find(std::uint64_t start, std::uint64_t end);
  /// Exchanges the pages of private anonymous memory. Returns null, with nothing changed, where the kernel refuses.
  static std::shared_ptr<SharedPages> put_under(std::uint64_t start, std::uint64_t bytes, OtherWriters writers);

  SharedPages(UniqueFd memfd, const SharedPlace& place, std::uint64_t device);
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;
  /// Makes the memory private anonymous memory again, with its contents.
  ~SharedPages();

  [[nodiscard]] const SharedPlace& place() const { return place_; }

 private:
  struct ForkHandlers;
  /// Returns whether memfd_ still refers to the file. A program may close every descriptor that it does not know, and
  /// open others under their numbers: such a number is neither used nor closed, and the memory stays shared.
  bool has_file();
  /// Returns where these pages are now: all shared mappings of the file in this process.
  [[nodiscard]] std::vector<MemoryArea> areas() const;

  UniqueFd memfd_;  ///< none in a child of fork(2): there the memory is private already
  SharedPlace place_;
  std::uint64_t device_;
  bool child_needs_file_ = false;  ///< there was no memory for the copy of a child of fork(2)
};

}  // namespace ringsock::soft
