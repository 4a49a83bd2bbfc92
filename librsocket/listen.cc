// Listening and accepting.
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <iterator>
#include <memory>
#include <mutex>
#include <span>

#include "core/base/log.h"
#include "core/base/unique_fd.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/fork_registry.h"
#include "core/runtime/service_thread.h"
#include "librsocket/listener_watch.h"
#include "librsocket/process.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

namespace {
/// At least this many clients may be answered but unconfirmed, whatever the backlog.
constexpr std::size_t kMinHalfOpen = 128;
/// The number of requests, including refused ones, that one look at a listener handles. Clients of the kernel socket
/// wait meanwhile.
constexpr int kMaxRequestsPerLook = 16;

/// Whether there is, or was, a listener that the service thread does not serve.
std::atomic<bool> has_unwatched_listeners{false};

bool is_rs_connect(std::span<const std::byte> private_data) {
  return static_cast<bool>(wire::parse_rs_connect(private_data));
}
}  // namespace

namespace {
thread_local char own_thread_mark;  ///< its address is the thread's
}  // namespace

Status StreamSocket::listen(int backlog) {
  std::lock_guard guard(setup_lock_);
  // Linux treats a negative backlog as a large one.
  const int wanted = backlog < 0 ? SOMAXCONN : std::clamp(backlog, 1, SOMAXCONN);
  const auto limit = static_cast<std::size_t>(wanted);
  if (state() == State::listening) {  // listen(2): a second call changes the backlog
    backlog_ = limit;
    return ok();
  }
  if (state() == State::initial) {
    if (Status bound = bind_locked(SocketAddress::wildcard(domain_, 0)); !bound) return bound;
  }
  if (state() != State::bound) return Error{EINVAL, "rlisten"};
  if (Status listening = id_->listen(wanted); !listening) return listening;
  id_->check_requests_by(is_rs_connect);
  backlog_ = limit;
  static std::atomic<std::uint64_t> listeners{0};
  listener_serial_ = ++listeners;
  set_state(State::listening);
  watch_listener();
  return ok();
}

Result<int> StreamSocket::accept(SocketAddress& peer, int flags) {
  if (state() != State::listening || read_shut_.load(std::memory_order_acquire)) return Error{EINVAL, "raccept"};
  if (!claim()) return Error{EIO, "raccept: the listener is the parent's"};
  tell_that_child_listens();
  std::unique_lock guard(setup_lock_);
  accept_calls_.fetch_add(1, std::memory_order_relaxed);
  drop_those_taken_elsewhere();
  if (accept_queue_.empty()) progress_listener();
  if (closed_.load(std::memory_order_relaxed)) return Error{EBADF, "raccept: closed meanwhile"};
  if (accept_queue_.empty()) {
    // For example, no descriptor for the next client: the caller gets the error, the client waits.
    if (const int error = std::exchange(listener_error_, 0)) return Error{error, "raccept"};
    note_vain_accept();
    return Error{EAGAIN, "raccept"};
  }
  return give_out_client(peer, flags, guard);
}

/// Called before the calling thread sleeps in accept(). Returns true when it is the one thread that also sleeps on
/// requests that are under way.
bool StreamSocket::look_after_half_made() {
  const char* nobody = nullptr;
  return looks_after_half_made_.compare_exchange_strong(nobody, &own_thread_mark) || nobody == &own_thread_mark;
}

/// Called when the calling thread has taken a client and does not sleep again for now. Returns true when another thread
/// should be woken to take its place.
bool StreamSocket::leave_half_made_to_others() {
  const char* self = &own_thread_mark;
  return looks_after_half_made_.compare_exchange_strong(self, nullptr) && deadline() != Nanos::max();
}

/// Finds out that several threads wait in accept(), asleep or spinning: a thread comes back after another one has been
/// here.
void StreamSocket::note_vain_accept() {
  constexpr int kSeveral = 3;
  if (std::exchange(last_in_vain_, &own_thread_mark) == &own_thread_mark) return;
  if (++changes_in_vain_ >= kSeveral) several_accept_.store(true, std::memory_order_relaxed);
}

bool StreamSocket::nobody_waits(int also) {
  if (state() != State::listening || !is_accepted_in_turns() || read_shut_.load(std::memory_order_acquire))
    return false;
  const int queue = queue_fd_.load(std::memory_order_relaxed);
  if (queue < 0 || !accept_queue_.empty() || deadline() <= monotonic_now()) return false;
  accept_calls_.fetch_add(1, std::memory_order_relaxed);
  const int saved_errno = errno;
  std::array<pollfd, 2> entries{{{queue, POLLIN, 0}, {also, POLLIN, 0}}};
  const bool nobody = ::poll(entries.data(), entries.size(), 0) == 0;
  errno = saved_errno;
  return nobody;
}

