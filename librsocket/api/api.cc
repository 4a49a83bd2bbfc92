// The C interface: r* calls.
#include <fcntl.h>
#include <netinet/in.h>
#include <rdma/rsocket.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdarg>

#include "core/base/at_fork.h"
#include "core/base/libc_calls.h"
#include "core/base/posix_edge.h"
#include "core/base/rare_calls.h"
#include "core/base/unique_fd.h"
#include "core/extra_api/extra_api.h"
#include "core/extra_api/shared_rings.h"
#include "core/poll/socket_calls.h"
#include "core/poll/wait.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/library_call.h"
#include "librsocket/datagram/datagram_socket.h"
#include "librsocket/export.h"
#include "librsocket/rsocket_library.h"
#include "librsocket/rsocket_process.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {
namespace {

using runtime::fd_table;
using runtime::Lookup;

/// Returns the error for a descriptor that is no rsocket: whether it is a file or does not exist. A socket, or a
/// descriptor without a type (eventfd(2), epoll(7)), may be an rsocket that another thread is closing by rclose(), so
/// it counts as not existing.
Error not_ours(int fd) {
  struct stat what {};
  // fstatat(2) is used because ThreadSanitizer reports a concurrent close for fstat(2).
  const bool is_file = fd >= 0 && ::fstatat(fd, "", &what, AT_EMPTY_PATH) == 0 && !S_ISSOCK(what.st_mode) &&
                       (what.st_mode & S_IFMT) != 0;
  return is_file ? Error{ENOTSOCK, "rsocket: descriptor"} : Error{EBADF, "rsocket: descriptor"};
}

/// Runs `body(Lookup&)` on the endpoint behind `fd` and turns its Result into a return value and errno.
template <class Body>
[[gnu::always_inline]] inline auto on_socket(int fd, Body body) {
  for (;;) {
    const auto answer = to_posix([&]() -> decltype(body(std::declval<Lookup&>())) {
      Lookup socket = fd_table().find(fd);
      if (!socket) return not_ours(fd);
      return body(socket);
    });
    if (!runtime::call_ends(answer == static_cast<decltype(answer)>(-1))) [[likely]]
      return answer;
  }
}

/// The same for calls that set up or tear down. They take long, so no reader's section is held meanwhile.
template <class Body>
auto on_pinned_socket(int fd, Body body) {
  return on_socket(fd, [&](Lookup& socket) {
    socket.pin();
    return body(socket);
  });
}

/// Returns the endpoint as a stream socket, for calls that only stream sockets have. Error: EOPNOTSUPP.
Result<StreamSocket*> as_stream(Lookup& socket) {
  if (auto* stream = find_stream(*socket)) return stream;
  return Error{EOPNOTSUPP, "rsocket: not a stream"};
}

Status check_kind(int domain, int kind, int protocol) {
  if (domain != AF_INET && domain != AF_INET6 && domain != AF_IB) return Error{EAFNOSUPPORT, "rsocket: domain"};
  if (kind != SOCK_STREAM && kind != SOCK_DGRAM) return Error{ESOCKTNOSUPPORT, "rsocket: type"};
  if (kind == SOCK_DGRAM && domain == AF_IB) return Error{EAFNOSUPPORT, "rsocket: datagrams by AF_IB"};
  const int own = kind == SOCK_STREAM ? IPPROTO_TCP : IPPROTO_UDP;
  return protocol == 0 || protocol == own ? ok() : Status(Error{EPROTONOSUPPORT, "rsocket: protocol"});
}

/// Returns whether this process may have rsockets at all. Error: ENODEV.
Status check_process(Process& shared) {
  if (!is_known_process()) return Error{ENODEV, "rsocket: a child that was made without fork(3)"};
  if (!are_rings_permitted()) return Error{ENODEV, "rsocket: a seccomp filter"};
  return shared.registry.empty() ? Status(Error{ENODEV, "rsocket: no device is allowed"}) : ok();
}

/// The descriptor is the kernel's UDP socket, which has the port and the rendezvous packets.
Result<int> make_datagram_socket(Process& shared, int domain, int flags) {
  UniqueFd fd(::socket(domain, SOCK_DGRAM | (flags & SOCK_CLOEXEC), IPPROTO_UDP));
  if (!fd) return Error::last("rsocket: socket");
  auto port = UdpPort::of(fd.get(), domain);
  if (!port) return port.error();
  runtime::Ref socket(new DatagramSocket(shared, domain, fd.get(), *std::move(port)));
  socket->set_nonblocking((flags & SOCK_NONBLOCK) != 0);
  if (Status entered = fd_table().insert(fd.get(), std::move(socket)); !entered) return entered.error();
  return fd.release();
}

Result<int> make_socket(int domain, int type, int protocol) {
  const int flags = type & (SOCK_NONBLOCK | SOCK_CLOEXEC);
  const int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (Status known = check_kind(domain, kind, protocol); !known) return known.error();
  Process& shared = process();
  if (Status permitted = check_process(shared); !permitted) return permitted.error();
  if (kind == SOCK_DGRAM) return make_datagram_socket(shared, domain, flags);
  // The descriptor is a kernel TCP socket, so its number cannot collide, and bind() reserves the kernel's port with it.
  // The kernel has no sockets with InfiniBand addresses.
  UniqueFd fd(domain == AF_IB ? ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
                              : ::socket(domain, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!fd) return Error::last("rsocket: socket");
  runtime::Ref socket(new StreamEndpoint(shared, domain, fd.get()));
  stream_of(*socket).close_on_exec.store((flags & SOCK_CLOEXEC) != 0);
  socket->set_nonblocking((flags & SOCK_NONBLOCK) != 0);
  if (Status entered = fd_table().insert(fd.get(), std::move(socket)); !entered) return entered.error();
  return fd.release();
}

msghdr one_message(const iovec* parts, int count) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<std::size_t>(count);
  return message;
}

/// recvfrom(2) on a datagram socket.
Result<ssize_t> receive_datagram(Lookup& socket, void* data, std::size_t length, int flags, sockaddr* address,
                                 socklen_t* address_length) {
  const iovec part{data, length};
  msghdr message = one_message(&part, 1);
  message.msg_name = address;
  message.msg_namelen = address_length != nullptr ? *address_length : 0;
  auto got = runtime::receive(socket, message, flags);
  if (got && address != nullptr && address_length != nullptr) *address_length = message.msg_namelen;
  return got;
}

/// sendto(2) on a datagram socket.
Result<ssize_t> send_datagram(Lookup& socket, const void* data, std::size_t length, int flags, const sockaddr* address,
                              socklen_t address_length) {
  const iovec part{const_cast<void*>(data), length};
  msghdr message = one_message(&part, 1);
  message.msg_name = const_cast<sockaddr*>(address);
  message.msg_namelen = address_length;
  return runtime::send(socket, message, flags);
}

Result<int> duplicate(Lookup& socket, int fd, int command, long lowest) {
  UniqueFd copy(::fcntl(fd, command, lowest));
  if (!copy) return Error::last("rfcntl: F_DUPFD");
  if (Status entered = fd_table().insert(copy.get(), runtime::Ref::share(*socket)); !entered) return entered.error();
  return copy.release();
}

Result<int> descriptor_flags(int fd, int command, long argument) {
  const int answer = ::fcntl(fd, command, argument);
  if (answer < 0) return Error::last("rfcntl");
  return answer;
}

Result<int> control(Lookup& socket, int fd, int command, long argument) {
  switch (command) {
    case F_GETFL: return O_RDWR | (socket->is_nonblocking() ? O_NONBLOCK : 0);
    case F_SETFL: socket->set_nonblocking((argument & O_NONBLOCK) != 0); return 0;
    case F_GETFD:
    case F_SETFD: {
      auto stream = as_stream(socket);
      if (!stream) return descriptor_flags(fd, command, argument);
      if (command == F_GETFD) return (*stream)->close_on_exec.load() ? FD_CLOEXEC : 0;
      (*stream)->close_on_exec.store((argument & FD_CLOEXEC) != 0);
      return 0;
    }
    case F_DUPFD:
    case F_DUPFD_CLOEXEC: return duplicate(socket, fd, command, argument);
    default: return Error{EINVAL, "rfcntl: command"};
  }
}

Result<std::size_t> write_direct(Lookup& socket, const std::byte* data, std::size_t count, off_t offset, int flags) {
  auto stream = as_stream(socket);
  if (!stream) return stream.error();
  StreamSocket& target = **stream;
  const bool may_block = !socket->is_nonblocking() && (flags & MSG_DONTWAIT) == 0;
  std::size_t done = 0;
  while (done < count) {
    const auto attempt = [&] {
      return target.direct().write(data + done, count - done, static_cast<std::uint64_t>(offset) + done);
    };
    auto step = attempt();
    if (runtime::would_block(step) && may_block) {
      socket.pin();
      step = runtime::retry_until_ready(*socket, EPOLLOUT, runtime::deadline_after(socket->send_timeout()), attempt);
    }
    if (!step) {
      if (done > 0) break;
      return step;
    }
    if (*step == 0) break;  // no buffer is mapped there
    done += *step;
  }
  return done;
}

}  // namespace
}  // namespace ringsock::rs

