// The send queue of an RC queue pair: queued sends, their order, and their completion.
#include <utility>

#include "core/device/common/device_context.h"
#include "core/device/shm/queue/send_queue.h"

namespace ringsock::soft {

SendQueue::SendQueue(const QueuePair& queue_pair, RcAttributes& attributes, ReceiveEnd& receive_end)
    : signal_all_(queue_pair.init_attr().sq_sig_all != 0),
      max_sge_(queue_pair.init_attr().cap.max_send_sge),
      queue_pair_(queue_pair),
      attributes_(attributes),
      receive_end_(receive_end),
      steps_(attributes, queue_pair.device().keys(), *queue_pair.pd) {}

void SendQueue::note_wired() {
  wired_ = true;
  direct_ = may_be_direct();
}

void SendQueue::follow_state() {
  direct_ = may_be_direct();
  if (attributes_.state() == IBV_QPS_RTS && !is_empty()) progress();
}

void SendQueue::clear() {
  while (!is_empty()) pop();
}

void SendQueue::reset() {
  started_ = 0;
  clear();
  attributes_.set_state(IBV_QPS_RESET);
  direct_ = wired_ = false;
}

void SendQueue::enqueue(QueuedSend&& send) {
  if (!queued_) queued_ = std::make_unique<std::deque<QueuedSend>>();
  direct_ = false;
  if (is_empty()) {
    has_queued_.store(true, std::memory_order_relaxed);
    queue_pair_.send_queue().add_stalled(1);
    // A program that only polls for receives would otherwise starve its own sends.
    if (queue_pair_.send_cq != queue_pair_.recv_cq) queue_pair_.receive_queue().add_stalled(1);
  }
  queued_->push_back(std::move(send));
}

void SendQueue::pop() {
  queued_->pop_front();
  if (!is_empty()) return;
  has_queued_.store(false, std::memory_order_relaxed);
  queue_pair_.send_queue().add_stalled(-1);
  if (queue_pair_.send_cq != queue_pair_.recv_cq) queue_pair_.receive_queue().add_stalled(-1);
  direct_ = may_be_direct();
}

void SendQueue::progress() {
  if (!wired_) {
    fail(IBV_WC_RETRY_EXC_ERR);
    return;
  }
  retire_acked();
  // A drained send queue finishes sends that have begun and starts none.
  while (attributes_.state() == IBV_QPS_RTS && started_ < queued()) {
    QueuedSend& send = (*queued_)[started_];
    switch (steps_.execute(send.wr, send.progress)) {
      case Step::done:
      case Step::unheard:
        if (started_ == 0) {
          complete(send.wr, IBV_WC_SUCCESS);
          pop();
        } else {
          // Completions keep the order of the sends, so this one waits for those before it.
          send.progress.ack = (*queued_)[started_ - 1].progress.ack;
          ++started_;
        }
        break;
      case Step::unacked: ++started_; break;
      case Step::stalled: return;
      case Step::failed:
        if (started_ == 0) fail(send.progress.status);
        return;
    }
  }
}

void SendQueue::retire_acked() {
  if (outbox().has_all_acks()) return;
  outbox().look_for_acks();
  while (started_ != 0 && outbox().has_ack(queued_->front().progress.ack)) {
    complete(queued_->front().wr, IBV_WC_SUCCESS);
    --started_;
    pop();
  }
  if (is_empty() || outbox().has_all_acks()) return;
  if (const std::uint32_t fault = outbox().fault(); fault != 0) {
    const bool known = fault == IBV_WC_REM_INV_REQ_ERR || fault == IBV_WC_REM_ACCESS_ERR;
    fail(known ? static_cast<ibv_wc_status>(fault) : IBV_WC_REM_OP_ERR);
  } else if (outbox().is_closed()) {
    fail(IBV_WC_RETRY_EXC_ERR);
  }
}

void SendQueue::fail_queued(ibv_wc_status first) {
  started_ = 0;
  for (ibv_wc_status status = first; !is_empty(); status = IBV_WC_WR_FLUSH_ERR) {
    complete(queued_->front().wr, status);
    pop();
  }
}

void SendQueue::fail(ibv_wc_status first) {
  direct_ = false;
  if (attributes_.state() == IBV_QPS_RESET) return;
  attributes_.set_state(IBV_QPS_ERR);
  fail_queued(first);
  receive_end_.come();
}

void SendQueue::fail_for_peer() {
  if (wired_) retire_acked();
  if (attributes_.state() == IBV_QPS_ERR) return;
  gone_untold_ = is_empty();
  fail(IBV_WC_RETRY_EXC_ERR);
}

}  // namespace ringsock::soft