Result<int> StreamSocket::accept_waiting(SocketAddress& peer, int flags) {
  std::unique_lock guard(setup_lock_);
  drop_those_taken_elsewhere();
  if (accept_queue_.empty()) return Error{EAGAIN, "raccept"};
  return give_out_client(peer, flags, guard);
}

void StreamSocket::end_ring_for_all() {
  const std::lock_guard guard(setup_lock_);
  if (state() != State::listening || !id_) return;
  tell_that_child_listens();
  if (FamilyRecord* const record = family()) record->ring_ended.store(true, std::memory_order_release);
  id_->end_for_all();
  // Dropping a request refuses it, so its client does not wait for an answer.
  while (id_->next_event()) {
  }
}

bool StreamSocket::has_ring_ended() const noexcept {
  const FamilyRecord* const record = family();
  return record != nullptr && record->ring_ended.load(std::memory_order_acquire);
}

bool StreamSocket::has_half_open() {
  const std::lock_guard guard(setup_lock_);
  return !half_open_.empty();
}

/// Gives the first client of the queue, which is not empty, a descriptor. Releases `guard`, which holds setup_lock_.
Result<int> StreamSocket::give_out_client(SocketAddress& peer, int flags, std::unique_lock<Mutex>& guard) {
  auto& accepted = static_cast<StreamSocket&>(*accept_queue_.front());
  if (!accepted.claim()) return Error{EAGAIN, "raccept: another process was faster"};
  UniqueFd fd;
  if (accepted.fd_ < 0) {
    fd.reset(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!fd) return Error::last("raccept: eventfd");
    accepted.fd_ = fd.get();
  }
  accepted.close_on_exec.store((flags & SOCK_CLOEXEC) != 0);
  accepted.set_nonblocking((flags & SOCK_NONBLOCK) != 0);
  peer = accepted.as_seen_here(accepted.id_->peer_address());
  const int number = accepted.fd_;
  runtime::Ref owner = accept_queue_.take_front();
  if (listener_watch_) listener_watch_->room_again();
  const bool more_wait = leave_half_made_to_others() || !accept_queue_.empty();
  // The table may have to wait for other threads, which may be waiting for this lock.
  guard.unlock();
  if (more_wait) notify_a_taker();
  if (Status entered = runtime::fd_table().insert(number, runtime::Ref::share(accepted)); !entered) {
    guard.lock();
    if (fd) accepted.fd_ = -1;
    accept_queue_.push_front(std::move(owner));
    return entered.error();
  }
  (void)fd.release();
  accepted.describe();
  runtime::process_statistics.count_accepted(accepted.path());
  return number;
}

/// Drops clients from before a fork that another process has accepted: such a client belongs to the process that first
/// accepts it.
void StreamSocket::drop_those_taken_elsewhere() {
  while (!accept_queue_.empty() && static_cast<StreamSocket&>(*accept_queue_.front()).is_used_elsewhere()) {
    accept_queue_.take_front();
  }
}

bool StreamSocket::has_client() {
  drop_those_taken_elsewhere();
  if (is_shared() && accept_queue_.empty() && id_ && !has_ring_ended()) {
    // The thread that looks need not be the one that accepts.
    const int saved_errno = errno;
    pollfd entry{id_->event_fd(), POLLIN, 0};
    const bool there = ::poll(&entry, 1, 0) > 0;
    errno = saved_errno;
    return there;
  }
  progress_listener();
  return !accept_queue_.empty();
}

void StreamSocket::progress_listener() {
  if (!is_shared()) {
    if (watch_again_ && id_) watch_listener();
    if (listener_watch_) listener_watch_->is_alone();
  }
  // A client that this process takes cannot be accepted by another one.
  if (id_) take_in_clients(*id_, is_shared() ? 1 : backlog_);
  const auto next = id_ ? id_->next_deadline() : std::nullopt;
  deadline_.store(next.value_or(Nanos::max()), std::memory_order_relaxed);
  // A forked child's first look at its clients gives the listener another descriptor.
  if (id_ && queue_fd_.load(std::memory_order_relaxed) >= 0) {
    queue_fd_.store(id_->event_fd(), std::memory_order_relaxed);
  }
}

/// Takes clients of `from`, the listener or a part of it, as long as the queue has `room`. The rest keeps the listener
/// readable.
void StreamSocket::take_in_clients(verbs::ConnectionId& from, std::size_t room) {
  bool admitted = false;
  for (int requests = 0; requests < kMaxRequestsPerLook && accept_queue_.size() < room; ++requests) {
    auto event = from.next_event();
    if (!event) {
      if (event.error().code != EAGAIN) listener_error_ = event.error().code;
      break;
    }
    if (event->type == verbs::CmEventType::connect_request) admitted |= admit(*event);
  }
  if (admitted) note_admitted();
}