using namespace ringsock;
using namespace ringsock::rs;
using runtime::Lookup;

extern "C" {

RS_EXPORT int rsocket(int domain, int type, int protocol) {
  return runtime::as_library_call([&] { return to_posix([&] { return make_socket(domain, type, protocol); }); });
}

RS_EXPORT int rbind(int fd, const sockaddr* address, socklen_t length) {
  return on_pinned_socket(fd, [&](Lookup& socket) { return socket->bind(address, length); });
}

RS_EXPORT int rlisten(int fd, int backlog) {
  return on_pinned_socket(fd, [&](Lookup& socket) {
    const Status listening = socket->listen(backlog);
    if (listening) vma::join_shared_ring(fd, false);
    return listening;
  });
}

RS_EXPORT int raccept(int fd, sockaddr* address, socklen_t* length) {
  return on_pinned_socket(fd, [&](Lookup& socket) {
    SocketAddress peer;
    auto accepted = runtime::accept(socket, peer, 0);
    if (!accepted) return accepted;
    peer.copy_to(address, length);
    vma::join_shared_ring(*accepted, false);
    return accepted;
  });
}

RS_EXPORT int rconnect(int fd, const sockaddr* address, socklen_t length) {
  return on_pinned_socket(fd, [&](Lookup& socket) {
    const Status connected = runtime::connect(socket, address, length);
    if (connected || connected.error().code == EINPROGRESS) vma::join_shared_ring(fd, true);
    return connected;
  });
}

RS_EXPORT int rshutdown(int fd, int how) {
  return on_pinned_socket(fd, [&](Lookup& socket) { return socket->shutdown(how); });
}

RS_EXPORT int rclose(int fd) {
  return runtime::as_library_call(
      [&] { return to_posix([&] { return runtime::close_descriptor(fd, runtime::WaitingCalls::end); }); });
}

RS_EXPORT ssize_t rrecv(int fd, void* data, size_t length, int flags) {
  return on_socket(fd, [=](Lookup& socket) { return runtime::receive(socket, data, length, flags); });
}

RS_EXPORT ssize_t rrecvfrom(int fd, void* data, size_t length, int flags, sockaddr* address,
                            socklen_t* address_length) {
  return on_socket(fd, [&](Lookup& socket) {
    if (socket->is_datagram()) return receive_datagram(socket, data, length, flags, address, address_length);
    auto got = runtime::receive(socket, data, length, flags);
    // recvfrom(2) on TCP leaves the address empty. rdma-core returns the peer's address, and programs written for it
    // use that.
    if (got && address != nullptr) {
      if (auto peer = socket->peer_name()) peer->copy_to(address, address_length);
    }
    return got;
  });
}

RS_EXPORT ssize_t rrecvmsg(int fd, msghdr* message, int flags) {
  return on_socket(fd, [&](Lookup& socket) -> Result<ssize_t> {
    if (message == nullptr) return Error{EFAULT, "rrecvmsg"};
    return runtime::receive(socket, *message, flags);
  });
}

RS_EXPORT ssize_t rsend(int fd, const void* data, size_t length, int flags) {
  return on_socket(fd, [=](Lookup& socket) { return runtime::send(socket, data, length, flags); });
}

RS_EXPORT ssize_t rsendto(int fd, const void* data, size_t length, int flags, const sockaddr* address,
                          socklen_t address_length) {
  return on_socket(fd, [&](Lookup& socket) -> Result<ssize_t> {
    if (address != nullptr && socket->is_datagram())
      return send_datagram(socket, data, length, flags, address, address_length);
    if (address != nullptr) return Error{EISCONN, "rsendto"};
    return runtime::send(socket, data, length, flags);
  });
}

RS_EXPORT ssize_t rsendmsg(int fd, const msghdr* message, int flags) {
  return on_socket(fd, [&](Lookup& socket) -> Result<ssize_t> {
    if (message == nullptr) return Error{EFAULT, "rsendmsg"};
    return runtime::send(socket, *message, flags);
  });
}

RS_EXPORT ssize_t rread(int fd, void* data, size_t length) { return rrecv(fd, data, length, 0); }

RS_EXPORT ssize_t rwrite(int fd, const void* data, size_t length) { return rsend(fd, data, length, 0); }

RS_EXPORT ssize_t rreadv(int fd, const iovec* parts, int count) {
  return on_socket(fd, [&](Lookup& socket) -> Result<ssize_t> {
    if (count < 0 || count > IOV_MAX) return Error{EINVAL, "rreadv: count"};
    if (count == 0) return 0;
    msghdr message = one_message(parts, count);
    return runtime::receive(socket, message, 0);
  });
}

RS_EXPORT ssize_t rwritev(int fd, const iovec* parts, int count) {
  return on_socket(fd, [&](Lookup& socket) -> Result<ssize_t> {
    if (count < 0 || count > IOV_MAX) return Error{EINVAL, "rwritev: count"};
    if (count == 0) return 0;
    const msghdr message = one_message(parts, count);
    return runtime::send(socket, message, 0);
  });
}

RS_EXPORT int rgetpeername(int fd, sockaddr* address, socklen_t* length) {
  return on_pinned_socket(fd, [&](Lookup& socket) -> Status {
    auto name = socket->peer_name();
    if (!name) return name.error();
    if (address == nullptr || length == nullptr) return Error{EFAULT, "rgetpeername"};
    name->copy_to(address, length);
    return ok();
  });
}

RS_EXPORT int rgetsockname(int fd, sockaddr* address, socklen_t* length) {
  return on_pinned_socket(fd, [&](Lookup& socket) -> Status {
    auto name = socket->local_name();
    if (!name) return name.error();
    if (address == nullptr || length == nullptr) return Error{EFAULT, "rgetsockname"};
    name->copy_to(address, length);
    return ok();
  });
}

RS_EXPORT int rsetsockopt(int fd, int level, int name, const void* value, socklen_t length) {
  return on_pinned_socket(fd, [&](Lookup& socket) { return socket->set_option(level, name, value, length); });
}

namespace {
/// recvfrom(2)
ssize_t receive_by_kernel(int fd, void* room, std::size_t bytes, int flags, sockaddr* from, socklen_t* from_length) {
  iovec part{room, bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_name = from;
  message.msg_namelen = from != nullptr && from_length != nullptr ? *from_length : 0;
  const ssize_t got = libc_calls.recvmsg(fd, &message, flags);
  if (got >= 0 && from != nullptr && from_length != nullptr) *from_length = message.msg_namelen;
  return got;
}

constexpr RsocketLibrary kLibrary(&receive_by_kernel);
[[gnu::constructor]] void offer_extra_api() { vma::offer_for_extra_api(kLibrary); }
}  // namespace

RS_EXPORT int rgetsockopt(int fd, int level, int name, void* value, socklen_t* length) {
  if (fd == -1 && value != nullptr && length != nullptr) {
    if (vma::answer_library_option(kLibrary, level, name, value, length)) return 0;
  }
  return on_pinned_socket(fd, [&](Lookup& socket) { return socket->get_option(level, name, value, length); });
}

RS_EXPORT int rfcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const long argument = va_arg(arguments, long);  // absent for the F_GET commands, and then not used
  va_end(arguments);
  return on_pinned_socket(fd, [&](Lookup& socket) { return control(socket, fd, command, argument); });
}

RS_EXPORT off_t riomap(int fd, void* data, size_t length, int prot, int, off_t offset) {
  return on_pinned_socket(fd, [&](Lookup& socket) -> Result<off_t> {
    auto stream = as_stream(socket);
    if (!stream) return stream.error();
    return runtime::retry_until_ready(*socket, EPOLLOUT, Nanos::max(),
                                      [&] { return (*stream)->direct().map_buffer(data, length, prot, offset); });
  });
}

RS_EXPORT int riounmap(int fd, void* data, size_t length) {
  return on_pinned_socket(fd, [&](Lookup& socket) -> Status {
    auto stream = as_stream(socket);
    if (!stream) return stream.error();
    return runtime::retry_until_ready(*socket, EPOLLOUT, Nanos::max(),
                                      [&] { return (*stream)->direct().unmap_buffer(data, length); });
  });
}

RS_EXPORT size_t riowrite(int fd, const void* data, size_t count, off_t offset, int flags) {
  return on_socket(fd, [&](Lookup& socket) {
    return write_direct(socket, static_cast<const std::byte*>(data), count, offset, flags);
  });
}

}  // extern "C"
