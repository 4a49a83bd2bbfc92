#include "librsocket/transfer.h"

#include <mellanox/vma_extra.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <mutex>
#include <new>

#include "librsocket/saved_connection.h"
#include "librsocket/stream_api.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

void StreamTransfer::keep_error(int code) noexcept {
  if (!core_.is_connected() || code == 0) return;
  if (code == core_.failure_as_told()) {
    core_.failure_taken.store(false, std::memory_order_release);
  } else if (code == EPIPE && core_.sent_into_the_void.load(std::memory_order_acquire)) {
    core_.pending_error.store(EPIPE, std::memory_order_release);
  }
}

vma::ApiSocket* StreamTransfer::as_api_socket() noexcept { return make_api(); }

StreamApi* StreamTransfer::make_api() noexcept {
  if (StreamApi* const known = core_.api()) return known;
  std::unique_ptr<StreamApi> made(new (std::nothrow) StreamApi(socket_, core_));
  StreamApi* known = nullptr;
  if (!made || !core_.asked.compare_exchange_strong(known, made.get(), std::memory_order_acq_rel)) return known;
  return made.release();
}

// -- receiving

namespace {
/// Flags with which a send is not the usual one.
constexpr int kUnusualSend = MSG_OOB | MSG_FASTOPEN | MSG_MORE | VMA_SND_FLAGS_DUMMY;
/// Flags with which a receive is not the usual one.
constexpr int kUnusualReceive = MSG_OOB | MSG_PEEK | MSG_TRUNC | MSG_ERRQUEUE;
/// Answers FIONREAD and SIOCOUTQ of a socket that is not connected here. Another process may have connected it by the
/// kernel.
Result<int> bytes_unconnected(const StreamCore& core) {
  if (core.state() == StreamCore::State::initial && core.endpoint.values.is_shared()) return transports::kAskKernel;
  return 0;
}

}  // namespace

Result<ssize_t> StreamTransfer::receive_bytes(void* data, std::size_t length, int flags) {
  if ((flags & kUnusualReceive) == 0 && length != 0 && core_.is_connected()) [[likely]] {
    const std::size_t copied = attempt(length, [&](Connection& connection) {
      return take([&] { return connection.receiving().receive(data, length); });
    });
    if (copied > 0) return static_cast<ssize_t>(copied);
    if (!core_.is_suspended() && !core_.connection->receiving().shows_first()) return why_nothing(flags);
  }
  if ((flags & MSG_TRUNC) != 0) return discard(length, flags);
  IoCursor out(data, length);
  return receive_into(out, length, flags);
}

Result<ssize_t> StreamTransfer::receive_into(IoCursor& out, std::size_t total, int flags) {
  if ((flags & MSG_ERRQUEUE) != 0) return Error{EAGAIN, "rrecv: the error queue is empty"};
  if ((flags & MSG_OOB) != 0 && core_.state() != State::listening) return Error{EINVAL, "rrecv: no urgent data"};
  const Inheritance::Turn turn(socket_.inheritance());
  if (!core_.is_connected()) {
    if (Status connected = progress_.require_connected(ENOTCONN); !connected) return connected.error();
  }
  if (total == 0) return receive_nothing();
  if (core_.connection->receiving().shows_first()) [[unlikely]]
    return receive_shown(out, flags);
  const auto get = [&](Connection& connection) {
    if ((flags & MSG_PEEK) != 0) return peek(out, total, flags);
    return take([&] { return connection.receiving().receive(out, false); });
  };
  do {
    if (const std::size_t copied = attempt(total, get)) return static_cast<ssize_t>(copied);
    if (!core_.is_suspended()) return why_nothing(flags);
  } while (socket_.inheritance().claim());
  return Error{EIO, "rrecv: another process uses the connection"};
}

/// receive_into() of a connection whose bytes the application's function sees first.
Result<ssize_t> StreamTransfer::receive_shown(IoCursor& out, int flags) {
  if (!socket_.inheritance().claim()) return Error{EIO, "rrecv: another process uses the connection"};
  poll();
  StreamCallback& callback = core_.api()->callback();
  if (const std::size_t copied = callback.read(out, (flags & MSG_PEEK) != 0)) return static_cast<ssize_t>(copied);
  if (const int error = callback.comes_first(flags)) return Error{error, "rrecv: the application's callback"};
  return why_nothing(flags);
}

/// An epoll set, or a sleeper, polls a connection before it reports bytes.
constexpr std::uint64_t kFewBytes = 4096;