void StreamSocket::note_admitted() {
  note_activity();
  if (listener_watch_ && id_ && !lacks_parts_ && !id_->unshareable_parts().empty()) listener_watch_->look_later();
}

bool StreamSocket::admit(verbs::CmEvent& event) {
  auto accepted = make_accepted(event);
  if (!accepted) {
    // The id, and with it the request, is destroyed with the event, which refuses the client.
    log_info("raccept: a request from %s is refused: %s", event.request->peer_address().to_string().c_str(),
             accepted.error().where);
    return false;
  }
  if (static_cast<StreamSocket&>(**accepted).waits_for_peer(*this)) {
    keep_half_open(*std::move(accepted));
    return false;
  }
  accept_queue_.push_back(*std::move(accepted));
  return true;
}

/// Makes `listener` be told of the peer's confirmation. Returns false when it has come already, or cannot be waited
/// for.
bool StreamSocket::waits_for_peer(StreamSocket& listener) {
  const std::lock_guard guard(setup_lock_);
  if (!cm_watch_ || is_peer_decided()) return false;
  half_open_listener_ = runtime::Ref::share(listener);
  return true;
}

/// Returns, for an answered connection, whether the peer has confirmed it or will not.
bool StreamSocket::is_peer_decided() const {
  return peer_confirmed_.load(std::memory_order_acquire) || connection_->failure() != 0 ||
         connection_->peer_disconnected();
}

/// Keeps a connection that is not established yet, because accept() returns established ones (listen(2)). A client that
/// does not confirm occupies one of the half-open places, and delays no other client.
void StreamSocket::keep_half_open(runtime::Ref accepted) {
  half_open_.push_back(std::move(accepted));
  if (half_open_.size() <= std::max(backlog_, kMinHalfOpen)) return;
  // Its destructor waits for the service thread, which may be waiting for our lock, so it is destroyed on that thread.
  auto oldest = std::make_shared<runtime::Ref>(half_open_.take_front());
  if (auto timer = runtime::service_thread().schedule(Nanos::zero(), [oldest] {}); !timer) {
    half_open_.push_front(std::move(*oldest));
  }
}

void StreamSocket::half_open_changed() {
  std::vector<runtime::Ref> failed;
  bool admitted = false;
  {
    const std::lock_guard guard(setup_lock_);
    std::deque<runtime::Ref> waiting;
    for (runtime::Ref& accepted : half_open_) {
      auto& socket = static_cast<StreamSocket&>(*accepted);
      if (socket.peer_confirmed_.load(std::memory_order_acquire)) {
        accept_queue_.push_back(std::move(accepted));
        admitted = true;
      } else if (socket.is_peer_decided()) {
        failed.push_back(std::move(accepted));
      } else {
        waiting.push_back(std::move(accepted));
      }
    }
    half_open_.replace(std::move(waiting));
    if (admitted) note_admitted();
  }
  if (admitted) notify_watchers_of_one(EPOLLIN);
}

Result<runtime::Ref> StreamSocket::make_accepted(verbs::CmEvent& event) {
  auto* socket = new StreamSocket(process_, domain_, -1);
  runtime::Ref owner(socket);
  socket->inherit_options(*this);
  const std::lock_guard guard(socket->setup_lock_);  // fork(2) knows every socket
  if (Status accepted = socket->accept_request(event); !accepted) return accepted.error();
  return owner;
}

void StreamSocket::inherit_options(const StreamSocket& listener) {
  settings_ = listener.settings_;
  options_ = listener.options_;
  linger_on_.store(listener.linger_on_.load());
  linger_seconds_.store(listener.linger_seconds_.load());
  set_receive_low_mark(listener.receive_low_mark());
  set_receive_timeout(listener.receive_timeout());
  set_send_timeout(listener.send_timeout());
}

/// setup_lock_ is held.
Status StreamSocket::accept_request(verbs::CmEvent& event) {
  const auto peer = wire::parse_rs_connect(event.data());
  if (!peer) return peer.error();
  auto connection = Connection::create(*event.request, settings_);
  if (!connection) return connection.error();
  if (event.request->device().works_in_background()) (*connection)->hold();
  if (Status started = (*connection)->start(*peer); !started) return started.error();
  const wire::RsConnect data = (*connection)->connect_data();
  verbs::ConnectionParameters parameters = event.parameters;
  parameters.private_data = std::as_bytes(std::span(&data, 1));
  if (Status accepted = event.request->accept(parameters); !accepted) return accepted.error();
  id_ = std::move(event.request);
  connection_ = *std::move(connection);
  set_connected();
  watch_cm_events();
  return ok();
}

