// Sending, receiving, readiness and the end of a connection.
#include <fcntl.h>

#include <cerrno>
#include <mutex>

#include "core/runtime/fd_table.h"
#include "librsocket/closing.h"
#include "librsocket/process.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

// -- errors

int StreamSocket::take_error() {
  if (const int error = error_.exchange(0, std::memory_order_acq_rel)) return error;
  if (!is_connected() || closed_.load(std::memory_order_relaxed)) return 0;
  const int failure = failure_as_told();
  if (failure != 0 && !failure_taken_.exchange(true, std::memory_order_acq_rel)) {
    statistics_.count_error();
    return failure;
  }
  return 0;
}

/// Returns the error to report: Linux reports a reset as EPIPE after the peer's end of the stream.
int StreamSocket::failure_as_told() const {
  const int failure = connection_->failure();
  return failure == ECONNRESET && connection_->peer_shut_down() ? EPIPE : failure;
}

int StreamSocket::look_for_error() {
  look_for_reset();
  return take_error();
}

/// Asks the connection manager, which knows of a reset before polls find it.
void StreamSocket::look_for_reset() {
  look_if_alone();
  // A connect(2) in the background may have finished.
  if (state() == State::connecting) static_cast<void>(ready());
  if (!is_connected() || suspended_.load(std::memory_order_acquire) || connection_->failure() != 0) return;
  {
    const std::lock_guard guard(setup_lock_);
    take_cm_events();
  }
  progress();
  notify_watchers();
}

void StreamSocket::keep_error(int code) noexcept {
  if (!is_connected() || code == 0) return;
  if (code == failure_as_told()) {
    failure_taken_.store(false, std::memory_order_release);
  } else if (code == EPIPE && sent_into_the_void_.load(std::memory_order_acquire)) {
    error_.store(EPIPE, std::memory_order_release);
  }
}

/// Fails with EAGAIN while the connection is being made.
Status StreamSocket::require_connected(int error_if_not) {
  if (is_connected()) return ok();
  if (state() == State::connecting) {
    {
      std::lock_guard guard(setup_lock_);
      drive();
    }
    if (is_connected()) return ok();
    if (state() == State::connecting) return Error{EAGAIN, "rsocket: connecting"};
  }
  if (state() == State::failed) {
    if (const int error = take_error()) return Error{error, "rsocket: connect"};
  }
  return Error{error_if_not, "rsocket: not connected"};
}

void StreamSocket::progress() {
  if (!connection_->poll()) return;
  if (connection_->is_flushed()) [[unlikely]]
    ask_why_flushed();
  if (connection_->failure() != 0 && !hung_up_.exchange(true, std::memory_order_acq_rel)) {
    // Disconnects, so that the peer does not wait for ever for a connection that is dead here.
    std::lock_guard guard(setup_lock_);
    [[maybe_unused]] const Status gone = id_->disconnect();
  }
  // An epoll set that is added later looks by itself.
  if (!is_watched()) return;
  // As in TCP, room is a new event only if something was sent since room was last reported.
  const std::uint32_t posted = connection_->posted();
  if (posted == posted_when_told_.load(std::memory_order_relaxed)) {
    note_activity(EPOLLIN);
  } else {
    posted_when_told_.store(posted, std::memory_order_relaxed);
    note_activity();
  }
  notify_watchers();
}

/// Asks the connection manager for the reason of a flush. Its event may not have arrived yet, or another thread, which
/// has our lock, may be taking it.
void StreamSocket::ask_why_flushed() {
  constexpr Nanos kPatience = std::chrono::seconds(1);
  const std::lock_guard guard(setup_lock_);
  take_cm_events();
  if (!connection_->is_flushed() || std::exchange(asked_why_flushed_, true)) return;
  auto give_up = [self = std::make_shared<runtime::Ref>(runtime::Ref::share(*this))] {
    auto& socket = static_cast<StreamSocket&>(**self);
    if (!socket.connection_->is_flushed()) return;
    socket.connection_->fail(ECONNRESET);
    socket.note_activity();
    socket.notify_watchers();
  };
  if (auto timer = runtime::service_thread().schedule(monotonic_now() + kPatience, give_up); !timer) {
    connection_->fail(ECONNRESET);
  }
}

