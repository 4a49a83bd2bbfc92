// The calls of packetdrill's table over the sockets of host.h and the pipes of pipes.h.
#include "tests/packetdrill/interface.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <string_view>

#include "tests/packetdrill/adapter.h"

namespace ringsock::packetdrill {
namespace {

using engine::tcp::State;

bool read_address(const Socket& socket, const sockaddr* from, socklen_t length, Endpoint& to) {
  if (from == nullptr) return false;
  if (!socket.v6) {
    sockaddr_in in{};
    if (length < sizeof in || from->sa_family != AF_INET) return false;
    std::memcpy(&in, from, sizeof in);
    to.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    std::memcpy(to.address.data() + 12, &in.sin_addr, 4);
    to.port = ntohs(in.sin_port);
    return true;
  }
  sockaddr_in6 in{};
  if (length < sizeof in || from->sa_family != AF_INET6) return false;
  std::memcpy(&in, from, sizeof in);
  std::memcpy(to.address.data(), &in.sin6_addr, 16);
  to.port = ntohs(in.sin6_port);
  return true;
}

void write_address(const Socket& socket, const Endpoint& from, sockaddr* to, socklen_t* length) {
  if (to == nullptr || length == nullptr) return;
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(from.port);
  std::memcpy(&in.sin_addr, from.address.data() + 12, 4);
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  in6.sin6_port = htons(from.port);
  std::memcpy(&in6.sin6_addr, from.address.data(), 16);
  const void* source = socket.v6 ? static_cast<const void*>(&in6) : &in;
  const socklen_t size = socket.v6 ? sizeof in6 : sizeof in;
  std::memcpy(to, source, std::min(size, *length));
  *length = size;
}

int call_socket(void* data, int domain, int type, int protocol) {
  Call call(data);
  if (domain != AF_INET && domain != AF_INET6) return fail(EAFNOSUPPORT);
  const int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (kind != SOCK_STREAM || (protocol != 0 && protocol != IPPROTO_TCP)) return fail(EPROTONOSUPPORT);
  const SocketPtr socket = call.all.host.create(domain == AF_INET6);
  socket->nonblocking = (type & SOCK_NONBLOCK) != 0;
  call.all.sockets[call.all.next] = socket;
  return call.all.next++;
}

int call_bind(void* data, int fd, const sockaddr* address, socklen_t length) {
  Call call(data);
  const SocketPtr socket = call.socket(fd);
  if (!socket) return fail(EBADF);
  Endpoint local;
  if (socket->local.port != 0 || !read_address(*socket, address, length, local)) return fail(EINVAL);
  const Status done = call.all.host.bind(socket, local);
  return done ? 0 : fail(done.error().code);
}

int call_listen(void* data, int fd, int backlog) {
  Call call(data);
  const SocketPtr socket = call.socket(fd);
  if (!socket) return fail(EBADF);
  const Status done = call.all.host.listen(socket, backlog);
  return done ? 0 : fail(done.error().code);
}

int call_accept(void* data, int fd, sockaddr* address, socklen_t* length) {
  Call call(data);
  const SocketPtr socket = call.socket(fd);
  if (!socket) return fail(EBADF);
  if (!socket->listening) return fail(EINVAL);
  if (socket->accepts.empty() && socket->nonblocking) return fail(EAGAIN);
  const auto ready = [&] { return !socket->accepts.empty() || !socket->listening; };
  if (!call.all.host.wait(call.lock, ready, call.deadline(socket->options.receive_timeout))) return fail(EAGAIN);
  if (socket->accepts.empty()) return fail(EINVAL);
  const SocketPtr child = socket->accepts.front();
  socket->accepts.pop_front();
  child->listener.reset();
  child->nonblocking = false;
  child->told_connected = true;
  write_address(*child, child->remote, address, length);
  call.all.sockets[call.all.next] = child;
  return call.all.next++;
}

int call_connect(void* data, int fd, const sockaddr* address, socklen_t length) {
  Call call(data);
  const SocketPtr socket = call.socket(fd);
  if (!socket) return fail(EBADF);
  Endpoint remote;
  if (!read_address(*socket, address, length, remote)) return fail(EINVAL);
  if (socket->connected && socket->nonblocking && !socket->told_connected) {
    socket->told_connected = true;  // to the one who was told EINPROGRESS
    return 0;
  }
  if (socket->listening || socket->connected) return fail(EISCONN);
  if (socket->started && socket->nonblocking && socket->connecting) return fail(EALREADY);
  if (socket->started && !socket->connecting && is_over(*socket)) socket->started = false;  // it may try again
  if (!socket->started) {
    call.all.host.connect(socket, remote);
    if (socket->nonblocking) return fail(EINPROGRESS);
  }
  const auto ready = [&] { return !socket->connecting; };
  if (!call.all.host.wait(call.lock, ready, call.deadline(socket->options.send_timeout))) return fail(EINPROGRESS);
  if (socket->connected) {
    socket->told_connected = true;
    return 0;
  }
  const int error = socket->take_error();
  return fail(error != 0 ? error : ECONNABORTED);
}

std::size_t copy_out(Socket& s, const iovec* pieces, std::size_t count, std::size_t offset, int flags, Nanos now) {
  std::size_t total = 0, skip = offset;
  for (std::size_t i = 0; i < count; ++i) {
    if (skip >= pieces[i].iov_len) {
      skip -= pieces[i].iov_len;
      continue;
    }
    const std::span<std::byte> room(static_cast<std::byte*>(pieces[i].iov_base) + skip, pieces[i].iov_len - skip);
    skip = 0;
    const std::size_t got = (flags & MSG_PEEK) != 0 ? s.tcp.peek(room, total) : s.tcp.read(room, now);
    total += got;
    if (got < room.size()) break;
  }
  return total;
}

ssize_t read_urgent(Socket& s, const iovec* pieces, std::size_t count, int flags) {
  if (!s.started) return fail(ENOTCONN);
  const auto byte = s.tcp.read_urgent((flags & MSG_PEEK) != 0);
  if (!byte) return fail(byte.error().code);
  if (count == 0 || pieces[0].iov_len == 0) return 0;
  *static_cast<std::byte*>(pieces[0].iov_base) = *byte;
  return 1;
}

ssize_t receive(Call& call, const SocketPtr& s, const iovec* pieces, std::size_t count, int flags) {
  if ((flags & MSG_OOB) != 0) return read_urgent(*s, pieces, count, flags);
  if (!s->started || s->listening) return fail(ENOTCONN);
  std::size_t wanted = 0, total = 0;
  for (std::size_t i = 0; i < count; ++i) wanted += pieces[i].iov_len;
  if (wanted == 0) return 0;
  const bool waits = !s->nonblocking && (flags & MSG_DONTWAIT) == 0;
  const Nanos deadline = call.deadline(s->options.receive_timeout);
  const std::function<bool()> ready = [&] { return can_read(*s); };
  for (;;) {
    total += copy_out(*s, pieces, count, total, flags, call.all.host.now());
    call.all.host.pump();
    const bool enough = total == wanted || (total != 0 && ((flags & MSG_WAITALL) == 0 || (flags & MSG_PEEK) != 0));
    if (enough) return static_cast<ssize_t>(total);
    if (total != 0 && (s->error() != 0 || !waits)) return static_cast<ssize_t>(total);
    if (s->tcp.has_peers_end()) return static_cast<ssize_t>(total);
    if (s->error() != 0) return fail(s->take_error());
    if (s->tcp.at_end() || s->read_closed || is_over(*s)) return static_cast<ssize_t>(total);
    if (!waits || !call.all.host.wait(call.lock, ready, deadline))
      return total != 0 ? static_cast<ssize_t>(total) : fail(EAGAIN);
  }
}

ssize_t receive(void* data, int fd, const iovec* pieces, std::size_t count, int flags) {
  Call call(data);
  const SocketPtr s = call.socket(fd);
  return s ? receive(call, s, pieces, count, flags) : fail(EBADF);
}

/// Returns the error with which a socket refuses data, or 0.
int refusal(Socket& s) {
  if (!s.started) return EPIPE;
  if (s.error() != 0) return s.take_error();
  return s.write_closed || is_over(s) ? EPIPE : 0;
}

std::vector<std::byte> gather(const iovec* pieces, std::size_t count) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < count; ++i) {
    const auto* start = static_cast<const std::byte*>(pieces[i].iov_base);
    if (pieces[i].iov_len != 0) bytes.insert(bytes.end(), start, start + pieces[i].iov_len);
  }
  return bytes;
}

