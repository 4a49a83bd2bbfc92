// Listening and accepting.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <span>

#include "core/base/abandon.h"
#include "core/base/log.h"
#include "core/base/unique_fd.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/fork_registry.h"
#include "core/runtime/service_thread.h"
#include "librsocket/listener_watch.h"
#include "librsocket/rsocket_process.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

namespace {
/// At least this many clients may be answered but unconfirmed, whatever the backlog.
constexpr std::size_t kMinHalfOpen = 128;
/// The number of requests, including refused ones, that one look at a listener handles. Clients of the kernel socket
/// wait meanwhile.
constexpr int kMaxRequestsPerLook = 16;

/// So many clients may wait in any case.
constexpr std::size_t kAlwaysQueued = 2;

/// Returns how many clients may have descriptors before the application, which may miss these, accepts them.
std::size_t share_of_descriptors() {
  constexpr rlim_t kSmallTable = 256;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
  return limit.rlim_cur / (limit.rlim_cur <= kSmallTable ? 16 : 2);
}

/// Whether there is, or was, a listener that the service thread does not serve.
std::atomic<bool> has_unwatched_listeners{false};

bool is_readable(int fd) {
  const int saved_errno = errno;
  pollfd entry{fd, POLLIN, 0};
  const bool is = ::poll(&entry, 1, 0) > 0;
  errno = saved_errno;
  return is;
}

bool is_rs_connect(std::span<const std::byte> private_data) {
  return static_cast<bool>(wire::parse_rs_connect(private_data));
}

}  // namespace

Status Listener::listen(int backlog) {
  std::lock_guard guard(core_.setup_lock);
  // Linux treats a negative backlog as a large one.
  const int wanted = backlog < 0 ? SOMAXCONN : std::clamp(backlog, 1, SOMAXCONN);
  const auto limit = static_cast<std::size_t>(wanted);
  if (core_.state() == State::listening) {  // listen(2): a second call changes the backlog
    backlog_ = limit;
    return ok();
  }
  if (core_.state() == State::initial) {
    if (Status bound = socket_.connector().bind_locked(SocketAddress::wildcard(core_.domain, 0)); !bound) return bound;
  }
  if (core_.state() != State::bound) return Error{EINVAL, "rlisten"};
  if (Status listening = core_.id->listen(wanted); !listening) return listening;
  core_.id->check_requests_by(is_rs_connect);
  backlog_ = limit;
  serial_ = ++core_.process.listeners;
  core_.set_state(State::listening);
  start_watch();
  return ok();
}

Result<int> Listener::accept(SocketAddress& peer, int flags) {
  if (core_.state() != State::listening || core_.read_shut.load(std::memory_order_acquire))
    return Error{EINVAL, "raccept"};
  if (!socket_.inheritance().claim()) return Error{EIO, "raccept: the listener is the parent's"};
  parts_.tell_that_child_listens();
  std::unique_lock guard(core_.setup_lock);
  accept_calls_.fetch_add(1, std::memory_order_relaxed);
  if (watch_) watch_->is_accepted();
  drop_those_taken_elsewhere();
  if (accept_queue_.empty()) progress(accept_turns.are_exclusive() ? 1 : backlog_);
  if (core_.closed.load(std::memory_order_relaxed)) return Error{EBADF, "raccept: closed meanwhile"};
  if (accept_queue_.empty()) {
    // For example, no descriptor for the next client: the caller gets the error, the client waits.
    if (const int error = std::exchange(error_, 0)) return Error{error, "raccept"};
    accept_turns.note_vain_accept();
    return Error{EAGAIN, "raccept"};
  }
  return give_out_client(peer, flags, guard);
}

bool Listener::is_accepted_in_turns() const noexcept {
  return socket_.inheritance().is_shared() || accept_turns.are_several();
}

void Listener::arm_turns(runtime::WaitFds& fds) {
  if (core_.endpoint.sleeping_calls() > 1) accept_turns.note_several();
  if (!is_accepted_in_turns()) return;
  queue_fd_.store(fds.fd[1], std::memory_order_relaxed);
  const auto queue = core_.id->queue_fds();
  fds.shared[1] = queue.shared;
  fds.own = queue.own;
  fds.sleeps_on_own = accept_turns.look_after_half_made();
}

