#include "core/device/shm/queue/ud_queue_pair.h"

#include "core/device/common/device_context.h"
#include "core/device/common/transitions.h"

namespace ringsock::soft {

namespace {

constexpr Transition kTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY},
    {IBV_QPS_INIT, IBV_QPS_RTR, 0},
    {IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN},
    {IBV_QPS_SQE, IBV_QPS_RTS, 0},
};

Status check(ibv_qp_state from, const ibv_qp_attr& attr, int mask) {
  if ((mask & IBV_QP_PORT) != 0 && attr.port_num != 1) return Error{EINVAL, "modify_qp: port"};
  if ((mask & IBV_QP_PKEY_INDEX) != 0 && attr.pkey_index != 0) return Error{EINVAL, "modify_qp: pkey index"};
  return check_transition(kTransitions, from, attr, mask);
}

}  // namespace

Result<std::unique_ptr<UdQueuePair>> UdQueuePair::create(DeviceContext& device, ibv_pd& pd, ibv_qp_init_attr& attr) {
  if (Status granted = grant_capacities(attr); !granted) return granted.error();
  attr.cap.max_inline_data = kMaxDatagramBytes;
  std::unique_ptr<UdQueuePair> out(new UdQueuePair(device, pd, attr));
  if (Status opened = out->open_socket(); !opened) return opened.error();
  out->attach_to_queues();
  if (Status watched = out->watch_socket(); !watched) return watched.error();
  return out;
}

UdQueuePair::UdQueuePair(DeviceContext& device, ibv_pd& domain, const ibv_qp_init_attr& attr)
    : QueuePair(device, domain, attr), receives_(attr.cap.max_recv_wr, attr.cap.max_recv_sge) {
  gate_->queue_pair = this;
}

UdQueuePair::~UdQueuePair() {
  close_rings();
  detach_from_queues();
  if (watch_ != 0) receive_queue().completion_channel()->unwatch(watch_, socket_.get());
  std::lock_guard guard(gate_->lock);
  gate_->queue_pair = nullptr;
}

/// Senders may have made rings of which this end has not heard yet.
void UdQueuePair::close_rings() {
  constexpr int kMostPackets = 1024;
  std::lock_guard guard(gate_->lock);
  if (!uses_rings_ || !socket_) return;
  is_closing_ = true;
  receive_from_socket(kMostPackets);
  routes_.end();
  incoming_.close();
}

void UdQueuePair::note_heirs() {
  std::lock_guard guard(gate_->lock);
  incoming_.tell_heirs();
}

bool UdQueuePair::is_there(std::uint32_t number) {
  std::lock_guard guard(gate_->lock);
  return !is_gone(number);
}

/// The completion channel's set is the parent's, too, and stays as it is.
void UdQueuePair::leave_to_parent() {
  watch_ = 0;
  routes_.forget();
  incoming_.forget();
  socket_.reset();
  probe_.reset();
  state = IBV_QPS_ERR;
}

void UdQueuePair::use_rings() {
  std::lock_guard guard(gate_->lock);
  uses_rings_ = true;
}

void UdQueuePair::look_closely() {
  std::lock_guard guard(gate_->lock);
  looks_closely_ = true;
}

Status UdQueuePair::watch_socket() {
  CompletionChannel* channel = receive_queue().completion_channel();
  if (channel == nullptr) return ok();
  constexpr int kPerWakeUp = 64;
  auto watch = channel->watch(socket_.get(), [gate = gate_] {
    std::lock_guard guard(gate->lock);
    if (gate->queue_pair == nullptr) return;
    gate->queue_pair->looks_closely_ = true;
    gate->queue_pair->receive_pending(kPerWakeUp);
  });
  if (!watch) return watch.error();
  watch_ = *watch;
  return ok();
}

Status UdQueuePair::modify(ibv_qp_attr& attr, int mask) {
  std::lock_guard guard(gate_->lock);
  if (Status allowed = check(state, attr, mask); !allowed) return allowed;
  if ((mask & IBV_QP_PKEY_INDEX) != 0) attr_.pkey_index = attr.pkey_index;
  if ((mask & IBV_QP_PORT) != 0) attr_.port_num = attr.port_num;
  if ((mask & IBV_QP_QKEY) != 0) attr_.qkey = attr.qkey;
  if ((mask & IBV_QP_SQ_PSN) != 0) attr_.sq_psn = attr.sq_psn;
  if ((mask & IBV_QP_STATE) == 0) return ok();
  state = attr.qp_state;
  if (state == IBV_QPS_RESET) drop_everything();
  // Wakes sleepers for the flushed receives.
  if (state == IBV_QPS_ERR && (srq != nullptr || !receives_.empty())) receive_queue().fire();
  return ok();
}

void UdQueuePair::query(ibv_qp_attr& attr) {
  std::lock_guard guard(gate_->lock);
  attr = attr_;
  attr.qp_state = attr.cur_qp_state = state;
  attr.path_mtu = IBV_MTU_4096;
  attr.cap = init_attr_.cap;
}

/// Both ends of a ring have fences. What is in the socket, such as a new ring, wakes the sleeper.
bool UdQueuePair::arm(CompletionQueue& queue, ArmKind kind) {
  if (&queue != &receive_queue()) return false;
  std::lock_guard guard(gate_->lock);
  armed_for_ = kind;
  incoming_.arm();
  return false;
}

void UdQueuePair::drop_everything() {
  while (!receives_.empty()) receives_.pop();
  completed_.clear();
}

int UdQueuePair::post_receive(ibv_recv_wr* wr, ibv_recv_wr** bad) {
  std::lock_guard guard(gate_->lock);
  int error = state == IBV_QPS_RESET || srq != nullptr ? EINVAL : 0;
  for (; wr != nullptr && error == 0; wr = wr->next) {
    error = receives_.post(*wr);
    if (error != 0) break;
  }
  if (error != 0) *bad = wr;
  if (state == IBV_QPS_ERR) receive_queue().fire();
  return error;
}

int UdQueuePair::poll_receives(int count, ibv_wc* wc) {
  constexpr int kPerPoll = 16;
  std::lock_guard guard(gate_->lock);
  if (completed_.empty()) receive_pending(kPerPoll);
  int got = 0;
  for (; got < count && !completed_.empty(); ++got) {
    wc[got] = completed_.front();
    completed_.pop_front();
  }
  if (state == IBV_QPS_ERR) got += flush_receives(count - got, wc + got);
  return got;
}

int UdQueuePair::flush_receives(int count, ibv_wc* wc) {
  int got = 0;
  for (; got < count && !receives_.empty(); ++got) {
    wc[got] = {};
    wc[got].wr_id = receives_.front().wr_id;
    wc[got].status = IBV_WC_WR_FLUSH_ERR;
    wc[got].opcode = IBV_WC_RECV;
    wc[got].qp_num = qp_num;
    receives_.pop();
  }
  return got;
}

}  // namespace ringsock::soft
