// The table by which the peer accesses memory that this side has registered.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/device/common/protection_domain.h"
#include "core/device/shm/memory/segment.h"
#include "core/device/shm/queue/rc_owner.h"

namespace ringsock::soft {

/// The rows in our own inbox, the process whose memory they refer to, and the peer's lease on that memory. Threads: the
/// functions of RemoteAccess under the domain's lock; withdraw() and is_arena_registered() any.
class OwnRegions final : public RemoteAccess {
 public:
  /// @param inbox  must exist as long as this
  OwnRegions(const InboxView& inbox, RcOwner& owner) : inbox_(inbox), owner_(owner) {}

  [[nodiscard]] bool may_share() override { return owner_.may_peer_map(); }
  void publish(const MemoryRegion& region) override;
  void retract(const MemoryRegion& region) override;
  bool retract_all() override;

  /// Returns whether the rows refer to memory of another process, which published them before a fork(2).
  [[nodiscard]] bool are_of_other_process() const;
  /// Clears rows that this process published before a fork and that are still in the shared memory because the process
  /// that uses the connection has not published its own. On return the peer does not access this process's memory.
  void withdraw();

  void note_arena_registered() { arena_registered_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool is_arena_registered() const { return arena_registered_.load(std::memory_order_relaxed); }

 private:
  [[nodiscard]] std::size_t row_for(const MemoryRegion& region) const;
  void publish_mark();
  void wait_for_lease();

  const InboxView& inbox_;
  RcOwner& owner_;
  std::atomic<bool> arena_registered_{false};
  std::array<std::uint32_t, kMrRows> keys_{};  ///< published; row 0 is the arena's
};

}  // namespace ringsock::soft
