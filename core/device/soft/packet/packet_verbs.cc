#include "core/device/soft/packet/packet_verbs.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "core/device/soft/packet/packet_completion_queue.h"
#include "core/device/soft/packet/packet_device.h"
#include "core/device/soft/packet/packet_queue_pair.h"

namespace ringsock::soft {

namespace {

PacketQueuePair& ours(ibv_qp* qp) { return *static_cast<PacketQueuePair*>(qp); }

/// An errno value in `errno` and null, or the object, out of its handle: the C caller owns it now.
template <class T>
T* to_c(Result<verbs::Handle<T>> result) {
  if (result) return result->release();
  errno = result.error().code;
  return nullptr;
}

template <class T>
T* unsupported() {
  errno = EOPNOTSUPP;
  return nullptr;
}

int poll_cq(ibv_cq* cq, int count, ibv_wc* wc) { return PacketCompletionQueue::of(*cq).poll(count, wc); }

int req_notify_cq(ibv_cq* cq, int solicited_only) {
  PacketCompletionQueue::of(*cq).arm(solicited_only != 0);
  return 0;
}

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) { return ours(qp).post_send(wr, bad); }
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) { return ours(qp).post_receive(wr, bad); }
int post_srq_recv(ibv_srq*, ibv_recv_wr*, ibv_recv_wr**) { return EOPNOTSUPP; }

// The operations that the inline verbs call without a look whether they are there.
ibv_mw* alloc_mw(ibv_pd*, ibv_mw_type) { return unsupported<ibv_mw>(); }
int bind_mw(ibv_qp*, ibv_mw*, ibv_mw_bind*) { return EOPNOTSUPP; }
int dealloc_mw(ibv_mw*) { return EOPNOTSUPP; }
int close_xrcd(ibv_xrcd*) { return EOPNOTSUPP; }

ibv_flow* create_flow(ibv_qp* qp, ibv_flow_attr* attr) {
  auto flow = ours(qp).create_flow(*attr);
  if (flow) return *flow;
  errno = flow.error().code;
  return nullptr;
}

int destroy_flow(ibv_flow* flow) { return PacketQueuePair::destroy_flow(flow); }

int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* out, std::size_t out_bytes) {
  auto attributes = packet_device_of(*context).query_port(port);
  if (!attributes) return attributes.error().code;
  std::memset(out, 0, out_bytes);
  std::memcpy(out, &*attributes, std::min(out_bytes, sizeof *attributes));
  return 0;
}

int query_device_ex(ibv_context* context, const ibv_query_device_ex_input*, ibv_device_attr_ex* out,
                    std::size_t out_bytes) {
  auto attributes = packet_device_of(*context).query_device();
  if (!attributes) return attributes.error().code;
  ibv_device_attr_ex all{};
  all.orig_attr = *attributes;
  all.raw_packet_caps = IBV_RAW_PACKET_CAP_IP_CSUM;
  all.tso_caps = {.max_tso = kMaxTsoBytes, .supported_qpts = 1U << IBV_QPT_RAW_PACKET};
  all.completion_timestamp_mask = UINT64_MAX;
  all.hca_core_clock = 1'000'000;  // kHz: ticks are nanoseconds
  all.phys_port_cnt_ex = 1;
  if (out_bytes < sizeof all.orig_attr) return EINVAL;
  std::memset(out, 0, out_bytes);
  std::memcpy(out, &all, std::min(out_bytes, sizeof all));
  return 0;
}

int query_rt_values(ibv_context*, ibv_values_ex* values) {
  if ((values->comp_mask & IBV_VALUES_MASK_RAW_CLOCK) == 0) return EINVAL;
  values->comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
  ::clock_gettime(CLOCK_REALTIME, &values->raw_clock);
  return 0;
}

ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr) {
  constexpr std::uint32_t kKnown = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
  if ((attr->comp_mask & IBV_QP_INIT_ATTR_PD) == 0 || attr->pd == nullptr) {
    errno = EINVAL;
    return nullptr;
  }
  if ((attr->comp_mask & ~kKnown) != 0) return unsupported<ibv_qp>();
  // The extended attributes begin with the plain ones.
  static_assert(offsetof(ibv_qp_init_attr_ex, sq_sig_all) == offsetof(ibv_qp_init_attr, sq_sig_all));
  ibv_qp_init_attr plain{};
  std::memcpy(&plain, attr, sizeof plain);
  ibv_qp* qp = to_c(packet_device_of(*context).create_qp(*attr->pd, plain));
  if (qp != nullptr) attr->cap = plain.cap;
  return qp;
}

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr) {
  constexpr std::uint64_t kKnown = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_QP_NUM |
                                   IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
  if ((attr->wc_flags & ~kKnown) != 0 || (attr->comp_mask & ~std::uint32_t{IBV_CQ_INIT_ATTR_MASK_FLAGS}) != 0)
    return unsupported<ibv_cq_ex>();
  ibv_cq* cq = to_c(packet_device_of(*context).create_cq(static_cast<int>(attr->cqe), attr->cq_context, attr->channel,
                                                         static_cast<int>(attr->comp_vector)));
  return cq != nullptr ? &PacketCompletionQueue::of(*cq) : nullptr;
}

}  // namespace

PacketVerbs::PacketVerbs(PacketDevice& device, const char* interface, int async_fd) {
  frame_.owner = &device;
  ibv_device& device_info = frame_.device;
  device_info.node_type = IBV_NODE_CA;
  device_info.transport_type = IBV_TRANSPORT_IB;
  std::strncpy(device_info.name, interface, sizeof device_info.name - 1);
  std::strncpy(device_info.dev_name, interface, sizeof device_info.dev_name - 1);
  verbs_context& verbs = frame_.verbs;
  verbs.sz = sizeof verbs;
  verbs.query_port = query_port;
  verbs.query_device_ex = query_device_ex;
  verbs.query_rt_values = query_rt_values;
  verbs.create_qp_ex = create_qp_ex;
  verbs.create_cq_ex = create_cq_ex;
  verbs.ibv_create_flow = create_flow;
  verbs.ibv_destroy_flow = destroy_flow;
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

PacketVerbs::~PacketVerbs() { pthread_mutex_destroy(&frame_.verbs.context.mutex); }

PacketDevice& packet_device_of(ibv_context& context) {
  static_assert(offsetof(PacketVerbs::Frame, verbs) == 0);
  std::byte* frame = reinterpret_cast<std::byte*>(&context) - offsetof(verbs_context, context);
  return *reinterpret_cast<PacketVerbs::Frame*>(frame)->owner;
}

}  // namespace ringsock::soft
