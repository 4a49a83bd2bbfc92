#include "core/device/soft/verbs_frame.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "core/device/soft/completion_queue.h"
#include "core/device/soft/queue_pair.h"
#include "core/device/soft/receive_queue.h"
#include "core/device/soft/reliable_queue_pair.h"
#include "core/device/soft/soft_device.h"

namespace ringsock::soft {

namespace {

int poll_cq(ibv_cq* cq, int count, ibv_wc* wc) { return static_cast<CompletionQueue*>(cq)->poll(count, wc); }

int req_notify_cq(ibv_cq* cq, int solicited_only) {
  auto* queue = static_cast<CompletionQueue*>(cq);
  if (queue->arm(solicited_only != 0 ? ArmKind::solicited : ArmKind::any)) AsymmetricBarrier::heavy();
  queue->after_barrier();
  return queue->must_be_polled_again() ? EAGAIN : 0;
}

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  // The usual kind without the virtual call.
  if (qp->qp_type == IBV_QPT_RC) [[likely]]
    return static_cast<ReliableQueuePair*>(qp)->post_send(wr, bad);
  return static_cast<QueuePair*>(qp)->post_send(wr, bad);
}

int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  if (qp->qp_type == IBV_QPT_RC) [[likely]]
    return static_cast<ReliableQueuePair*>(qp)->post_receive(wr, bad);
  return static_cast<QueuePair*>(qp)->post_receive(wr, bad);
}

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  return static_cast<SharedReceiveQueue*>(srq)->post(wr, bad);
}

// The operations that the inline verbs call without a look whether they are there.
ibv_mw* alloc_mw(ibv_pd*, ibv_mw_type) {
  errno = EOPNOTSUPP;
  return nullptr;
}
int bind_mw(ibv_qp*, ibv_mw*, ibv_mw_bind*) { return EOPNOTSUPP; }
int dealloc_mw(ibv_mw*) { return EOPNOTSUPP; }
int close_xrcd(ibv_xrcd*) { return EOPNOTSUPP; }

/// An errno value in `errno` and null, or the object, out of its handle: the C caller owns it now.
template <class T>
T* to_c(Result<verbs::Handle<T>> result) {
  if (result) return result->release();
  errno = result.error().code;
  return nullptr;
}

int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* out, std::size_t out_bytes) {
  auto attributes = VerbsFrame::device_of(*context).query_port(port);
  if (!attributes) return attributes.error().code;
  std::memset(out, 0, out_bytes);
  std::memcpy(out, &*attributes, std::min(out_bytes, sizeof *attributes));
  return 0;
}

int query_device_ex(ibv_context* context, const ibv_query_device_ex_input*, ibv_device_attr_ex* out,
                    std::size_t out_bytes) {
  auto attributes = VerbsFrame::device_of(*context).query_device();
  if (!attributes) return attributes.error().code;
  if (out_bytes < sizeof *attributes) return EINVAL;
  std::memset(out, 0, out_bytes);
  out->orig_attr = *attributes;
  return 0;
}

ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr) {
  if ((attr->comp_mask & IBV_QP_INIT_ATTR_PD) == 0 || attr->pd == nullptr) {
    errno = EINVAL;
    return nullptr;
  }
  if ((attr->comp_mask & ~static_cast<std::uint32_t>(IBV_QP_INIT_ATTR_PD)) != 0) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  // The extended attributes begin with the plain ones.
  static_assert(offsetof(ibv_qp_init_attr_ex, sq_sig_all) == offsetof(ibv_qp_init_attr, sq_sig_all));
  ibv_qp_init_attr plain{};
  std::memcpy(&plain, attr, sizeof plain);
  ibv_qp* qp = to_c(VerbsFrame::device_of(*context).create_qp(*attr->pd, plain));
  if (qp != nullptr) attr->cap = plain.cap;
  return qp;
}

}  // namespace

VerbsFrame::VerbsFrame(SoftDevice& device, int async_fd) {
  frame_.owner = &device;
  ibv_device& device_info = frame_.device;
  verbs_context& verbs = frame_.verbs;
  device_info.node_type = IBV_NODE_CA;
  device_info.transport_type = IBV_TRANSPORT_IB;
  std::strncpy(device_info.name, kSoftDeviceName, sizeof device_info.name - 1);
  verbs.sz = sizeof verbs;
  verbs.query_port = query_port;
  verbs.query_device_ex = query_device_ex;
  verbs.create_qp_ex = create_qp_ex;
  verbs.close_xrcd = close_xrcd;
  ibv_context& context = verbs.context;
  context.device = &device_info;
  context.cmd_fd = -1;
  context.async_fd = async_fd;
  context.num_comp_vectors = 1;
  context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  pthread_mutex_init(&context.mutex, nullptr);
  context.ops.poll_cq = poll_cq;
  context.ops.req_notify_cq = req_notify_cq;
  context.ops.post_send = post_send;
  context.ops.post_recv = post_recv;
  context.ops.post_srq_recv = post_srq_recv;
  context.ops.alloc_mw = alloc_mw;
  context.ops.bind_mw = bind_mw;
  context.ops.dealloc_mw = dealloc_mw;
}

VerbsFrame::~VerbsFrame() { pthread_mutex_destroy(&frame_.verbs.context.mutex); }

SoftDevice& VerbsFrame::device_of(ibv_context& context) {
  static_assert(offsetof(Frame, verbs) == 0);
  std::byte* frame = reinterpret_cast<std::byte*>(&context) - offsetof(verbs_context, context);
  return *reinterpret_cast<Frame*>(frame)->owner;
}

}  // namespace ringsock::soft
