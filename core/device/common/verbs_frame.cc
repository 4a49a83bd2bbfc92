#include "core/device/common/verbs_frame.h"

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "core/base/process_state.h"

namespace ringsock::soft {

namespace {

// The operations that the inline verbs call without checking for null.
int post_srq_recv(ibv_srq*, ibv_recv_wr*, ibv_recv_wr**) { return EOPNOTSUPP; }
ibv_mw* alloc_mw(ibv_pd*, ibv_mw_type) { return unsupported<ibv_mw>(); }
int bind_mw(ibv_qp*, ibv_mw*, ibv_mw_bind*) { return EOPNOTSUPP; }
int dealloc_mw(ibv_mw*) { return EOPNOTSUPP; }
int close_xrcd(ibv_xrcd*) { return EOPNOTSUPP; }

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
  return create_qp_extended(context, attr, IBV_QP_INIT_ATTR_PD);
}

}  // namespace

VerbsFrame::VerbsFrame(verbs::Device& device, const char* name, int async_fd) {
  frame_.owner = &device;
  ibv_device& device_info = frame_.device;
  verbs_context& verbs = frame_.verbs;
  device_info.node_type = IBV_NODE_CA;
  device_info.transport_type = IBV_TRANSPORT_IB;
  std::strncpy(device_info.name, name, sizeof device_info.name - 1);
  std::strncpy(device_info.dev_name, name, sizeof device_info.dev_name - 1);
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
  context.ops.post_srq_recv = post_srq_recv;
  context.ops.alloc_mw = alloc_mw;
  context.ops.bind_mw = bind_mw;
  context.ops.dealloc_mw = dealloc_mw;
}

VerbsFrame::~VerbsFrame() { pthread_mutex_destroy(&frame_.verbs.context.mutex); }

verbs::Device& VerbsFrame::device_of(ibv_context& context) {
  static_assert(offsetof(Frame, verbs) == 0);
  std::byte* frame = reinterpret_cast<std::byte*>(&context) - offsetof(verbs_context, context);
  return *reinterpret_cast<Frame*>(frame)->owner;
}

ibv_qp* create_qp_extended(ibv_context* context, ibv_qp_init_attr_ex* attr, std::uint32_t known) {
  if ((attr->comp_mask & IBV_QP_INIT_ATTR_PD) == 0 || attr->pd == nullptr) {
    errno = EINVAL;
    return nullptr;
  }
  if ((attr->comp_mask & ~known) != 0) return unsupported<ibv_qp>();
  // The extended attributes begin with the plain ones.
  static_assert(offsetof(ibv_qp_init_attr_ex, sq_sig_all) == offsetof(ibv_qp_init_attr, sq_sig_all));
  ibv_qp_init_attr plain{};
  std::memcpy(&plain, attr, sizeof plain);
  ibv_qp* qp = to_c(VerbsFrame::device_of(*context).create_qp(*attr->pd, plain));
  if (qp != nullptr) attr->cap = plain.cap;
  return qp;
}

namespace {

struct QueuePairNumbers {
  static constexpr ProcessPart kPart = ProcessPart::queue_pair_numbers;
  std::atomic<std::uint32_t> last{1};  ///< 0 and 1 are special on InfiniBand
};

[[gnu::constructor]] void start() { process_state<QueuePairNumbers>(); }

}  // namespace

std::uint32_t next_qp_num() {
  std::atomic<std::uint32_t>& last = process_state<QueuePairNumbers>().last;
  constexpr std::uint32_t kMask = (1U << 24) - 1;  // numbers have 24 bits
  std::uint32_t number = 0;
  while (number < 2) number = (last.fetch_add(1, std::memory_order_relaxed) + 1) & kMask;
  return number;
}

}  // namespace ringsock::soft