Status StreamSocket::become_accepted(verbs::CmEvent& event) {
  const std::lock_guard guard(setup_lock_);
  if (state() != State::initial) return Error{EINVAL, "accept: in use"};
  if (Status accepted = accept_request(event); !accepted) return accepted;
  describe();
  runtime::process_statistics.count_accepted(path());
  return ok();
}

bool StreamSocket::leave_unshareable_devices() {
  const std::lock_guard guard(setup_lock_);
  queue_fd_.store(-1, std::memory_order_relaxed);
  return !id_ || id_->drop_unshareable_parts();
}

// -- the service thread's part

/// Starts to serve the listener on the service thread. Without one clients wait for accept(), which tries again.
void StreamSocket::watch_listener() {
  auto watch = std::make_shared<ListenerWatch>(*this);
  const Status watched = watch->start(id_->event_fd());
  watch_again_ = !watched;
  if (watched) {
    listener_watch_ = std::move(watch);
  } else {
    has_unwatched_listeners.store(true, std::memory_order_relaxed);
    log_debug("a listener is served by its application only: %s", watched.error().where);
  }
}

/// Returns false when another thread is serving it, or it needs no help.
bool StreamSocket::serve_unwatched() {
  const std::unique_lock guard(setup_lock_, std::try_to_lock);
  if (!guard || state() != State::listening || !watch_again_ || is_shared()) return false;
  progress_listener();
  return true;
}

/// Serves listeners of a process that connects to itself and waits for the answer before it calls accept(). Called
/// without locks.
void StreamSocket::serve_unwatched_listeners() {
  if (!has_unwatched_listeners.load(std::memory_order_relaxed)) [[likely]]
    return;
  for (const runtime::Ref& one : runtime::fork_registry().endpoints()) {
    auto* const socket = dynamic_cast<StreamSocket*>(one.get());
    if (socket != nullptr && socket->serve_unwatched()) socket->notify_watchers_of_one(EPOLLIN);
  }
}

/// Returns true when the queue is full, and then also sets `waits_for_room`, before accept() can make room.
bool StreamSocket::progress_in_background(std::atomic<bool>& waits_for_room) {
  bool full = false;
  {
    std::lock_guard guard(setup_lock_);
    if (state() != State::listening) return false;
    progress_listener();
    full = accept_queue_.size() >= backlog_;
    if (full) waits_for_room.store(true);
  }
  notify_watchers_of_one(EPOLLIN);
  return full;
}

void StreamSocket::stop_listening() {
  stop_background();
  std::vector<runtime::Ref> clients;
  std::lock_guard guard(setup_lock_);
  clients = take_clients();
  drop_listening_id();
  set_state(State::initial);
}

void StreamSocket::refuse_clients() {
  stop_background();
  std::vector<runtime::Ref> clients;
  std::lock_guard guard(setup_lock_);
  clients = take_clients();
  drop_listening_id();
}

void StreamSocket::drop_listening_id() {
  queue_fd_.store(-1, std::memory_order_relaxed);
  id_.reset();
}

bool StreamSocket::refuses_clients() {
  const std::lock_guard guard(setup_lock_);
  return state() == State::listening && !id_;
}

void StreamSocket::forget_listening() {
  stop_listening();
  read_shut_.store(false, std::memory_order_release);
}

/// Returns the clients that will not be accepted. The caller drops them after it has released the lock: their
/// destructors wait for the service thread, which may be waiting for the lock.
std::vector<runtime::Ref> StreamSocket::take_clients() {
  std::vector<runtime::Ref> clients;
  for (auto* queue : {&accept_queue_, &half_open_}) {
    std::move(queue->begin(), queue->end(), std::back_inserter(clients));
    queue->clear();
  }
  return clients;
}

void StreamSocket::stop_background() {
  std::shared_ptr<ListenerWatch> watch;
  std::shared_ptr<Keepalive> reminders;
  UniqueFd pushed;  // closed when it is no longer watched
  std::shared_ptr<CmWatch> pushes;
  {
    std::lock_guard guard(setup_lock_);
    watch = std::move(listener_watch_);
    reminders = std::move(reminders_);
    pushes = std::move(push_watch_);
    pushed = std::move(push_fd_);
  }
  if (watch) watch->stop();
  if (reminders) reminders->stop();
  if (pushes) pushes->stop();
  stop_keepalive();
}

void StreamSocket::stop_serving() {
  std::shared_ptr<CmWatch> watch;
  {
    std::lock_guard guard(setup_lock_);
    watch = std::move(cm_watch_);
  }
  if (watch) watch->stop();
}

}  // namespace ringsock::rs
