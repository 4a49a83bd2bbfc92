#include "libvmacompat/tcp/carried_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <span>

#include "core/engine/tcp/kernel_info.h"
#include "core/wire/tcp.h"
#include "libvmacompat/tcp/tcp_callback.h"

namespace ringsock::vma {

namespace tcp = engine::tcp;

namespace {

constexpr int kKnownReceiveFlags = MSG_DONTWAIT | MSG_PEEK | MSG_TRUNC | MSG_WAITALL | MSG_NOSIGNAL | MSG_CMSG_CLOEXEC;
constexpr int kKnownSendFlags = MSG_DONTWAIT | MSG_MORE | MSG_NOSIGNAL | MSG_EOR | MSG_DONTROUTE | MSG_CONFIRM;

std::span<std::byte> span_of(const iovec& piece) { return {static_cast<std::byte*>(piece.iov_base), piece.iov_len}; }

/// Moves received bytes to the application.
std::size_t read_into(tcp::TcpConnection& engine, const msghdr& message, int flags, Nanos now) {
  std::size_t done = 0;
  for (const iovec& piece : std::span(message.msg_iov, message.msg_iovlen)) {
    const auto room = span_of(piece);
    std::size_t count = 0;
    if ((flags & MSG_PEEK) != 0) {
      count = (flags & MSG_TRUNC) != 0 ? std::min(room.size(), engine.readable() - std::min(done, engine.readable()))
                                       : engine.peek(room, done);
    } else if ((flags & MSG_TRUNC) != 0) {
      count = std::min(room.size(), engine.readable());
      engine.consume(count, now);
    } else {
      count = engine.read(room, now);
    }
    done += count;
    if (count < room.size()) break;
  }
  return done;
}

Result<std::size_t> write_from(tcp::TcpConnection& engine, const msghdr& message, Nanos now) {
  std::size_t done = 0;
  for (const iovec& piece : std::span(message.msg_iov, message.msg_iovlen)) {
    const auto taken = engine.write(span_of(piece), now);
    if (!taken) return done != 0 ? Result<std::size_t>(done) : taken;
    done += *taken;
    if (*taken < piece.iov_len) break;
  }
  return done;
}

bool may_write(tcp::State state) { return state == tcp::State::established || state == tcp::State::close_wait; }

/// TCP_QUICKACK. 0 also ends what VMA_TCP_QUICKACK says.
void set_quick_ack(tcp::TcpConnection& engine, bool quick, Nanos now) {
  tcp::Settings next = engine.settings();
  next.quick_ack = next.quick_ack && quick;
  engine.set(next, now);
  engine.set_quick_ack(quick, now);
}

Result<int> as_int(const std::optional<std::size_t>& bytes) {
  if (!bytes) return Error{EIO, "tcp: for the kernel"};
  return static_cast<int>(std::min<std::size_t>(*bytes, INT_MAX));
}

}  // namespace

// -- receiving -------------------------------------------------------------------------------------

/// Takes the urgent byte (MSG_OOB).
Result<ssize_t> CarriedStream::receive_urgent(const msghdr& message, int flags) {
  connection_.progress();
  const auto answer = connection_.with_engine([&](tcp::TcpConnection& engine, Nanos) -> Result<ssize_t> {
    if (total(message) == 0) return 0;
    const auto byte = engine.read_urgent((flags & MSG_PEEK) != 0);
    if (!byte) return byte.error();
    for (const iovec& piece : std::span(message.msg_iov, message.msg_iovlen)) {
      if (piece.iov_len == 0) continue;
      *static_cast<std::byte*>(piece.iov_base) = *byte;
      break;
    }
    return 1;
  });
  return answer ? *answer : kLeave;
}

/// Receives by `read(engine, now)`, which returns how many bytes it has read into the message.
template <class Read>
[[gnu::always_inline]] inline Result<ssize_t> CarriedStream::receive_as(msghdr& message, int flags, Read read) {
  if ((flags & MSG_ERRQUEUE) != 0) return Error{EAGAIN, "recv: no error queue"};
  if ((flags & ~(kKnownReceiveFlags | MSG_OOB)) != 0) return kLeave;
  message.msg_namelen = 0;
  message.msg_controllen = 0;
  message.msg_flags = flags & MSG_OOB;
  if ((flags & MSG_OOB) != 0) [[unlikely]]
    return receive_urgent(message, flags);
  const bool has_room = total(message) != 0;
  auto got = receive_once(has_room, read);
  if (got || got.error().code != EAGAIN) return got;
  connection_.progress();
  return receive_once(has_room, read);
}

Result<ssize_t> CarriedStream::receive(msghdr& message, int flags) {
  return receive_as(message, flags,
                    [&](tcp::TcpConnection& engine, Nanos now) { return read_into(engine, message, flags, now); });
}

Result<ssize_t> CarriedStream::receive_shown(msghdr& message, int flags, TcpCallback& callback) {
  return receive_as(message, flags, [&](tcp::TcpConnection& engine, Nanos now) -> std::size_t {
    if (callback.hides(engine)) return 0;
    const std::size_t bytes = read_into(engine, message, flags, now);
    callback.note_read(engine);
    return bytes;
  });
}

Result<int> CarriedStream::unread_bytes() {
  connection_.progress();
  return as_int(connection_.with_engine([](tcp::TcpConnection& engine, Nanos) { return engine.readable(); }));
}

Result<int> CarriedStream::is_at_mark() {
  connection_.progress();
  return as_int(
      connection_.with_engine([](tcp::TcpConnection& engine, Nanos) { return std::size_t{engine.at_mark()}; }));
}

// -- sending ---------------------------------------------------------------------------------------

Result<ssize_t> CarriedStream::send_once(const msghdr& message, int flags) {
  bool is_waiting = false;  // for acknowledgements, which may be there
  const auto answer = connection_.with_engine([&](tcp::TcpConnection& engine, Nanos now) -> Result<ssize_t> {
    if (const int error = take_error_of(engine)) return Error{error, "send"};
    if (!may_write(engine.state())) return Error{EPIPE, "send"};
    engine.more_follows((flags & MSG_MORE) != 0);
    const auto sent = write_from(engine, message, now);
    if (!sent) return sent.error();
    if (*sent == 0 && total(message) != 0) return Error{EAGAIN, "send"};
    is_waiting = engine.unsent() != 0;
    return static_cast<ssize_t>(*sent);
  });
  if (is_waiting) connection_.progress();
  return answer ? *answer : kLeave;
}

Result<ssize_t> CarriedStream::send(const msghdr& message, int flags) {
  if ((flags & ~kKnownSendFlags) != 0 || message.msg_controllen != 0) return kLeave;
  auto sent = send_once(message, flags);
  if (sent || sent.error().code != EAGAIN) return sent;
  connection_.progress();
  return send_once(message, flags);
}

Result<ssize_t> CarriedStream::rehearse(const msghdr& message, int flags) {
  constexpr Error kNotByRing{EINVAL, "send: a dummy send that no ring takes"};
  if ((flags & ~(MSG_DONTWAIT | MSG_NOSIGNAL)) != 0 || message.msg_controllen != 0) return kNotByRing;
  const std::size_t bytes = total(message);
  const auto answer = connection_.with_engine([&](tcp::TcpConnection& engine, Nanos) -> Result<ssize_t> {
    if (!may_write(engine.state())) return Error{EPIPE, "send"};
    const tcp::Info info = engine.info();
    const std::size_t window = info.snd_wnd > info.unacked_bytes ? info.snd_wnd - info.unacked_bytes : 0;
    if (engine.unsent() != 0 || bytes > info.snd_mss || bytes > window) return Error{EAGAIN, "send: a dummy send"};
    const int error = connection_.rehearse(std::span(message.msg_iov, message.msg_iovlen), bytes);
    if (error != 0) return Error{error, "send: a dummy send"};
    return static_cast<ssize_t>(bytes);
  });
  return answer ? *answer : kNotByRing;
}

Result<int> CarriedStream::unacknowledged_bytes() {
  connection_.progress();
  return as_int(connection_.with_engine([](tcp::TcpConnection& engine, Nanos) { return engine.unacked(); }));
}

Result<int> CarriedStream::bytes_not_sent() {
  connection_.progress();
  return as_int(connection_.with_engine([](tcp::TcpConnection& engine, Nanos) { return engine.unsent(); }));
}

std::size_t CarriedStream::room() noexcept {
  return connection_.with_engine([](tcp::TcpConnection& engine, Nanos) { return engine.room(); }).value_or(0);
}

// -- what the application is told ------------------------------------------------------------------

std::optional<std::uint32_t> CarriedStream::events(std::size_t low_mark) noexcept {
  connection_.progress();
  return connection_.with_engine([&](tcp::TcpConnection& engine, Nanos) {
    std::uint32_t out = 0;
    const bool has_failed = engine.error() != 0 || kept_error_.load(std::memory_order_relaxed) != 0;
    const bool is_over = engine.state() == tcp::State::closed;
    const bool has_ended = engine.state() != tcp::State::established;
    if (engine.readable() >= low_mark || has_ended || has_failed) out |= EPOLLIN | EPOLLRDNORM;
    if (engine.is_writable() || is_over || has_failed) out |= EPOLLOUT | EPOLLWRNORM;
    if (has_ended) out |= EPOLLRDHUP;
    if (is_over) out |= EPOLLHUP;
    if (has_failed) out |= EPOLLERR;
    if (engine.has_urgent_byte()) out |= EPOLLPRI;
    return out;
  });
}

bool CarriedStream::is_over() {
  return connection_.with_engine([](tcp::TcpConnection& engine, Nanos) { return engine.state() == tcp::State::closed; })
      .value_or(false);
}

/// What ended the wait or the call is no error of the connection.
void CarriedStream::keep_error(int code) noexcept {
  for (const int passing : {EAGAIN, EINTR, ERESTART, EBADF, EFAULT, EIO}) {
    if (code == passing) return;
  }
  kept_error_.store(code, std::memory_order_relaxed);
}

int CarriedStream::take_error_of(tcp::TcpConnection& engine) {
  const int kept = kept_error_.exchange(0, std::memory_order_relaxed);
  return kept != 0 ? kept : engine.take_error();
}

std::optional<int> CarriedStream::take_error() {
  connection_.progress();
  return connection_.with_engine([&](tcp::TcpConnection& engine, Nanos) { return take_error_of(engine); });
}

std::optional<int> CarriedStream::segment_bytes() {
  return connection_.with_engine(
      [](tcp::TcpConnection& engine, Nanos) { return static_cast<int>(engine.info().snd_mss); });
}

Status CarriedStream::info(int fd, void* value, socklen_t* length) {
  tcp::KernelTcpInfo all{};
  socklen_t known = sizeof all;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &all, &known) != 0) return Error::last("getsockopt");
  connection_.with_engine([&](tcp::TcpConnection& engine, Nanos) { return fill_tcp_info(engine.info(), all), true; });
  *length = std::min<socklen_t>(*length, known);
  std::memcpy(value, &all, *length);
  return ok();
}

void CarriedStream::apply(TcpOptionEffect effect, int fd, int name) {
  if (effect == TcpOptionEffect::quick_ack) {
    int quick = 0;
    socklen_t length = sizeof quick;
    ::getsockopt(fd, IPPROTO_TCP, name, &quick, &length);
    connection_.with_engine(
        [&](tcp::TcpConnection& engine, Nanos now) { return set_quick_ack(engine, quick != 0, now), true; });
  }
  if (effect != TcpOptionEffect::settings) return;
  connection_.with_engine([&](tcp::TcpConnection& engine, Nanos now) {
    tcp::Settings next = tcp_settings_of(fd, engine.settings().mtu_payload + sizeof(wire::TcpHeader));
    if (name != SO_SNDBUF && name != SO_SNDBUFFORCE) next.send_bytes = engine.settings().send_bytes;
    if (name != SO_RCVBUF && name != SO_RCVBUFFORCE) next.receive_bytes = engine.settings().receive_bytes;
    next.quick_ack = engine.settings().quick_ack;
    next.algorithm = engine.settings().algorithm;
    next.spare_chunks = engine.settings().spare_chunks;
    engine.set(next, now);
    return true;
  });
}

}  // namespace ringsock::vma
