#include "core/device/shm/queue/arming.h"

#include <mutex>
#include <utility>

#include "core/device/shm/memory/ready_maps.h"

namespace ringsock::soft {

namespace {

/// How often a connection gives its map away: once is the rule.
constexpr unsigned kMostMaps = 4;

}  // namespace

bool Arming::arm(ArmKind kind) {
  const std::lock_guard guard(lock_);
  // A full fence; the peer's state is loaded behind it (Fences).
  const std::uint32_t before = doorbell_.armed.exchange(static_cast<std::uint32_t>(kind));
  const bool needs_barrier = producer_.fences.load() == 0;
  if (armed_here_ && before == 0 && queue_.take_arming()) owed_ = true;
  armed_here_ = true;
  return needs_barrier;
}

void Arming::arm_for_good() {
  const std::lock_guard guard(lock_);
  if (doorbell_.armed.exchange(kArmedForGood) == 0 && armed_here_ && queue_.take_arming()) owed_ = true;
}

void Arming::rung() {
  const std::lock_guard guard(lock_);
  if (std::exchange(owed_, false)) queue_.raise_owed();
  // If it is still set, the packet was for an earlier arming or for the connection manager.
  const std::uint32_t armed = doorbell_.armed.load(std::memory_order_relaxed);
  if (armed_here_ && (armed == 0 || armed == kArmedForGood)) {
    armed_here_ = false;
    queue_.fire();
  }
}

Listing Arming::list_at(const std::shared_ptr<ReadyMap>& map, std::uint32_t place) {
  const std::lock_guard guard(lock_);
  const auto& own = static_cast<const OwnReadyMap&>(*map);
  doorbell_.map_descriptor.store(own.name().descriptor, std::memory_order_relaxed);
  doorbell_.map_device.store(own.name().device, std::memory_order_relaxed);
  doorbell_.map_inode.store(own.name().inode, std::memory_order_relaxed);
  listed_in_ = map;
  // A peer that has taken the arming meanwhile rings, and the caller arms and lists again.
  std::uint32_t armed = kArmedForAny;
  const std::uint32_t listed = kListed | place;
  if (!doorbell_.armed.compare_exchange_strong(armed, listed)) return {};
  return {doorbell_.armed, listed};
}

void Arming::unlist() {
  const std::lock_guard guard(lock_);
  std::uint32_t armed = doorbell_.armed.load(std::memory_order_relaxed);
  if ((armed & kListed) != 0 && doorbell_.armed.compare_exchange_strong(armed, 0)) armed_here_ = false;
}

void Arming::pass_map(Link* link) {
  const std::lock_guard guard(lock_);
  if (!listed_in_ || maps_passed_ == kMostMaps) return;
  ++maps_passed_;
  const int memfd = static_cast<const OwnReadyMap&>(*listed_in_).memfd();
  // A peer that does not get it goes on ringing.
  if (memfd >= 0 && link != nullptr) static_cast<void>(link->send(LinkPacket::ready_map, {}, memfd));
}

}  // namespace ringsock::soft