ssize_t transmit(Call& call, const SocketPtr& s, std::span<const std::byte> bytes, int flags) {
  const bool waits = !s->nonblocking && (flags & MSG_DONTWAIT) == 0;
  const Nanos deadline = call.deadline(s->options.send_timeout);
  const std::function<bool()> ready = [&] { return !s->connecting && (s->tcp.room() != 0 || is_over(*s)); };
  std::size_t total = 0;
  for (;;) {
    if (const int error = refusal(*s); error != 0) return total != 0 ? static_cast<ssize_t>(total) : fail(error);
    if (!s->connecting) {
      s->tcp.more_follows((flags & MSG_MORE) != 0);
      const auto rest = bytes.subspan(total);
      const Nanos now = call.all.host.now();
      const auto taken = (flags & MSG_OOB) != 0 ? s->tcp.write_urgent(rest, now) : s->tcp.write(rest, now);
      if (taken) s->notices.written(*taken, flags), total += *taken;
      call.all.host.pump();
    }
    if (total == bytes.size() && !s->connecting) return static_cast<ssize_t>(total);
    if (!waits || !call.all.host.wait(call.lock, ready, deadline))
      return total != 0 ? static_cast<ssize_t>(total) : fail(EAGAIN);
  }
}

ssize_t transmit(void* data, int fd, const iovec* pieces, std::size_t count, int flags) {
  Call call(data);
  const SocketPtr s = call.socket(fd);
  return s ? transmit(call, s, gather(pieces, count), flags) : fail(EBADF);
}

