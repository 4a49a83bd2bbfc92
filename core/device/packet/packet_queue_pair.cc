#include "core/device/packet/packet_queue_pair.h"

#include <algorithm>
#include <cerrno>

#include "core/device/common/protection_domain.h"
#include "core/device/common/transitions.h"
#include "core/device/common/verbs_frame.h"
#include "core/device/packet/packet_device.h"

namespace ringsock::soft {

namespace {

constexpr Transition kTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PORT},
    {IBV_QPS_INIT, IBV_QPS_RTR, 0},
    {IBV_QPS_RTR, IBV_QPS_RTS, 0},
};

Status check(ibv_qp_state from, const ibv_qp_attr& attr, int mask) {
  if ((mask & IBV_QP_PORT) != 0 && attr.port_num != 1) return Error{EINVAL, "modify_qp: port"};
  return check_transition(kTransitions, from, attr, mask);
}

Status grant(ibv_qp_init_attr& attr) {
  ibv_qp_cap& cap = attr.cap;
  if (attr.qp_type != IBV_QPT_RAW_PACKET || attr.srq != nullptr) return Error{EOPNOTSUPP, "create_qp: kind"};
  if (attr.send_cq == nullptr || attr.recv_cq == nullptr) return Error{EINVAL, "create_qp: completion queues"};
  if (cap.max_send_wr > kMaxPacketQueueEntries || cap.max_recv_wr > kMaxPacketQueueEntries ||
      cap.max_send_sge > kMaxPacketSge || cap.max_recv_sge > kMaxPacketSge || cap.max_inline_data > kMaxTsoBytes) {
    return Error{EINVAL, "create_qp: capacities"};
  }
  cap.max_send_sge = std::max(cap.max_send_sge, 1U);
  cap.max_recv_sge = std::max(cap.max_recv_sge, 1U);
  cap.max_inline_data = kMaxTsoBytes;
  return ok();
}

}  // namespace

/// A steering rule of a queue pair.
struct PacketQueuePair::FlowHandle final : ibv_flow {
  PacketQueuePair* queue_pair;
  FlowMatch match;
};

Result<std::unique_ptr<PacketQueuePair>> PacketQueuePair::create(PacketDevice& device, ibv_pd& domain,
                                                                 ibv_qp_init_attr& attr) {
  if (Status granted = grant(attr); !granted) return granted.error();
  auto ring = device.ring_maker().make_ring(attr.cap.max_recv_wr);
  if (!ring) return ring.error();
  std::unique_ptr<PacketQueuePair> out(new PacketQueuePair(device, domain, attr, std::move(*ring)));
  out->watch_ring();
  return out;
}

PacketQueuePair::PacketQueuePair(PacketDevice& device, ibv_pd& domain, const ibv_qp_init_attr& attr,
                                 std::unique_ptr<FrameRing> ring)
    : ibv_qp{},
      device_(device),
      init_attr_(attr),
      keys_(device.keys()),
      ring_(std::move(ring)),
      receives_(attr.cap.max_recv_wr, attr.cap.max_recv_sge),
      reader_(*ring_),
      sender_(device, *this, attr, *ring_) {
  ibv_qp::context = &device.context();
  ibv_qp::pd = &domain;
  qp_context = attr.qp_context;
  send_cq = attr.send_cq;
  recv_cq = attr.recv_cq;
  qp_type = attr.qp_type;
  ibv_qp::state = IBV_QPS_RESET;
  qp_num = ibv_qp::handle = next_qp_num();
  gate_->queue_pair = this;
  static_cast<ProtectionDomain&>(domain).add_child();
  send_queue().use(1);
  receive_queue().use(1);
  receive_queue().attach(*this);
  device_.add(*this);
}

PacketQueuePair::~PacketQueuePair() {
  device_.remove(*this);
  receive_queue().detach(*this);
  if (watch_ != 0 && ring_->descriptor() >= 0)
    receive_queue().completion_channel()->unwatch(watch_, ring_->descriptor());
  {
    std::lock_guard guard(gate_->lock);
    gate_->queue_pair = nullptr;
  }
  receive_queue().use(-1);
  send_queue().use(-1);
  static_cast<ProtectionDomain*>(pd)->drop_child();
}

void PacketQueuePair::watch_ring() {
  CompletionChannel* channel = receive_queue().completion_channel();
  if (channel == nullptr) return;
  watch_ = channel->watch_when_armed(ring_->descriptor(), [gate = gate_] {
    std::lock_guard guard(gate->lock);
    if (gate->queue_pair == nullptr) return;
    gate->queue_pair->look();
    gate->queue_pair->ring_->listen(false);  // before fire(): an arm() in between listens again
    gate->queue_pair->receive_queue().fire();
  });
}

