#include "core/device/shm/queue/completion_queue.h"

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "core/base/barrier.h"
#include "core/device/common/device_context.h"
#include "core/device/shm/link/link.h"
#include "core/device/shm/queue/queue_pair.h"

namespace ringsock::soft {

/// The stored form of a completion of this side.
struct CompletionQueue::Local {
  std::uint64_t wr_id;
  std::uint32_t qp_num;
  std::uint32_t byte_len;
  std::uint32_t vendor_err;
  std::uint16_t status;
  std::uint16_t opcode;
};

CompletionQueue::CompletionQueue(DeviceContext& device, int cqe, void* context, CompletionChannel* channel)
    : ibv_cq{}, device_(device), channel_(channel) {
  ibv_cq::context = &device.context();
  ibv_cq::channel = channel;
  cq_context = context;
  ibv_cq::cqe = cqe;
}

CompletionQueue::~CompletionQueue() = default;

int CompletionQueue::poll(int count, ibv_wc* wc) {
  std::unique_lock guard(poll_lock_);
  int got = take_all(count, wc);
  // A doorbell that has rung since then does not ring again, so a poll on behalf of a thread that is about to sleep
  // must not miss it.
  if (got == 0) got = look_closer(guard, count, wc);
  if (got != 0) empty_polls_ = 0;
  return got;
}

/// Does the additional work of a poll that found nothing, and looks again if a link had news.
int CompletionQueue::look_closer(std::unique_lock<BiasedMutex>& guard, int count, ibv_wc* wc) {
  const bool was_armed = is_armed();
  if (!idle(guard)) return 0;
  guard.lock();
  const int got = take_all(count, wc);
  return got == 0 && was_armed && !is_armed() ? arm_again(guard, count, wc) : got;
}

/// Called when idle() has taken a doorbell that rang for work without a completion (EntryType::assist). A thread that
/// is about to sleep hears of nothing that comes later unless the queue pairs are armed again.
int CompletionQueue::arm_again(std::unique_lock<BiasedMutex>& guard, int count, ibv_wc* wc) {
  if (channel_ != nullptr) return 0;  // it was signalled
  guard.unlock();
  if (arm(ArmKind::any)) AsymmetricBarrier::heavy_now();
  after_barrier();
  guard.lock();
  return take_all(count, wc);
}

int CompletionQueue::take_all(int count, ibv_wc* wc) {
  int got = local_count_.load(std::memory_order_acquire) != 0 ? take_local(count, wc) : 0;
  if (sole_receiver_ != nullptr) [[likely]] {
    if (got < count) got += sole_receiver_->poll_receives(count - got, wc + got);
  } else {
    got += take_from_all(count - got, wc + got);
  }
  if (stalled_.load(std::memory_order_relaxed) != 0) [[unlikely]] {
    push_stalled();
    if (got < count && local_count_.load(std::memory_order_acquire) != 0) got += take_local(count - got, wc + got);
  }
  return got;
}

int CompletionQueue::take_from_all(int count, ibv_wc* wc) {
  int got = 0;
  const std::size_t receivers = receivers_.size();
  for (std::size_t i = 0; i < receivers && got < count; ++i) {
    // The next poll starts with the next queue pair, so that a busy one does not starve the others.
    if (++next_receiver_ >= receivers) next_receiver_ = 0;
    got += receivers_[next_receiver_]->poll_receives(count - got, wc + got);
  }
  return got;
}

int CompletionQueue::take_local(int count, ibv_wc* wc) {
  std::lock_guard guard(local_lock_);
  std::uint32_t left = local_count_.load(std::memory_order_relaxed);
  int taken = 0;
  for (; taken < count && left != 0; ++taken, --left) {
    const Local& local = local_[local_head_];
    if (++local_head_ == local_capacity_) local_head_ = 0;
    ibv_wc& out = wc[taken];
    out = {};
    out.wr_id = local.wr_id;
    out.status = static_cast<ibv_wc_status>(local.status);
    out.opcode = static_cast<ibv_wc_opcode>(local.opcode);
    out.vendor_err = local.vendor_err;
    out.byte_len = local.byte_len;
    out.qp_num = local.qp_num;
  }
  // An empty ring starts over, so that a queue that is polled often uses the same few cache lines.
  if (left == 0) local_head_ = 0;
  local_count_.store(left, std::memory_order_relaxed);
  return taken;
}

void CompletionQueue::push(const ibv_wc& wc) {
  {
    std::lock_guard guard(local_lock_);
    const std::uint32_t count = local_count_.load(std::memory_order_relaxed);
    if (count == local_capacity_ && !grow_local()) [[unlikely]]
      return overrun();
    std::uint32_t slot = local_head_ + count;
    if (slot >= local_capacity_) slot -= local_capacity_;
    local_[slot] = {wc.wr_id,
                    wc.qp_num,
                    wc.byte_len,
                    wc.vendor_err,
                    static_cast<std::uint16_t>(wc.status),
                    static_cast<std::uint16_t>(wc.opcode)};
    local_count_.store(count + 1, std::memory_order_release);
  }
  // A full fence, because arming may omit the heavy barrier.
  AsymmetricBarrier::full();
  const auto armed = armed_.load(std::memory_order_relaxed);
  if (armed == 0) [[likely]]
    return;
  if (armed == kArmedForAny || wc.status != IBV_WC_SUCCESS) fire();
}

void CompletionQueue::forget_completions(std::uint32_t qp_num) {
  const std::lock_guard guard(local_lock_);
  const std::uint32_t count = local_count_.load(std::memory_order_relaxed);
  const auto at = [this](std::uint32_t i) -> Local& { return local_[(local_head_ + i) % local_capacity_]; };
  std::uint32_t kept = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (at(i).qp_num != qp_num) at(kept++) = at(i);
  }
  local_count_.store(kept, std::memory_order_relaxed);
}

