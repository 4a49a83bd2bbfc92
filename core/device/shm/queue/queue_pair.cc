#include "core/device/shm/queue/queue_pair.h"

#include <algorithm>

#include "core/device/common/device_context.h"
#include "core/device/common/receive_queue.h"
#include "core/device/shm/queue/queue_limits.h"

namespace ringsock::soft {

QueuePair::QueuePair(DeviceContext& device, ibv_pd& domain, const ibv_qp_init_attr& attr)
    : ibv_qp{}, device_(device), init_attr_(attr) {
  ibv_qp::context = &device.context();
  ibv_qp::pd = &domain;
  ibv_qp::qp_context = attr.qp_context;
  ibv_qp::send_cq = attr.send_cq;
  ibv_qp::recv_cq = attr.recv_cq;
  ibv_qp::srq = attr.srq;
  ibv_qp::qp_type = attr.qp_type;
  ibv_qp::state = IBV_QPS_RESET;
  ibv_qp::qp_num = ibv_qp::handle = next_qp_num();
  this->domain().add_child();
  if (attr.srq != nullptr) static_cast<SharedReceiveQueue*>(attr.srq)->add_user();
}

QueuePair::~QueuePair() {
  device_.async_events().forget(static_cast<ibv_qp*>(this));
  if (ibv_qp::srq != nullptr) static_cast<SharedReceiveQueue*>(ibv_qp::srq)->drop_user();
  domain().drop_child();
}

void QueuePair::attach_to_queues() {
  receive_queue().attach(*this, true);
  if (send_cq != recv_cq) send_queue().attach(*this, false);
}

void QueuePair::detach_from_queues() {
  receive_queue().detach(*this);
  if (send_cq != recv_cq) send_queue().detach(*this);
}

Status grant_capacities(ibv_qp_init_attr& attr) {
  ibv_qp_cap& cap = attr.cap;
  if (attr.send_cq == nullptr || attr.recv_cq == nullptr) return Error{EINVAL, "create_qp: completion queues"};
  if (cap.max_send_wr > kMaxQueueEntries || cap.max_recv_wr > kMaxQueueEntries || cap.max_send_sge > kMaxSendSge ||
      cap.max_recv_sge > kMaxReceiveSge || cap.max_inline_data > kMaxInlineBytes) {
    return Error{EINVAL, "create_qp: capacities"};
  }
  if (attr.srq != nullptr) cap.max_recv_wr = cap.max_recv_sge = 0;
  cap.max_send_sge = std::max(cap.max_send_sge, 1U);
  cap.max_inline_data = kMaxInlineBytes;
  return ok();
}

}  // namespace ringsock::soft