ssize_t call_read(void* data, int fd, void* to, size_t size) {
  const iovec piece{to, size};
  return receive(data, fd, &piece, 1, 0);
}
ssize_t call_readv(void* data, int fd, const iovec* pieces, int count) {
  return count < 0 || count > 1024 ? fail(EINVAL) : receive(data, fd, pieces, static_cast<std::size_t>(count), 0);
}
ssize_t call_recv(void* data, int fd, void* to, size_t size, int flags) {
  const iovec piece{to, size};
  return receive(data, fd, &piece, 1, flags);
}
ssize_t call_recvfrom(void* data, int fd, void* to, size_t size, int flags, sockaddr*, socklen_t* length) {
  if (length != nullptr) *length = 0;  // tcp(7): a stream names no sender
  return call_recv(data, fd, to, size, flags);
}
/// tcp(7), TCP_INQ: how much is left to be read; the end counts as one byte.
void tell_unread(Socket& s, msghdr& message) {
  cmsghdr* control = message.msg_controllen >= CMSG_SPACE(sizeof(int)) ? CMSG_FIRSTHDR(&message) : nullptr;
  if (control == nullptr) {
    message.msg_controllen = 0;
    message.msg_flags |= MSG_CTRUNC;
    return;
  }
  int left = static_cast<int>(s.tcp.readable());
  if (left == 0 && s.tcp.has_peers_end()) left = 1;
  control->cmsg_level = IPPROTO_TCP;
  control->cmsg_type = TCP_CM_INQ;
  control->cmsg_len = CMSG_LEN(sizeof left);
  std::memcpy(CMSG_DATA(control), &left, sizeof left);
  message.msg_controllen = CMSG_SPACE(sizeof left);
}

ssize_t call_recvmsg(void* data, int fd, msghdr* message, int flags) {
  Call call(data);
  const SocketPtr s = call.socket(fd);
  if (!s) return fail(EBADF);
  message->msg_namelen = 0;
  message->msg_flags = 0;
  if ((flags & MSG_ERRQUEUE) != 0) {
    if (s->notices.empty()) return fail(EAGAIN);
    s->notices.take(*message, s->v6);
    return 0;
  }
  const ssize_t got = receive(call, s, message->msg_iov, message->msg_iovlen, flags);
  if (got < 0 || !s->options.tells_unread) return message->msg_controllen = 0, got;
  tell_unread(*s, *message);
  return got;
}
ssize_t call_write(void* data, int fd, const void* from, size_t size) {
  const iovec piece{const_cast<void*>(from), size};
  return transmit(data, fd, &piece, 1, 0);
}
ssize_t call_writev(void* data, int fd, const iovec* pieces, int count) {
  return count < 0 || count > 1024 ? fail(EINVAL) : transmit(data, fd, pieces, static_cast<std::size_t>(count), 0);
}
ssize_t call_send(void* data, int fd, const void* from, size_t size, int flags) {
  const iovec piece{const_cast<void*>(from), size};
  return transmit(data, fd, &piece, 1, flags);
}
/// Without TCP Fast Open the data of MSG_FASTOPEN waits for the handshake.
ssize_t send_first(void* data, int fd, const void* from, size_t size, int flags, const sockaddr* to, socklen_t length) {
  Call call(data);
  const SocketPtr s = call.socket(fd);
  Endpoint remote;
  if (!s) return fail(EBADF);
  if (!read_address(*s, to, length, remote)) return fail(EINVAL);
  if (s->listening || s->started) return fail(s->connecting ? EALREADY : EISCONN);
  call.all.host.connect(s, remote);
  if (s->nonblocking || (flags & MSG_DONTWAIT) != 0) return fail(EINPROGRESS);
  const auto* bytes = static_cast<const std::byte*>(from);
  return transmit(call, s, {bytes, size}, flags & ~MSG_FASTOPEN);
}