bool Listener::nobody_waits(int also) {
  if (core_.state() != State::listening || !is_accepted_in_turns() || core_.read_shut.load(std::memory_order_acquire))
    return false;
  const int queue = queue_fd_.load(std::memory_order_relaxed);
  // Asks the places in the order in which a client goes through them.
  const auto has_taken_in = [this] {
    return !ahead.empty() || takes_in_.load(std::memory_order_acquire) || !accept_queue_.empty();
  };
  if (queue < 0 || has_taken_in() || core_.deadline.load(std::memory_order_relaxed) <= monotonic_now()) return false;
  accept_calls_.fetch_add(1, std::memory_order_relaxed);
  const int saved_errno = errno;
  std::array<pollfd, 2> entries{{{queue, POLLIN, 0}, {also, POLLIN, 0}}};
  const bool nobody = ::poll(entries.data(), entries.size(), 0) == 0;
  errno = saved_errno;
  return nobody && !has_taken_in();  // the service thread may have taken in a client since the first look
}

Result<int> Listener::accept_waiting(SocketAddress& peer, int flags) {
  std::unique_lock guard(core_.setup_lock);
  drop_those_taken_elsewhere();
  if (accept_queue_.empty()) return Error{EAGAIN, "raccept"};
  return give_out_client(peer, flags, guard);
}

Status Listener::listen_in_family(int backlog) {
  {
    const std::lock_guard guard(core_.setup_lock);
    if (core_.state() != State::initial || !of_family.is_prepared() || has_ended_for_all())
      return Error{EOPNOTSUPP, "other processes have had the socket since before"};
    core_.id = of_family.take();
    socket_.numbers().hold_port();
    core_.set_state(State::bound);
  }
  const Status listening = listen(backlog);
  if (!listening) stop_listening();
  return listening;
}

void Listener::end_for_all() {
  const std::lock_guard guard(core_.setup_lock);
  if (of_family.is_prepared()) {
    if (FamilyRecord* const record = socket_.inheritance().family()) record->ring_ended.store(true);
    return of_family.end();
  }
  if (core_.state() != State::listening || !core_.id) return;
  parts_.tell_that_child_listens();
  if (FamilyRecord* const record = socket_.inheritance().family())
    record->ring_ended.store(true, std::memory_order_release);
  core_.id->end_for_all();
  ahead.refuse();
  // Dropping a request refuses it, so its client does not wait for an answer.
  while (core_.id->next_event()) {
  }
}

bool Listener::has_ended_for_all() const noexcept {
  const FamilyRecord* const record = socket_.inheritance().family();
  return record != nullptr && record->ring_ended.load(std::memory_order_acquire);
}

bool Listener::is_strangers_too() const noexcept {
  const FamilyRecord* const record = socket_.inheritance().family();
  return record != nullptr && record->kernel_blocks.load(std::memory_order_acquire);
}

bool Listener::has_half_open() {
  const std::lock_guard guard(core_.setup_lock);
  return !half_open_.empty();
}

/// Gives the first client of the queue, which is not empty, a descriptor. Releases `guard`, which holds setup_lock_.
Result<int> Listener::give_out_client(SocketAddress& peer, int flags, std::unique_lock<Mutex>& guard) {
  auto& accepted = stream_of(*accept_queue_.front());
  if (!accepted.inheritance().claim()) return Error{EAGAIN, "raccept: another process was faster"};
  UniqueFd fd;
  if (accepted.core().fd < 0) {
    fd.reset(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!fd) return Error::last("raccept: eventfd");
    accepted.core().fd = fd.get();
  }
  accepted.close_on_exec.store((flags & SOCK_CLOEXEC) != 0);
  accepted.endpoint().set_nonblocking((flags & SOCK_NONBLOCK) != 0);
  peer = accepted.core().as_seen_here(accepted.core().id->peer_address());
  const int number = accepted.core().fd;
  Clients owner = accept_queue_.take_front();
  if (watch_) watch_->room_again();
  const bool more_wait =
      (accept_turns.leave_half_made() && core_.deadline.load() != Nanos::max()) || !accept_queue_.empty();
  // The table may have to wait for other threads, which may be waiting for this lock.
  guard.unlock();
  if (more_wait) core_.endpoint.notify_a_taker();
  if (Status entered = runtime::fd_table().insert(number, runtime::Ref::share(accepted.endpoint())); !entered) {
    guard.lock();
    if (fd) accepted.core().fd = -1;
    accept_queue_.push_front(std::move(owner));
    return entered.error();
  }
  (void)fd.release();
  accepted.core().connection->overflow().note(OverflowAreas::Acceptance::done);
  accepted.core().describe();
  core_.process.counts.load(std::memory_order_acquire)->accepted.fetch_add(1, std::memory_order_relaxed);
  runtime::process_statistics.count_accepted(accepted.core().path());
  return number;
}

