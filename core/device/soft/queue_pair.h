// What all kinds of queue pairs of the embedded device have in common.
#pragma once

#include <infiniband/verbs.h>

#include <memory>

#include "core/base/result.h"
#include "core/device/soft/completion_queue.h"
#include "core/device/soft/protection_domain.h"

namespace ringsock::soft {

class Link;
class SharedReceiveQueue;
class SoftDevice;

/// Base of the queue pairs. The ibv_qp is the base subobject, so the verbs' pointer is ours after a static_cast.
/// A constructor of a derived class ends with attach_to_queues(), a destructor starts with detach_from_queues().
class QueuePair : public ibv_qp {
 public:
  QueuePair(SoftDevice& device, ibv_pd& pd, const ibv_qp_init_attr& attr);
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;
  virtual ~QueuePair();

  // The verbs of the same names; errors are errno values.
  virtual int post_send(ibv_send_wr* wr, ibv_send_wr** bad) = 0;
  virtual int post_receive(ibv_recv_wr* wr, ibv_recv_wr** bad) = 0;
  virtual Status modify(ibv_qp_attr& attr, int mask) = 0;
  virtual void query(ibv_qp_attr& attr) = 0;

  // For the completion queues, with the poll lock of the calling queue held.
  /// Completes up to `count` receives into `wc`; how many.
  virtual int poll_receives(int count, ibv_wc* wc) = 0;
  /// Goes on with queued sends; their completions go to send_queue().push().
  virtual void push_sends() = 0;
  /// poll() found nothing: publish what is worth it.
  virtual void publish() = 0;
  /// Makes the peer ring when something comes (receive side), or when a stalled send can go on (send side).
  /// @return whether that takes AsymmetricBarrier::heavy().
  virtual bool arm(CompletionQueue& queue, ArmKind kind) = 0;
  /// The last poll_receives() stopped before the end: nobody rings for what is left. Under the receive queue's poll
  /// lock.
  [[nodiscard]] virtual bool has_left_over() const { return false; }
  /// The link to look at when polling finds nothing for long; may be null.
  virtual std::shared_ptr<Link> link() = 0;
  /// Whether memory that lives in the queue pair is still registered; it cannot be destroyed then.
  [[nodiscard]] virtual bool has_memory_in_use() const { return false; }

  [[nodiscard]] CompletionQueue& send_queue() const { return static_cast<CompletionQueue&>(*send_cq); }
  [[nodiscard]] CompletionQueue& receive_queue() const { return static_cast<CompletionQueue&>(*recv_cq); }
  [[nodiscard]] ProtectionDomain& domain() const { return static_cast<ProtectionDomain&>(*pd); }
  [[nodiscard]] const ibv_qp_init_attr& init_attr() const { return init_attr_; }
  [[nodiscard]] SoftDevice& device() const { return device_; }

 protected:
  void attach_to_queues();
  void detach_from_queues();

  SoftDevice& device_;
  ibv_qp_init_attr init_attr_;
};

/// Where a UD message goes: the attributes as they were given.
class AddressHandle final : public ibv_ah {
 public:
  explicit AddressHandle(const ibv_ah_attr& attr) : ibv_ah{}, attributes(attr) {}
  const ibv_ah_attr attributes;
};

/// Checks and grants the capacities of a create call: attr.cap is updated. Errors: EINVAL beyond the device's limits or
/// without completion queues.
Status grant_capacities(ibv_qp_init_attr& attr);

}  // namespace ringsock::soft