// -- receiving

/// Returns the bytes that `receive` has copied out of the ring. Tells the peer of the room.
template <class Receive>
inline std::size_t StreamSocket::take(Receive receive) {
  std::size_t copied = 0;
  bool told = true;
  {
    const std::lock_guard reading(receive_lock_);
    copied = receive();
    if (copied > 0) statistics_.count_received(copied);
    told = connection_->announce_if_due();
  }
  if (!told) [[unlikely]] {
    progress();
    const std::lock_guard reading(receive_lock_);
    connection_->announce_if_due();
  }
  return copied;
}

/// Returns whether a peek waits for all bytes that it asks for. It takes what there is when no more can come: after the
/// end of the stream, and when the peer may have to wait until the application reads.
bool StreamSocket::waits_for_all(int flags) const {
  return (flags & (MSG_WAITALL | MSG_DONTWAIT)) == MSG_WAITALL && !is_nonblocking() && !connection_->should_be_read() &&
         !connection_->peer_disconnected() && !connection_->peer_shut_down() && connection_->failure() == 0 &&
         !read_shut_.load(std::memory_order_acquire);
}

Result<ssize_t> StreamSocket::receive_into(IoCursor& out, std::size_t total, int flags) {
  if (!is_connected()) {
    if (Status connected = require_connected(ENOTCONN); !connected) return connected.error();
  }
  if ((flags & MSG_OOB) != 0) return Error{EINVAL, "rrecv: no urgent data"};
  if ((flags & MSG_ERRQUEUE) != 0) return Error{EAGAIN, "rrecv: the error queue is empty"};
  const bool peek = (flags & MSG_PEEK) != 0;
  // More bytes are wanted than were counted: looks for new ones.
  if (connection_->readable() < total || total == 0) progress();
  std::size_t copied = 0;
  if (peek || total == 0) {
    const std::lock_guard reading(receive_lock_);
    if (total == 0)
      return connection_->readable() > 0 || at_end_of_stream() ? Result<ssize_t>(0) : Error{EAGAIN, "rrecv"};
    const bool waits = waits_for_all(flags);  // read first: bytes from before the end are counted then
    copied = connection_->receive(out, true);
    if (copied < total && waits) return Error{EAGAIN, "rrecv: MSG_PEEK and MSG_WAITALL"};
  } else {
    copied = take([&] { return connection_->receive(out, false); });
  }
  if (copied > 0) return static_cast<ssize_t>(copied);

  if (suspended_.load(std::memory_order_acquire)) [[unlikely]] {
    if (!claim()) return Error{EIO, "rrecv: another process uses the connection"};
    return receive_into(out, total, flags);
  }
  if (closed_.load(std::memory_order_acquire)) return Error{EBADF, "rrecv: closed meanwhile"};
  if (!at_end_of_stream()) {
    if (!look_closely_if_read_seldom() || !at_end_of_stream()) return Error{EAGAIN, "rrecv"};
  }
  // Polls again, because a message may have arrived between the check of the bytes and that of the end.
  progress();
  if (connection_->readable() > 0 && !read_shut_.load(std::memory_order_acquire)) return Error{EAGAIN, "rrecv"};
  // The stream had ended before the reset: the error is reported to sends only.
  if (sent_into_the_void_.load(std::memory_order_acquire) || connection_->peer_shut_down()) return 0;
  if (const int error = take_error()) return Error{error, "rrecv"};
  return 0;
}

/// A device checks its peers once in a number of polls, which a reader that reads rarely and never sleeps would not
/// reach for long. Makes the device check in that case. Returns whether it did.
bool StreamSocket::look_closely_if_read_seldom() {
  constexpr int kPolls = 32;
  if (!is_time_for_close_look()) return false;
  for (int i = 0; i < kPolls; ++i) progress();
  return true;
}

bool StreamSocket::is_time_for_close_look() {
  if (!has_not_looked_for_long()) return false;
  looked_closely_at_.store(ticks(), std::memory_order_relaxed);
  return true;
}

