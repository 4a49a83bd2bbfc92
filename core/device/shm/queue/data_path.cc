#include "core/device/shm/queue/data_path.h"

#include <cerrno>

#include "core/base/barrier.h"
#include "core/device/common/receive_queue.h"
#include "core/device/shm/queue/completion_queue.h"
#include "core/device/shm/queue/queue_pair.h"

namespace ringsock::soft {

namespace {

int poll_cq(ibv_cq* cq, int count, ibv_wc* wc) { return static_cast<CompletionQueue*>(cq)->poll(count, wc); }

int req_notify_cq(ibv_cq* cq, int solicited_only) {
  auto* queue = static_cast<CompletionQueue*>(cq);
  if (queue->arm(solicited_only != 0 ? ArmKind::solicited : ArmKind::any)) AsymmetricBarrier::heavy();
  queue->after_barrier();
  return queue->must_be_polled_again() ? EAGAIN : 0;
}

// ibv_qp::qp_type would tell without a virtual call, but it lies in a cache line that nothing else uses.
int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  return static_cast<QueuePair*>(qp)->post_send(wr, bad);
}

int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  return static_cast<QueuePair*>(qp)->post_receive(wr, bad);
}

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  return static_cast<SharedReceiveQueue*>(srq)->post(wr, bad);
}

}  // namespace

void enter_data_path(ibv_context& context) {
  context.ops.poll_cq = poll_cq;
  context.ops.req_notify_cq = req_notify_cq;
  context.ops.post_send = post_send;
  context.ops.post_recv = post_recv;
  context.ops.post_srq_recv = post_srq_recv;
}

}  // namespace ringsock::soft
