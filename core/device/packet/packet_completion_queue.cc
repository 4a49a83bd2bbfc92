#include "core/device/packet/packet_completion_queue.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include "core/device/packet/packet_queue_pair.h"

namespace ringsock::soft {

namespace {

constexpr int kNotArmed = 0;
constexpr int kArmedForErrors = 1;
constexpr int kArmed = 2;

PacketCompletionQueue& ours(ibv_cq_ex* cq) { return *static_cast<PacketCompletionQueue*>(cq); }

void write(const PacketCompletion& completion, ibv_wc& wc) {
  wc = {};
  wc.wr_id = completion.wr_id;
  wc.status = completion.status;
  wc.opcode = completion.opcode;
  wc.vendor_err = completion.vendor_err;
  wc.byte_len = completion.byte_len;
  wc.qp_num = completion.qp_num;
  wc.wc_flags = completion.wc_flags;
}

}  // namespace

PacketCompletionQueue::PacketCompletionQueue(ibv_context& device_context, int entries, void* user,
                                             CompletionChannel* completion_channel)
    : ibv_cq_ex{},
      local_capacity_(static_cast<std::uint32_t>(entries)),
      local_(new PacketCompletion[static_cast<std::size_t>(entries)]),
      channel_(completion_channel) {
  ibv_cq_ex::context = &device_context;
  ibv_cq_ex::channel = completion_channel;
  cq_context = user;
  cqe = entries;
  set_ex_operations();
}

void PacketCompletionQueue::set_ex_operations() {
  ibv_cq_ex& cq = *this;
  cq.start_poll = [](ibv_cq_ex* cq, ibv_poll_cq_attr* attr) {
    return attr->comp_mask != 0 ? EINVAL : ours(cq).start_poll();
  };
  cq.next_poll = [](ibv_cq_ex* cq) { return ours(cq).next_poll(); };
  cq.end_poll = [](ibv_cq_ex* cq) { ours(cq).end_poll(); };
  cq.read_opcode = [](ibv_cq_ex* cq) { return ours(cq).current().opcode; };
  cq.read_vendor_err = [](ibv_cq_ex* cq) { return ours(cq).current().vendor_err; };
  cq.read_byte_len = [](ibv_cq_ex* cq) { return ours(cq).current().byte_len; };
  cq.read_qp_num = [](ibv_cq_ex* cq) { return ours(cq).current().qp_num; };
  cq.read_wc_flags = [](ibv_cq_ex* cq) { return ours(cq).current().wc_flags; };
  // There is no clock but the wall clock, so ticks are nanoseconds.
  cq.read_completion_ts = [](ibv_cq_ex* cq) { return ours(cq).current().wallclock_ns; };
  cq.read_completion_wallclock_ns = [](ibv_cq_ex* cq) { return ours(cq).current().wallclock_ns; };
}

int PacketCompletionQueue::poll(int count, ibv_wc* wc) {
  constexpr int kBatch = 16;
  std::array<PacketCompletion, kBatch> batch;
  std::lock_guard guard(poll_lock_);
  int got = 0;
  while (got < count) {
    const int wanted = std::min(kBatch, count - got);
    const int some = take(wanted, batch.data());
    for (int i = 0; i < some; ++i) write(batch[static_cast<std::size_t>(i)], wc[got + i]);
    got += some;
    if (some < wanted) break;
  }
  if (got == 0) note_poll(0);
  return got;
}

int PacketCompletionQueue::start_poll() {
  poll_lock_.lock();
  const int result = next_poll();
  if (result == 0) return 0;
  note_poll(0);
  poll_lock_.unlock();
  return result;
}

int PacketCompletionQueue::next_poll() {
  if (take(1, &current_) == 0) return ENOENT;
  wr_id = current_.wr_id;
  status = current_.status;
  return 0;
}

int PacketCompletionQueue::take(int count, PacketCompletion* out) {
  int got = local_count_.load(std::memory_order_acquire) != 0 ? take_local(count, out) : 0;
  const std::size_t receivers = receivers_.size();
  for (std::size_t i = 0; i < receivers && got < count; ++i) {
    // The next poll starts with the next queue pair, so that a busy one does not starve others.
    if (++next_receiver_ >= receivers) next_receiver_ = 0;
    got += receivers_[next_receiver_]->poll_receives(count - got, out + got);
  }
  if (got != 0) note_poll(got);
  return got;
}

/// The kernel signals each packet on a socket that is watched, which costs the sender 0.3 us, and a thread that polls
/// all the time needs no event. So after kPollsAllTheTime packets since arm() the event is raised, for threads that may
/// be asleep, and the sockets are not watched until the next arm().
void PacketCompletionQueue::note_received(int count) {
  constexpr int kPollsAllTheTime = 64;
  received_armed_ += count;
  if (received_armed_ < kPollsAllTheTime || channel_ == nullptr) return;
  is_watched_ = false;
  fire();
  for (PacketQueuePair* queue_pair : receivers_) queue_pair->disarm();
}

int PacketCompletionQueue::take_local(int count, PacketCompletion* out) {
  std::lock_guard guard(local_lock_);
  std::uint32_t left = local_count_.load(std::memory_order_relaxed);
  int taken = 0;
  for (; taken < count && left != 0; ++taken, --left) {
    out[taken] = local_[local_head_];
    if (++local_head_ == local_capacity_) local_head_ = 0;
  }
  local_count_.store(left, std::memory_order_relaxed);
  return taken;
}

bool PacketCompletionQueue::push(const PacketCompletion& completion) {
  {
    std::lock_guard guard(local_lock_);
    const std::uint32_t count = local_count_.load(std::memory_order_relaxed);
    if (count == local_capacity_) return false;
    std::uint32_t slot = local_head_ + count;
    if (slot >= local_capacity_) slot -= local_capacity_;
    local_[slot] = completion;
    local_count_.store(count + 1, std::memory_order_release);
  }
  // Pairs with the fence in arm(): whichever function comes second sees the other's store.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const int armed = armed_.load(std::memory_order_relaxed);
  if (armed == kArmed || (armed == kArmedForErrors && completion.status != IBV_WC_SUCCESS)) fire();
  return true;
}

/// Looks at the interface about once a millisecond, for programs that only poll.
void PacketCompletionQueue::idle() {
  constexpr std::uint32_t kPollsPerClockRead = 32;
  constexpr Nanos kLookInterval{1'000'000};
  if (++empty_polls_ % kPollsPerClockRead != 0) return;
  const Nanos now = monotonic_now();
  if (now < next_look_) return;
  next_look_ = now + kLookInterval;
  for (PacketQueuePair* queue_pair : receivers_) queue_pair->look();
}

void PacketCompletionQueue::arm(bool solicited_only) {
  std::lock_guard guard(poll_lock_);
  received_armed_ = 0;
  // A weaker request does not replace a stronger one.
  if (!solicited_only || armed_.load(std::memory_order_relaxed) == kNotArmed)
    armed_.store(solicited_only ? kArmedForErrors : kArmed, std::memory_order_relaxed);
  is_watched_ = armed_.load(std::memory_order_relaxed) == kArmed;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (channel_ == nullptr) return;
  for (PacketQueuePair* queue_pair : receivers_) queue_pair->arm();
}

void PacketCompletionQueue::fire() {
  if (armed_.exchange(kNotArmed, std::memory_order_relaxed) != kNotArmed && channel_ != nullptr) channel_->raise(cq());
}

void PacketCompletionQueue::attach(PacketQueuePair& queue_pair) {
  std::lock_guard guard(poll_lock_);
  receivers_.push_back(&queue_pair);
}

void PacketCompletionQueue::detach(PacketQueuePair& queue_pair) {
  std::lock_guard guard(poll_lock_);
  std::erase(receivers_, &queue_pair);
}

void PacketCompletionQueue::count_event_taken() {
  std::lock_guard guard(ack_lock_);
  ++events_taken_;
}

void PacketCompletionQueue::count_acks(unsigned count) {
  std::lock_guard guard(ack_lock_);
  comp_events_completed += count;
  acked_.notify_all();
}

void PacketCompletionQueue::wait_for_acks() {
  if (channel_ != nullptr) channel_->forget(cq());
  std::unique_lock guard(ack_lock_);
  acked_.wait(guard, [this] { return comp_events_completed >= events_taken_; });
}

}  // namespace ringsock::soft