/// The lock of the reader is held while `taker` takes, so no fork(2) can give the bytes to another process as well.
Result<ssize_t> StreamTransfer::receive_by(runtime::BytesTaker& taker, std::span<std::byte> room, int flags) {
  if (room.empty() || !core_.is_connected() || core_.connection->receiving().shows_first())
    return Transfer::receive_by(taker, room, flags);
  const Inheritance::Turn turn(socket_.inheritance());
  bool is_refused = false;
  const auto give = [&](MessageReceiver& receiver) -> std::size_t {
    IoCursor shown(room.data(), room.size());
    const std::size_t seen = receiver.receive(shown, true);
    const std::size_t taken = seen > 0 ? taker.take(room.first(seen)) : 0;
    is_refused = seen > 0 && taken == 0;
    IoCursor again(room.data(), taken);
    return receiver.receive_anyway(again, false);
  };
  const auto get = [&](Connection& connection) { return take([&] { return give(connection.receiving()); }); };
  do {
    if (const std::size_t copied = attempt(room.size(), get)) return static_cast<ssize_t>(copied);
    if (is_refused) return Error{EAGAIN, "rrecv: not taken"};
    if (!core_.is_suspended()) return why_nothing(flags);
  } while (socket_.inheritance().claim());
  return Error{EIO, "rrecv: another process uses the connection"};
}

/// Makes one attempt to receive up to `total` bytes, which is not 0, from a connection. Returns the bytes received.
/// @param get  copies what is there, and returns the number of bytes
template <class Get>
inline std::size_t StreamTransfer::attempt(std::size_t total, Get get) {
  Connection& connection = *core_.connection;
  // More bytes are wanted than were counted: looks for new ones. Not where those that are there may be a whole request
  // of which an epoll set or a sleeper has just told: a look costs more than half of the receive then.
  const std::uint64_t counted = connection.receiving().in_ring();
  const bool had_rest = has_rest_.load(std::memory_order_relaxed);
  if (counted < total && (counted - 1 >= kFewBytes || !core_.endpoint.is_watched() || had_rest)) poll();
  const bool has_work = connection.receiving().in_ring() > 0 || connection.receiving().is_announcement_due() ||
                        connection.receiving().readable() > 0;
  const std::size_t copied = has_work ? get(connection) : 0;
  if (const bool has_rest = connection.receiving().in_ring() > 0; has_rest != had_rest) [[unlikely]]
    has_rest_.store(has_rest, std::memory_order_relaxed);
  return copied;
}

/// Returns the bytes that `receive` has copied out of the ring. Tells the peer of the room.
template <class Receive>
inline std::size_t StreamTransfer::take(Receive receive) {
  StreamCore& core = core_;
  std::size_t copied = 0;
  bool told = true;
  {
    const std::lock_guard reading(core.receive_lock);
    copied = receive();
    if (copied > 0) core.statistics.count_received(copied);
    told = core.connection->receiving().announce_if_due();
  }
  if (!told) [[unlikely]]
    announce_again();
  if (copied > 0 && core.connection->overflow().readable() > 0) [[unlikely]]
    tell_of_further_window();
  return copied;
}

/// Another user's bytes are read window by window. Those of the next one are an event: ioctl(FIONREAD) did not count
/// them.
void StreamTransfer::tell_of_further_window() {
  if (!core_.connection->overflow().is_limited()) return;
  core_.endpoint.note_activity(EPOLLIN);
  core_.endpoint.notify_watchers(EPOLLIN);
}

void StreamTransfer::announce_again() {
  poll();
  const std::lock_guard reading(core_.receive_lock);
  core_.connection->receiving().announce_if_due();
}

std::size_t StreamTransfer::peek(IoCursor& out, std::size_t total, int flags) {
  const std::lock_guard reading(core_.receive_lock);
  const bool waits = waits_for_all(flags);  // read first: bytes from before the end are counted then
  const std::size_t copied = core_.connection->receiving().receive(out, true);
  return copied < total && waits ? 0 : copied;
}

/// Returns whether a peek waits for all bytes that it asks for. It takes what there is when no more can come: after the
/// end of the stream, and when the peer may have to wait until the application reads.
bool StreamTransfer::waits_for_all(int flags) const {
  return (flags & (MSG_WAITALL | MSG_DONTWAIT)) == MSG_WAITALL && !core_.endpoint.is_nonblocking() &&
         !core_.connection->receiving().should_be_read() && !core_.connection->ends().peer_disconnected() &&
         !core_.connection->ends().peer_shut_down() && core_.connection->ends().failure() == 0 &&
         !core_.read_shut.load(std::memory_order_acquire);
}

