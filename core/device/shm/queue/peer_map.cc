#include "core/device/shm/queue/peer_map.h"

#include <new>
#include <utility>

#include "core/base/refusals.h"
#include "core/device/shm/memory/ready_maps.h"

namespace ringsock::soft {

namespace {

/// How often a connection tries to get maps of its peer: once is the rule.
constexpr unsigned kMostMaps = 4;

}  // namespace

void PeerMap::attach(const DoorbellLine& doorbell, PeerProcess process, Link& link) {
  doorbell_ = &doorbell;
  process_ = process;
  link_ = &link;
}

bool PeerMap::note(std::uint32_t armed) {
  if (!map_ || doorbell_->map_inode.load(std::memory_order_relaxed) != inode_) [[unlikely]] {
    if (!find()) return false;
  }
  if (map_->set(armed & ~kListed, rung_for_) && !link_->ring()) has_rung_in_vain_ = true;
  return true;
}

MemoryName PeerMap::name() const {
  MemoryName name{};
  name.device = doorbell_->map_device.load(std::memory_order_acquire);
  name.inode = doorbell_->map_inode.load(std::memory_order_relaxed);
  name.descriptor = doorbell_->map_descriptor.load(std::memory_order_relaxed);
  return name;
}

/// Returns false when there is none, or no memory for it.
bool PeerMap::find() try {
  const MemoryName wanted = name();
  PeerReadyMaps& maps = peer_ready_maps();
  map_ = maps.find(wanted, process_.uid);
  if (!map_ && tried_ < kMostMaps && maps.may_try(wanted, monotonic_now())) {
    ++tried_;
    if (auto opened = maps.open(wanted, process_)) {
      map_ = *std::move(opened);
    } else {
      link_->ask_for_map();
    }
  }
  inode_ = wanted.inode;
  rung_for_ = 0;
  return map_ != nullptr;
} catch (const std::bad_alloc&) {
  return false;
}

void PeerMap::enter(PassedFd memory) const {
  const MemoryName passed = name();
  if (!check_peer_memfd(memory.get(), passed)) return count_refusal(Refusal::descriptor);
  // Without it the peer is rung for.
  static_cast<void>(peer_ready_maps().add(memory.take(), passed, process_.uid));
}

}  // namespace ringsock::soft