void PacketQueuePair::arm() {
  if (current_state() == IBV_QPS_ERR) {
    if (!receives_.empty()) receive_queue().fire();
    return;
  }
  // The rest of a half-delivered frame does not make the ring's descriptor readable. A user that has never posted
  // receives calls take_packet().
  if (reader_.has_rest() && (!receives_.empty() || receives_.posted() == 0)) return receive_queue().fire();
  if (watch_ == 0 || ring_->descriptor() < 0) return;
  if (!ring_->listen(true)) return receive_queue().fire();  // a thread that cannot be woken must not sleep
  receive_queue().completion_channel()->rearm(watch_);
}

void PacketQueuePair::disarm() {
  if (watch_ == 0 || ring_->descriptor() < 0) return;
  receive_queue().completion_channel()->disarm(watch_);
  ring_->listen(false);
}

void PacketQueuePair::look() {
  if (!ring_->look()) device_.interface_is_gone();
}

void PacketQueuePair::set_state(ibv_qp_state to) {
  state_.store(to, std::memory_order_release);
  ibv_qp::state = to;
}

Status PacketQueuePair::modify(const ibv_qp_attr& attr, int mask) {
  {
    std::lock_guard guard(modify_lock_);
    if (Status allowed = check(current_state(), attr, mask); !allowed) return allowed;
    if ((mask & IBV_QP_STATE) == 0) return ok();
    if (attr.qp_state != IBV_QPS_ERR) set_state(attr.qp_state);
  }
  // Called without the lock: both take locks that may be held by a poll() that waits for modify_lock_.
  if (attr.qp_state == IBV_QPS_ERR) enter_error();
  if (attr.qp_state == IBV_QPS_RESET) forget_receives();
  return ok();
}

void PacketQueuePair::forget_receives() {
  // Detached, so that no thread polls meanwhile.
  receive_queue().detach(*this);
  while (!receives_.empty()) receives_.pop();
  receive_queue().attach(*this);
}

void PacketQueuePair::query(ibv_qp_attr& attr, ibv_qp_init_attr& init_attr) const {
  attr = {};
  attr.qp_state = attr.cur_qp_state = current_state();
  attr.port_num = 1;
  attr.cap = init_attr_.cap;
  init_attr = init_attr_;
}

void PacketQueuePair::enter_error() {
  {
    std::lock_guard guard(modify_lock_);
    set_state(IBV_QPS_ERR);
  }
  receive_queue().fire();
}

int PacketQueuePair::post_receive(ibv_recv_wr* wr, ibv_recv_wr** bad) {
  std::lock_guard guard(post_lock_);
  int error = current_state() == IBV_QPS_RESET ? EINVAL : 0;
  for (; wr != nullptr && error == 0; wr = wr->next) {
    error = receives_.post(*wr);
    if (error != 0) break;
  }
  if (error != 0) *bad = wr;
  if (current_state() == IBV_QPS_ERR) receive_queue().fire();
  return error;
}

Result<ibv_flow*> PacketQueuePair::create_flow(const ibv_flow_attr& attr) {
  if (current_state() == IBV_QPS_RESET || current_state() == IBV_QPS_ERR)
    return Error{EINVAL, "create_flow: state of the queue pair"};
  auto match = parse_flow(attr);
  if (!match) return match.error();
  auto flow = std::make_unique<FlowHandle>();
  flow->context = ibv_qp::context;
  flow->queue_pair = this;
  flow->match = *match;
  if (Status added = device_.ring_maker().flows().add(*match, ring_->number()); !added) return added.error();
  flows_.fetch_add(1, std::memory_order_relaxed);
  return flow.release();
}

int PacketQueuePair::destroy_flow(ibv_flow* handle) {
  const std::unique_ptr<FlowHandle> flow(static_cast<FlowHandle*>(handle));
  PacketQueuePair& queue_pair = *flow->queue_pair;
  queue_pair.device_.ring_maker().flows().remove(flow->match, queue_pair.ring_->number());
  queue_pair.flows_.fetch_sub(1, std::memory_order_relaxed);
  return 0;
}

verbs::PacketCounters PacketQueuePair::counters() {
  const FrameRing::Counters ring = ring_->counters();
  verbs::PacketCounters out{.rx_ring_full = ring.ring_full,
                            .tx_dropped = ring.tx_dropped,
                            .rx_system_calls = ring.rx_system_calls,
                            .tx_system_calls = ring.tx_system_calls};
  reader_.add_to(out);
  sender_.add_to(out);
  return out;
}

void PacketQueuePair::forget_after_fork() {
  set_state(IBV_QPS_ERR);
  reader_.forget();
  ring_->forget();
}

}  // namespace ringsock::soft
