// A protection domain and its memory regions.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/intrusive_list.h"
#include "core/base/mutex.h"
#include "core/base/result.h"

namespace ringsock::soft {

class KeyTable;
class RemoteAccess;

/// The state of a device for application memory that peers may access.
class RegionMemory {
 public:
  RegionMemory() = default;
  RegionMemory(const RegionMemory&) = delete;
  RegionMemory& operator=(const RegionMemory&) = delete;
  virtual ~RegionMemory() = default;
};
/// @param share whether a peer may map memory of this process
using RegionMemoryMaker = std::unique_ptr<RegionMemory> (*)(void* address, std::size_t length, bool share);

class MemoryRegion final : public ibv_mr {
 public:
  MemoryRegion() : ibv_mr{} {}
  int access = 0;
  RemoteAccess* only_for = nullptr;  ///< the queue pair whose arena this is; nullptr: every queue pair of the domain
  std::unique_ptr<RegionMemory> memory;  ///< of the application, and a peer may access it
};

/// A queue pair whose peer accesses registered memory by a table in shared memory.
class RemoteAccess : public ListNode<> {
 public:
  virtual ~RemoteAccess() = default;
  /// Returns whether the peer may map memory of this process.
  [[nodiscard]] virtual bool may_share() = 0;
  /// Makes the region known to the peer, if there is room for it.
  virtual void publish(const MemoryRegion& region) = 0;
  /// Withdraws the region. On return no peer accesses it or can start to.
  virtual void retract(const MemoryRegion& region) = 0;
  /// Withdraws all regions that are for every queue pair. @return whether there were any.
  virtual bool retract_all() = 0;
};

/// Counts its children, and publishes its remotely accessible regions to its connected queue pairs.
class ProtectionDomain final : public ibv_pd {
 public:
  explicit ProtectionDomain(RegionMemoryMaker make_memory) : ibv_pd{}, make_memory_(make_memory) {}

  Result<MemoryRegion*> add_region(KeyTable& keys, void* address, std::size_t length, int access,
                                   RemoteAccess* only_for);
  void remove_region(KeyTable& keys, MemoryRegion* region);
  /// Adds a queue pair that connects. All regions for it are published to it, and later ones until remove_peer().
  void add_peer(RemoteAccess& peer);
  void remove_peer(RemoteAccess& peer);
  /// Publishes the regions anew: the peer knows those of another process, which published them before a fork(2).
  void renew(RemoteAccess& peer);

  /// Held while a peer's request is carried out on registered memory, so that remove_region() cannot return meanwhile.
  [[nodiscard]] Mutex& access_lock() { return access_lock_; }

  void add_child() { children_.fetch_add(1, std::memory_order_relaxed); }
  void drop_child() { children_.fetch_sub(1, std::memory_order_relaxed); }
  [[nodiscard]] bool in_use() const { return children_.load(std::memory_order_relaxed) != 0; }

 private:
  const RegionMemoryMaker make_memory_;  ///< null: no peer accesses memory of the application
  std::atomic<int> children_{0};
  Mutex access_lock_;
  std::mutex lock_;
  std::vector<MemoryRegion*> shared_regions_;  ///< remotely accessible, for every queue pair
  IntrusiveList<RemoteAccess> peers_;
};

}  // namespace ringsock::soft
