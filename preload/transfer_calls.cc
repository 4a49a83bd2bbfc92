// Moving bytes.
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <span>
#include <type_traits>

#include "core/poll/wait.h"
#include "preload/checked_transfer.h"
#include "preload/kernels_opinion.h"
#include "preload/pass_descriptors.h"
#include "preload/route.h"
#include "preload/socket_ways.h"

// The functions below by names that the linker does not send to libc (RS_BY_NUMBER).
extern "C" decltype(sendto) ringsock_sendto;
extern "C" decltype(sendmsg) ringsock_sendmsg;

namespace ringsock::preload {
namespace {

/// Does what libc's checked functions do when the length is larger than the buffer: it never returns.
[[noreturn]] void buffer_overflow(int fd) {
  real.__read_chk(fd, nullptr, 1, 0);
  __builtin_trap();
}

// Calls that move one buffer. The part for endpoints is a function of its own with the arguments in the same places, so
// calls on files and pipes do not save registers for it. `libcs` has no state.

constexpr auto kLibcsRead = [](int fd, void* data, size_t length, int) { return real.read(fd, data, length); };

template <class Libcs, class Again>
[[gnu::always_inline]] inline ssize_t receive_held(int fd, void* data, size_t length, int flags, Libcs libcs,
                                                   Again again) {
  if constexpr (std::is_same_v<Libcs, std::remove_const_t<decltype(kLibcsRead)>>) {
    // read(2) of no bytes returns at once; recv(2) waits for something.
    if (length == 0) [[unlikely]]
      return 0;
  }
  return route_held(
      fd,
      [&](Lookup& socket) {
        return with_rest_received(fd, socket, data, length, flags, receive_checked(socket, data, length, flags));
      },
      [&] { return libcs(fd, data, length, flags); }, again);
}
/// A loop, because the call may be made again for each of many datagrams (core/runtime/due_calls.h).
template <class Libcs>
[[gnu::noinline, gnu::cold]] ssize_t receive_again(int fd, void* data, size_t length, int flags, Libcs libcs) {
  return receive_held(fd, data, length, flags, libcs, InLoop());
}
template <class Libcs>
[[gnu::noinline]] ssize_t receive_ours(int fd, void* data, size_t length, int flags, Libcs libcs) {
  return receive_held(fd, data, length, flags, libcs, [&] { return receive_again(fd, data, length, flags, libcs); });
}

template <class Libcs>
[[gnu::always_inline]] inline ssize_t receive(int fd, void* data, size_t length, int flags, Libcs libcs) {
  if (!fd_table().holds(fd)) [[likely]]
    return libcs(fd, data, length, flags);
  return at_cancellation_point<&receive_ours<Libcs>>(fd, data, length, flags, libcs);
}

constexpr auto kLibcsWrite = [](int fd, const void* data, size_t length, int) { return real.write(fd, data, length); };

constexpr Error kWaysFlag{EINVAL, "send: a flag for other sockets"};
/// Flags that need a closer look on streams, which no way claims its flags for.
constexpr int kStreamsUnusual = MSG_FASTOPEN | kWaysSendFlags;

/// Looks at a send of a stream with flags of a way. Returns whether it is refused: only streams that a way's rings
/// carry know the flags. A send with such flags does not wait.
bool refuses_ways_flags(Lookup& stream, int& flags) {
  if (!are_ways_send_flags(flags)) return false;
  if (stream->as_api_socket() == nullptr) return true;
  flags |= MSG_DONTWAIT;
  return false;
}

template <class Libcs>
ssize_t send_again(int fd, const void* data, size_t length, int flags, Libcs libcs);

template <class Libcs>
[[gnu::noinline]] ssize_t send_ours(int fd, const void* data, size_t length, int flags, Libcs libcs) {
  return route_held(
      fd,
      [&](Lookup& socket) -> Result<ssize_t> {
        if constexpr (!std::is_same_v<Libcs, std::remove_const_t<decltype(kLibcsWrite)>>) {
          if ((flags & kWaysSendFlags) != 0 && !socket->is_datagram() && refuses_ways_flags(socket, flags)) [[unlikely]]
            return kWaysFlag;
        }
        return with_rest_sent(fd, socket, data, length, flags, send_checked(socket, data, length, flags));
      },
      [&] { return libcs(fd, data, length, flags); }, [&] { return send_again(fd, data, length, flags, libcs); });
}
template <class Libcs>
[[gnu::noinline, gnu::cold]] ssize_t send_again(int fd, const void* data, size_t length, int flags, Libcs libcs) {
  return send_ours(fd, data, length, flags, libcs);
}

template <class Libcs>
[[gnu::always_inline]] inline ssize_t send(int fd, const void* data, size_t length, int flags, Libcs libcs) {
  if (!fd_table().holds(fd)) [[likely]]
    return libcs(fd, data, length, flags);
  return at_cancellation_point<&send_ours<Libcs>>(fd, data, length, flags, libcs);
}

/// Returns whether a send by the kernel is refused: the flags are a way's own (SocketWay::send_flags). Sets errno.
[[gnu::noinline, gnu::cold]] bool refuses(int flags) {
  if (!are_ways_send_flags(flags)) return false;
  errno = EINVAL;
  return true;
}
[[gnu::always_inline]] inline bool is_refused(int flags) { return (flags & kWaysSendFlags) != 0 && refuses(flags); }

constexpr auto kLibcsRecv = [](int fd, void* data, size_t length, int flags) {
  return real.recv(fd, data, length, flags);
};
constexpr auto kLibcsSend = [](int fd, const void* data, size_t length, int flags) {
  if (is_refused(flags)) [[unlikely]]
    return ssize_t{-1};
  return real.send(fd, data, length, flags);
};

Result<msghdr> as_message(const iovec* parts, int count) {
  if (count < 0 || count > IOV_MAX) return Error{EINVAL, "iovec: count"};
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<std::size_t>(count);
  return message;
}

/// Carry out recvmsg(2) and sendmsg(2), by the ring, and the rest by the kernel where necessary.
Result<ssize_t> receive_all(int fd, Lookup& socket, msghdr* message, int flags) {
  auto got = receive_checked(socket, message, flags);
  return got ? with_rest_received(fd, socket, *message, flags, got) : got;
}

/// Carries out a send with MSG_FASTOPEN, which connects first. What then remains is sent by `send`, by the ring or by
/// the kernel.
Result<ssize_t> connect_and_send(Lookup& socket, const sockaddr* address, socklen_t length, auto send) {
  socket.pin();
  if (Status fine = check_address(address, length); !fine) return fine.error();
  if (length < sizeof address->sa_family) return Error{EINVAL, "send: MSG_FASTOPEN"};
  if (address->sa_family == AF_UNSPEC) return Error{EOPNOTSUPP, "send: MSG_FASTOPEN"};
  if (Status connected = runtime::connect(socket, address, length); !connected) return connected.error();
  const ssize_t sent = send();
  // Not repeated: the connection stands.
  if (sent < 0) return errno == ERESTART ? Error{EINTR, "send"} : Error::last("send");
  return sent;
}

Result<ssize_t> send_all(int fd, Lookup& socket, const msghdr* message, int flags) {
  if ((flags & kStreamsUnusual) != 0 && !socket->is_datagram()) [[unlikely]] {
    if (refuses_ways_flags(socket, flags)) return kWaysFlag;
    if (!are_readable(message)) return Error{EFAULT, "sendmsg: message"};
    if ((flags & MSG_FASTOPEN) != 0 && message->msg_name != nullptr)
      return connect_and_send(socket, static_cast<const sockaddr*>(message->msg_name), message->msg_namelen,
                              [&] { return ringsock_sendmsg(fd, message, flags & ~MSG_FASTOPEN); });
  }
  auto sent = send_checked(socket, message, flags);
  return sent ? with_rest_sent(fd, socket, *message, flags, sent) : sent;
}

/// Returns whether there is a byte to move; otherwise readv(2) and writev(2) return at once.
bool has_room(const msghdr& message) {
  const auto parts = std::span(message.msg_iov, message.msg_iovlen);
  return std::any_of(parts.begin(), parts.end(), [](const iovec& part) { return part.iov_len != 0; });
}

Result<ssize_t> receive_parts(Lookup& socket, const iovec* parts, int count, int flags = 0) {
  auto message = as_message(parts, count);
  if (!message) return message.error();
  if (!are_readable(parts, message->msg_iovlen)) return Error{EFAULT, "iovec"};
  return has_room(*message) ? receive_checked(socket, &*message, flags) : Result<ssize_t>(0);
}

Result<ssize_t> send_parts(int fd, Lookup& socket, const iovec* parts, int count, int flags = 0) {
  auto message = as_message(parts, count);
  if (!message) return message.error();
  if (!are_readable(parts, message->msg_iovlen)) return Error{EFAULT, "iovec"};
  if (!has_room(*message)) return 0;
  return with_rest_sent(fd, socket, *message, flags, send_checked(socket, &*message, flags));
}

constexpr int kRwfNoSignal = 0x100;  // RWF_NOSIGNAL

/// Returns whether the kernel knows flags of preadv2(2) that are newer than this library. An unconnected socket of the
/// kernel tells: it checks flags first.
bool are_flags_known(Lookup& socket, int flags) {
  const KernelsOpinion kernel(domain_of(socket));
  char byte = 0;
  const iovec part{&byte, 1};
  return real.preadv2(kernel.fd(), &part, 1, -1, flags) >= 0 || errno != EOPNOTSUPP;
}

/// Checks arguments of preadv2(2) and pwritev2(2): sockets take the offset -1 only, and of the flags RWF_NOWAIT and
/// RWF_NOSIGNAL have an effect.
Status check_v2(Lookup& socket, off_t offset, int flags) {
  if (offset != -1) return Error{offset < 0 ? EINVAL : ESPIPE, "socket: offset"};
  const int newer = flags & ~(RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_NOWAIT | RWF_APPEND);
  if (newer != 0 && !are_flags_known(socket, newer)) return Error{EOPNOTSUPP, "socket: flags"};
  return ok();
}

/// Returns the flags of sendmsg(2) that do what those of pwritev2(2) do.
int as_message_flags(int flags) {
  return ((flags & RWF_NOWAIT) != 0 ? MSG_DONTWAIT : 0) | ((flags & kRwfNoSignal) != 0 ? MSG_NOSIGNAL : 0);
}

Result<ssize_t> receive_v2(Lookup& socket, const iovec* parts, int count, off_t offset, int flags) {
  if (Status fine = check_v2(socket, offset, flags); !fine) return fine.error();
  return receive_parts(socket, parts, count, (flags & RWF_NOWAIT) != 0 ? MSG_DONTWAIT : 0);
}

Result<ssize_t> send_v2(int fd, Lookup& socket, const iovec* parts, int count, off_t offset, int flags) {
  if (Status fine = check_v2(socket, offset, flags); !fine) return fine.error();
  return send_parts(fd, socket, parts, count, as_message_flags(flags));
}

/// Returns the error of a stream socket that nobody was told of, or 0. It counts as told then.
int pending_error(Lookup& socket) {
  int error = 0;
  socklen_t length = sizeof error;
  [[maybe_unused]] const Status told = socket->get_option(SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

/// Carries out recvmmsg(2), which first reports an error that is pending. It blocks for the first message as the socket
/// does, and for others unless MSG_WAITFORONE.
Result<int> receive_many(int fd, Lookup& socket, mmsghdr* messages, unsigned count, int flags,
                         const timespec* timeout) {
  if (timeout != nullptr && !are_writable(timeout)) return Error{EFAULT, "recvmmsg: time-out"};
  const auto limit = from_timespec(timeout);
  if (!limit) return limit.error();
  if ((flags & MSG_ERRQUEUE) == 0 && !socket->is_datagram()) {
    if (const int error = pending_error(socket)) return Error{error, "recvmmsg: the socket's error"};
  }
  const Nanos deadline = runtime::deadline_after(*limit);
  int done = 0;
  for (unsigned i = 0; i < std::min<unsigned>(count, IOV_MAX); ++i) {
    auto got = are_writable(&messages[i]) ? receive_all(fd, socket, &messages[i].msg_hdr, flags & ~MSG_WAITFORONE)
                                          : Error{EFAULT, "recvmmsg"};
    if (!got) return done > 0 ? Result<int>(done) : got.error();
    messages[i].msg_len = static_cast<unsigned>(*got);
    ++done;
    if (deadline != Nanos::max() && monotonic_now() >= deadline) break;
    if ((flags & MSG_WAITFORONE) != 0) flags |= MSG_DONTWAIT;
  }
  return done;
}

/// Carries out sendmmsg(2). A message that was taken in part is the last one.
Result<int> send_many(int fd, Lookup& socket, mmsghdr* messages, unsigned count, int flags) {
  int done = 0;
  for (unsigned i = 0; i < std::min<unsigned>(count, IOV_MAX); ++i) {
    auto sent =
        are_writable(&messages[i]) ? send_all(fd, socket, &messages[i].msg_hdr, flags) : Error{EFAULT, "sendmmsg"};
    if (!sent) return done > 0 ? Result<int>(done) : sent.error();
    messages[i].msg_len = static_cast<unsigned>(*sent);
    ++done;
    if (!is_all(messages[i].msg_hdr, *sent)) break;
  }
  return done;
}

[[gnu::always_inline]] inline ssize_t route_receive_from(int fd, void* data, size_t length, int flags,
                                                         sockaddr* address, socklen_t* address_length, auto libcs,
                                                         auto again) {
  return route(
      fd,
      [&](Lookup& socket) -> Result<ssize_t> {
        if (address == nullptr)
          return with_rest_received(fd, socket, data, length, flags, receive_checked(socket, data, length, flags));
        const bool is_there = is_near_on_stack(address_length) && is_near_on_stack(address) &&
                              (is_near_on_stack(data, length) || is_writable(data, length));
        if (!is_there || *address_length > INT_MAX) [[unlikely]]
          return with_rest_received(fd, socket, data, length, flags,
                                    receive_from_checked(socket, data, length, flags, address, address_length));
        iovec part{data, length};
        msghdr message{};
        message.msg_name = address;
        message.msg_namelen = *address_length;
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        auto got = with_rest_received(fd, socket, message, flags, runtime::receive(socket, message, flags));
        if (got) *address_length = message.msg_namelen;
        return got;
      },
      libcs, again);
}

/// A loop, as receive_again().
[[gnu::noinline, gnu::cold]] ssize_t receive_from_again(int fd, void* data, size_t length, int flags, sockaddr* address,
                                                        socklen_t* address_length) {
  return route_receive_from(
      fd, data, length, flags, address, address_length,
      [=] { return real.recvfrom(fd, data, length, flags, address, address_length); }, InLoop());
}

ssize_t receive_from(int fd, void* data, size_t length, int flags, sockaddr* address, socklen_t* address_length,
                     auto libcs) {
  return route_receive_from(fd, data, length, flags, address, address_length, libcs,
                            [=] { return receive_from_again(fd, data, length, flags, address, address_length); });
}

Result<ssize_t> send_to(Lookup& socket, const void* data, std::size_t length, int flags, const sockaddr* address,
                        socklen_t address_length) {
  iovec part{const_cast<void*>(data), length};
  msghdr message{};
  message.msg_name = const_cast<sockaddr*>(address);
  message.msg_namelen = address_length;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  return runtime::send(socket, message, flags);
}

[[gnu::noinline, gnu::cold]] ssize_t send_to_again(int fd, const void* data, size_t length, int flags,
                                                   const sockaddr* address, socklen_t address_length) {
  return ringsock_sendto(fd, data, length, flags, address, address_length);
}

}  // namespace

ssize_t intercepted_read(int fd, void* data, std::size_t length) { return receive(fd, data, length, 0, kLibcsRead); }
ssize_t intercepted_send(int fd, const void* data, std::size_t length, int flags) {
  return send(fd, data, length, flags, kLibcsSend);
}

}  // namespace ringsock::preload

using namespace ringsock;
using namespace ringsock::preload;

RS_INTERCEPT ssize_t read(int fd, void* data, size_t length) { return receive(fd, data, length, 0, kLibcsRead); }
RS_INTERCEPT ssize_t __read(int fd, void* data, size_t length) { return receive(fd, data, length, 0, kLibcsRead); }
RS_INTERCEPT ssize_t __read_chk(int fd, void* data, size_t length, size_t room) {
  if (length > room) buffer_overflow(fd);
  return receive(fd, data, length, 0, kLibcsRead);
}

RS_INTERCEPT ssize_t recv(int fd, void* data, size_t length, int flags) {
  return receive(fd, data, length, flags, kLibcsRecv);
}
RS_INTERCEPT ssize_t __recv_chk(int fd, void* data, size_t length, size_t room, int flags) {
  if (length > room) buffer_overflow(fd);
  return receive(fd, data, length, flags, kLibcsRecv);
}

namespace {
[[gnu::noinline]] ssize_t receive_from_any(int fd, void* data, size_t length, int flags, sockaddr* address,
                                           socklen_t* address_length) {
  return receive_from(fd, data, length, flags, address, address_length,
                      [=] { return real.recvfrom(fd, data, length, flags, address, address_length); });
}
}  // namespace

RS_INTERCEPT ssize_t recvfrom(int fd, void* data, size_t length, int flags, sockaddr* address,
                              socklen_t* address_length) {
  return at_cancellation_point<&receive_from_any>(fd, data, length, flags, address, address_length);
}
RS_INTERCEPT ssize_t __recvfrom_chk(int fd, void* data, size_t length, size_t room, int flags, sockaddr* address,
                                    socklen_t* address_length) {
  if (length > room) buffer_overflow(fd);
  return at_cancellation_point<&receive_from_any>(fd, data, length, flags, address, address_length);
}

RS_INTERCEPT ssize_t recvmsg(int fd, msghdr* message, int flags) {
  const CancellationPoint point;
  return route(
      fd, [&](Lookup& socket) { return receive_all(fd, socket, message, flags); },
      [=] { return real.recvmsg(fd, message, flags); });
}

RS_INTERCEPT int recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout) {
  const CancellationPoint point;
  return route_pinned(
      fd, [&](Lookup& socket) { return receive_many(fd, socket, messages, count, flags, timeout); },
      [=] { return real.recvmmsg(fd, messages, count, flags, timeout); });
}

RS_INTERCEPT ssize_t readv(int fd, const iovec* parts, int count) {
  const CancellationPoint point;
  return route(
      fd, [&](Lookup& socket) { return receive_parts(socket, parts, count); },
      [=] { return real.readv(fd, parts, count); });
}
RS_INTERCEPT ssize_t preadv2(int fd, const iovec* parts, int count, off_t offset, int flags) {
  const CancellationPoint point;
  return route(
      fd, [&](Lookup& socket) { return receive_v2(socket, parts, count, offset, flags); },
      [=] { return real.preadv2(fd, parts, count, offset, flags); });
}
RS_INTERCEPT ssize_t preadv64v2(int fd, const iovec* parts, int count, off_t offset, int flags) {
  const CancellationPoint point;
  return route(
      fd, [&](Lookup& socket) { return receive_v2(socket, parts, count, offset, flags); },
      [=] { return real.preadv64v2(fd, parts, count, offset, flags); });
}

RS_INTERCEPT ssize_t write(int fd, const void* data, size_t length) { return send(fd, data, length, 0, kLibcsWrite); }
RS_INTERCEPT ssize_t __write(int fd, const void* data, size_t length) { return send(fd, data, length, 0, kLibcsWrite); }

RS_INTERCEPT ssize_t send(int fd, const void* data, size_t length, int flags) {
  return ringsock::preload::send(fd, data, length, flags, kLibcsSend);
}
RS_INTERCEPT ssize_t __send(int fd, const void* data, size_t length, int flags) {
  return ringsock::preload::send(fd, data, length, flags, kLibcsSend);
}

namespace {
[[gnu::noinline]] ssize_t send_to_any(int fd, const void* data, size_t length, int flags, const sockaddr* address,
                                      socklen_t address_length) {
  return route(
      fd,
      [&](Lookup& socket) -> Result<ssize_t> {
        if ((flags & kStreamsUnusual) != 0 && !socket->is_datagram()) [[unlikely]] {
          if (refuses_ways_flags(socket, flags)) return kWaysFlag;
          if (address != nullptr && (flags & MSG_FASTOPEN) != 0)
            return connect_and_send(socket, address, address_length,
                                    [&] { return intercepted_send(fd, data, length, flags & ~MSG_FASTOPEN); });
        }
        if (address == nullptr)
          return with_rest_sent(fd, socket, data, length, flags, send_checked(socket, data, length, flags));
        const bool is_there = is_near_on_stack(address) && address_length <= sizeof(sockaddr_storage) &&
                              (is_near_on_stack(data, length) || is_readable(data, length));
        if (!is_there) [[unlikely]]
          return send_to_checked(socket, data, length, flags, address, address_length);
        return send_to(socket, data, length, flags, address, address_length);  // TCP ignores the address
      },
      [=] {
        if (is_refused(flags)) [[unlikely]]
          return ssize_t{-1};
        return real.sendto(fd, data, length, flags, address, address_length);
      },
      [=] { return send_to_again(fd, data, length, flags, address, address_length); });
}
}  // namespace

RS_INTERCEPT ssize_t sendto(int fd, const void* data, size_t length, int flags, const sockaddr* address,
                            socklen_t address_length) {
  return at_cancellation_point<&send_to_any>(fd, data, length, flags, address, address_length);
}

RS_INTERCEPT ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  const CancellationPoint point;
  return route(
      fd, [&](Lookup& socket) { return send_all(fd, socket, message, flags); },
      [=] {
        if (is_refused(flags)) [[unlikely]]
          return ssize_t{-1};
        // The control data may contain descriptors of endpoints.
        if (!are_readable(message)) [[unlikely]]
          return real.sendmsg(fd, message, flags);
        if (message->msg_controllen != 0) [[unlikely]]
          return send_with_control(fd, *message, flags);
        return real.sendmsg(fd, message, flags);
      });
}

