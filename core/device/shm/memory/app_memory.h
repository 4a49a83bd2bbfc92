// Application memory that peers may write. It is made shared, so that peers write it with one copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/device/common/protection_domain.h"
#include "core/device/shm/memory/peer_memory.h"

namespace ringsock::soft {

class SharedPages;

/// Sets whether new registrations are shared. The default is not to share: direct I/O that is under way, and futexes
/// that other processes share, refer to the pages that would be exchanged, and this cannot be detected.
void share_application_memory(bool enabled);

/// One registration of application memory for remote access.
///
/// Where sharing is wanted and possible, the first registration replaces the pages of the memory by those of a memfd
/// with the same contents (page_swap.h), and a peer that may read this process maps them. When the last registration
/// ends the memory becomes private again, with its contents. A child of fork(2) gets a private copy. Memory is left as
/// it is if it is not private anonymous memory with ordinary attributes, or if writes of other threads cannot be held
/// up meanwhile. Threads: all functions from any thread.
class AppMemory final : public RegionMemory {
 public:
  /// With `share` false it is only recorded: memory that peers write directly must not be exchanged.
  AppMemory(void* address, std::size_t length, bool share);
  AppMemory(const AppMemory&) = delete;
  AppMemory& operator=(const AppMemory&) = delete;
  /// Call it when no peer can access the memory any more.
  ~AppMemory() override;

  /// Returns where a peer finds the memory, inode 0 when it is not shared.
  [[nodiscard]] SharedPlace place() const;

 private:
  std::uint64_t start_, end_;
  std::shared_ptr<SharedPages> pages_;
};

}  // namespace ringsock::soft