/// Looks for the peer's end on behalf of a thread that only sends: soon if it sends much, otherwise before its next
/// send. After a send the look would tell nothing: the peer may have read the message, answered it and ended meanwhile.
void StreamSocket::look_before_sending(std::unique_lock<BiasedMutex>& sending) {
  sending.unlock();
  if (is_time_for_close_look()) {
    look_for_reset();
  } else {
    progress();
  }
  sending.lock();
}

/// Does the same as receive_into() for the usual cases: there are bytes, or there are none and nothing else has
/// happened.
Result<ssize_t> StreamSocket::receive_bytes(void* data, std::size_t length, int flags) {
  if ((flags & (MSG_OOB | MSG_PEEK | MSG_TRUNC | MSG_ERRQUEUE)) == 0 && length != 0 && is_connected()) [[likely]] {
    if (connection_->readable() < length) progress();
    const bool is_there = connection_->readable() > 0;
    if (is_there || connection_->is_announcement_due()) {
      const std::size_t copied = take([&] { return connection_->receive(data, length); });
      if (copied > 0) return static_cast<ssize_t>(copied);
    }
    if (!is_there && !at_end_of_stream() && !suspended_.load(std::memory_order_acquire) &&
        !closed_.load(std::memory_order_acquire) && !look_closely_if_read_seldom())
      return Error{EAGAIN, "rrecv"};
  }
  if ((flags & MSG_TRUNC) != 0) [[unlikely]]
    return discard(length, flags);
  IoCursor out(data, length);
  return receive_into(out, length, flags);
}

/// tcp(7): MSG_TRUNC discards the bytes instead of storing them.
Result<ssize_t> StreamSocket::discard(std::size_t length, int flags) {
  std::byte scratch[4096];
  if (length == 0) {
    IoCursor nothing(scratch, 0);
    return receive_into(nothing, 0, flags);
  }
  std::size_t discarded = 0;
  while (discarded < length) {
    const std::size_t wanted = std::min(sizeof scratch, length - discarded);
    IoCursor out(scratch, wanted);
    auto got = receive_into(out, wanted, flags);
    if (!got) return discarded > 0 ? Result<ssize_t>(static_cast<ssize_t>(discarded)) : got;
    discarded += static_cast<std::size_t>(*got);
    if (static_cast<std::size_t>(*got) < wanted || (flags & MSG_PEEK) != 0) break;
  }
  return static_cast<ssize_t>(discarded);
}

Result<ssize_t> StreamSocket::receive(msghdr& message, int flags) {
  const auto total = total_bytes(message.msg_iov, message.msg_iovlen);
  if (!total) return total.error();
  Result<ssize_t> got = Error{EAGAIN, "rrecvmsg"};
  if ((flags & MSG_TRUNC) != 0) {
    got = discard(*total, flags);
  } else {
    IoCursor out(std::span<const iovec>(message.msg_iov, message.msg_iovlen));
    got = receive_into(out, *total, flags);
  }
  if (got) {
    // A stream has no ancillary data, and recvmsg(2) on TCP leaves the name empty.
    message.msg_controllen = 0;
    message.msg_flags = 0;
    message.msg_namelen = 0;
  }
  return got;
}

Result<int> StreamSocket::unread_bytes() {
  if (state() == State::listening) return Error{EINVAL, "FIONREAD"};
  if (!is_connected()) return 0;
  if (!claim()) return Error{EIO, "FIONREAD"};
  progress();
  return static_cast<int>(std::min<std::uint64_t>(connection_->readable(), INT32_MAX));
}

// -- sending

