#include "core/extra_api/shared_ring.h"

#include <sys/epoll.h>

#include <array>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "core/base/at_fork.h"
#include "core/poll/epoll_set.h"

namespace ringsock::vma {

// -- sockets

SharedRing::SharedRing(runtime::Ref set) : set_(std::move(set)), process_(fork_generation()) {}

bool SharedRing::is_ours() const noexcept { return process_ == fork_generation(); }

/// Errors are without effect: the socket is not found by the ring's look then.
void SharedRing::control(int op, PolledStream& stream, int fd) noexcept try {
  const epoll_event wish{.events = stream.wished_events() | EPOLLET, .data = {.ptr = &stream}};
  static_cast<void>(set_->as_epoll_set()->control_member(op, fd, stream.endpoint(), &wish));
} catch (const std::bad_alloc&) {
}

bool SharedRing::take_in(PolledStream& stream, int fd, bool has_called_connect) noexcept {
  try {
    const std::lock_guard guard(lock_);
    if (!members_.emplace(&stream, fd).second) return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
  if (!stream.join(*this, has_called_connect)) {
    static_cast<void>(take_out(stream));
    return false;
  }
  control(EPOLL_CTL_ADD, stream, fd);
  return true;
}

void SharedRing::wishes_changed(PolledStream& stream) noexcept {
  int fd = -1;
  {
    const std::lock_guard guard(lock_);
    const auto known = members_.find(&stream);
    if (known == members_.end()) return;
    fd = known->second;
  }
  control(EPOLL_CTL_MOD, stream, fd);
}

/// Returns the number by which the set knows it, nothing when it was none of the ring's.
std::optional<int> SharedRing::take_out(PolledStream& stream) noexcept {
  const std::lock_guard guard(lock_);
  unlist_locked(stream);
  const auto known = members_.find(&stream);
  if (known == members_.end()) return std::nullopt;
  const int fd = known->second;
  members_.erase(known);
  return fd;
}

void SharedRing::leave(PolledStream& stream) noexcept {
  if (const auto fd = take_out(stream)) control(EPOLL_CTL_DEL, stream, *fd);
}

/// The set has no reference either. What it has left to the kernel is in its epoll file.
void SharedRing::forget(PolledStream& stream) noexcept {
  const auto fd = take_out(stream);
  if (fd && stream.endpoint().has_left_to_kernel()) set_->as_epoll_set()->forget_left(*fd);
}

void SharedRing::list_and_wake(PolledStream& stream) noexcept {
  list(stream);
  set_->notify_watchers(EPOLLIN);
}

void SharedRing::tell_and_wake(int fd, std::uint64_t user_data, std::uint32_t events) noexcept {
  tell_of_kernels(fd, user_data, events);
  set_->notify_watchers(EPOLLIN);
}

// -- the program

/// Lists the sockets that have news.
void SharedRing::look() {
  std::array<epoll_event, 64> news;
  const auto found = set_->as_epoll_set()->look_once(news);
  if (!found || *found == 0) return;
  const std::lock_guard guard(lock_);
  for (const epoll_event& one : std::span(news).first(static_cast<std::size_t>(*found))) {
    const auto known = members_.find(static_cast<PolledStream*>(one.data.ptr));  // it may be gone by now
    if (known != members_.end()) list_locked(*known->first);
  }
}

std::size_t SharedRing::collect(std::span<vma_completion_t> out) {
  look();
  return PolledStreams::collect(out);
}

bool SharedRing::has_news() {
  look();
  return are_any_listed();
}

bool SharedRing::has_to_tell() noexcept {
  const std::lock_guard guard(lock_);
  return has_kernels_to_tell();
}

/// Those who wait on the descriptor learn of the end.
void SharedRing::end() noexcept {
  {
    const std::lock_guard guard(lock_);
    forget_kernels();
  }
  number_.fetch_add(1, std::memory_order_acq_rel);
}

}  // namespace ringsock::vma
