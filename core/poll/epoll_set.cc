// The members of an epoll set.
#include "core/poll/epoll_set.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <mutex>
#include <new>

#include "core/base/at_fork.h"
#include "core/base/log.h"
#include "core/base/own_duplicate.h"
#include "core/base/raised_limit.h"
#include "core/base/rare_calls.h"
#include "core/poll/epoll_file.h"
#include "core/poll/process_waits.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/fork_registry.h"
#include "core/runtime/used_elsewhere.h"

namespace ringsock::runtime {

namespace {

constexpr std::uint32_t kAllowedWithExclusive =
    EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE;
/// How many levels of sets a member may have; the kernel's limit.
constexpr int kDeepestNesting = 4;

/// A forked child does not have the other threads.
[[gnu::constructor]] void free_locks_in_children() {
  at_fork(ForkStep::epoll_sets, nullptr, nullptr, [] {
    new (&process_waits().adopting) Mutex;
    new (&process_waits().nesting) Mutex;
  });
}

Result<int> wait_by_kernel(int epoll_fd, epoll_event* events, int max_events, Nanos timeout, const sigset_t* mask) {
  const timespec left = to_timespec(timeout);
  const bool is_there = is_permitted(RareCall::epoll_pwait2);
  int ready =
      is_there ? ::epoll_pwait2(epoll_fd, events, max_events, timeout == Nanos::max() ? nullptr : &left, mask) : -1;
  if (!is_there || (ready < 0 && errno == ENOSYS)) {  // before Linux 5.11, or forbidden
    const auto rounded_up = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
    const bool for_ever = timeout == Nanos::max();
    ready = ::epoll_pwait(epoll_fd, events, max_events,
                          for_ever ? -1 : static_cast<int>(std::min<long>(rounded_up, INT_MAX)), mask);
  }
  if (ready < 0) return Error::last("epoll_pwait2");
  return ready;
}

Status check_exclusive(int op, bool is_set, std::uint32_t events) {
  if ((events & EPOLLEXCLUSIVE) == 0) return ok();
  if (op == EPOLL_CTL_ADD && !is_set && (events & ~kAllowedWithExclusive) == 0) return ok();
  return Error{EINVAL, "epoll_ctl: EPOLLEXCLUSIVE"};
}

}  // namespace

// -- set

EpollSet::EpollSet(UniqueFd kernel, Doorbells doorbells)
    : kernel_(std::move(kernel)),
      members_(std::move(doorbells), kernel_.file()),
      counter_slot_(WaitCounters::kNowhere) {
  fork_registry().enter(*this);
}

EpollSet::~EpollSet() {
  fork_registry().leave(*this);
  for (auto& [key, member] : members_.table) member->endpoint().remove_watch(*member);
  if (const int slot = counter_slot_.load(); slot != WaitCounters::kNowhere)
    process_waits().counters.load()->close_epoll(slot);
}

int EpollSet::counter_slot(int epoll_fd) {
  WaitCounters* const counters = process_waits().counters.load(std::memory_order_acquire);
  if (counters == nullptr) [[likely]]
    return WaitCounters::kNowhere;
  if (!has_counters_.load(std::memory_order_acquire)) {
    const std::lock_guard guard(lock_);
    if (!has_counters_.load(std::memory_order_relaxed)) {
      counter_slot_.store(counters->open_epoll(epoll_fd), std::memory_order_relaxed);
      has_counters_.store(true, std::memory_order_release);
    }
  }
  return counter_slot_.load(std::memory_order_relaxed);
}

Result<Ref> EpollSet::wrap(int epoll_fd) {
  const auto make = [&]() -> Result<Ref> {
    UniqueFd kernel = own_duplicate(epoll_fd);
    if (!kernel) return Error::last("epoll_create");
    auto doorbells = Doorbells::make();
    if (!doorbells) return doorbells.error();
    return Ref(new EpollSet(std::move(kernel), *std::move(doorbells)));
  };
  auto made = make();
  if (made || made.error().code != EMFILE) return made;
  // Kernel epoll sets need no further descriptors, so a full descriptor table must not make ours fail.
  const RaisedLimit raised;
  return raised ? make() : std::move(made);
}

Result<int> EpollSet::create(int flags) {
  UniqueFd descriptor(::epoll_create1(flags));
  if (!descriptor) return Error::last("epoll_create1");
  auto set = wrap(descriptor.get());
  if (!set) return set.error();
  Status entered = fd_table().insert(descriptor.get(), *std::move(set));
  if (!entered) return entered.error();
  return descriptor.release();
}

Result<Ref> EpollSet::create_unnamed() {
  const UniqueFd descriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (!descriptor) return Error::last("epoll_create1");
  return wrap(descriptor.get());
}

Status EpollSet::adopt(int epoll_fd, std::span<const int> copies, bool is_shared) {
  const std::lock_guard guard(process_waits().adopting);
  if (fd_table().holds(epoll_fd)) return ok();
  auto wrapped = wrap(epoll_fd);
  if (!wrapped) return wrapped.error();
  auto& set = static_cast<EpollSet&>(**wrapped);
  set.kernel_.may_have_some();
  const Doorbells& doorbells = set.members_.doorbells;
  Status nested = is_shared ? set.kernel_.require_epoll_file(doorbells) : set.kernel_.nest(doorbells);
  if (!nested) return nested;
  const Ref held = *std::move(wrapped);
  Status entered = fd_table().insert(epoll_fd, Ref::share(*held));
  for (auto copy = copies.begin(); entered && copy != copies.end(); ++copy) {
    entered = fd_table().insert(*copy, Ref::share(*held));
  }
  if (entered) doorbells.ring_bell();
  return entered;
}

Status EpollSet::control(int op, int fd, const epoll_event* event) {
  Ref endpoint = fd_table().get_settled(fd);
  // Another process may have changed the registration since it has moved the connection to the kernel.
  if (endpoint && endpoint->values.get(DescriptionValues::is_kernels) != 0 && follow_user(*endpoint))
    endpoint = fd_table().get(fd);
  return endpoint ? control_endpoint(op, fd, std::move(endpoint), event) : kernel_.control(op, fd, event);
}

Status EpollSet::control_endpoint(int op, int fd, Ref endpoint, const epoll_event* event) {
  if (endpoint.get() == this) return Error{EINVAL, "epoll_ctl: itself"};
  if (op == EPOLL_CTL_ADD || op == EPOLL_CTL_MOD) {
    Status allowed = check_exclusive(op, endpoint->as_epoll_set() != nullptr, event->events);
    if (!allowed) return allowed;
  }
  if (op == EPOLL_CTL_ADD) return add(fd, std::move(endpoint), *event);

  Departed departed;
  const std::lock_guard guard(lock_);
  EpollMember* const member = members_.find({endpoint.get(), fd});
  if (op != EPOLL_CTL_MOD && op != EPOLL_CTL_DEL) return Error{EINVAL, "epoll_ctl: operation"};
  if (member == nullptr || member->is_parked) return Error{ENOENT, "epoll_ctl"};
  if (op == EPOLL_CTL_MOD) {
    if (member->event().events & EPOLLEXCLUSIVE) return Error{EINVAL, "epoll_ctl: EPOLLEXCLUSIVE"};
    members_.modify(*member, *event);
    tell_waiters();
  } else if (!members_.park(*member)) {
    members_.remove(members_.table.find({endpoint.get(), fd}), departed);
  }
  return ok();
}

void EpollSet::tell_waiters() {
  ring();
  notify_watchers(EPOLLIN);
}

/// Checks whether it may hold `inner`. ProcessWaits::nesting must be held. Errors: ELOOP a cycle, or too deep; EPERM,
/// ENOSPC, ENOMEM. The doorbells of a set are epoll descriptors, and so are those of sockets and rings below them, so
/// the kernel may refuse a nesting that is legal for the caller's sets. Such a set is polled instead
/// (ArmedMember::is_deaf).
Status EpollSet::check_nesting(EpollSet& inner) {
  if (inner.reaches(*this, kDeepestNesting)) return Error{ELOOP, "epoll_ctl"};
  for (const int fd : inner.arm().fd) {
    if (fd < 0) continue;
    Status added = members_.doorbells.add_nested(fd);
    if (!added && added.error().code != EEXIST && added.error().code != ELOOP) return added;
  }
  return ok();
}

/// Returns whether `other` is this set or is in it at any depth; also true when there are more than `levels` levels.
bool EpollSet::reaches(const EpollSet& other, int levels) {
  if (this == &other || levels == 0) return true;
  std::vector<Ref> inner;
  {
    const std::lock_guard guard(lock_);
    for (const auto& [key, member] : members_.table) {
      if (key.first->as_epoll_set() != nullptr) inner.push_back(Ref::share(*key.first));
    }
  }
  return std::any_of(inner.begin(), inner.end(),
                     [&](const Ref& set) { return set->as_epoll_set()->reaches(other, levels - 1); });
}

Status EpollSet::add(int fd, Ref endpoint, const epoll_event& event) {
  std::unique_lock<Mutex> nesting;
  if (EpollSet* inner = endpoint->as_epoll_set()) {
    nesting = std::unique_lock(process_waits().nesting);
    Status nested = check_nesting(*inner);
    if (!nested) return nested;
  }
  if ((event.events & EPOLLEXCLUSIVE) != 0) endpoint->expect_turns();
  const std::lock_guard guard(lock_);
  collector_.reserve_for(members_.table.size() + 1);
  Status added = members_.add(*this, fd, std::move(endpoint), event);
  if (added) tell_waiters();
  return added;
}

void EpollSet::member_closed(Endpoint& endpoint) noexcept {
  Departed departed;
  const std::lock_guard guard(lock_);
  auto place = members_.table.lower_bound({&endpoint, INT_MIN});
  while (place != members_.table.end() && place->first.first == &endpoint) members_.remove(place++, departed);
}

void EpollSet::member_left_to_kernel(Endpoint& endpoint, int fd) noexcept {
  Departed departed;
  const std::lock_guard guard(lock_);
  auto place = members_.table.lower_bound({&endpoint, INT_MIN});
  while (place != members_.table.end() && place->first.first == &endpoint) {
    EpollMember& member = *place->second;
    epoll_event event = member.event();
    if (!member.is_enabled()) event = KernelMembers::disabled_event();
    if (member.is_parked) {
      members_.remove(place++, departed);
      continue;
    }
    Status moved = kernel_.add_left(member.fd(), fd, event);
    if (!moved && moved.error().code == EEXIST) {
      // Another process that shares the kernel's set has added it, as it was before the fork or is since.
      moved = member.is_set_since_fork ? kernel_.control(EPOLL_CTL_MOD, member.fd(), &event) : ok();
    }
    if (!moved) {
      log_warn("epoll: descriptor %d: %s: %s", member.fd(), moved.error().where, std::strerror(moved.error().code));
    }
    members_.remove(place++, departed);
  }
  ring();
}

void EpollSet::closed() noexcept {
  Departed departed;
  {
    const std::lock_guard guard(lock_);
    while (!members_.table.empty()) members_.remove(members_.table.begin(), departed);
  }
  ring();
}

// -- fork

void EpollSet::add_fork_locks(ForkLocks& locks) {
  locks.add_outer(lock_);
  Endpoint::add_fork_locks(locks);
}

void EpollSet::after_fork(ForkSide side) noexcept {
  Endpoint::after_fork(side);
  if (side == ForkSide::unprepared_child) {
    new (&lock_) Mutex;  // another thread of the parent may have had it
    return;
  }
  for (auto& [key, member] : members_.table) member->is_set_since_fork = false;
  if (side == ForkSide::parent) return;
  sleepers_.store(0);
  // Under a filter that forbids doorbells no member needs one.
  if (Status made = members_.renew(); !made && made.error().code != EPERM)
    log_warn("epoll after fork: %s", made.error().where);
}

// -- descriptor numbers

Status epoll_control(int epoll_fd, int op, int fd, const epoll_event* event) {
  const Ref endpoint = fd_table().get(epoll_fd);
  if (!endpoint) {
    if (fd_table().find(fd))
      return Error{::fcntl(epoll_fd, F_GETFD) < 0 ? EBADF : EINVAL, "epoll_ctl: not a set of ours"};
    return control_epoll_file(epoll_fd, op, fd, event);
  }
  EpollSet* set = endpoint->as_epoll_set();
  if (!set) return Error{EINVAL, "epoll_ctl: not a set"};
  if (!event && op != EPOLL_CTL_DEL) return Error{EFAULT, "epoll_ctl"};
  return set->control(op, fd, event);
}

Result<int> epoll_wait_for(int epoll_fd, epoll_event* events, int max_events, Nanos timeout, const sigset_t* mask) {
  const Ref endpoint = fd_table().get(epoll_fd);
  if (!endpoint) return wait_by_kernel(epoll_fd, events, max_events, timeout, mask);
  EpollSet* set = endpoint->as_epoll_set();
  if (!set || max_events <= 0) return Error{EINVAL, "epoll_wait"};
  return counted_wait(set->counter_slot(epoll_fd), [&] {
    return set->wait({events, static_cast<std::size_t>(max_events)}, timeout, mask);
  });
}

}  // namespace ringsock::runtime
