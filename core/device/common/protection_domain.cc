#include "core/device/common/protection_domain.h"

#include <memory>
#include <new>

#include "core/device/common/key_table.h"

namespace ringsock::soft {

namespace {
constexpr int kRemoteAccess = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
}

Result<MemoryRegion*> ProtectionDomain::add_region(KeyTable& keys, void* address, std::size_t length, int access,
                                                   RemoteAccess* only_for) {
  auto region = std::make_unique<MemoryRegion>();
  const auto start = reinterpret_cast<std::uint64_t>(address);
  auto key = keys.insert({this, start, length, static_cast<unsigned>(access)});
  if (!key) return key.error();
  region->context = ibv_pd::context;
  region->pd = this;
  region->addr = address;
  region->length = length;
  region->lkey = region->rkey = region->handle = *key;
  region->access = access;
  region->only_for = only_for;
  add_child();
  if ((access & kRemoteAccess) != 0) {
    if (only_for != nullptr) {
      only_for->publish(*region);
    } else {
      std::lock_guard guard(lock_);
      bool share = false;
      peers_.for_each([&](RemoteAccess& peer) { share = share || peer.may_share(); });
      if (make_memory_ != nullptr) region->memory = make_memory_(address, length, share);
      shared_regions_.push_back(region.get());
      peers_.for_each([&](RemoteAccess& peer) { peer.publish(*region); });
    }
  }
  return region.release();
}

void ProtectionDomain::remove_region(KeyTable& keys, MemoryRegion* region) {
  keys.remove(region->lkey);
  // A thread that found the key before has finished once this lock was taken.
  access_lock_.lock();
  access_lock_.unlock();
  if ((region->access & kRemoteAccess) != 0) {
    if (region->only_for != nullptr) {
      region->only_for->retract(*region);
    } else {
      std::lock_guard guard(lock_);
      std::erase(shared_regions_, region);
      peers_.for_each([&](RemoteAccess& peer) { peer.retract(*region); });
    }
  }
  drop_child();
  delete region;
}

void ProtectionDomain::add_peer(RemoteAccess& peer) {
  std::lock_guard guard(lock_);
  peers_.push_back(peer);
  for (const MemoryRegion* region : shared_regions_) peer.publish(*region);
}

void ProtectionDomain::remove_peer(RemoteAccess& peer) {
  std::lock_guard guard(lock_);
  peer.unlink();
}

void ProtectionDomain::renew(RemoteAccess& peer) {
  std::lock_guard guard(lock_);
  if (!peer.retract_all()) return;
  for (const MemoryRegion* region : shared_regions_) peer.publish(*region);
}

}  // namespace ringsock::soft
