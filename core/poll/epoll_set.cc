// The members of an epoll set.
#include "core/poll/epoll_set.h"

#include <fcntl.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>

#include "core/base/at_fork.h"
#include "core/base/log.h"
#include "core/base/own_duplicate.h"
#include "core/base/raised_limit.h"
#include "core/base/rare_calls.h"
#include "core/poll/poll_set.h"
#include "core/poll/process_waits.h"
#include "core/poll/sleeper.h"
#include "core/poll/thread_waits.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/fork_registry.h"
#include "core/runtime/listable.h"
#include "core/runtime/used_elsewhere.h"

namespace ringsock::runtime {

namespace {

constexpr std::uint32_t kAllowedWithExclusive =
    EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE;
/// A member that just got hot gets cold after this many idle rounds; once it has reported, kIdleRounds (epoll_wait.cc)
/// apply. A connection that was just accepted usually has data soon.
constexpr std::uint64_t kGraceRounds = 8;
/// The kernel's limit.
constexpr int kDeepestNesting = 5;
/// More than the number of threads that wait for a set when it is adopted.
constexpr int kRingsAfterAdoption = 64;

/// A forked child does not have the other threads.
[[gnu::constructor]] void free_locks_in_children() {
  at_fork(ForkStep::epoll_sets, nullptr, nullptr, [] {
    new (&process_waits().adopting) Mutex;
    new (&process_waits().nesting) Mutex;
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

/// The event data of our doorbells in the kernel's set of an adopted set: the address of a variable of ours, which no
/// data of the application equals.
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

void EpollMember::endpoint_changed() noexcept {
  if (thread_waits.being_asked == this) {
    // The endpoint may have other doorbells now (a connect that has found its listener).
    armed_ = false;
    return;
  }
  if (is_parked_.load()) {
    // Either this load sees that add_parked() has been called, or its thread, which looks afterwards, sees the news.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (is_parked_.load()) return;
  }
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

void EpollMember::ask() {
  const EpollMember* const outer = std::exchange(thread_waits.being_asked, this);
  const std::uint32_t ready = endpoint_->ready();
  thread_waits.being_asked = outer;
  // Read after ready(): what arrives later is a new edge, or the caller finds it.
  found_activity_ = endpoint_->activity();
  found_ = with_normal_bands(ready) & (event_.events | EPOLLERR | EPOLLHUP);
  if ((ready & kUsedElsewhere) != 0 && found_ != 0) [[unlikely]] {
    // Nothing is known: wait() finds out first.
    found_ = 0;
    is_used_elsewhere_ = true;
    set_.must_follow_.store(true);
  }
}

std::uint32_t EpollMember::reportable() {
  if (!enabled_) return 0;
  ask();
  // A member that is reported again and again without news never gets cold, so no doorbell tells of its peer's end.
  if (found_ != 0 && !has_news()) {
    endpoint_->look_for_end();
    if (endpoint_->activity() != found_activity_) ask();
  }
  if ((event_.events & EPOLLET) == 0) return found_;
  constexpr std::uint32_t kRoom = EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND;
  const std::uint64_t news = found_activity_ - seen_activity_;
  const bool has_arrived = news % Endpoint::kOpening != 0;
  const bool has_opened = news / Endpoint::kOpening != 0;
  const bool is_edge =
      (has_arrived && (found_ & ~kRoom) != 0) || (has_opened && (found_ & kRoom) != 0) || (found_ & ~seen_) != 0;
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
  is_set_since_fork_ = true;
  enabled_ = true;
  seen_ = 0;
}

// -- set

EpollSet::EpollSet(UniqueFd kernel, UniqueFd doorbells, UniqueFd bell)
    : kernel_(std::move(kernel)),
      doorbells_(std::move(doorbells)),
      bell_(std::move(bell)),
      counter_slot_(WaitCounters::kNowhere) {
  fork_registry().enter(*this);
}

EpollSet::~EpollSet() {
  fork_registry().leave(*this);
  for (auto& [key, member] : members_) member->endpoint_->remove_watch(*member);
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
  UniqueFd kernel;
  UniqueFd doorbells;
  UniqueFd bell;
  const auto make_all = [&]() -> Status {
    kernel = own_duplicate(epoll_fd);
    if (!kernel) return Error::last("epoll_create");
    return make_doorbells(doorbells, bell);
  };
  Status made = make_all();
  if (!made && made.error().code == EMFILE) {
    // Kernel epoll sets need no further descriptors, so a full descriptor table must not make ours fail.
    kernel.reset();
    doorbells.reset();
    bell.reset();
    if (const RaisedLimit raised; raised) made = make_all();
  }
  if (!made) return made.error();
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

Status EpollSet::adopt(int epoll_fd, std::span<const int> copies, bool is_shared) {
  const std::lock_guard guard(process_waits().adopting);
  if (fd_table().holds(epoll_fd)) return ok();
  auto wrapped = wrap(epoll_fd);
  if (!wrapped) return wrapped.error();
  auto& set = static_cast<EpollSet&>(**wrapped);
  set.has_kernel_members_.store(true, std::memory_order_relaxed);
  Status nested = is_shared ? set.require_epoll_file() : set.nest_doorbells();
  if (!nested) return nested;
  const Ref held = *std::move(wrapped);
  Status entered = fd_table().insert(epoll_fd, Ref::share(*held));
  for (auto copy = copies.begin(); entered && copy != copies.end(); ++copy) {
    entered = fd_table().insert(*copy, Ref::share(*held));
  }
  if (entered) set.ring_uncounted_sleepers();
  return entered;
}

/// Makes our doorbells wake threads that sleep on the epoll file.
Status EpollSet::nest_doorbells() {
  const epoll_event wake_up{EPOLLIN, {.u64 = wake_up_tag()}};
  Status nested = control_descriptor(kernel_.get(), EPOLL_CTL_ADD, doorbells_.get(), &wake_up);
  if (!nested) return nested;
  is_adopted_ = true;
  rings_after_adoption_.store(kRingsAfterAdoption);
  return ok();
}

/// Returns the kernel's error for removing a descriptor that is not a member.
Status EpollSet::require_epoll_file() const {
  Status none = control_descriptor(kernel_.get(), EPOLL_CTL_DEL, doorbells_.get(), nullptr);
  return none || none.error().code == ENOENT ? ok() : none;
}

int EpollSet::forget_wake_up(epoll_event* events, int count) {
  const auto is_wake_up = [](const epoll_event& event) { return event.data.u64 == wake_up_tag(); };
  return static_cast<int>(std::remove_if(events, events + count, is_wake_up) - events);
}

Status EpollSet::control(int op, int fd, const epoll_event* event) {
  Ref endpoint = fd_table().get(fd);
  // Another process may have changed the registration since it has moved the connection to the kernel.
  if (endpoint && endpoint->values.get(DescriptionValues::is_kernels) != 0 && follow_user(*endpoint))
    endpoint = fd_table().get(fd);
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
  if (found == members_.end() || found->second->is_parked_) return Error{ENOENT, "epoll_ctl"};
  if (op == EPOLL_CTL_MOD) return modify(*found->second, *event);
  if (!park(*found->second)) remove(found, departed);
  return ok();
}

/// Keeps a member that was removed for the case that it is added again. Only connections: other endpoints go on
/// ringing.
bool EpollSet::park(EpollMember& member) {
  if (member.endpoint_->listable() == nullptr) return false;
  member.enabled_ = false;
  leave_lists(member);
  member.is_parked_.store(true);
  ++parked_count_;
  count_members();
  return true;
}

Status EpollSet::add_parked(EpollMember& member, const epoll_event& event) {
  member.is_parked_.store(false);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  --parked_count_;
  count_members();
  member.set_event(event);
  make_hot(member, round_ + kGraceRounds);
  ring();
  notify_watchers(EPOLLIN);
  return ok();
}

/// Called when a doorbell has rung: a removed member that has news was not added again at once, so it is another set's,
/// or nobody's, and its doorbell must not wake this set's threads any more.
void EpollSet::forget_doorbells_of_parked(Endpoint& endpoint) {
  const auto first = members_.lower_bound({&endpoint, INT_MIN});
  const auto end = members_.upper_bound({&endpoint, INT_MAX});
  if (!std::all_of(first, end, [](const auto& entry) { return entry.second->is_parked_.load(); })) return;
  for (auto place = first; place != end; ++place) {
    for (const int fd : std::exchange(place->second->doorbells_, {}).fd) {
      if (fd >= 0) drop_doorbell(fd, endpoint);
    }
  }
}

void EpollSet::count_members() { member_count_.store(members_.size() - parked_count_, std::memory_order_relaxed); }

/// Checks whether it may hold `inner`. ProcessWaits::nesting must be held. Errors: ELOOP a cycle, or too deep; EPERM,
/// ENOSPC, ENOMEM. The doorbells of a set are epoll descriptors, and so are those of sockets and rings below them, so
/// the kernel may refuse a nesting that is legal for the caller's sets. Such a set is polled instead
/// (EpollMember::is_deaf_).
Status EpollSet::check_nesting(EpollSet& inner) {
  if (inner.reaches(*this, kDeepestNesting)) return Error{ELOOP, "epoll_ctl"};
  for (const int fd : inner.arm().fd) {
    const epoll_event event{EPOLLIN | EPOLLET, {.fd = fd}};
    Status added = control_descriptor(doorbells_.get(), EPOLL_CTL_ADD, fd, &event);
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
    nesting = std::unique_lock(process_waits().nesting);
    Status nested = check_nesting(*inner);
    if (!nested) return nested;
  }
  const std::lock_guard guard(lock_);
  const Key key{endpoint.get(), fd};
  const auto place = members_.lower_bound(key);
  if (place != members_.end() && place->first == key) {
    return place->second->is_parked_ ? add_parked(*place->second, event) : Error{EEXIST, "epoll_ctl"};
  }
  prepare_for_one_more();
  auto created = std::make_unique<EpollMember>(*this, fd, std::move(endpoint));
  EpollMember& member = *created;
  member.set_event(event);
  const auto entered = members_.emplace_hint(place, key, std::move(created));
  if (!member.endpoint_->add_watch(member)) {
    // This is not the last reference: the closing thread holds one.
    members_.erase(entered);
    return Error{EBADF, "epoll_ctl: closed"};
  }
  count_members();
  make_hot(member, round_ + kGraceRounds);
  ask_for_stamps(member);
  ring();
  notify_watchers(EPOLLIN);
  return ok();
}

void EpollSet::prepare_for_one_more() {
  const std::size_t needed = members_.size() + 1;
  if (needed <= found_.capacity() && needed <= asked_.capacity()) return;
  found_.reserve(2 * needed);
  asked_.reserve(2 * needed);
}

/// Order does not matter in a set with one member.
void EpollSet::ask_for_stamps(EpollMember& newest) {
  if (members_.size() > 2) {
    static_cast<void>(newest.endpoint_->arrival_stamp());
  } else if (members_.size() == 2) {
    for (auto& [key, member] : members_) static_cast<void>(member->endpoint_->arrival_stamp());
  }
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
  // It may be in the changed list, and will not be pushed there any more.
  drain_changed();
  leave_lists(member);
  lists_.leave(member.listed_);
  has_maps_.store(lists_.has_maps(), std::memory_order_relaxed);
  if (member.is_parked_) --parked_count_;
  departed.insert(members_.extract(place));
  forget_doorbells(member);
  count_members();
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
    if (member.is_parked_) {
      remove(place++, departed);
      continue;
    }
    Status moved = control_kernel(EPOLL_CTL_ADD, member.fd_, &event);
    if (!moved && moved.error().code == EEXIST) {
      // Another process that shares the kernel's set has added it, as it was before the fork or is since.
      moved = member.is_set_since_fork_ ? control_kernel(EPOLL_CTL_MOD, member.fd_, &event) : ok();
    }
    if (!moved) {
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

void EpollSet::leave_lists(EpollMember& member) {
  if (member.is_hot()) {
    member.ListNode<EpollSet>::unlink();
    --hot_count_;
    if (std::exchange(member.is_waiting_, false)) --waiting_count_;
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

/// Makes a hot member cold. It stays hot where there is no memory for its deadline.
void EpollSet::make_cold(EpollMember& member) try {
  const Nanos deadline = member.endpoint_->deadline();
  if (deadline != Nanos::max()) due_.insert({deadline, &member});
  leave_lists(member);
  member.deadline_ = deadline;
} catch (const std::bad_alloc&) {
}

void EpollSet::drain_changed() {
  // The newest member is in front.
  EpollMember* member = nullptr;
  for (EpollMember* newest = changed_.exchange(nullptr); newest != nullptr;) {
    EpollMember* const older = std::exchange(newest->next_changed_, member);
    member = std::exchange(newest, older);
  }
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

/// Arms the member's endpoint and registers its doorbells with the kernel.
/// @return false when the kernel cannot (ENOSPC, ENOMEM, ELOOP), or memory is missing: the member must stay hot.
bool EpollSet::arm_member(EpollMember& member) {
  const WaitFds before = member.doorbells_;
  member.doorbells_ = member.endpoint_->arm();
  for (const int fd : before.fd) {
    if (fd >= 0 && fd != member.doorbells_.fd[0] && fd != member.doorbells_.fd[1]) drop_doorbell(fd, *member.endpoint_);
  }
  bool all = true;
  for (int& fd : member.doorbells_.fd) {
    const bool is_new = fd != before.fd[0] && fd != before.fd[1];
    if (fd >= 0 && !register_doorbell(fd, *member.endpoint_, is_new)) all = false;
  }
  member.is_deaf_ = !all;
  return all;
}

/// Makes the member ready to get cold: it is listed, or armed and, where there is a map, listed.
bool EpollSet::arm_or_list(EpollMember& member) {
  if (member.is_listed()) return true;
  if (!arm_member(member)) return false;
  if (Listable* const endpoint = member.endpoint_->listable()) lists_.list(member, member.listed_, *endpoint);
  has_maps_.store(lists_.has_maps(), std::memory_order_relaxed);
  return true;
}

/// Returns whether a member that is not listed would be.
bool EpollSet::should_list(EpollMember& member) {
  if (members_.size() < ReadyLists::kFewMembers || member.is_listed()) return false;
  Listable* const endpoint = member.endpoint_->listable();
  return endpoint != nullptr && lists_.wants(member.listed_, *endpoint);
}

/// Makes the members hot whose peers have noted news.
void EpollSet::take_listed() {
  lists_.take([this](EpollMember& member) {
    if (member.enabled_) make_hot(member, round_);
  });
}

namespace {

/// Counts a member of `endpoint` as a user of the doorbell, if it is a new one. Returns whether the doorbell was known
/// before; nothing when there is no memory for it.
template <class Doorbells>
std::optional<bool> know_doorbell(Doorbells& doorbells, int fd, Endpoint& endpoint, bool is_new) try {
  const auto [place, is_first] = doorbells.try_emplace(fd);
  place->second.owner = &endpoint;
  if (is_new) ++place->second.users;
  return !is_first;
} catch (const std::bad_alloc&) {
  return std::nullopt;
}

}  // namespace

/// Sets `fd` to -1 when it is not to be known as a doorbell.
bool EpollSet::register_doorbell(int& fd, Endpoint& endpoint, bool is_new) {
  const std::optional<bool> known = know_doorbell(known_doorbells_, fd, endpoint, is_new);
  if (!known) {
    fd = -1;
    return false;
  }
  // A kernel socket reports what it is ready for; a doorbell is only ever readable.
  const bool tells_more = endpoint.asks_kernel() && !endpoint.is_datagram();
  const std::uint32_t edges = EPOLLIN | EPOLLET | (tells_more ? EPOLLOUT | EPOLLRDHUP : 0U);
  const epoll_event event{edges, {.fd = fd}};
  // Even a known doorbell may be stale: the endpoint may have closed the descriptor and opened another with that
  // number.
  if (*known && !is_new && endpoint.rings_for_each_arrival()) return true;
  if (*known && control_descriptor(doorbells_.get(), EPOLL_CTL_MOD, fd, &event)) return true;
  const Status added = control_descriptor(doorbells_.get(), EPOLL_CTL_ADD, fd, &event);
  if (added) return true;
  // The doorbells of a nested set were added by check_nesting(); EPOLL_CTL_MOD also reports one that is readable
  // already.
  return added.error().code == EEXIST && control_descriptor(doorbells_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EpollSet::drop_doorbell(int fd, Endpoint& endpoint) {
  const auto known = known_doorbells_.find(fd);
  if (known == known_doorbells_.end()) return;
  Doorbell& doorbell = known->second;
  if (doorbell.users > 1) {
    --doorbell.users;
    if (doorbell.owner != &endpoint) return;
    // Other members with this doorbell check whether it rang meanwhile.
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

/// Forgets the doorbells of a member that has just left, unless the endpoint is still a member under another
/// descriptor.
void EpollSet::forget_doorbells(EpollMember& member) {
  Endpoint& endpoint = *member.endpoint_;
  const auto other = members_.lower_bound({&endpoint, INT_MIN});
  if (other != members_.end() && other->first.first == &endpoint) return;
  for (const int fd : member.doorbells_.fd) {
    if (fd >= 0) drop_doorbell(fd, endpoint);
  }
}

// -- fork

void EpollSet::add_fork_locks(ForkLocks& locks) {
  locks.add_outer(lock_);
  Endpoint::add_fork_locks(locks);
}

void EpollSet::after_fork(ForkSide side) noexcept {
  Endpoint::after_fork(side);
  if (side == ForkSide::unprepared_child) return;
  for (auto& [key, member] : members_) member->is_set_since_fork_ = false;
  if (side == ForkSide::parent) return;
  // In a shared epoll file one process would consume the doorbells of the other. Without descriptors for new ones the
  // members stay hot.
  if (Status made = make_doorbells(doorbells_, bell_); !made) log_warn("epoll after fork: %s", made.error().where);
  sleepers_.store(0);
  changed_.store(nullptr);
  known_doorbells_.clear();
  lists_.forget();
  has_maps_.store(false);
  peers_ring_.store(false);
  for (auto& [key, member] : members_) {
    member->listed_ = {};
    member->changed_.store(false);
    member->doorbells_ = {};
    if (member->enabled_) make_hot(*member, round_ + kGraceRounds);
    member->armed_ = false;
  }
}

// -- descriptor numbers

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
  return counted_wait(set->counter_slot(epoll_fd), [&] {
    return set->wait({events, static_cast<std::size_t>(max_events)}, timeout, mask);
  });
}

}  // namespace ringsock::runtime