Result<ssize_t> StreamSocket::send_from(IoCursor& data, std::size_t total) {
  if (!is_connected()) {
    if (Status connected = require_connected(EPIPE); !connected) return connected.error();
  }
  if (total == 0) return send_nothing();
  std::size_t sent = 0;
  {
    std::unique_lock sending(send_lock_);
    if (is_time_to_look()) [[unlikely]]
      look_before_sending(sending);
    if (!at_end_of_sending()) {
      sent = connection_->send(data);
      if (sent > 0) statistics_.count_sent(sent);
    }
  }
  if (sent == total) return static_cast<ssize_t>(sent);
  // Repeated only if another thread forks meanwhile: the suspended connection has room nevertheless.
  for (bool again = sent < total; again; again = sent == 0 && suspended_.load(std::memory_order_acquire)) {
    if (!claim()) {
      if (sent > 0) return static_cast<ssize_t>(sent);
      return Error{EIO, "rsend: another process uses the connection"};
    }
    progress();
    std::lock_guard sending(send_lock_);
    if (at_end_of_sending()) break;
    const std::size_t more = connection_->send(data);
    if (more > 0) statistics_.count_sent(more);
    sent += more;
  }
  if (sent > 0) {
    // The peer's end came before the rest was sent.
    if (sent < total && is_half_open()) send_into_the_void();
    return static_cast<ssize_t>(sent);
  }
  if (closed_.load(std::memory_order_acquire)) return Error{EBADF, "rsend: closed meanwhile"};
  if (const int error = take_error()) return Error{error, "rsend"};
  if (send_into_the_void()) {
    // As many bytes as a socket would have buffered.
    return static_cast<ssize_t>(std::min<std::size_t>(total, connection_->settings().send_ring));
  }
  if (at_end_of_sending()) return end_of_sending("rsend");
  // A writer that never reads must also announce its buffers to the peer.
  if (std::unique_lock reading(receive_lock_, std::try_to_lock); reading) connection_->announce_if_due();
  return Error{EAGAIN, "rsend"};
}

/// send(2) of no bytes reports an error, but not that only the peer has ended its direction.
Result<ssize_t> StreamSocket::send_nothing() {
  if (!claim()) return Error{EIO, "rsend: another process uses the connection"};
  progress();
  if (closed_.load(std::memory_order_acquire)) return Error{EBADF, "rsend: closed meanwhile"};
  if (const int error = take_error()) return Error{error, "rsend"};
  const bool is_over = sent_into_the_void_.load(std::memory_order_acquire);
  if (is_over || (at_end_of_sending() && !is_half_open())) return end_of_sending("rsend");
  return 0;
}

/// As in TCP (RFC 9293, 3.5.2), the first send after the peer's close succeeds, and is answered by a reset that also
/// ends the connection here. Linux reports that reset as EPIPE.
bool StreamSocket::send_into_the_void() {
  if (!is_half_open() || sent_into_the_void_.exchange(true, std::memory_order_acq_rel)) return false;
  error_.store(EPIPE, std::memory_order_release);
  note_activity();
  notify_watchers();
  return true;
}

/// Returns whether both directions have ended, so that the socket has no peer any more.
bool StreamSocket::is_over() const {
  const bool peer_ended = connection_->peer_disconnected() || connection_->peer_shut_down();
  return connection_->failure() != 0 || sent_into_the_void_.load(std::memory_order_acquire) ||
         (peer_ended && write_shut_.load(std::memory_order_acquire));
}

/// Returns the error of a send with one of these flags.
Error StreamSocket::why_not(int flags) const {
  if ((flags & MSG_OOB) != 0) return {EOPNOTSUPP, "rsend: no urgent data"};
  return {is_connected() ? EISCONN : ENOTCONN, "rsend: MSG_FASTOPEN"};
}

/// Does the same as send_from() for the usual case, in which one message takes all bytes.
Result<ssize_t> StreamSocket::send_bytes(const void* data, std::size_t length, int flags) {
  if ((flags & (MSG_OOB | MSG_FASTOPEN)) != 0) [[unlikely]]
    return why_not(flags);
  if (is_connected()) [[likely]] {
    std::unique_lock sending(send_lock_);
    if (is_time_to_look()) [[unlikely]]
      look_before_sending(sending);
    if (!at_end_of_sending() && connection_->send_at_once(data, length)) [[likely]] {
      statistics_.count_sent(length);
      return static_cast<ssize_t>(length);
    }
  }
  IoCursor cursor(const_cast<void*>(data), length);
  return send_from(cursor, length);
}

