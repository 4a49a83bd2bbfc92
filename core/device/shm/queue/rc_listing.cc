// Maps of ready connections (core/base/ready_map.h): listing our queue pair in our map, and setting bits in the peer's.
#include <new>

#include "core/base/refusals.h"
#include "core/device/shm/memory/ready_maps.h"
#include "core/device/shm/queue/reliable_queue_pair.h"

namespace ringsock::soft {

namespace {

/// How often a connection tries to get maps of its peer, or gives its own: one is the rule.
constexpr unsigned kMostMaps = 4;

}  // namespace

// -- the consumer

Listing ReliableQueuePair::list_at(const std::shared_ptr<ReadyMap>& map, std::uint32_t place) {
  const std::lock_guard guard(arm_lock_);
  const auto& own = static_cast<const OwnReadyMap&>(*map);
  DoorbellLine& line = *inbox_.doorbell;
  line.map_descriptor.store(own.name().descriptor, std::memory_order_relaxed);
  line.map_device.store(own.name().device, std::memory_order_relaxed);
  line.map_inode.store(own.name().inode, std::memory_order_relaxed);
  listed_in_ = map;
  // A peer that has taken the arming meanwhile rings, and the caller arms and lists again.
  std::uint32_t armed = kArmedForAny;
  const std::uint32_t listed = kListed | place;
  if (!line.armed.compare_exchange_strong(armed, listed)) return {};
  return {line.armed, listed};
}

void ReliableQueuePair::unlist() {
  const std::lock_guard guard(arm_lock_);
  std::uint32_t armed = inbox_.doorbell->armed.load(std::memory_order_relaxed);
  if ((armed & kListed) != 0 && inbox_.doorbell->armed.compare_exchange_strong(armed, 0)) armed_here_ = false;
}

/// Passes the map to a peer that cannot open it by its name. Called by the thread that drains the link.
void ReliableQueuePair::pass_map() {
  const std::lock_guard guard(arm_lock_);
  if (!listed_in_ || maps_passed_ == kMostMaps) return;
  ++maps_passed_;
  const int memfd = static_cast<const OwnReadyMap&>(*listed_in_).memfd();
  Link* const link = ringing_.load(std::memory_order_acquire);
  // A peer that does not get it goes on ringing.
  if (memfd >= 0 && link != nullptr) static_cast<void>(link->send(LinkPacket::ready_map, {}, memfd));
}

// -- the producer

/// Sets our bit in the peer's map, and rings if the peer sleeps. Returns false when the map cannot be used.
bool ReliableQueuePair::note_in_map(std::uint32_t armed) {
  if (!peer_map_ || peer_.doorbell->map_inode.load(std::memory_order_relaxed) != peer_map_inode_) [[unlikely]] {
    if (!find_peer_map()) return false;
  }
  if (peer_map_->set(armed & ~kListed, rung_for_)) link_->ring();
  return true;
}

MemoryName ReliableQueuePair::peer_map_name() const {
  const DoorbellLine& line = *peer_.doorbell;
  MemoryName name{};
  name.device = line.map_device.load(std::memory_order_acquire);
  name.inode = line.map_inode.load(std::memory_order_relaxed);
  name.descriptor = line.map_descriptor.load(std::memory_order_relaxed);
  return name;
}

/// Returns false when there is none, or no memory for it: the peer is rung for then.
bool ReliableQueuePair::find_peer_map() try {
  const MemoryName name = peer_map_name();
  PeerReadyMaps& maps = peer_ready_maps();
  peer_map_ = maps.find(name, peer_process_.uid);
  if (!peer_map_ && maps_tried_ < kMostMaps && maps.may_try(name, monotonic_now())) {
    ++maps_tried_;
    if (auto opened = maps.open(name, peer_process_)) {
      peer_map_ = *std::move(opened);
    } else {
      link_->ask_for_map();
    }
  }
  peer_map_inode_ = name.inode;
  rung_for_ = 0;
  return peer_map_ != nullptr;
} catch (const std::bad_alloc&) {
  return false;
}

void ReliableQueuePair::on_packet(LinkPacket type, std::span<const std::byte>, PassedFd memory) {
  if (type == LinkPacket::want_ready_map) return pass_map();
  if (type != LinkPacket::ready_map || !memory) return;
  const MemoryName name = peer_map_name();
  if (!check_peer_memfd(memory.get(), name)) return count_refusal(Refusal::descriptor);
  // Without it the peer is rung for.
  static_cast<void>(peer_ready_maps().add(memory.take(), name, peer_process_.uid));
}

}  // namespace ringsock::soft
