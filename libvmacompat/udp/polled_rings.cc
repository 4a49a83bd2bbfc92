#include "libvmacompat/udp/polled_rings.h"

#include <sys/epoll.h>

#include <utility>

#include "core/base/abandon.h"

namespace ringsock::vma {

void PolledRings::tell() {
  conditions_.has_new_rings.store(false, std::memory_order_relaxed);
  endpoint_.notify_watchers();
}

void PolledRings::drain() noexcept {
  const Nanos now = monotonic_now();
  if (now - last_drain_.load(std::memory_order_relaxed) < drain_interval_) return;
  last_drain_.store(now, std::memory_order_relaxed);
  poll(nullptr);
}

void PolledRings::catch_up(ethernet::WaitingCall* waiting, ReceiveQueue& queue) noexcept {
  const auto is_done = [&] {
    return queue.has_arrivals() || queue.whole().has_unseen() || (waiting != nullptr && waiting->is_served);
  };
  for_each([&](ethernet::Ring& ring) {
    for (unsigned left = ring.most_batches(); left > 0 && !is_done(); --left) {
      if (ring.poll_in_turn(waiting) == ethernet::Ring::Look::nothing) return;
    }
  });
}

bool PolledRings::add(const std::shared_ptr<ethernet::Ring>& ring) {
  const std::size_t count = count_.load(std::memory_order_relaxed);
  const auto begin = rings_.begin(), end = begin + static_cast<std::ptrdiff_t>(count);
  const auto place = static_cast<std::size_t>(std::find(begin, end, ring) - begin);
  if (place == kMostRings) return false;
  const std::uint32_t bit = std::uint32_t{1} << place;
  const std::uint32_t polled = polled_.load(std::memory_order_relaxed);
  if (place < count && (polled & bit) != 0) return true;
  epoll_event event{.events = EPOLLIN, .data = {}};
  if (bell_ && ::epoll_ctl(bell_.get(), EPOLL_CTL_ADD, ring->fd(), &event) != 0) return false;
  if (place == count) {
    rings_[place] = ring;
    count_.store(count + 1, std::memory_order_release);
  }
  polled_.store(polled | bit, std::memory_order_release);
  conditions_.has_new_rings.store(true, std::memory_order_relaxed);
  return true;
}

void PolledRings::leave_where_not(const std::function<bool(const std::shared_ptr<ethernet::Ring>&)>& is_used) {
  const std::size_t count = count_.load(std::memory_order_relaxed);
  std::uint32_t polled = polled_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bit = std::uint32_t{1} << i;
    if ((polled & bit) == 0 || is_used(rings_[i])) continue;
    polled &= ~bit;
    if (bell_) ::epoll_ctl(bell_.get(), EPOLL_CTL_DEL, rings_[i]->fd(), nullptr);
  }
  polled_.store(polled, std::memory_order_release);
}

/// Most sockets have one ring. They need no descriptor for sleeping: the caller waits for the kernel's socket and the
/// ring's channel.
runtime::WaitFds PolledRings::arm() noexcept {
  const std::uint32_t polled = polled_.load(std::memory_order_relaxed);
  const bool wants_room = kernel_.is_full();
  if (!bell_ && std::has_single_bit(polled) && !wants_room) {
    ethernet::Ring& ring = *rings_[static_cast<std::size_t>(std::countr_zero(polled))];
    is_deaf_.store(false, std::memory_order_relaxed);
    ring.arm();
    return {{kernel_.fd(), ring.fd()}};
  }
  const bool needs_bell = any() || wants_room;
  const bool has_bell = needs_bell && make_bell();
  is_deaf_.store(needs_bell && !has_bell, std::memory_order_relaxed);
  if (!has_bell) return {{kernel_.fd(), -1}};
  if (wants_room) [[unlikely]]
    watch_kernel(EPOLLIN | EPOLLOUT);
  for_each([](ethernet::Ring& ring) { ring.arm(); });
  return {{bell_.get(), -1}};
}

void PolledRings::woken() noexcept {
  for_each([](ethernet::Ring& ring) { ring.woken(); });
}

/// Returns false when no more descriptors can be opened.
bool PolledRings::make_bell() noexcept {
  if (bell_) return true;
  UniqueFd bell = out_of_the_way(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  epoll_event event{.events = EPOLLIN, .data = {}};
  bool complete = bell && ::epoll_ctl(bell.get(), EPOLL_CTL_ADD, kernel_.fd(), &event) == 0;
  for_each([&](const ethernet::Ring& ring) {
    complete = complete && ::epoll_ctl(bell.get(), EPOLL_CTL_ADD, ring.fd(), &event) == 0;
  });
  if (complete) bell_ = std::move(bell);
  return complete;
}

/// Sets the events of the kernel's socket that ring the bell.
void PolledRings::watch_kernel(std::uint32_t events) noexcept {
  epoll_event event{.events = events, .data = {}};
  if (bell_) ::epoll_ctl(bell_.get(), EPOLL_CTL_MOD, kernel_.fd(), &event);
}

void PolledRings::forget_after_fork() noexcept {
  abandon(rings_);
  count_.store(0, std::memory_order_relaxed);
  polled_.store(0, std::memory_order_relaxed);
  bell_.reset();
}

}  // namespace ringsock::vma
