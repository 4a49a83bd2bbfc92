// Application memory that peers may write: made shared, so that they do it with a copy of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/device/soft/peer_memory.h"

namespace ringsock::soft {

class SharedPages;

/// From now on, for new registrations. The default is not to share: direct I/O that is under way, and futexes that
/// other processes share, refer to the pages that would be exchanged, and nobody can tell that they do.
void share_application_memory(bool enabled);

/// One registration of application memory for remote access.
///
/// Where that is wanted, and possible, the first registration puts the pages of a memfd under the memory, contents kept
/// (page_swap.h), and a peer that may look into this process maps them too. With the last registration the memory
/// becomes private again, contents kept. A child of fork(2) gets a private copy. What is not private anonymous memory
/// with ordinary attributes stays as it is, and so does everything when other threads' writes cannot be held up
/// meanwhile. Threads: all functions from any thread.
class AppMemory {
 public:
  /// With `share` false it is only noted: memory that is written behind our back cannot be exchanged.
  AppMemory(void* address, std::size_t length, bool share);
  AppMemory(const AppMemory&) = delete;
  AppMemory& operator=(const AppMemory&) = delete;
  /// No peer may access the memory any more.
  ~AppMemory();

  /// Where a peer finds it; inode 0: nowhere.
  [[nodiscard]] SharedPlace place() const;

 private:
  std::uint64_t start_, end_;
  std::shared_ptr<SharedPages> pages_;
};

}  // namespace ringsock::soft