RS_INTERCEPT int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  const CancellationPoint point;
  return route_pinned(
      fd, [&](Lookup& socket) { return send_many(fd, socket, messages, count, flags); },
      [=] {
        if (is_refused(flags)) [[unlikely]]
          return -1;
        const auto has_control = [](const mmsghdr& one) { return one.msg_hdr.msg_controllen != 0; };
        const unsigned looked_at = std::min<unsigned>(count, IOV_MAX);
        if (!are_readable(messages, looked_at) || std::none_of(messages, messages + looked_at, has_control)) [[likely]]
          return real.sendmmsg(fd, messages, count, flags);
        return send_many_with_control(fd, messages, count, flags);
      });
}

RS_INTERCEPT ssize_t writev(int fd, const iovec* parts, int count) {
  const CancellationPoint point;
  return route(
      fd, [&](Lookup& socket) { return send_parts(fd, socket, parts, count); },
      [=] { return real.writev(fd, parts, count); });
}
RS_INTERCEPT ssize_t pwritev2(int fd, const iovec* parts, int count, off_t offset, int flags) {
  const CancellationPoint point;
  return route(
      fd, [&](Lookup& socket) { return send_v2(fd, socket, parts, count, offset, flags); },
      [=] { return real.pwritev2(fd, parts, count, offset, flags); });
}
RS_INTERCEPT ssize_t pwritev64v2(int fd, const iovec* parts, int count, off_t offset, int flags) {
  const CancellationPoint point;
  return route(
      fd, [&](Lookup& socket) { return send_v2(fd, socket, parts, count, offset, flags); },
      [=] { return real.pwritev64v2(fd, parts, count, offset, flags); });
}

RS_BY_NUMBER(read);
RS_BY_NUMBER(readv);
RS_BY_NUMBER(preadv2);
RS_BY_NUMBER(recvfrom);
RS_BY_NUMBER(recvmsg);
RS_BY_NUMBER(recvmmsg);
RS_BY_NUMBER(write);
RS_BY_NUMBER(writev);
RS_BY_NUMBER(pwritev2);
RS_BY_NUMBER(sendto);
RS_BY_NUMBER(sendmsg);
RS_BY_NUMBER(sendmmsg);