namespace {

/// As in TCP on Linux, control data of other levels has no effect, nor has control data for UNIX-domain sockets, for
/// time stamps (which are not taken) or for packet marks (there are no packets). Errors: EINVAL for an unknown or
/// malformed control message.
Status check_control(msghdr message) {
  const auto* const begin = static_cast<const std::byte*>(message.msg_control);
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    const auto offset = static_cast<std::size_t>(reinterpret_cast<const std::byte*>(header) - begin);
    const bool is_whole = header->cmsg_len >= sizeof(cmsghdr) && header->cmsg_len <= message.msg_controllen - offset;
    if (!is_whole) return Error{EINVAL, "rsendmsg: malformed control data"};
    if (header->cmsg_level != SOL_SOCKET) continue;
    const int type = header->cmsg_type;
    const bool is_ignored =
        type == SCM_RIGHTS || type == SCM_CREDENTIALS ||
        ((type == SO_TIMESTAMPING || type == SO_MARK) && header->cmsg_len == CMSG_LEN(sizeof(std::uint32_t)));
    if (!is_ignored) return Error{EINVAL, "rsendmsg: control data"};
  }
  return ok();
}

}  // namespace

Result<ssize_t> StreamSocket::send(const msghdr& message, int flags) {
  if ((flags & (MSG_OOB | MSG_FASTOPEN)) != 0) [[unlikely]]
    return why_not(flags);
  if (message.msg_controllen != 0 && message.msg_control != nullptr) [[unlikely]] {
    if (Status ignored = check_control(message); !ignored) return ignored.error();
  }
  const auto total = total_bytes(message.msg_iov, message.msg_iovlen);
  if (!total) return total.error();
  IoCursor cursor(std::span<const iovec>(message.msg_iov, message.msg_iovlen));
  return send_from(cursor, *total);
}

Result<int> StreamSocket::unsent_bytes() {
  if (state() == State::listening) return Error{EINVAL, "SIOCOUTQ"};
  return 0;  // a byte that was taken is in the peer's memory or on its way there
}

// -- readiness

std::uint32_t StreamSocket::ready() noexcept {
  switch (state()) {
    case State::initial:
    case State::bound: return EPOLLOUT | EPOLLHUP;
    case State::listening: {
      if (!claim()) return EPOLLIN | EPOLLRDNORM | EPOLLERR | EPOLLHUP;
      tell_that_child_listens();
      std::lock_guard guard(setup_lock_);
      if (read_shut_.load(std::memory_order_acquire)) return EPOLLIN | EPOLLRDNORM | EPOLLRDHUP | EPOLLHUP;
      return has_client() ? EPOLLIN | EPOLLRDNORM : 0;
    }
    case State::connecting: {
      bool arms_anew = false;
      {
        std::lock_guard guard(setup_lock_);
        arms_anew = drive_to_new_descriptor();
      }
      if (arms_anew) notify_watchers();
      if (state() == State::connecting) {
        serve_unwatched_listeners();
        return 0;
      }
      return ready();
    }
    case State::failed: {
      const std::uint32_t error = error_.load(std::memory_order_acquire) != 0 ? std::uint32_t{EPOLLERR} : 0;
      return error | EPOLLHUP | EPOLLIN | EPOLLRDNORM | EPOLLOUT | EPOLLWRNORM | EPOLLRDHUP;
    }
    case State::connected: return connected_events();
  }
  return 0;
}

/// Returns whether the readable bytes reach SO_RCVLOWAT, or no more can arrive before they are read.
bool StreamSocket::has_enough() const noexcept {
  const std::uint64_t readable = connection_->readable();
  return readable >= receive_low_mark() || (readable > 0 && connection_->should_be_read());
}