ssize_t call_sendto(void* data, int fd, const void* from, size_t size, int flags, const sockaddr* to,
                    socklen_t length) {
  if ((flags & MSG_FASTOPEN) != 0 && to != nullptr) return send_first(data, fd, from, size, flags, to, length);
  return call_send(data, fd, from, size, flags);
}
ssize_t call_sendmsg(void* data, int fd, const msghdr* message, int flags) {
  return transmit(data, fd, message->msg_iov, message->msg_iovlen, flags);
}

int call_fcntl(void* data, int fd, int command, ...) {
  va_list rest;
  va_start(rest, command);
  const int value = command == F_SETFL ? va_arg(rest, int) : 0;
  va_end(rest);
  Call call(data);
  const SocketPtr s = call.socket(fd);
  if (!s) return fail(EBADF);
  if (command == F_GETFL) return O_RDWR | (s->nonblocking ? O_NONBLOCK : 0);
  if (command == F_SETFL) s->nonblocking = (value & O_NONBLOCK) != 0;
  return command == F_SETFL || command == F_GETFD || command == F_SETFD ? 0 : fail(EINVAL);
}

int call_ioctl(void* data, int fd, unsigned long request, ...) {
  va_list rest;
  va_start(rest, request);
  int* value = va_arg(rest, int*);
  va_end(rest);
  Call call(data);
  const SocketPtr s = call.socket(fd);
  if (!s) return fail(EBADF);
  if (value == nullptr) return fail(EFAULT);
  if (request == FIONBIO) return s->nonblocking = *value != 0, 0;
  if (s->listening) return fail(EINVAL);
  if (request == SIOCINQ) return *value = s->started ? static_cast<int>(s->tcp.readable()) : 0, 0;
  if (request == SIOCOUTQ) return *value = s->started ? static_cast<int>(s->tcp.unacked()) : 0, 0;
  if (request == SIOCOUTQNSD) return *value = s->started ? static_cast<int>(s->tcp.unsent()) : 0, 0;
  if (request == SIOCATMARK) return *value = s->started && s->tcp.at_mark() ? 1 : 0, 0;
  return fail(ENOTTY);
}

int call_close(void* data, int fd) {
  Call call(data);
  if (call.all.epolls.erase(fd) != 0) return 0;
  if (call.all.pipes.holds(fd)) return call.all.pipes.close(fd), 0;
  const SocketPtr s = call.socket(fd);
  if (!s) return fail(EBADF);
  call.all.sockets.erase(fd);
  for (auto& [number, set] : call.all.epolls) set.wanted.erase(fd);
  call.all.host.close(s);
  if (!s->started || !s->options.linger || s->options.linger_seconds <= 0 || s->nonblocking) return 0;
  const std::function<bool()> sent = [&] {
    return s->tcp.state() == State::fin_wait_2 || s->tcp.state() == State::time_wait || is_over(*s);
  };
  call.all.host.wait(call.lock, sent, call.deadline(std::chrono::seconds(s->options.linger_seconds)));
  return 0;
}

int call_shutdown(void* data, int fd, int how) {
  Call call(data);
  const SocketPtr s = call.socket(fd);
  if (!s) return fail(EBADF);
  if (how < SHUT_RD || how > SHUT_RDWR) return fail(EINVAL);
  if (s->listening && how != SHUT_WR) {
    s->listening = false;
    return 0;
  }
  if (!s->started || is_over(*s) || s->tcp.state() == State::time_wait) return fail(ENOTCONN);
  if (how != SHUT_WR) s->read_closed = true;
  if (how != SHUT_RD) {
    s->write_closed = true;
    s->tcp.shutdown_send(call.all.host.now());
  }
  call.all.host.pump();
  return 0;
}

