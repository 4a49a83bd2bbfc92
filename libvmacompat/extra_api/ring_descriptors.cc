#include "libvmacompat/extra_api/ring_descriptors.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <utility>

#include "core/base/at_fork.h"
#include "core/base/process_state.h"
#include "core/base/unique_fd.h"
#include "core/poll/socket_calls.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/fork_registry.h"

namespace ringsock::vma {

// -- the endpoint

RingDescriptor::RingDescriptor(const std::shared_ptr<ethernet::Ring>& ring)
    : ring_(ring), process_(fork_generation()), streams_(streams_of(ring)) {
  runtime::fork_registry().enter(*this);
}

RingDescriptor::~RingDescriptor() {
  const std::shared_lock teardown(runtime::fork_registry().teardown_gate());
  runtime::fork_registry().leave(*this);
}

/// A ring is its process's: a forked child has a copy that it must not touch.
std::shared_ptr<ethernet::Ring> RingDescriptor::ring() const {
  return process_ == fork_generation() ? ring_.lock() : nullptr;
}
bool RingDescriptor::is_over() const { return process_ != fork_generation() || ring_.expired(); }

std::uint32_t RingDescriptor::ready() noexcept {
  const auto ring = this->ring();
  if (ring == nullptr) return EPOLLERR | EPOLLHUP;
  const auto has_waiting = [](const ethernet::SinkTable& sinks) { return sinks.has_waiting(); };
  for (unsigned left = ring->most_batches(); left > 0; --left) {
    const bool is_empty = ring->poll(nullptr) == ethernet::Ring::Look::nothing;
    if (ring->with_sinks(has_waiting) || streams_.has_news()) return EPOLLIN;
    if (is_empty) return 0;
  }
  return 0;
}

/// A sleeper must also hear of packets that other threads take from the ring meanwhile.
runtime::WaitFds RingDescriptor::arm() noexcept {
  const auto ring = this->ring();
  if (ring == nullptr) return {};
  ring->with_sinks([this](ethernet::SinkTable& sinks) { sinks.set_follower(*this); });
  ring->arm();
  return {{ring->fd(), streams_.fd()}};
}

void RingDescriptor::woken() noexcept {
  if (const auto ring = this->ring()) ring->woken();
}

void RingDescriptor::closed() noexcept {
  const auto ring = this->ring();
  if (ring == nullptr) return;
  const auto forgotten = ring->with_sinks([this](ethernet::SinkTable& sinks) {
    return sinks.is_followed_by(*this) ? sinks.take_follower() : runtime::Ref();
  });
}

// -- those of the process

bool RingDescriptors::Known::is_open() const { return runtime::fd_table().refers_to(fd, *descriptor); }

bool RingDescriptors::Known::is_over() const { return static_cast<const RingDescriptor&>(*descriptor).is_over(); }

// No reference to a ring is held under the lock: the last one would end the ring there.

/// Forgets those that the program has closed, and closes those whose rings have ended.
void RingDescriptors::close_ended() {
  std::vector<Known> ended;
  {
    const std::lock_guard guard(lock_);
    const auto first =
        std::partition(known_.begin(), known_.end(), [](const Known& one) { return one.is_open() && !one.is_over(); });
    std::move(first, known_.end(), std::back_inserter(ended));
    known_.erase(first, known_.end());
  }
  for (const Known& one : ended) {
    if (one.is_open()) static_cast<void>(runtime::close_descriptor(one.fd, runtime::WaitingCalls::end));
  }
}

/// Returns the ring's descriptor, or nothing. lock_ held.
std::optional<int> RingDescriptors::find(const ethernet::Ring& ring) const {
  const auto is_it = [&](const Known& one) { return one.ring == &ring && !one.is_over(); };
  const auto known = std::find_if(known_.begin(), known_.end(), is_it);
  return known != known_.end() ? std::optional(known->fd) : std::nullopt;
}

Result<RingDescriptors::Known> RingDescriptors::make(const std::shared_ptr<ethernet::Ring>& ring) {
  UniqueFd number(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!number) return Error::last("eventfd");
  auto* const descriptor = new RingDescriptor(ring);
  Known out{number.get(), runtime::Ref::share(*descriptor), ring.get()};
  if (Status entered = runtime::fd_table().insert(number.get(), runtime::Ref(descriptor)); !entered)
    return entered.error();
  static_cast<void>(number.release());
  return out;
}

Result<int> RingDescriptors::of(const std::shared_ptr<ethernet::Ring>& ring) {
  close_ended();
  {
    const std::lock_guard guard(lock_);
    if (const auto known = find(*ring)) return *known;
  }
  auto made = make(ring);
  if (!made) return made.error();
  const int fd = made->fd;
  std::optional<int> known;
  {
    const std::lock_guard guard(lock_);
    known = find(*ring);
    if (!known) known_.push_back(*std::move(made));
  }
  if (!known) return fd;
  // Another thread has made one meanwhile.
  static_cast<void>(runtime::close_descriptor(fd, runtime::WaitingCalls::end));
  return *known;
}

namespace {

struct OfProcess {
  static constexpr ProcessPart kPart = ProcessPart::ring_descriptors;
  RingDescriptors all;
};

[[gnu::constructor]] void start() { hold_across_fork(ring_descriptors().lock()); }

}  // namespace

RingDescriptors& ring_descriptors() { return process_state<OfProcess>().all; }

std::shared_ptr<ethernet::Ring> ring_of_descriptor(int fd) {
  runtime::FdTable::Lookup found = runtime::fd_table().find(fd);
  if (!found) return nullptr;
  found.pin();
  const auto* const descriptor = dynamic_cast<const RingDescriptor*>(&*found);
  return descriptor != nullptr ? descriptor->ring() : nullptr;
}

}  // namespace ringsock::vma
