// Who is in an epoll set.
#include "core/runtime/epoll_set.h"

#include <fcntl.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <mutex>
#include <new>

#include "core/base/at_fork.h"
#include "core/base/log.h"
#include "core/base/rare_calls.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/fork_registry.h"
#include "core/runtime/poll_set.h"
#include "core/runtime/sleeper.h"
#include "core/runtime/wait_tally.h"

namespace ringsock::runtime {

namespace {

constexpr std::uint32_t kAllowedWithExclusive =
    EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE;
/// Rounds that a new member may do nothing before it gets cold, out of kIdleRounds (epoll_wait.cc): a connection that
/// was just accepted mostly has something to say.
constexpr std::uint64_t kGraceRounds = 8;
/// As many as the kernel's.
constexpr int kDeepestNesting = 5;
/// More than there are threads that wait for one set when it is adopted.
constexpr int kRingsAfterAdoption = 64;

// They keep no data, only two threads from doing at once what one may: wrapping an epoll file, adding two sets to each
// other. A forked child, which has neither thread, begins with free ones.
constinit Mutex adopting_lock;
constinit Mutex nesting_lock;
[[gnu::constructor]] void free_locks_in_children() {
  at_fork(nullptr, nullptr, [] {
    new (&adopting_lock) Mutex;
    new (&nesting_lock) Mutex;
  });
}

Status control_descriptor(int epoll_fd, int op, int fd, const epoll_event* event) {
  epoll_event copy{};
  if (event) copy = *event;
  if (::epoll_ctl(epoll_fd, op, fd, &copy) != 0) return Error::last("epoll_ctl");
  return ok();
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

/// Marks our doorbells among the kernel's members of an adopted set: no data of the application has the address of our
/// variable.
std::uint64_t wake_up_tag() {
  static const char tag = 0;
  return reinterpret_cast<std::uintptr_t>(&tag);
}

Status check_exclusive(int op, bool is_set, std::uint32_t events) {
  if ((events & EPOLLEXCLUSIVE) == 0) return ok();
  if (op == EPOLL_CTL_ADD && !is_set && (events & ~kAllowedWithExclusive) == 0) return ok();
  return Error{EINVAL, "epoll_ctl: EPOLLEXCLUSIVE"};
}

}  // namespace

// -- member
// ---------------------------------------------------------------------------------------------------------------

void EpollMember::endpoint_changed() noexcept {
  if (!changed_.exchange(true)) {
    next_changed_ = set_.changed_.load(std::memory_order_relaxed);
    while (!set_.changed_.compare_exchange_weak(next_changed_, this)) {
    }
  }
  set_.ring();
  set_.note_activity();
  set_.notify_watchers(EPOLLIN);
}

Ref EpollMember::owner() noexcept { return set_.try_add_ref() ? Ref(&set_) : Ref(); }

std::uint32_t EpollMember::reportable() {
  if (!enabled_) return 0;
  const std::uint32_t ready = endpoint_->ready();
  // In this order: what arrives after ready() is a new edge, or is there when the caller looks.
  found_activity_ = endpoint_->activity();
  found_ = with_normal_bands(ready) & (event_.events | EPOLLERR | EPOLLHUP);
  if ((event_.events & EPOLLET) == 0) return found_;
  const bool is_edge = found_activity_ != seen_activity_ || (found_ & ~seen_) != 0;
  seen_ &= found_;
  return is_edge ? found_ : 0;
}

void EpollMember::reported() {
  seen_ = found_;
  seen_activity_ = found_activity_;
  if (event_.events & EPOLLONESHOT) enabled_ = false;
}

void EpollMember::set_event(const epoll_event& event) {
  event_ = event;
  enabled_ = true;
  seen_ = 0;
}

// -- set
// ------------------------------------------------------------------------------------------------------------------

EpollSet::EpollSet(UniqueFd kernel, UniqueFd doorbells, UniqueFd bell)
    : kernel_(std::move(kernel)), doorbells_(std::move(doorbells)), bell_(std::move(bell)) {
  fork_registry().enter(*this);
}

EpollSet::~EpollSet() {
  fork_registry().leave(*this);
  for (auto& [key, member] : members_) member->endpoint_->remove_watch(*member);
  if (VmaIomuxSlot* const slot = counters_.load()) vma_statistics.close(*slot);
}

VmaIomuxSlot* EpollSet::counters(int epoll_fd) {
  if (vma_statistics.iomux(0) == nullptr) [[likely]]
    return nullptr;
  if (!has_counters_.load(std::memory_order_acquire)) {
    const std::lock_guard guard(lock_);
    if (!has_counters_.load(std::memory_order_relaxed)) {
      counters_.store(vma_statistics.open_iomux(epoll_fd), std::memory_order_relaxed);
      has_counters_.store(true, std::memory_order_release);
    }
  }
  return counters_.load(std::memory_order_relaxed);
}

Result<Ref> EpollSet::wrap(int epoll_fd) {
  UniqueFd kernel = out_of_the_way(UniqueFd(::fcntl(epoll_fd, F_DUPFD_CLOEXEC, 0)));
  if (!kernel) return Error::last("epoll_create");
  UniqueFd doorbells;
  UniqueFd bell;
  if (Status made = make_doorbells(doorbells, bell); !made) return made.error();
  return Ref(new EpollSet(std::move(kernel), std::move(doorbells), std::move(bell)));
}

Status EpollSet::make_doorbells(UniqueFd& doorbells, UniqueFd& bell) {
  doorbells = out_of_the_way(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  bell = out_of_the_way(UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)));
  if (!doorbells || !bell) return Error::last("epoll_create");
  const epoll_event rung{EPOLLIN | EPOLLET, {.fd = bell.get()}};
  return control_descriptor(doorbells.get(), EPOLL_CTL_ADD, bell.get(), &rung);
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

Status EpollSet::adopt(int epoll_fd) {
  const std::lock_guard guard(adopting_lock);
  if (fd_table().holds(epoll_fd)) return ok();
  auto wrapped = wrap(epoll_fd);
  if (!wrapped) return wrapped.error();
  auto& set = static_cast<EpollSet&>(**wrapped);
  // From now on whoever sleeps on the epoll file is woken by our doorbells. This also tells whether it is an epoll
  // file.
  const epoll_event wake_up{EPOLLIN, {.u64 = wake_up_tag()}};
  Status nested = control_descriptor(set.kernel_.get(), EPOLL_CTL_ADD, set.doorbells_.get(), &wake_up);
  if (!nested) return nested;
  set.has_kernel_members_.store(true, std::memory_order_relaxed);
  set.is_adopted_ = true;
  set.rings_after_adoption_.store(kRingsAfterAdoption);
  Status entered = fd_table().insert(epoll_fd, *std::move(wrapped));
  if (entered) set.ring_uncounted_sleepers();
  return entered;
}

int EpollSet::forget_wake_up(epoll_event* events, int count) {
  const auto is_wake_up = [](const epoll_event& event) { return event.data.u64 == wake_up_tag(); };
  return static_cast<int>(std::remove_if(events, events + count, is_wake_up) - events);
}

Status EpollSet::control(int op, int fd, const epoll_event* event) {
  Ref endpoint = fd_table().get(fd);
  return endpoint ? control_endpoint(op, fd, std::move(endpoint), event) : control_kernel(op, fd, event);
}

Status EpollSet::control_kernel(int op, int fd, const epoll_event* event) {
  Status done = control_descriptor(kernel_.get(), op, fd, event);
  if (done && op == EPOLL_CTL_ADD) has_kernel_members_.store(true, std::memory_order_relaxed);
  return done;
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
  const auto found = members_.find({endpoint.get(), fd});
  if (op != EPOLL_CTL_MOD && op != EPOLL_CTL_DEL) return Error{EINVAL, "epoll_ctl: operation"};
  if (found == members_.end()) return Error{ENOENT, "epoll_ctl"};
  if (op == EPOLL_CTL_MOD) return modify(*found->second, *event);
  remove(found, departed);
  return ok();
}

/// Whether it may hold `inner`. Under nesting_lock. Errors: ELOOP a cycle, or too deep; EPERM, ENOSPC, ENOMEM.
/// The doorbells of a set are epoll descriptors, and so are those of sockets and rings below them: the kernel may find
/// too deep what the caller's sets are not. Such a set is not heard of, but looked at (EpollMember::is_deaf_).
Status EpollSet::check_nesting(EpollSet& inner) {
  if (inner.reaches(*this, kDeepestNesting)) return Error{ELOOP, "epoll_ctl"};
  for (const int fd : inner.arm().fd) {
    const epoll_event event{EPOLLIN | EPOLLET, {.fd = fd}};
    Status added = control_descriptor(doorbells_.get(), EPOLL_CTL_ADD, fd, &event);
    if (!added && added.error().code != EEXIST && added.error().code != ELOOP) return added;
  }
  return ok();
}

/// Whether `other` is in this set, however deep, or is itself; true as well when there are more than `levels` levels.
bool EpollSet::reaches(const EpollSet& other, int levels) {
  if (this == &other || levels == 0) return true;
  std::vector<Ref> inner;
  {
    const std::lock_guard guard(lock_);
    for (const auto& [key, member] : members_) {
      if (key.first->as_epoll_set() != nullptr) inner.push_back(Ref::share(*key.first));
    }
  }
  return std::any_of(inner.begin(), inner.end(),
                     [&](const Ref& set) { return set->as_epoll_set()->reaches(other, levels - 1); });
}

Status EpollSet::add(int fd, Ref endpoint, const epoll_event& event) {
  std::unique_lock<Mutex> nesting;
  if (EpollSet* inner = endpoint->as_epoll_set()) {
    nesting = std::unique_lock(nesting_lock);
    Status nested = check_nesting(*inner);
    if (!nested) return nested;
  }
  const std::lock_guard guard(lock_);
  const Key key{endpoint.get(), fd};
  const auto place = members_.lower_bound(key);
  if (place != members_.end() && place->first == key) return Error{EEXIST, "epoll_ctl"};
  auto created = std::make_unique<EpollMember>(*this, fd, std::move(endpoint));
  EpollMember& member = *created;
  member.set_event(event);
  const auto entered = members_.emplace_hint(place, key, std::move(created));
  if (!member.endpoint_->add_watch(member)) {
    // The last reference is not ours: whoever is closing it holds one.
    members_.erase(entered);
    return Error{EBADF, "epoll_ctl: closed"};
  }
  member_count_.store(members_.size(), std::memory_order_relaxed);
  make_hot(member, round_ + kGraceRounds);
  ring();
  notify_watchers(EPOLLIN);
  return ok();
}

Status EpollSet::modify(EpollMember& member, const epoll_event& event) {
  if (member.event_.events & EPOLLEXCLUSIVE) return Error{EINVAL, "epoll_ctl: EPOLLEXCLUSIVE"};
  member.set_event(event);
  make_hot(member, round_ + kGraceRounds);
  ring();
  notify_watchers(EPOLLIN);
  return ok();
}

void EpollSet::remove(Members::iterator place, Departed& departed) {
  EpollMember& member = *place->second;
  member.endpoint_->remove_watch(member);
  // It may be among the changed, and nobody pushes it there any more.
  drain_changed();
  leave_lists(member);
  departed.push_back(std::move(place->second));
  members_.erase(place);
  forget_doorbells(member);
  member_count_.store(members_.size(), std::memory_order_relaxed);
}

void EpollSet::member_closed(Endpoint& endpoint) noexcept {
  Departed departed;
  const std::lock_guard guard(lock_);
  auto place = members_.lower_bound({&endpoint, INT_MIN});
  while (place != members_.end() && place->first.first == &endpoint) remove(place++, departed);
}

void EpollSet::member_left_to_kernel(Endpoint& endpoint) noexcept {
  Departed departed;
  const std::lock_guard guard(lock_);
  auto place = members_.lower_bound({&endpoint, INT_MIN});
  while (place != members_.end() && place->first.first == &endpoint) {
    EpollMember& member = *place->second;
    epoll_event event = member.event_;
    if (!member.enabled_) event.events = 0;
    if (Status moved = control_kernel(EPOLL_CTL_ADD, member.fd_, &event); !moved) {
      log_warn("epoll: descriptor %d: %s: %s", member.fd_, moved.error().where, std::strerror(moved.error().code));
    }
    remove(place++, departed);
  }
  ring();
}

void EpollSet::closed() noexcept {
  Departed departed;
  {
    const std::lock_guard guard(lock_);
    while (!members_.empty()) remove(members_.begin(), departed);
  }
  ring();
}

// -- hot and cold
// -----------------------------------------------------------------------------------------------------------

void EpollSet::leave_lists(EpollMember& member) {
  if (member.is_hot()) {
    member.ListNode<EpollSet>::unlink();
    --hot_count_;
  }
  if (member.deadline_ != Nanos::max()) due_.erase({member.deadline_, &member});
  member.deadline_ = Nanos::max();
}

void EpollSet::make_hot(EpollMember& member, std::uint64_t idle_until) {
  member.idle_until_ = std::max(member.idle_until_, idle_until);
  if (member.is_hot()) return;
  leave_lists(member);
  member.armed_ = false;
  hot_.push_back(member);
  ++hot_count_;
}

void EpollSet::make_cold(EpollMember& member) {
  leave_lists(member);
  const Nanos deadline = member.endpoint_->deadline();
  if (deadline == Nanos::max()) return;
  due_.insert({deadline, &member});
  member.deadline_ = deadline;
}

void EpollSet::drain_changed() {
  EpollMember* member = changed_.exchange(nullptr);
  while (member) {
    EpollMember* const next = member->next_changed_;
    member->changed_.store(false);
    if (member->enabled_) make_hot(*member, round_ + kGraceRounds);
    member = next;
  }
}

void EpollSet::ring_uncounted_sleepers() {
  const int saved_errno = errno;
  ::eventfd_write(bell_.get(), 1);
  errno = saved_errno;
}

/// Announces to the member's endpoint that somebody will sleep, and has the kernel listen to its doorbells.
/// @return false when the kernel cannot (ENOSPC, ENOMEM, ELOOP): the member must stay hot.
bool EpollSet::arm_member(EpollMember& member) {
  const WaitFds before = member.doorbells_;
  member.doorbells_ = member.endpoint_->arm();
  for (const int fd : before.fd) {
    if (fd >= 0 && fd != member.doorbells_.fd[0] && fd != member.doorbells_.fd[1]) drop_doorbell(fd, *member.endpoint_);
  }
  bool all = true;
  for (const int fd : member.doorbells_.fd) {
    const bool is_new = fd != before.fd[0] && fd != before.fd[1];
    if (fd >= 0 && !register_doorbell(fd, *member.endpoint_, is_new)) all = false;
  }
  member.is_deaf_ = !all;
  return all;
}

bool EpollSet::register_doorbell(int fd, Endpoint& endpoint, bool is_new) {
  // A socket of the kernel's tells by itself what it is ready for; a doorbell is only ever readable.
  const bool tells_more = endpoint.asks_kernel() && !endpoint.is_datagram();
  const std::uint32_t edges = EPOLLIN | EPOLLET | (tells_more ? EPOLLOUT | EPOLLRDHUP : 0U);
  const epoll_event event{edges, {.fd = fd}};
  // Even one that is known may be gone: the endpoint closed the descriptor and opened another of that number.
  const auto [place, is_first] = known_doorbells_.try_emplace(fd);
  const bool known = !is_first;
  place->second.owner = &endpoint;
  if (is_new) ++place->second.users;
  if (known && !is_new && endpoint.rings_for_each_arrival()) return true;
  if (known && control_descriptor(doorbells_.get(), EPOLL_CTL_MOD, fd, &event)) return true;
  const Status added = control_descriptor(doorbells_.get(), EPOLL_CTL_ADD, fd, &event);
  if (added) return true;
  // A nested set's are there since check_nesting(); a MOD also tells when it is readable already.
  return added.error().code == EEXIST && control_descriptor(doorbells_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EpollSet::drop_doorbell(int fd, Endpoint& endpoint) {
  const auto known = known_doorbells_.find(fd);
  if (known == known_doorbells_.end()) return;
  Doorbell& doorbell = known->second;
  if (doorbell.users > 1) {
    --doorbell.users;
    if (doorbell.owner != &endpoint) return;
    // Another one that has it looks whether it rang meanwhile.
    for (auto& [key, member] : members_) {
      if (member->endpoint_.get() == &endpoint || (member->doorbells_.fd[0] != fd && member->doorbells_.fd[1] != fd))
        continue;
      doorbell.owner = member->endpoint_.get();
      if (member->enabled_) make_hot(*member, round_ + kGraceRounds);
      return;
    }
  }
  known_doorbells_.erase(known);
  static_cast<void>(control_descriptor(doorbells_.get(), EPOLL_CTL_DEL, fd, nullptr));
}

/// For a member that has just left: unless the endpoint is still in under another descriptor.
void EpollSet::forget_doorbells(EpollMember& member) {
  Endpoint& endpoint = *member.endpoint_;
  const auto other = members_.lower_bound({&endpoint, INT_MIN});
  if (other != members_.end() && other->first.first == &endpoint) return;
  for (const int fd : member.doorbells_.fd) {
    if (fd >= 0) drop_doorbell(fd, endpoint);
  }
}

// -- fork
// --------------------------------------------------------------------------------------------------------------------

void EpollSet::add_fork_locks(ForkLocks& locks) {
  locks.add_outer(lock_);
  Endpoint::add_fork_locks(locks);
}

void EpollSet::after_fork(ForkSide side) noexcept {
  Endpoint::after_fork(side);
  if (side != ForkSide::child) return;
  // Doorbells that ring in a shared epoll file would be taken by one for the other. Without descriptors for new ones
  // the members stay hot.
  if (Status made = make_doorbells(doorbells_, bell_); !made) log_warn("epoll after fork: %s", made.error().where);
  sleepers_.store(0);
  changed_.store(nullptr);
  known_doorbells_.clear();
  for (auto& [key, member] : members_) {
    member->changed_.store(false);
    member->doorbells_ = {};
    if (member->enabled_) make_hot(*member, round_ + kGraceRounds);
    member->armed_ = false;
  }
}

// -- descriptor numbers
// -----------------------------------------------------------------------------------------------------

Status epoll_control(int epoll_fd, int op, int fd, const epoll_event* event) {
  const Ref endpoint = fd_table().get(epoll_fd);
  if (!endpoint) {
    if (fd_table().find(fd))
      return Error{::fcntl(epoll_fd, F_GETFD) < 0 ? EBADF : EINVAL, "epoll_ctl: not a set of ours"};
    return control_descriptor(epoll_fd, op, fd, event);
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
  return counted_wait(set->counters(epoll_fd), [&] {
    return set->wait({events, static_cast<std::size_t>(max_events)}, timeout, mask);
  });
}

}  // namespace ringsock::runtime
