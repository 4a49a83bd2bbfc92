// The common base of all kinds of queue pairs of the embedded device.
#pragma once

#include <infiniband/verbs.h>

#include <memory>

#include "core/base/result.h"
#include "core/device/common/protection_domain.h"
#include "core/device/shm/queue/completion_queue.h"

namespace ringsock::soft {

class Link;
class SharedReceiveQueue;
class DeviceContext;

/// Base of the queue pairs. The ibv_qp is the base subobject, so the verbs' pointer is ours after a static_cast.
/// A constructor of a derived class ends with attach_to_queues(), a destructor starts with detach_from_queues().
class QueuePair : public ibv_qp {
 public:
  QueuePair(DeviceContext& device, ibv_pd& pd, const ibv_qp_init_attr& attr);
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;
  virtual ~QueuePair();

  // The verbs of the same names; errors are errno values.
  virtual int post_send(ibv_send_wr* wr, ibv_send_wr** bad) = 0;
  virtual int post_receive(ibv_recv_wr* wr, ibv_recv_wr** bad) = 0;
  virtual Status modify(ibv_qp_attr& attr, int mask) = 0;
  virtual void query(ibv_qp_attr& attr) = 0;

  // For the completion queues, with the poll lock of the calling queue held.
  /// Completes up to `count` receives into `wc`. Returns the number.
  virtual int poll_receives(int count, ibv_wc* wc) = 0;
  /// Continues queued sends; their completions go to send_queue().push().
  virtual void push_sends() = 0;
  /// Makes the peer ring when a message comes (receive side), or when a stalled send can continue (send side).
  /// @return whether that takes AsymmetricBarrier::heavy().
  virtual bool arm(CompletionQueue& queue, ArmKind kind) = 0;
  /// Returns whether the last poll_receives() stopped before the end: the peer does not ring for the rest. The receive
  /// queue's poll lock must be held.
  [[nodiscard]] virtual bool has_left_over() const { return false; }
  /// Returns the link to look at when polling finds nothing for long, or null.
  virtual std::shared_ptr<Link> link() = 0;
  /// Returns whether memory in the queue pair is still registered; it cannot be destroyed then.
  [[nodiscard]] virtual bool has_memory_in_use() const { return false; }

  [[nodiscard]] CompletionQueue& send_queue() const { return static_cast<CompletionQueue&>(*send_cq); }
  [[nodiscard]] CompletionQueue& receive_queue() const { return static_cast<CompletionQueue&>(*recv_cq); }
  [[nodiscard]] ProtectionDomain& domain() const { return static_cast<ProtectionDomain&>(*pd); }
  [[nodiscard]] const ibv_qp_init_attr& init_attr() const { return init_attr_; }
  [[nodiscard]] DeviceContext& device() const { return device_; }

 protected:
  void attach_to_queues();
  void detach_from_queues();

  DeviceContext& device_;
  ibv_qp_init_attr init_attr_;
};

/// The destination of a UD message: the attributes as they were given.
class AddressHandle final : public ibv_ah {
 public:
  explicit AddressHandle(const ibv_ah_attr& attr) : ibv_ah{}, attributes(attr) {}
  const ibv_ah_attr attributes;
};

/// Checks the capacities of a create call and stores the granted ones in attr.cap. Errors: EINVAL beyond the device's
/// limits or without completion queues.
Status grant_capacities(ibv_qp_init_attr& attr);

}  // namespace ringsock::soft