int call_netdev_send(void* data, const void* packet, size_t size) {
  Call call(data);
  call.all.host.arrive({static_cast<const std::byte*>(packet), size});
  return 0;
}

int call_netdev_receive(void* data, void* to, size_t* size, long long* time_us) {
  Call call(data);
  const auto packet = call.all.host.next_packet(call.lock);
  if (!packet) return *size = 0, fail(EAGAIN);
  *size = std::min(*size, packet->bytes.size());
  std::memcpy(to, packet->bytes.data(), *size);
  *time_us = packet->when.count() / 1000;
  return 0;
}

int call_usleep(void* data, useconds_t time) {
  Call call(data);
  call.all.host.advance(call.lock, call.all.host.now() + std::chrono::microseconds(time));
  return 0;
}

int call_gettimeofday(void* data, timeval* time, struct timezone*) {
  Call call(data);
  const auto us = call.all.host.now().count() / 1000;
  time->tv_sec = us / 1'000'000;
  time->tv_usec = us % 1'000'000;
  call.all.host.note_return();
  return 0;
}

int call_pipe(void* data, int* ends) {
  Call call(data);
  ends[0] = call.all.next++;
  ends[1] = call.all.next++;
  call.all.pipes.add(ends[0], ends[1]);
  return 0;
}

/// From a socket into a pipe.
ssize_t splice_in(Call& call, const SocketPtr& from, int to, std::size_t most, int flags) {
  const auto room = call.all.pipes.room(to);
  if (!room) return fail(room.error().code);
  if (*room == 0) return fail(EAGAIN);
  std::vector<std::byte> bytes(std::min(most, *room));
  const iovec piece{bytes.data(), bytes.size()};
  const ssize_t got = receive(call, from, &piece, 1, flags);
  if (got > 0) call.all.pipes.append(to, bytes.data(), static_cast<std::size_t>(got));
  return got;
}

/// From a pipe into a socket.
ssize_t splice_out(Call& call, int from, const SocketPtr& to, std::size_t most, int flags) {
  const auto taken = call.all.pipes.take(from, most);
  if (!taken) return fail(taken.error().code);
  const std::vector<std::byte> bytes((*taken).begin(), (*taken).end());
  if (bytes.empty()) return 0;
  const ssize_t sent = transmit(call, to, bytes, flags);
  const auto kept = static_cast<std::ptrdiff_t>(std::max<ssize_t>(sent, 0));
  call.all.pipes.put_back(from, {bytes.begin() + kept, bytes.end()});
  return sent;
}

int call_splice(void* data, int in, loff_t* in_at, int out, loff_t* out_at, size_t most, unsigned flags) {
  Call call(data);
  const bool in_pipe = call.all.pipes.holds(in), out_pipe = call.all.pipes.holds(out);
  const SocketPtr from = call.socket(in), to = call.socket(out);
  if ((!from && !in_pipe) || (!to && !out_pipe)) return fail(EBADF);
  if (in_at != nullptr || out_at != nullptr) return fail(ESPIPE);
  if (in_pipe == out_pipe) return fail(EINVAL);
  if (most == 0) return 0;
  int how = (flags & SPLICE_F_NONBLOCK) != 0 && from ? MSG_DONTWAIT : 0;
  if ((flags & SPLICE_F_MORE) != 0) how |= MSG_MORE;
  return static_cast<int>(from ? splice_in(call, from, out, most, how) : splice_out(call, in, to, most, how));
}

void call_free(void* data) {
  {
    Call call(data);
    call.all.host.end(call.lock);
  }
  delete static_cast<Adapter*>(data);
}

}  // namespace
}  // namespace ringsock::packetdrill

void packetdrill_interface_init(const char* flags, struct packetdrill_interface* table) {
  using namespace ringsock::packetdrill;
  const bool whole = flags != nullptr && std::string_view(flags).find("tso") != std::string_view::npos;
  *table = {new Adapter(whole),  call_free,       call_socket,       call_bind,         call_listen,
            call_accept,         call_connect,    call_read,         call_readv,        call_recv,
            call_recvfrom,       call_recvmsg,    call_write,        call_writev,       call_send,
            call_sendto,         call_sendmsg,    call_fcntl,        call_ioctl,        call_close,
            call_shutdown,       call_getsockopt, call_setsockopt,   call_poll,         call_netdev_send,
            call_netdev_receive, call_usleep,     call_gettimeofday, call_epoll_create, call_epoll_ctl,
            call_epoll_wait,     call_pipe,       call_splice};
}
