#include "libvmacompat/process/polled_streams.h"

#include <sys/epoll.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <new>
#include <utility>

#include "core/base/abandon.h"
#include "core/base/at_fork.h"
#include "core/ethernet/sink_table.h"

namespace ringsock::vma {

namespace {
/// Looking at the kernel's sockets costs a system call.
constexpr unsigned kPollsPerLook = 32;
/// So many completions of one stream, then it is the next one's turn.
constexpr int kInOneTurn = 16;

/// Returns the number of the file, 0 for none.
ino_t inode_of(int fd) noexcept {
  struct stat file {};
  return ::fstat(fd, &file) == 0 ? file.st_ino : 0;
}
}  // namespace

void PolledStream::unlist() noexcept {
  if (PolledStreams* const streams = listed_in_.load(std::memory_order_relaxed)) streams->forget(*this, -1);
}

// -- for streams

/// lock_ held.
void PolledStreams::list_locked(PolledStream& stream) noexcept {
  PolledStreams* nowhere = nullptr;
  if (!stream.listed_in_.compare_exchange_strong(nowhere, this, std::memory_order_relaxed)) return;
  try {
    ready_.push_back(&stream);
  } catch (const std::bad_alloc&) {
    stream.listed_in_.store(nullptr, std::memory_order_relaxed);
    return;
  }
  has_ready_.store(true, std::memory_order_relaxed);
}

void PolledStreams::list(PolledStream& stream) noexcept {
  const std::lock_guard guard(lock_);
  list_locked(stream);
}

Status PolledStreams::watch(PolledStream& stream, int kernel_fd, std::uint32_t events) {
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
void PolledStreams::forget(PolledStream& stream, int kernel_fd) noexcept {
  const std::lock_guard guard(lock_);
  PolledStreams* here = this;
  if (stream.listed_in_.compare_exchange_strong(here, nullptr, std::memory_order_relaxed)) std::erase(ready_, &stream);
  std::erase_if(watched_, [&](const Watched& one) {
    if (one.stream != &stream) return false;
    if (one.fd == kernel_fd) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, kernel_fd, nullptr);
    return true;
  });
  is_watching_.store(!watched_.empty(), std::memory_order_relaxed);
}

void PolledStreams::tell_of_kernels(int fd, std::uint64_t user_data, std::uint32_t events) noexcept {
  const ino_t inode = inode_of(fd);
  const std::lock_guard guard(lock_);
  try {
    left_.push_back({fd, inode, user_data, events});
    has_ready_.store(true, std::memory_order_relaxed);
  } catch (const std::bad_alloc&) {
  }
}

void PolledStreams::wake(ethernet::Ring& ring) {
  const auto sleeper = ring.with_sinks([](const ethernet::SinkTable& sinks) { return sinks.share_follower(); });
  if (sleeper) sleeper->notify_watchers(EPOLLIN);
}

// -- for programs that poll the ring

/// Lists those whose kernel sockets have news.
void PolledStreams::look_at_kernel() {
  std::array<epoll_event, 16> news;
  const int count = ::epoll_wait(fd(), news.data(), news.size(), 0);
  const std::lock_guard guard(lock_);
  for (int i = 0; i < count; ++i) {
    auto* const stream = static_cast<PolledStream*>(news[static_cast<std::size_t>(i)].data.ptr);
    const auto is_it = [&](const Watched& one) { return one.stream == stream; };  // it may be gone by now
    if (std::any_of(watched_.begin(), watched_.end(), is_it)) list_locked(*stream);
  }
}

std::size_t PolledStreams::listed() {
  const std::lock_guard guard(lock_);
  return ready_.size();
}

/// A socket leaves the list before it is destroyed, so the object exists; but its last reference may be gone.
PolledStreams::First PolledStreams::take_first() {
  const std::lock_guard guard(lock_);
  while (!ready_.empty()) {
    PolledStream* const first = ready_.front();
    ready_.pop_front();
    first->listed_in_.store(nullptr, std::memory_order_relaxed);
    if (first->endpoint().try_add_ref()) return {runtime::Ref(&first->endpoint()), first};
  }
  has_ready_.store(!left_.empty(), std::memory_order_relaxed);
  return {};
}

std::size_t PolledStreams::tell_left(std::span<vma_completion_t> out) {
  const std::lock_guard guard(lock_);
  std::size_t count = 0;
  auto next = left_.begin();
  for (; next != left_.end() && count < out.size(); ++next) {
    if (inode_of(next->fd) != next->inode) continue;
    out[count] = {};
    out[count].events = next->events;
    out[count].user_data = next->user_data;
    ++count;
  }
  left_.erase(left_.begin(), next);
  return count;
}

std::size_t PolledStreams::collect(std::span<vma_completion_t> out) {
  if (is_watching_.load(std::memory_order_relaxed)) {
    const unsigned polls = polls_since_look_.load(std::memory_order_relaxed) + 1;
    const bool is_due = polls >= kPollsPerLook || looks_at_once_.exchange(false, std::memory_order_relaxed);
    polls_since_look_.store(is_due ? 0 : polls, std::memory_order_relaxed);
    if (is_due) look_at_kernel();
  }
  if (!has_ready_.load(std::memory_order_relaxed)) return 0;
  std::size_t count = tell_left(out);
  // Not those that are listed again meanwhile.
  for (std::size_t left = std::max<std::size_t>(listed(), 1); left > 0 && count < out.size(); --left) {
    const First first = take_first();
    if (first.stream == nullptr) break;
    int turn = 0;
    while (count < out.size() && turn < kInOneTurn && first.stream->take_event(out[count])) ++count, ++turn;
    const bool may_have_more = turn == kInOneTurn || count == out.size();
    if (may_have_more && !first.socket->is_closed()) list(*first.stream);
  }
  return count;
}

bool PolledStreams::has_news() noexcept {
  {
    const std::lock_guard guard(lock_);
    if (!ready_.empty() || !left_.empty()) return true;
  }
  if (!is_watching_.load(std::memory_order_relaxed)) return false;
  epoll_event one{};
  if (::epoll_wait(fd(), &one, 1, 0) <= 0) return false;
  looks_at_once_.store(true, std::memory_order_relaxed);
  return true;
}

// -- those of the process

bool PolledStreams::is_unused() {
  const std::lock_guard guard(lock_);
  return ready_.empty() && watched_.empty();
}

/// A socket may still know the object of a ring that has ended, so they are never freed, and used again instead.
class PolledRings {
 public:
  static constexpr ProcessPart kPart = ProcessPart::polled_rings;
  PolledRings() : generation_(fork_generation()) { hold_across_fork(lock_); }

  PolledStreams& of(const std::shared_ptr<ethernet::Ring>& ring) {
    const std::lock_guard guard(lock_);
    // In a forked child their locks may be held by threads of its parent.
    if (std::exchange(generation_, fork_generation()) != fork_generation()) abandon(known_);
    for (const auto& one : known_) {
      if (!one->ring_.owner_before(ring) && !ring.owner_before(one->ring_)) return *one;
    }
    PolledStreams& out = free_one();
    out.ring_ = ring;
    return out;
  }

 private:
  PolledStreams& free_one() {
    for (const auto& one : known_) {
      if (!one->ring_.expired() || !one->is_unused()) continue;
      const std::lock_guard guard(one->lock_);
      one->left_.clear();
      return *one;
    }
    return *known_.emplace_back(std::make_unique<PolledStreams>());
  }

  Mutex lock_;
  std::vector<std::unique_ptr<PolledStreams>> known_;
  unsigned generation_;
};

PolledStreams& polled_streams(const std::shared_ptr<ethernet::Ring>& ring) {
  return process_state<PolledRings>().of(ring);
}

}  // namespace ringsock::vma