Result<ssize_t> StreamTransfer::why_nothing(int flags) {
  if (core_.closed.load(std::memory_order_acquire)) return Error{EBADF, "rrecv: closed meanwhile"};
  if (!core_.at_end_of_stream()) {
    // A call that blocks hears of the peer's end while it sleeps or spins.
    const bool blocks = (flags & MSG_DONTWAIT) == 0 && !core_.endpoint.is_nonblocking();
    if (blocks || !progress_.look_closely_if_read_seldom() || !core_.at_end_of_stream()) return Error{EAGAIN, "rrecv"};
  }
  // Polls again, because a message may have arrived between the check of the bytes and that of the end.
  poll();
  if (core_.connection->receiving().readable() > 0 && !core_.read_shut.load(std::memory_order_acquire)) {
    return Error{EAGAIN, "rrecv"};
  }
  // The stream had ended before the reset: the error is reported to sends only.
  if (core_.sent_into_the_void.load(std::memory_order_acquire) || core_.connection->ends().has_peer_ended()) return 0;
  if (core_.read_shut.load(std::memory_order_acquire)) progress_.look_for_reset();
  if (const int error = core_.take_error()) return Error{error, "rrecv"};
  return 0;
}

/// recv(2) of no bytes waits as any other, takes nothing, and reports an error.
Result<ssize_t> StreamTransfer::receive_nothing() {
  poll();
  return core_.connection->receiving().readable() > 0 ? Result<ssize_t>(0) : why_nothing(MSG_DONTWAIT);
}

/// tcp(7): MSG_TRUNC discards the bytes instead of storing them.
Result<ssize_t> StreamTransfer::discard(std::size_t length, int flags) {
  std::byte scratch[1024];
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
    if ((flags & MSG_PEEK) != 0) {  // it has found the first bytes, and counts all
      const std::uint64_t all =
          std::max<std::uint64_t>(static_cast<std::uint64_t>(*got), core_.connection->receiving().readable());
      return static_cast<ssize_t>(std::min<std::uint64_t>(all, length));
    }
    discarded += static_cast<std::size_t>(*got);
    if (static_cast<std::size_t>(*got) < wanted) break;
  }
  return static_cast<ssize_t>(discarded);
}

Result<ssize_t> StreamTransfer::receive(msghdr& message, int flags) {
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
    message.msg_flags = flags & MSG_CMSG_CLOEXEC;
    message.msg_namelen = 0;
  }
  return got;
}

Result<int> StreamTransfer::unread_bytes() {
  const Inheritance::Turn turn(socket_.inheritance());
  if (core_.state() == State::listening) return Error{EINVAL, "FIONREAD"};
  if (!core_.is_connected()) return bytes_unconnected(core_);
  do {
    if (!socket_.inheritance().claim()) return Error{EIO, "FIONREAD"};
    poll();
  } while (core_.is_suspended());  // another thread forks: nothing was polled
  if (core_.connection->receiving().shows_first()) [[unlikely]] {
    StreamCallback& callback = core_.api()->callback();
    if (callback.look()) return Error{ERESTART, "FIONREAD: the application's callback"};
    return static_cast<int>(callback.accepted_bytes());
  }
  return static_cast<int>(std::min<std::uint64_t>(core_.connection->receiving().readable(), INT32_MAX));
}

// -- sending

Result<ssize_t> StreamTransfer::send_bytes(const void* data, std::size_t length, int flags) {
  if ((flags & kUnusualSend) != 0) [[unlikely]] {
    if (const auto answer = unusual_send(length, flags)) return *answer;
    if ((flags & MSG_MORE) != 0 && hold(IoCursor(const_cast<void*>(data), length), length))
      return static_cast<ssize_t>(length);
  }
  auto* const bytes = static_cast<std::byte*>(const_cast<void*>(data));
  if (!core_.is_connected() || length == 0) [[unlikely]] {
    IoCursor all(bytes, length);
    return send_from(all, length);
  }
  const std::size_t sent = post_first([&](Connection& connection) {
    return connection.sending().send_at_once(data, length) ? length : send_in_pieces(bytes, length);
  });
  if (sent == length) [[likely]]
    return static_cast<ssize_t>(length);
  IoCursor rest(bytes + sent, length - sent);
  return send_rest(rest, length, sent);
}

