#include "core/device/common/async_events.h"

#include <sys/eventfd.h>

#include <algorithm>

namespace ringsock::soft {

namespace {
/// Returns the object of an event. All pointers of the union are at its start.
const void* element_of(const ibv_async_event& event) { return event.element.cq; }
}  // namespace

void AsyncEvents::raise(const ibv_async_event& event) {
  if (!fd_) return;
  const int saved_errno = errno;
  std::lock_guard guard(lock_);
  waiting_.push_back(event);
  if (waiting_.size() == 1) ::eventfd_write(fd(), 1);
  errno = saved_errno;
}

Result<ibv_async_event> AsyncEvents::take() {
  std::lock_guard guard(lock_);
  if (waiting_.empty()) return Error{EAGAIN, "async event"};
  const ibv_async_event event = waiting_.front();
  waiting_.pop_front();
  ++unacknowledged_[element_of(event)];
  eventfd_t count = 0;
  if (waiting_.empty()) ::eventfd_read(fd(), &count);
  return event;
}

void AsyncEvents::acknowledge(const ibv_async_event& event) {
  std::lock_guard guard(lock_);
  const auto found = unacknowledged_.find(element_of(event));
  if (found == unacknowledged_.end()) return;
  if (--found->second == 0) unacknowledged_.erase(found);
  acknowledged_.notify_all();
}

void AsyncEvents::forget(const void* element) {
  std::unique_lock guard(lock_);
  if (std::erase_if(waiting_, [=](const ibv_async_event& event) { return element_of(event) == element; }) != 0 &&
      waiting_.empty()) {
    eventfd_t count = 0;
    ::eventfd_read(fd(), &count);
  }
  acknowledged_.wait(guard, [&] { return !unacknowledged_.contains(element); });
}

}  // namespace ringsock::soft
