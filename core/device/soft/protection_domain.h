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
#include "core/device/soft/app_memory.h"

namespace ringsock::soft {

class KeyTable;
class RemoteAccess;

class MemoryRegion final : public ibv_mr {
 public:
  MemoryRegion() : ibv_mr{} {}
  int access = 0;
  RemoteAccess* only_for = nullptr;   ///< the queue pair whose arena this is; nullptr: every queue pair of the domain
  std::unique_ptr<AppMemory> memory;  ///< of the application, and a peer may access it
};

/// A queue pair whose peer accesses registered memory by a table in shared memory.
class RemoteAccess : public ListNode<> {
 public:
  virtual ~RemoteAccess() = default;
  /// Whether the peer may map memory of this process.
  [[nodiscard]] virtual bool may_share() = 0;
  /// Makes the region known to the peer, if there is room for it.
  virtual void publish(const MemoryRegion& region) = 0;
  /// On return no peer is accessing the region or can start to.
  virtual void retract(const MemoryRegion& region) = 0;
  /// The same for all regions that are for every queue pair. @return whether there were any.
  virtual bool retract_all() = 0;
};

/// Counts its children, and tells its connected queue pairs of its remotely accessible regions.
class ProtectionDomain final : public ibv_pd {
 public:
  ProtectionDomain() : ibv_pd{} {}

  Result<MemoryRegion*> add_region(KeyTable& keys, void* address, std::size_t length, int access,
                                   RemoteAccess* only_for);
  void remove_region(KeyTable& keys, MemoryRegion* region);
  /// A queue pair connects: it hears of all regions that are for it, and of later ones until remove_peer().
  void add_peer(RemoteAccess& peer);
  void remove_peer(RemoteAccess& peer);
  /// What the peer knows was the memory of another process, which published it before a fork(2).
  void renew(RemoteAccess& peer);

  /// Held while a peer's request is carried out on registered memory, so that remove_region() cannot return meanwhile.
  [[nodiscard]] Mutex& access_lock() { return access_lock_; }

  void add_child() { children_.fetch_add(1, std::memory_order_relaxed); }
  void drop_child() { children_.fetch_sub(1, std::memory_order_relaxed); }
  [[nodiscard]] bool in_use() const { return children_.load(std::memory_order_relaxed) != 0; }

 private:
  std::atomic<int> children_{0};
  Mutex access_lock_;
  std::mutex lock_;
  std::vector<MemoryRegion*> shared_regions_;  ///< remotely accessible, for every queue pair
  IntrusiveList<RemoteAccess> peers_;
};

}  // namespace ringsock::soft