std::uint32_t StreamSocket::connected_events() noexcept {
  if (!claim()) {
    // The following call uses the kernel, or fails.
    const std::uint32_t error = can_follow() ? 0U : EPOLLERR | EPOLLHUP;
    return EPOLLIN | EPOLLRDNORM | EPOLLOUT | EPOLLWRNORM | error;
  }
  progress();
  const int failure = connection_->failure();
  const bool ended = at_end_of_stream();
  const bool cannot_write = write_shut_.load(std::memory_order_acquire) || connection_->peer_disconnected();
  std::uint32_t events = 0;
  if (has_enough() || ended) events |= EPOLLIN | EPOLLRDNORM;
  if (ended) events |= EPOLLRDHUP;
  if (failure != 0 || cannot_write || connection_->can_send()) events |= EPOLLOUT | EPOLLWRNORM;
  if (failure != 0 || (ended && write_shut_.load(std::memory_order_acquire)) ||
      sent_into_the_void_.load(std::memory_order_acquire))
    events |= EPOLLHUP;
  const bool untold = failure != 0 && !failure_taken_.load(std::memory_order_acquire);
  if (untold || error_.load(std::memory_order_acquire) != 0) events |= EPOLLERR;
  if (std::unique_lock reading(receive_lock_, std::try_to_lock); reading) connection_->announce_if_due();
  return events;
}

bool StreamSocket::has_peer_ended() const noexcept {
  return !suspended_.load(std::memory_order_acquire) &&
         (connection_->peer_disconnected() || connection_->failure() != 0);
}

void StreamSocket::look_for_end() noexcept {
  if (is_connected() && !suspended_.load(std::memory_order_acquire)) look_closely_if_read_seldom();
}

runtime::WaitFds StreamSocket::arm() noexcept {
  runtime::WaitFds fds;
  if (is_connected()) {
    fds.fd[0] = connection_->arm();
    if (connection_->must_look_again()) [[unlikely]]
      notify_watchers();
    if (connection_owns_fd_.load(std::memory_order_acquire)) {
      // After the peer's end no event comes, but the descriptor stays readable for ever.
      fds.fd[1] = has_peer_ended() ? -1 : fd_.load();
      return fds;
    }
  }
  std::lock_guard guard(setup_lock_);
  if (!id_) return fds;
  fds.fd[1] = id_->event_fd();
  if (state() != State::listening) return fds;
  if (sleeping_calls() > 1) several_accept_.store(true, std::memory_order_relaxed);
  if (is_accepted_in_turns()) {
    queue_fd_.store(fds.fd[1], std::memory_order_relaxed);
    const auto queue = id_->queue_fds();
    fds.shared[1] = queue.shared;
    fds.own = queue.own;
    fds.sleeps_on_own = look_after_half_made();
  }
  return fds;
}

void StreamSocket::woken() noexcept {
  // ready(), which the caller calls next, takes the events of a connect or of a listener.
  if (!is_connected() || !claim()) return;
  statistics_.count_wakeup();
  connection_->woken();
  bool changed = false;
  {
    std::lock_guard guard(setup_lock_);
    changed = take_cm_events();
    if (changed) note_activity(EPOLLIN);
  }
  if (changed) notify_watchers();
}

// -- the end

Status StreamSocket::shutdown(int how) {
  if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR) return Error{EINVAL, "rshutdown"};
  if (state() == State::listening) {
    if (how == SHUT_WR) return ok();
    read_shut_.store(true, std::memory_order_release);  // accept() fails with EINVAL from now on
    notify_watchers();
    return ok();
  }
  if (state() == State::connecting) static_cast<void>(ready());
  if (!is_connected()) return Error{ENOTCONN, "rshutdown"};
  if (!claim()) return Error{EIO, "rshutdown: another process uses the connection"};
  look_for_reset();
  if (is_over()) return Error{ENOTCONN, "rshutdown"};
  {
    std::scoped_lock guard(setup_lock_, send_lock_);
    const bool was_readable = !read_shut_.load(std::memory_order_relaxed);
    const bool was_writable = !write_shut_.load(std::memory_order_relaxed);
    const bool readable = was_readable && how == SHUT_WR;
    const bool writable = was_writable && how == SHUT_RD;
    if (!readable) read_shut_.store(true, std::memory_order_release);
    if (!writable) write_shut_.store(true, std::memory_order_release);
    // Fact sheet 2.9: a half close of the writing side sends SHUTDOWN, the end of both directions DISCONNECT.
    if (!readable && !writable && (was_readable || was_writable)) {
      disconnect();
    } else if (was_writable && !writable) {
      [[maybe_unused]] const Status told = connection_->send_control(wire::RsControl::shutdown);
    }
  }
  note_activity();
  notify_watchers();
  return ok();
}