/// Drops clients from before a fork that another process has accepted: such a client belongs to the process that first
/// accepts it.
void Listener::drop_those_taken_elsewhere() {
  while (!accept_queue_.empty() && stream_of(*accept_queue_.front()).inheritance().is_used_elsewhere()) {
    accept_queue_.take_front();
  }
}

bool Listener::has_client() {
  drop_those_taken_elsewhere();
  const bool is_exclusive = accept_turns.are_exclusive();
  const bool leaves_queue = is_exclusive || socket_.inheritance().is_shared();
  if (!leaves_queue || !accept_queue_.empty() || !core_.id || has_ended_for_all()) {
    progress(is_exclusive ? 1 : backlog_);
    return !accept_queue_.empty();
  }
  if (!is_exclusive || core_.id->queue_fds().shared < 0) {
    // The thread that looks need not be the one that accepts. That one drops requests that have not come in time.
    if (core_.deadline.load(std::memory_order_relaxed) <= monotonic_now()) core_.deadline.store(Nanos::max());
    return is_readable(core_.id->event_fd());
  }
  // It is the only one that the client has woken, and waits for the request, too.
  const bool was_told = ahead.has_client();
  const bool is_there = ahead.look(*core_.id);
  if (!was_told && !ahead.empty()) core_.endpoint.note_activity();
  progress(0);
  if (!is_there && core_.deadline.load(std::memory_order_relaxed) != Nanos::max()) accept_turns.take_over_half_made();
  return is_there;
}

/// Takes in clients as long as the queue has `room`.
void Listener::progress(std::size_t room) {
  if (!socket_.inheritance().is_shared()) {
    if (watch_again_ && core_.id) start_watch();
    if (watch_) watch_->is_alone();
  }
  // A client that this process takes cannot be accepted by another one.
  if (core_.id) take_in_clients(*core_.id, socket_.inheritance().is_shared() ? std::min<std::size_t>(room, 1) : room);
  const auto next = core_.id ? core_.id->next_deadline() : std::nullopt;
  core_.deadline.store(next.value_or(Nanos::max()), std::memory_order_relaxed);
  // A forked child's first look at its clients gives the listener another descriptor.
  if (core_.id && queue_fd_.load(std::memory_order_relaxed) >= 0) {
    queue_fd_.store(core_.id->event_fd(), std::memory_order_relaxed);
  }
}

void Listener::take_in_clients(verbs::ConnectionId& from, std::size_t room) {
  struct TakingIn {
    explicit TakingIn(std::atomic<bool>& flag) : flag_(flag) { flag_.store(true); }
    TakingIn(const TakingIn&) = delete;
    TakingIn& operator=(const TakingIn&) = delete;
    ~TakingIn() { flag_.store(false, std::memory_order_release); }
    std::atomic<bool>& flag_;
  } const taking_in(takes_in_);
  bool admitted = false;
  for (int requests = 0; requests < kMaxRequestsPerLook && accept_queue_.size() < room; ++requests) {
    // Whoever has looked ahead was told of the client: it is no other event when it is taken in.
    const bool was_told = ahead.has_client();
    auto event = ahead.next(from);
    if (!event) {
      if (event.error().code != EAGAIN) error_ = event.error().code;
      break;
    }
    // The kernel, which the client asks next, gives it no descriptor before accept(2).
    if (socket_.connector().has_other_way() && accept_queue_.size() >= kAlwaysQueued &&
        accept_queue_.size() >= share_of_descriptors())
      continue;
    if (event->type == verbs::CmEventType::connect_request && admit(*event)) admitted |= !was_told;
  }
  if (admitted) note_admitted();
}

void Listener::note_admitted() {
  core_.endpoint.note_activity();
  if (watch_ && parts_.may_keep_clients_from_others()) watch_->look_later();
}

bool Listener::admit(verbs::CmEvent& event) {
  Clients place(1);  // made before the client has its answer
  auto accepted = make_accepted(event);
  if (!accepted) {
    // The id, and with it the request, is destroyed with the event, which refuses the client.
    log_info("raccept: a request from %s is refused: %s", event.request->peer_address().to_string().c_str(),
             accepted.error().where);
    return false;
  }
  if (stream_of(**accepted).cm_events().waits_for_peer(core_.endpoint)) {
    place.front() = *std::move(accepted);
    keep_half_open(std::move(place));
    return false;
  }
  place.front() = *std::move(accepted);
  accept_queue_.push_back(std::move(place));
  return true;
}

