// Asynchronous events of a device: ibv_get_async_event(3).
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "core/device/rdma/calls.h"

namespace ringsock::rdma {

/// Receives the events of a queue pair. Called on the thread that takes the events, one call at a time. The queue pair
/// and the owner stay entered meanwhile, so a call must not enter, leave or destroy any.
class QueuePairOwner {
 public:
  /// The queue pair carries no more data. @param error errno value for its users
  virtual void queue_pair_failed(ibv_qp& qp, int error) = 0;
  /// The peer has sent something before the connection manager called the connection established.
  virtual void peer_has_sent() = 0;

 protected:
  ~QueuePairOwner() = default;
};

/// The events of one open device. All of them are acknowledged: destroying a queue pair waits for that.
/// Threads: take_all() by one; the others from any thread.
class AsyncEvents {
 public:
  AsyncEvents(const Calls& calls, ibv_context& context) : calls_(calls), context_(context) {}
  AsyncEvents(const AsyncEvents&) = delete;
  AsyncEvents& operator=(const AsyncEvents&) = delete;

  void enter(ibv_qp& qp, QueuePairOwner& owner);
  /// Removes the owner of a queue pair, or only if it is `owner`. The owner is not called after return. Call it before
  /// the queue pair and before its owner is destroyed. Harmless when none is entered.
  void leave(ibv_qp* qp, const QueuePairOwner* owner = nullptr);

  /// Handles all pending events. Returns false when the device is gone and no more will come.
  bool take_all();
  /// Returns whether the device has reported its failure or has gone. Its objects no longer work.
  [[nodiscard]] bool device_has_failed() const { return device_failed_.load(std::memory_order_acquire); }

 private:
  void handle(const ibv_async_event& event);
  void fail_device();
  /// Reports a failure to the owners of all queue pairs for which `concerns` is true.
  template <class Predicate>
  void fail_all(int error, Predicate concerns);

  const Calls& calls_;
  ibv_context& context_;
  std::mutex lock_;
  std::unordered_map<ibv_qp*, QueuePairOwner*> owners_;
  std::atomic<bool> device_failed_{false};
};

}  // namespace ringsock::rdma
