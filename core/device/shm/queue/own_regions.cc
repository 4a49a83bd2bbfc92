#include "core/device/shm/queue/own_regions.h"

#include <time.h>

#include <utility>

#include "core/base/barrier.h"
#include "core/base/clock.h"
#include "core/device/shm/link/link.h"
#include "core/device/shm/memory/app_memory.h"
#include "core/device/shm/memory/space_mark.h"
#include "core/device/shm/queue/peer_regions.h"

namespace ringsock::soft {

std::size_t OwnRegions::row_for(const MemoryRegion& region) const {
  return region.only_for == this ? 0 : row_of(region.rkey);
}

void OwnRegions::publish(const MemoryRegion& region) {
  const std::size_t row = row_for(region);
  if (keys_[row] != 0) return;
  keys_[row] = region.rkey;
  const auto start = reinterpret_cast<std::uint64_t>(region.addr);
  const auto arena = reinterpret_cast<std::uint64_t>(inbox_.arena());
  const bool in_arena =
      start >= arena && start - arena <= inbox_.arena_bytes && region.length <= inbox_.arena_bytes - (start - arena);
  MrRow& shared = inbox_.rows()[row];
  shared.address.store(start, std::memory_order_relaxed);
  shared.length.store(region.length, std::memory_order_relaxed);
  shared.arena_offset.store(in_arena ? start - arena : 0, std::memory_order_relaxed);
  shared.access.store(static_cast<std::uint32_t>(region.access) | (in_arena ? kRowInArena : 0),
                      std::memory_order_relaxed);
  const SharedPlace place =
      region.memory && may_share() ? static_cast<const AppMemory&>(*region.memory).place() : SharedPlace{};
  shared.shared_start.store(place.start, std::memory_order_relaxed);
  shared.shared_bytes.store(place.bytes, std::memory_order_relaxed);
  shared.shared_fd.store(place.fd, std::memory_order_relaxed);
  shared.shared_inode.store(place.inode, std::memory_order_relaxed);
  if (!in_arena) publish_mark();
  shared.rkey.store(region.rkey, std::memory_order_release);
}

void OwnRegions::publish_mark() {
  ConsumerLine& line = inbox_.consumer();
  const SpaceMark mark = own_space_mark();
  if (line.mark_token.load(std::memory_order_relaxed) == mark.token) return;
  line.mark_token.store(0, std::memory_order_relaxed);
  line.mark_address.store(mark.address, std::memory_order_release);
  line.mark_token.store(mark.token, std::memory_order_release);
}

/// Clears all rows except the arena's.
bool OwnRegions::retract_all() {
  bool found = false;
  inbox_.consumer().mark_token.store(0, std::memory_order_release);
  for (std::size_t row = 1; row < kMrRows; ++row) {
    if (std::exchange(keys_[row], 0) == 0) continue;
    inbox_.rows()[row].rkey.store(0, std::memory_order_release);
    found = true;
  }
  if (found) wait_for_lease();
  return found;
}

void OwnRegions::retract(const MemoryRegion& region) {
  const std::size_t row = row_for(region);
  if (keys_[row] != region.rkey) return;
  keys_[row] = 0;
  inbox_.rows()[row].rkey.store(0, std::memory_order_release);
  if (region.only_for == this) {
    arena_registered_.store(false, std::memory_order_relaxed);
  } else {
    wait_for_lease();
  }
}

bool OwnRegions::are_of_other_process() const {
  return inbox_.consumer().mark_token.load(std::memory_order_relaxed) != known_space_mark().token;
}

void OwnRegions::withdraw() {
  std::uint64_t own = known_space_mark().token;
  if (own == 0 || !inbox_.consumer().mark_token.compare_exchange_strong(own, 0)) return;
  wait_for_lease();
}

/// Waits until the peer has left an access that began before the key was cleared. A peer that does not leave is
/// disconnected.
void OwnRegions::wait_for_lease() {
  constexpr Nanos kPatience{1'000'000'000};
  constexpr timespec kPause{0, 20'000};
  AsymmetricBarrier::heavy_now();
  const std::uint32_t lease = inbox_.producer().lease.load(std::memory_order_acquire);
  if ((lease & 1) == 0) return;
  const Nanos deadline = monotonic_now() + kPatience;
  while (inbox_.producer().lease.load(std::memory_order_acquire) == lease) {
    const std::shared_ptr<Link> plugged = owner_.link();
    if (!plugged || plugged->peer_gone()) return;
    if (monotonic_now() >= deadline) {
      plugged->hang_up();
      return owner_.fail(IBV_WC_RETRY_EXC_ERR);
    }
    ::nanosleep(&kPause, nullptr);
  }
}

}  // namespace ringsock::soft
