#include "libvmacompat/process/watched_streams.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "core/base/abandon.h"
#include "core/base/at_fork.h"
#include "core/base/process_state.h"
#include "core/ethernet/sink_table.h"

namespace ringsock::vma {

namespace {
/// Looking at the kernel's sockets costs a system call.
constexpr unsigned kPollsPerLook = 32;
}  // namespace

// -- for streams

Status WatchedStreams::watch(PolledStream& stream, int kernel_fd, std::uint32_t events) {
  const std::lock_guard guard(lock_);
  if (!epoll_) {
    epoll_ = out_of_the_way(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
    if (!epoll_) return Error::last("epoll_create1");
    shown_fd_.store(epoll_.get(), std::memory_order_release);
  }
  watched_.reserve(watched_.size() + 1);
  epoll_event wish{.events = events, .data = {.ptr = &stream}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, kernel_fd, &wish) != 0) return Error::last("epoll_ctl");
  watched_.push_back({&stream, kernel_fd});
  is_watching_.store(true, std::memory_order_relaxed);
  return ok();
}

/// The socket is taken from epoll by the number that it had there: a forked child may have it, too, so it would stay.
void WatchedStreams::forget(PolledStream& stream, int kernel_fd) noexcept {
  const std::lock_guard guard(lock_);
  unlist_locked(stream);
  std::erase_if(watched_, [&](const Watched& one) {
    if (one.stream != &stream) return false;
    if (one.fd == kernel_fd) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, kernel_fd, nullptr);
    return true;
  });
  is_watching_.store(!watched_.empty(), std::memory_order_relaxed);
}

void WatchedStreams::wake(ethernet::Ring& ring) {
  const auto sleeper = ring.with_sinks([](const ethernet::SinkTable& sinks) { return sinks.share_follower(); });
  if (sleeper) sleeper->notify_watchers(EPOLLIN);
}

// -- for programs that poll the ring

/// Lists those whose kernel sockets have news.
void WatchedStreams::look_at_kernel() {
  std::array<epoll_event, 16> news;
  const int count = ::epoll_wait(fd(), news.data(), news.size(), 0);
  const std::lock_guard guard(lock_);
  for (int i = 0; i < count; ++i) {
    auto* const stream = static_cast<PolledStream*>(news[static_cast<std::size_t>(i)].data.ptr);
    const auto is_it = [&](const Watched& one) { return one.stream == stream; };  // it may be gone by now
    if (std::any_of(watched_.begin(), watched_.end(), is_it)) list_locked(*stream);
  }
}

std::size_t WatchedStreams::collect(std::span<vma_completion_t> out) {
  if (is_watching_.load(std::memory_order_relaxed)) {
    const unsigned polls = polls_since_look_.load(std::memory_order_relaxed) + 1;
    const bool is_due = polls >= kPollsPerLook || looks_at_once_.exchange(false, std::memory_order_relaxed);
    polls_since_look_.store(is_due ? 0 : polls, std::memory_order_relaxed);
    if (is_due) look_at_kernel();
  }
  return PolledStreams::collect(out);
}

bool WatchedStreams::has_news() noexcept {
  if (are_any_listed()) return true;
  if (!is_watching_.load(std::memory_order_relaxed)) return false;
  epoll_event one{};
  if (::epoll_wait(fd(), &one, 1, 0) <= 0) return false;
  looks_at_once_.store(true, std::memory_order_relaxed);
  return true;
}

// -- those of the process

bool WatchedStreams::is_unused() {
  const std::lock_guard guard(lock_);
  return is_list_empty() && watched_.empty();
}

/// A socket may still know the object of a ring that has ended, so they are never freed, and used again instead.
class RingsWithStreams {
 public:
  static constexpr ProcessPart kPart = ProcessPart::polled_rings;
  RingsWithStreams() : generation_(fork_generation()) { hold_across_fork(lock_); }

  WatchedStreams& of(const std::shared_ptr<ethernet::Ring>& ring) {
    const std::lock_guard guard(lock_);
    // In a forked child their locks may be held by threads of its parent.
    if (std::exchange(generation_, fork_generation()) != fork_generation()) abandon(known_);
    for (const auto& one : known_) {
      if (!one->ring_.owner_before(ring) && !ring.owner_before(one->ring_)) return *one;
    }
    WatchedStreams& out = free_one();
    out.ring_ = ring;
    return out;
  }

 private:
  WatchedStreams& free_one() {
    for (const auto& one : known_) {
      if (!one->ring_.expired() || !one->is_unused()) continue;
      const std::lock_guard guard(one->lock_);
      one->forget_kernels();
      return *one;
    }
    return *known_.emplace_back(std::make_unique<WatchedStreams>());
  }

  Mutex lock_;
  std::vector<std::unique_ptr<WatchedStreams>> known_;
  unsigned generation_;
};

WatchedStreams& streams_of(const std::shared_ptr<ethernet::Ring>& ring) {
  return process_state<RingsWithStreams>().of(ring);
}

}  // namespace ringsock::vma
