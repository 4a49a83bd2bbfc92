#include "core/device/packet/packet_verbs.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "core/device/common/verbs_frame.h"
#include "core/device/packet/packet_completion_queue.h"
#include "core/device/packet/packet_device.h"
#include "core/device/packet/packet_queue_pair.h"

namespace ringsock::soft {

namespace {

PacketQueuePair& ours(ibv_qp* qp) { return *static_cast<PacketQueuePair*>(qp); }

PacketDevice& device_of(ibv_context& context) { return static_cast<PacketDevice&>(VerbsFrame::device_of(context)); }

int poll_cq(ibv_cq* cq, int count, ibv_wc* wc) { return PacketCompletionQueue::of(*cq).poll(count, wc); }

int req_notify_cq(ibv_cq* cq, int solicited_only) {
  PacketCompletionQueue::of(*cq).arm(solicited_only != 0);
  return 0;
}

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) { return ours(qp).post_send(wr, bad); }
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) { return ours(qp).post_receive(wr, bad); }
ibv_flow* create_flow(ibv_qp* qp, ibv_flow_attr* attr) {
  auto flow = ours(qp).create_flow(*attr);
  if (flow) return *flow;
  errno = flow.error().code;
  return nullptr;
}

int destroy_flow(ibv_flow* flow) { return PacketQueuePair::destroy_flow(flow); }

int query_device_ex(ibv_context* context, const ibv_query_device_ex_input*, ibv_device_attr_ex* out,
                    std::size_t out_bytes) {
  auto attributes = device_of(*context).query_device();
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
  return create_qp_extended(context, attr, IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_MAX_TSO_HEADER);
}

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr) {
  constexpr std::uint64_t kKnown = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_QP_NUM |
                                   IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
  if ((attr->wc_flags & ~kKnown) != 0 || (attr->comp_mask & ~std::uint32_t{IBV_CQ_INIT_ATTR_MASK_FLAGS}) != 0)
    return unsupported<ibv_cq_ex>();
  ibv_cq* cq = to_c(device_of(*context).create_cq(static_cast<int>(attr->cqe), attr->cq_context, attr->channel,
                                                  static_cast<int>(attr->comp_vector)));
  return cq != nullptr ? &PacketCompletionQueue::of(*cq) : nullptr;
}

}  // namespace

void enter_packet_verbs(verbs_context& operations) {
  operations.query_device_ex = query_device_ex;
  operations.query_rt_values = query_rt_values;
  operations.create_qp_ex = create_qp_ex;
  operations.create_cq_ex = create_cq_ex;
  operations.ibv_create_flow = create_flow;
  operations.ibv_destroy_flow = destroy_flow;
  ibv_context_ops& ops = operations.context.ops;
  ops.poll_cq = poll_cq;
  ops.req_notify_cq = req_notify_cq;
  ops.post_send = post_send;
  ops.post_recv = post_recv;
}

}  // namespace ringsock::soft