Result<ssize_t> StreamTransfer::send_from(IoCursor& data, std::size_t total) {
  if (!core_.is_connected()) {
    if (Status connected = progress_.require_connected(EPIPE); !connected) return connected.error();
  }
  if (total == 0) return send_nothing();
  const std::size_t sent = post_first([&](Connection& /*connection*/) { return post(data); });
  return sent == total ? Result<ssize_t>(static_cast<ssize_t>(sent)) : send_rest(data, total, sent);
}

/// Calls `post` under the lock, unless sending has ended, and returns its result: the bytes posted.
template <class Post>
inline std::size_t StreamTransfer::post_first(Post post) {
  StreamCore& core = core_;
  std::unique_lock sending(core.send_lock);
  if (is_time_to_look()) [[unlikely]] {
    sending.unlock();
    progress_.look_for_sender();
    sending.lock();
  }
  if (core.at_end_of_sending()) [[unlikely]]
    return 0;
  const std::size_t sent = post(*core.connection);
  if (sent > 0) core.statistics.count_sent(sent);
  return sent;
}

std::size_t StreamTransfer::send_in_pieces(std::byte* data, std::size_t length) {
  IoCursor all(data, length);
  return post(all);
}

/// Posts as much of `data` as fits, unless it has to wait. send_lock must be held.
std::size_t StreamTransfer::post(IoCursor& data) {
  MessageSender& sending = core_.connection->sending();
  if (sending.core().corks()) [[unlikely]]
    return corking_.send(data);
  return sending.send(data);
}

/// Has the `total` bytes of a send with MSG_MORE wait. Returns false when they must be sent as any other.
bool StreamTransfer::hold(IoCursor data, std::size_t total) {
  if (!core_.is_connected() || total == 0) return false;
  return post_first([&](Connection& /*connection*/) { return corking_.hold(data); }) == total;
}

/// Goes on after a first attempt that has posted `sent` of `total` bytes, and less than all: `rest` is left.
Result<ssize_t> StreamTransfer::send_rest(IoCursor& rest, std::size_t total, std::size_t sent) {
  const Inheritance::Turn turn(socket_.inheritance());
  // Repeated only if another thread forks meanwhile, as the suspended connection has room nevertheless, or if this
  // attempt is the one that finds that the peer has gone: the look that follows ends the connection.
  for (bool again = true; again;
       again = sent == 0 && (core_.is_suspended() || core_.connection->requests().is_unheard())) {
    if (!socket_.inheritance().claim()) {
      if (sent > 0) break;
      return Error{EIO, "rsend: another process uses the connection"};
    }
    if (core_.connection->requests().take_unheard()) [[unlikely]] {
      progress_.look_for_reset();
      if (const std::size_t heard = core_.connection->sending().count_heard_after_all())
        return static_cast<ssize_t>(std::min(total, sent + heard));  // what waited before may be among it
    }
    poll();
    sent += post_rest(rest);
  }
  if (sent < total) progress_.note_short_send();
  if (sent == 0) return why_not_sent(total);
  // The peer's end came before the rest was sent.
  if (sent < total && core_.is_half_open()) send_into_the_void();
  return static_cast<ssize_t>(sent);
}

/// Posts what fits, and puts the rest into the peer's overflow area. Returns the bytes of both.
std::size_t StreamTransfer::post_rest(IoCursor& rest) {
  const std::lock_guard sending(core_.send_lock);
  if (core_.at_end_of_sending()) return 0;
  std::size_t sent = post(rest);
  if (!rest.done()) sent += core_.connection->sending().send_ahead(rest);
  if (sent > 0) core_.statistics.count_sent(sent);
  return sent;
}

/// Returns why nothing was posted of `total` bytes, or `total` when Linux would take them nevertheless.
Result<ssize_t> StreamTransfer::why_not_sent(std::size_t total) {
  if (core_.closed.load(std::memory_order_acquire)) return Error{EBADF, "rsend: closed meanwhile"};
  if (core_.write_shut.load(std::memory_order_acquire)) progress_.look_for_reset();
  if (const int error = core_.take_error()) return Error{error, "rsend"};
  if (send_into_the_void()) {
    // As many bytes as a socket would have buffered.
    return static_cast<ssize_t>(std::min<std::size_t>(total, core_.connection->settings().send_ring));
  }
  if (core_.at_end_of_sending()) return core_.end_of_sending("rsend");
  // A writer that never reads must also announce its buffers to the peer.
  if (std::unique_lock reading(core_.receive_lock, std::try_to_lock); reading)
    core_.connection->receiving().announce_if_due();
  return Error{EAGAIN, "rsend"};
}

