#include "libvmacompat/udp/whole_datagrams.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <mutex>
#include <utility>

#include "core/base/abandon.h"
#include "libvmacompat/udp/datagram_queue.h"

namespace ringsock::vma {

std::optional<ethernet::Arrival> WholeDatagrams::take(int flags) {
  const std::lock_guard guard(queue_.lock_);
  if (queue_.arrivals_.empty()) return std::nullopt;
  ethernet::Arrival out = queue_.arrivals_.front();
  if ((flags & MSG_PEEK) != 0) return out;
  queue_.pop_first(true);
  return out;
}

// -- the callback

void WholeDatagrams::note_special() {
  queue_.is_special_ = has_callback_ || cyclic_ != nullptr || !queue_.source_filters_.empty();
}

std::optional<ethernet::Delivery> WholeDatagrams::deliver(ethernet::Incoming& incoming) {
  if (!queue_.source_filters_.empty() && queue_.is_filtered(incoming.packet())) return ethernet::Delivery::done;
  if (cyclic_ != nullptr) return put_into_cyclic(incoming.packet());
  if (has_callback_) return queue_.keep(incoming, unseen_, has_unseen_);
  return std::nullopt;
}

void WholeDatagrams::show_to_callback(bool on) {
  const std::lock_guard guard(queue_.lock_);
  has_callback_ = on;
  note_special();
  if (!on) queue_unseen();
}

void WholeDatagrams::queue_unseen() {
  for (; !unseen_.empty(); unseen_.pop()) queue_.arrivals_.push(unseen_.front());
  has_unseen_.store(false, std::memory_order_relaxed);
  queue_.has_arrivals_.store(!queue_.arrivals_.empty(), std::memory_order_relaxed);
  queue_.show();
}

std::optional<ethernet::Arrival> WholeDatagrams::take_unseen() {
  const std::lock_guard guard(queue_.lock_);
  if (unseen_.empty()) return std::nullopt;
  if (!queue_.arrivals_.empty()) {
    queue_unseen();
    return std::nullopt;
  }
  ethernet::Arrival out = std::move(unseen_.front());
  unseen_.pop();
  if (unseen_.empty()) has_unseen_.store(false, std::memory_order_relaxed);
  return out;
}

/// Nothing was queued when it was taken, so what is queued now has come later.
void WholeDatagrams::accept(ethernet::Arrival arrival) {
  const std::lock_guard guard(queue_.lock_);
  queue_.arrivals_.put_first(std::move(arrival));
  queue_.has_arrivals_.store(true, std::memory_order_relaxed);
  queue_.show();
}

WholeDatagrams::Waiting WholeDatagrams::waiting() {
  const std::lock_guard guard(queue_.lock_);
  return {static_cast<std::uint32_t>(queue_.arrivals_.count()),
          static_cast<std::uint32_t>(queue_.arrivals_.payload_bytes())};
}

void WholeDatagrams::forget_after_fork() noexcept {
  abandon(unseen_);
  has_unseen_.store(false, std::memory_order_relaxed);
  static_cast<void>(cyclic_.release());  // the parent's ring writes into it
  has_cyclic_.store(false, std::memory_order_relaxed);
  cyclic_waits_.store(false, std::memory_order_relaxed);
  note_special();
}

// -- a cyclic buffer

void WholeDatagrams::put_into(std::unique_ptr<CyclicBuffer> buffer) {
  const std::lock_guard guard(queue_.lock_);
  cyclic_ = std::move(buffer);
  note_special();
  has_cyclic_.store(true, std::memory_order_release);
}

// -- programs that poll a ring

std::size_t WholeDatagrams::count_waiting() noexcept {
  const std::lock_guard guard(queue_.lock_);
  return queue_.arrivals_.count();
}

std::uint64_t WholeDatagrams::user_data() const {
  return has_user_data_ ? user_data_.load(std::memory_order_relaxed) : static_cast<std::uint64_t>(queue_.kernel_.fd());
}

std::optional<std::size_t> WholeDatagrams::hand_out(ethernet::Incoming& incoming) {
  auto* const poll = static_cast<ethernet::RingPoll*>(incoming.call_of_all());
  if (poll == nullptr || !queue_.arrivals_.empty()) return std::nullopt;
  auto arrival = incoming.keep();
  if (!arrival) return std::nullopt;
  const std::size_t bytes = arrival->layout.payload_bytes;
  ethernet::SinkEvent& out = poll->next();
  out.packet = *std::move(arrival);
  out.events = 0;
  out.user_data = user_data();
  return bytes;
}

bool WholeDatagrams::take_packet(ethernet::SinkEvent& out) noexcept {
  const std::lock_guard guard(queue_.lock_);
  if (queue_.arrivals_.empty()) return false;
  out.packet = std::move(queue_.arrivals_.front());
  out.events = 0;
  out.user_data = user_data();
  queue_.pop_first(true);
  return true;
}

bool WholeDatagrams::look_elsewhere(ethernet::SinkEvent& out) noexcept {
  const std::uint32_t events = queue_.kernel_.events() & (EPOLLIN | EPOLLERR | EPOLLHUP | EPOLLRDHUP);
  if (events == 0) return false;
  queue_.kernel_.expect_datagram();
  out = {.packet = {}, .events = events, .user_data = user_data()};
  return true;
}

}  // namespace ringsock::vma
