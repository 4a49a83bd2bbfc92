// The send queue of an RC queue pair: queued sends, their order, and their completion.
#include "core/device/common/device_context.h"
#include "core/device/shm/queue/reliable_queue_pair.h"

namespace ringsock::soft {

void ReliableQueuePair::enqueue(QueuedSend&& send) {
  direct_ = false;
  if (queued_.empty()) {
    has_queued_.store(true, std::memory_order_relaxed);
    send_queue().add_stalled(1);
    // A program that only polls for receives would otherwise starve its own sends.
    if (send_cq != recv_cq) receive_queue().add_stalled(1);
  }
  queued_.push_back(std::move(send));
}

void ReliableQueuePair::pop_queued() {
  queued_.pop_front();
  if (!queued_.empty()) return;
  has_queued_.store(false, std::memory_order_relaxed);
  send_queue().add_stalled(-1);
  if (send_cq != recv_cq) receive_queue().add_stalled(-1);
  direct_ = state == IBV_QPS_RTS && wired_;
}

void ReliableQueuePair::push_sends() {
  if (!has_queued_.load(std::memory_order_relaxed)) return;
  std::lock_guard guard(send_lock_);
  if (state == IBV_QPS_RTS || state == IBV_QPS_SQD) progress_sends();
}

void ReliableQueuePair::progress_sends() {
  if (!wired_) {
    enter_error(IBV_WC_RETRY_EXC_ERR);
    return;
  }
  retire_acked();
  // A drained send queue finishes sends that have begun and starts none.
  while (state == IBV_QPS_RTS && started_ < queued_.size()) {
    QueuedSend& send = queued_[started_];
    switch (carry_on(send)) {
      case Step::done:
        if (started_ == 0) {
          complete(send.wr, IBV_WC_SUCCESS);
          pop_queued();
        } else {
          // Completions keep the order of the sends, so this one waits for those before it.
          send.progress.ack = queued_[started_ - 1].progress.ack;
          ++started_;
        }
        break;
      case Step::unacked: ++started_; break;
      case Step::stalled: return;
      case Step::failed:
        if (started_ == 0) enter_error(send.progress.status);
        return;
    }
  }
}

void ReliableQueuePair::retire_acked() {
  if (acks_seen_ == acks_wanted_) return;
  const std::uint32_t acked = peer_.consumer->acked.load(std::memory_order_acquire);
  if (acks_wanted_ - acked <= acks_wanted_ - acks_seen_) acks_seen_ = acked;
  while (started_ != 0 && has_reached(acks_seen_, queued_.front().progress.ack)) {
    complete(queued_.front().wr, IBV_WC_SUCCESS);
    --started_;
    pop_queued();
  }
  if (queued_.empty() || acks_seen_ == acks_wanted_) return;
  const std::uint32_t fault = peer_.consumer->fault.load(std::memory_order_acquire);
  if (fault != 0) {
    const bool known = fault == IBV_WC_REM_INV_REQ_ERR || fault == IBV_WC_REM_ACCESS_ERR;
    enter_error(known ? static_cast<ibv_wc_status>(fault) : IBV_WC_REM_OP_ERR);
  } else if (peer_closed()) {
    enter_error(IBV_WC_RETRY_EXC_ERR);
  }
}

void ReliableQueuePair::fail_queued(ibv_wc_status first) {
  started_ = 0;
  for (ibv_wc_status status = first; !queued_.empty(); status = IBV_WC_WR_FLUSH_ERR) {
    complete(queued_.front().wr, status);
    pop_queued();
  }
}

void ReliableQueuePair::enter_error(ibv_wc_status first) {
  direct_ = false;
  if (state == IBV_QPS_RESET) return;
  set_state(IBV_QPS_ERR);
  fail_queued(first);
  inbox_.consumer->closed.store(1, std::memory_order_release);
  flushing_.store(true, std::memory_order_release);
  // Wakes the peer, whose stalled sends will now never complete, and our own sleepers, whose receives now complete.
  ring_if_waiting();
  AsymmetricBarrier::full();
  receive_queue().fire();
}

}  // namespace ringsock::soft