void StreamSocket::disconnect() {
  if (!connection_->peer_disconnected()) {
    [[maybe_unused]] const Status told = connection_->send_control(wire::RsControl::disconnect);
  }
  connection_->expect_flush();
}

void StreamSocket::closed() noexcept {
  closed_.store(true, std::memory_order_release);
  stop_background();
  if (end_connection()) finish_in_background(*this);
}

/// Returns true when the connection must be kept until all bytes under way have arrived.
bool StreamSocket::end_connection() noexcept {
  std::vector<runtime::Ref> clients;
  std::scoped_lock guard(setup_lock_, send_lock_);
  port_holder_.reset();
  const bool ends_here = leave_family();
  if (state() == State::listening) {
    clients = take_clients();  // they see an abort
    id_.reset();
    set_state(State::failed);
    return false;
  }
  describe();
  if (!ends_here) {
    let_go_silently();
    return false;
  }
  if (!is_connected()) return false;
  const bool abort =
      (linger_on_.load(std::memory_order_relaxed) && linger_seconds_.load(std::memory_order_relaxed) == 0) ||
      leaves_bytes_unread();
  const bool half_open = !read_shut_.exchange(true) || !write_shut_.load(std::memory_order_relaxed);
  write_shut_.store(true, std::memory_order_release);
  if (abort) {
    [[maybe_unused]] const Status reset = id_->disconnect();
    return false;
  }
  if (half_open) disconnect();
  // A direct write that waits for the peer's help, and later messages, are still in this process.
  return id_->device().works_in_background() || has_written_directly_;
}

/// Returns whether the connection must end by a reset, which tells the peer that its bytes were not read (RFC 2525,
/// 2.17). Only where a reset does not overtake bytes that were sent before.
bool StreamSocket::leaves_bytes_unread() noexcept {
  if (id_->device().works_in_background() || has_written_directly_ || connection_->peer_disconnected()) return false;
  connection_->poll();
  return connection_->readable() > 0;
}

void StreamSocket::descriptor_closed(int fd) noexcept {
  std::lock_guard guard(setup_lock_);
  if (fd != fd_) return;
  const int other = runtime::fd_table().number_of(*this).value_or(-1);
  if (connection_owns_fd_.load(std::memory_order_relaxed)) {
    if (other < 0) return;
    // A duplicate has its own flag, which is lost when the connection's descriptor takes its number.
    close_on_exec.store((::fcntl(other, F_GETFD) & FD_CLOEXEC) != 0);
    if (!id_->adopt_descriptor(other)) return;
    ::fcntl(other, F_SETFD, FD_CLOEXEC);
  }
  // The caller closes the number, which another thread may then get at once.
  fd_ = other;
}

void StreamSocket::descriptor_vanished(int fd) noexcept {
  const std::scoped_lock guard(setup_lock_, send_lock_);
  if (!owns_descriptor(fd) || !id_) return;
  const auto other = runtime::fd_table().number_of(*this);
  if (other && id_->adopt_descriptor(*other)) {
    fd_ = *other;
  } else {
    let_go_silently();
  }
}

void StreamSocket::give_up_descriptor() noexcept {
  std::lock_guard guard(setup_lock_);
  if (!connection_owns_fd_.load(std::memory_order_relaxed) || !id_) return;
  const int other = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  // The number stays open until the caller has put another file there, so that no other thread gets it.
  if (other < 0 || !id_->adopt_descriptor(other)) return;
  fd_ = other;
  has_own_number_ = true;
}

Nanos StreamSocket::linger() noexcept {
  if (!linger_on_.load(std::memory_order_relaxed) || !is_connected() || is_shared()) return Nanos::zero();
  return std::chrono::seconds(linger_seconds_.load(std::memory_order_relaxed));
}

bool StreamSocket::is_drained() noexcept {
  if (!is_connected() || !claim()) return true;
  progress();
  return connection_->is_drained() || connection_->failure() != 0;
}

}  // namespace ringsock::rs
