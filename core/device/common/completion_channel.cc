#include "core/device/common/completion_channel.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace ringsock::soft {

namespace {
constexpr std::uint64_t kEventfdWatch = 0;
}

Result<std::unique_ptr<CompletionChannel>> CompletionChannel::create(ibv_context& context) {
  UniqueFd epoll = out_of_the_way(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  if (!epoll) return Error::last("completion channel: epoll_create1");
  std::unique_ptr<CompletionChannel> channel(new CompletionChannel(std::move(epoll)));
  channel->ibv_comp_channel::context = &context;
  return channel;
}

CompletionChannel::CompletionChannel(UniqueFd epoll) : ibv_comp_channel{}, epoll_(std::move(epoll)) {
  fd = epoll_.get();
}

Result<std::uint64_t> CompletionChannel::watch(int watched, std::function<void()> on_readable) {
  const auto made = std::make_shared<Watch>(Watch{watched, false, std::move(on_readable)});
  std::lock_guard guard(lock_);
  const std::uint64_t watch = ++last_watch_;
  const auto place = watches_.emplace(watch, made).first;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = watch;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, watched, &event) != 0) {
    watches_.erase(place);
    return Error::last("completion channel: epoll_ctl");
  }
  return watch;
}

std::uint64_t CompletionChannel::watch_when_armed(int watched, std::function<void()> on_readable) {
  std::lock_guard guard(lock_);
  const std::uint64_t watch = ++last_watch_;
  watches_.emplace(watch, std::make_shared<Watch>(Watch{watched, true, std::move(on_readable), false, false}));
  return watch;
}

void CompletionChannel::rearm(std::uint64_t watch) {
  std::lock_guard guard(lock_);
  const auto found = watches_.find(watch);
  if (found == watches_.end() || found->second->is_armed) return;
  Watch& one = *found->second;
  epoll_event event{};
  event.events = EPOLLIN | EPOLLONESHOT;
  event.data.u64 = watch;
  const int what = one.is_in_set ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  one.is_armed = ::epoll_ctl(epoll_.get(), what, one.watched, &event) == 0;
  one.is_in_set = one.is_in_set || one.is_armed;
}

void CompletionChannel::disarm(std::uint64_t watch) {
  std::lock_guard guard(lock_);
  const auto found = watches_.find(watch);
  if (found == watches_.end()) return;
  Watch& one = *found->second;
  one.is_armed = false;
  if (std::exchange(one.is_in_set, false)) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, one.watched, nullptr);
}

void CompletionChannel::unwatch(std::uint64_t watch, int watched) {
  std::lock_guard guard(lock_);
  if (watches_.erase(watch) != 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, watched, nullptr);
}

void CompletionChannel::raise(ibv_cq& cq) {
  const int saved_errno = errno;
  std::lock_guard guard(lock_);
  due_.push_back(&cq);
  if (collectors_ == 0) update_signal();
  errno = saved_errno;
}

Result<ibv_cq*> CompletionChannel::next_event() {
  std::unique_lock guard(lock_);
  if (due_.empty()) {
    ++collectors_;
    guard.unlock();
    run_watches();
    guard.lock();
    --collectors_;
  }
  ibv_cq* cq = nullptr;
  if (!due_.empty()) {
    cq = due_.front();
    due_.pop_front();
  }
  update_signal();
  if (cq == nullptr) return Error{EAGAIN, "completion event"};
  return cq;
}

void CompletionChannel::run_watches() {
  std::array<epoll_event, 64> ready;
  const int count = ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), 0);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t watch = ready[static_cast<std::size_t>(i)].data.u64;
    if (watch == kEventfdWatch) continue;
    std::shared_ptr<Watch> due;
    {
      std::lock_guard guard(lock_);
      if (auto found = watches_.find(watch); found != watches_.end()) due = found->second;
      // Before the callback runs: a thread that arms meanwhile is either noticed by the callback or arms again. The
      // kernel has disarmed the descriptor (EPOLLONESHOT).
      if (due && due->only_when_armed) due->is_armed = false;
    }
    if (due) due->on_readable();
  }
}

/// Makes the eventfd readable exactly while events are due. lock_ must be held.
void CompletionChannel::update_signal() {
  const bool wanted = !due_.empty();
  if (wanted == signalled_) return;
  if (!eventfd_) {
    eventfd_ = out_of_the_way(UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = kEventfdWatch;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, eventfd_.get(), &event);
  }
  eventfd_t count = 0;
  if (wanted) {
    ::eventfd_write(eventfd_.get(), 1);
  } else {
    ::eventfd_read(eventfd_.get(), &count);
  }
  signalled_ = wanted;
}

unsigned CompletionChannel::forget(const ibv_cq& cq) {
  std::lock_guard guard(lock_);
  const auto dropped = static_cast<unsigned>(std::erase(due_, &cq));
  update_signal();
  return dropped;
}

}  // namespace ringsock::soft