/// send(2) of no bytes reports an error, but not that only the peer has ended its direction.
Result<ssize_t> StreamTransfer::send_nothing() {
  const Inheritance::Turn turn(socket_.inheritance());
  if (!socket_.inheritance().claim()) return Error{EIO, "rsend: another process uses the connection"};
  progress_.look_for_reset();
  if (core_.closed.load(std::memory_order_acquire)) return Error{EBADF, "rsend: closed meanwhile"};
  if (const int error = core_.take_error()) return Error{error, "rsend"};
  const bool is_over = core_.sent_into_the_void.load(std::memory_order_acquire);
  if (is_over || (core_.at_end_of_sending() && !core_.is_half_open())) return core_.end_of_sending("rsend");
  return 0;
}

/// As in TCP (RFC 9293, 3.5.2), the first send after the peer's close succeeds, and is answered by a reset that also
/// ends the connection here. Linux reports that reset as EPIPE.
bool StreamTransfer::send_into_the_void() {
  if (!core_.is_half_open() || core_.sent_into_the_void.exchange(true, std::memory_order_acq_rel)) return false;
  core_.pending_error.store(EPIPE, std::memory_order_release);
  core_.endpoint.note_activity();
  core_.endpoint.notify_watchers();
  return true;
}

/// Returns the answer of a send with such flags. Nothing: it is sent as any other. A dummy send of VMA's Extra API has
/// no effect otherwise.
std::optional<Result<ssize_t>> StreamTransfer::unusual_send(std::size_t total, int flags) {
  if ((flags & (MSG_OOB | MSG_FASTOPEN)) != 0) {
    if (const auto error = why_not(flags)) return *error;
  }
  StreamApi* const api = (flags & VMA_SND_FLAGS_DUMMY) != 0 ? core_.api() : nullptr;
  if (api == nullptr) return std::nullopt;
  return api->rehearse(total);
}

/// Returns the error of a send with MSG_FASTOPEN, which names no address here, or with MSG_OOB. Returns nothing where
/// the socket's own error, or its connect that is under way, comes first.
std::optional<Error> StreamTransfer::why_not(int flags) const {
  if ((flags & MSG_FASTOPEN) != 0) {
    switch (core_.state()) {
      case State::connected:
      case State::listening: return Error{EISCONN, "rsend: MSG_FASTOPEN"};
      case State::connecting:
      case State::failed: return std::nullopt;
      case State::initial:
      case State::bound: return Error{EINVAL, "rsend: MSG_FASTOPEN"};
    }
  }
  if (!core_.is_connected()) return std::nullopt;
  progress_.look_for_reset();
  if (core_.is_over() || core_.write_shut.load(std::memory_order_acquire)) return std::nullopt;
  return Error{EOPNOTSUPP, "rsend: no urgent data"};
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

Result<ssize_t> StreamTransfer::send(const msghdr& message, int flags) {
  if ((flags & kUnusualSend) != 0) [[unlikely]] {
    const auto wanted = total_bytes(message.msg_iov, message.msg_iovlen);
    if (!wanted) return wanted.error();
    if (const auto answer = unusual_send(*wanted, flags)) return *answer;
  }
  if (message.msg_controllen != 0 && message.msg_control != nullptr) [[unlikely]] {
    if (Status ignored = check_control(message); !ignored) return ignored.error();
  }
  const auto total = total_bytes(message.msg_iov, message.msg_iovlen);
  if (!total) return total.error();
  IoCursor cursor(std::span<const iovec>(message.msg_iov, message.msg_iovlen));
  if ((flags & MSG_MORE) != 0 && hold(cursor, *total)) [[unlikely]]
    return static_cast<ssize_t>(*total);
  return send_from(cursor, *total);
}

Result<int> StreamTransfer::unsent_bytes() {
  if (core_.state() == State::listening) return Error{EINVAL, "SIOCOUTQ"};
  if (!core_.is_connected()) return bytes_unconnected(core_);
  // Bytes in the peer's ring are where the kernel's would be acknowledged. The overflow area is as the send queue.
  return static_cast<int>(std::min<std::uint64_t>(StateOf(*core_.connection).waiting_bytes(), INT32_MAX));
}

}  // namespace ringsock::rs