/// Makes the ring of this side's completions larger, when it is full. Returns false when the queue may not hold more.
bool CompletionQueue::grow_local() {
  constexpr std::uint32_t kFirstCapacity = 2;
  const std::uint32_t old = local_capacity_;
  const std::uint32_t capacity = std::min(std::max(kFirstCapacity, 4 * old), static_cast<std::uint32_t>(ibv_cq::cqe));
  if (capacity <= old) return false;
  std::unique_ptr<Local[]> larger(new (std::nothrow) Local[capacity]);
  if (!larger) return false;
  for (std::uint32_t i = 0; i < old; ++i) larger[i] = local_[(local_head_ + i) % old];
  local_ = std::move(larger);
  local_capacity_ = capacity;
  local_head_ = 0;
  return true;
}

void CompletionQueue::overrun() {
  if (std::exchange(overrun_, true)) return;
  ibv_async_event event{};
  event.element.cq = this;
  event.event_type = IBV_EVENT_CQ_ERR;
  device_.async_events().raise(event);
}

bool CompletionQueue::idle(std::unique_lock<BiasedMutex>& guard) {
  constexpr std::uint32_t kPollsPerClockRead = 32;
  constexpr Nanos kLookInterval{1'000'000};
  constexpr std::size_t kLinksPerLook = 16;
  if (++empty_polls_ % kPollsPerClockRead != 0) return false;
  const Nanos now = monotonic_now();
  if (now < next_link_look_) return false;
  next_link_look_ = now + kLookInterval;
  std::array<std::shared_ptr<Link>, kLinksPerLook> links;
  std::size_t count = 0;
  const std::size_t members = receivers_.size() + senders_.size();
  for (std::size_t i = 0; i < members && count < kLinksPerLook; ++i) {
    const std::size_t at = next_link_++ % members;
    QueuePair* member = at < receivers_.size() ? receivers_[at] : senders_[at - receivers_.size()];
    if (auto link = member->link()) links[count++] = std::move(link);
  }
  guard.unlock();
  bool has_news = false;
  for (std::size_t i = 0; i < count; ++i) has_news |= links[i]->drain() || links[i]->peer_gone();
  return has_news;
}

bool CompletionQueue::arm(ArmKind kind) {
  std::lock_guard guard(poll_lock_);
  // A weaker request does not undo a stronger one.
  if (armed_.load(std::memory_order_relaxed) == kArmedForAny) kind = ArmKind::any;
  bool needs_barrier = false;
  for (QueuePair* queue_pair : receivers_) needs_barrier |= queue_pair->arm(*this, kind);
  for (QueuePair* queue_pair : senders_) needs_barrier |= queue_pair->arm(*this, kind);
  armed_.exchange(static_cast<std::uint32_t>(kind));  // a full fence, for push()
  if (has_left_over_locked()) [[unlikely]]
    fire();
  return needs_barrier;
}

bool CompletionQueue::has_left_over_locked() const {
  return std::ranges::any_of(receivers_, [](const QueuePair* queue_pair) { return queue_pair->has_left_over(); });
}

bool CompletionQueue::must_be_polled_again() {
  std::lock_guard guard(poll_lock_);
  return channel_ == nullptr && has_left_over_locked();
}

void CompletionQueue::after_barrier() {
  if (stalled_.load(std::memory_order_relaxed) == 0) return;
  std::lock_guard guard(poll_lock_);
  push_stalled();
}

void CompletionQueue::push_stalled() {
  for (QueuePair* queue_pair : receivers_) queue_pair->push_sends();
  for (QueuePair* queue_pair : senders_) queue_pair->push_sends();
}

void CompletionQueue::fire() {
  if (take_arming()) raise_owed();
}

void CompletionQueue::raise_owed() {
  if (channel_ != nullptr) channel_->raise(*this);
}

void CompletionQueue::attach(QueuePair& queue_pair, bool receives) {
  std::lock_guard guard(poll_lock_);
  (receives ? receivers_ : senders_).push_back(&queue_pair);
  note_receivers();
}

void CompletionQueue::detach(QueuePair& queue_pair) {
  std::lock_guard guard(poll_lock_);
  std::erase(receivers_, &queue_pair);
  std::erase(senders_, &queue_pair);
  note_receivers();
}

void CompletionQueue::note_receivers() { sole_receiver_ = receivers_.size() == 1 ? receivers_.front() : nullptr; }

bool CompletionQueue::in_use() {
  std::lock_guard guard(poll_lock_);
  return !receivers_.empty() || !senders_.empty();
}

void CompletionQueue::count_event_taken() {
  std::lock_guard guard(ack_lock_);
  ++events_taken_;
}

void CompletionQueue::count_acks(unsigned count) {
  std::lock_guard guard(ack_lock_);
  comp_events_completed += count;
  acked_.notify_all();
}

void CompletionQueue::wait_for_acks() {
  if (channel_ != nullptr) channel_->forget(*this);
  std::unique_lock guard(ack_lock_);
  acked_.wait(guard, [this] { return comp_events_completed >= events_taken_; });
}

}  // namespace ringsock::soft