/// Keeps a connection that is not established yet, because accept() returns established ones (listen(2)). A client that
/// does not confirm occupies one of the half-open places, and delays no other client.
void Listener::keep_half_open(Clients accepted) {
  half_open_.push_back(std::move(accepted));
  if (half_open_.size() <= std::max(backlog_, kMinHalfOpen)) return;
  // Its destructor waits for the service thread, which may be waiting for our lock, so it is destroyed on that thread.
  const auto oldest = std::make_shared<Clients>();
  *oldest = half_open_.take_front();
  if (auto timer = runtime::service_thread().schedule(Nanos::zero(), [oldest] {}); !timer) {
    half_open_.push_front(std::move(*oldest));
  }
}

void Listener::half_open_changed() {
  Clients failed;
  bool admitted = false;
  {
    const std::lock_guard guard(core_.setup_lock);
    for (std::size_t left = half_open_.size(); left > 0; --left) {
      Clients accepted = half_open_.take_front();
      auto& socket = stream_of(*accepted.front());
      if (socket.cm_events().is_confirmed()) {
        accept_queue_.push_back(std::move(accepted));
        admitted = true;
      } else if (socket.cm_events().is_peer_decided()) {
        failed.splice(failed.end(), accepted);
      } else {
        half_open_.push_back(std::move(accepted));
      }
    }
    if (admitted) note_admitted();
  }
  if (admitted) core_.endpoint.notify_watchers_of_one(EPOLLIN);
}

Result<runtime::Ref> Listener::make_accepted(verbs::CmEvent& event) {
  runtime::Ref owner(new StreamEndpoint(core_.process, core_.domain, -1));
  StreamSocket& socket = stream_of(*owner);
  socket.inherit_options(socket_);
  const std::lock_guard guard(socket.core().setup_lock);  // fork(2) knows every socket
  if (Status accepted = socket.cm_events().accept_request(event); !accepted) return accepted.error();
  return owner;
}

// -- the service thread's part

void Listener::start_watch() {
  auto watch = std::make_shared<ListenerWatch>(socket_);
  const Status watched = watch->start(core_.id->event_fd());
  watch_again_ = !watched;
  if (watched) {
    watch_ = std::move(watch);
  } else {
    has_unwatched_listeners.store(true, std::memory_order_relaxed);
    log_debug("a listener is served by its application only: %s", watched.error().where);
  }
}

/// Returns false when another thread is serving it, or it needs no help.
bool Listener::serve_unwatched() {
  const std::unique_lock guard(core_.setup_lock, std::try_to_lock);
  if (!guard || core_.state() != State::listening || !watch_again_ || socket_.inheritance().is_shared()) return false;
  progress(backlog_);
  return true;
}

/// The listeners serve themselves later where there is no memory to do so now.
void Listener::serve_unwatched_listeners() try {
  if (!has_unwatched_listeners.load(std::memory_order_relaxed)) [[likely]]
    return;
  for (const runtime::Ref& one : runtime::fork_registry().endpoints()) {
    auto* const socket = find_stream(*one);
    if (socket != nullptr && socket->listener().serve_unwatched()) socket->endpoint().notify_watchers_of_one(EPOLLIN);
  }
} catch (const std::bad_alloc&) {
}

bool Listener::progress_in_background(std::atomic<bool>& waits_for_room) {
  bool full = false;
  {
    std::lock_guard guard(core_.setup_lock);
    if (core_.state() != State::listening) return false;
    progress(backlog_);
    full = accept_queue_.size() >= backlog_;
    if (full) waits_for_room.store(true);
  }
  core_.endpoint.notify_watchers_of_one(EPOLLIN);
  return full;
}

void Listener::stop_listening() {
  const std::lock_guard one_at_a_time(ending_);
  socket_.stop_background();
  Clients clients;
  std::lock_guard guard(core_.setup_lock);
  clients = take_clients();
  drop_id();
  core_.set_state(State::initial);
}

void Listener::refuse_clients() {
  const std::lock_guard one_at_a_time(ending_);
  socket_.stop_background();
  Clients clients;
  std::lock_guard guard(core_.setup_lock);
  clients = take_clients();
  drop_id();
}

void Listener::drop_id() {
  forget_queue_fd();
  ahead.refuse();
  core_.id.reset();
}

bool Listener::refuses_clients() {
  const std::lock_guard guard(core_.setup_lock);
  return core_.state() == State::listening && !core_.id;
}

void Listener::forget_listening() {
  stop_listening();
  core_.read_shut.store(false, std::memory_order_release);
}

Clients Listener::take_clients() {
  Clients clients = accept_queue_.take_all();
  clients.splice(clients.end(), half_open_.take_all());
  return clients;
}

void Listener::forget_threads(bool still_listens) {
  new (&ending_) Mutex;  // a thread that the child does not have may have locked it
  forget_queue_fd();
  abandon(watch_);
  watch_again_ = still_listens;
}

}  // namespace ringsock::rs
