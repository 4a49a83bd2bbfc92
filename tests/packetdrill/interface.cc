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

#include "core/engine/tcp/kernel_info.h"
#include "tests/packetdrill/host.h"
#include "tests/packetdrill/pipes.h"

namespace ringsock::packetdrill {
namespace {

using engine::tcp::State;

struct EpollSet {
  std::map<int, epoll_event> wanted;
  std::map<int, std::uint64_t> seen;  ///< arrivals when an EPOLLET descriptor was reported
};

struct Adapter {
  explicit Adapter(bool whole) : host(whole) {}
  Host host;
  std::map<int, SocketPtr> sockets;
  std::map<int, EpollSet> epolls;
  Pipes pipes;
  int next = 100;
};

int fail(int code) {
  errno = code;
  return -1;
}

/// What every call begins with.
struct Call {
  explicit Call(void* userdata) : all(*static_cast<Adapter*>(userdata)), lock(all.host.mutex()) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  /// What the call has changed may let another thread go on.
  ~Call() {
    const int saved = errno;
    if (all.host.is_script()) all.host.settle(lock);
    errno = saved;
  }
  SocketPtr socket(int fd) const {
    const auto found = all.sockets.find(fd);
    return found == all.sockets.end() ? nullptr : found->second;
  }
  [[nodiscard]] Nanos deadline(Nanos timeout) const {
    return timeout == Nanos{} ? Nanos::max() : all.host.now() + timeout;
  }
  Adapter& all;
  Host::Lock lock;
};

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

bool is_over(Socket& s) { return s.tcp.state() == State::closed; }
bool can_read(Socket& s) {
  return s.tcp.readable() >= s.options.receive_low || s.tcp.at_end() || s.error() != 0 || s.read_closed || is_over(s);
}

short poll_bits(Socket& s) {
  if (s.listening) return s.accepts.empty() ? 0 : POLLIN | POLLRDNORM;
  if (!s.started) return POLLOUT | POLLWRNORM | POLLHUP;
  int bits = s.notices.empty() ? 0 : POLLERR;
  const State state = s.tcp.state();
  const bool over = is_over(s);
  const bool peer_done = over || s.read_closed || state == State::close_wait || state == State::last_ack ||
                         state == State::closing || state == State::time_wait;
  if (over || (s.write_closed && peer_done)) bits |= POLLHUP;
  if (peer_done) bits |= POLLIN | POLLRDNORM | POLLRDHUP;
  if (s.tcp.readable() >= s.options.receive_low) bits |= POLLIN | POLLRDNORM;
  if (s.error() != 0) bits |= POLLERR;
  if (over || s.write_closed || (!s.connecting && s.connected && s.tcp.is_writable())) bits |= POLLOUT | POLLWRNORM;
  if (s.connected && s.tcp.has_urgent_byte()) bits |= POLLPRI;
  return static_cast<short>(bits);
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

engine::tcp::KernelTcpInfo make_info(const Socket& s, Nanos now) {
  engine::tcp::KernelTcpInfo out{};
  out.first.tcpi_state = s.listening ? TCP_LISTEN : TCP_CLOSE;
  out.first.tcpi_reordering = 3;
  if (!s.started) return out;
  engine::tcp::fill_tcp_info(s.tcp.info(), out);
  const auto age_ms = [now](Nanos then) {
    return static_cast<std::uint32_t>((now - then) / std::chrono::milliseconds(1));
  };
  out.first.tcpi_last_data_sent = age_ms(s.last_data_sent);
  out.first.tcpi_last_data_recv = age_ms(s.last_data_received);
  out.first.tcpi_last_ack_recv = age_ms(s.last_ack_received);
  out.first.tcpi_advmss = s.settings.mtu_payload;
  out.first.tcpi_pmtu = s.tcp.settings().mtu_payload + (s.remote.is_v4() ? 40u : 60u);
  return out;
}

int seconds(Nanos time) { return static_cast<int>(time / std::chrono::seconds(1)); }

int read_tcp_option(const Socket& s, int name) {
  const auto& set = s.settings;
  if (name == TCP_NODELAY) return set.nodelay;
  if (name == TCP_CORK) return set.cork;
  if (name == TCP_MAXSEG)
    return s.started ? static_cast<int>(s.tcp.info().snd_mss) : set.most_mss != 0 ? set.most_mss : 536;
  if (name == TCP_KEEPIDLE) return seconds(set.keepalive_idle);
  if (name == TCP_KEEPINTVL) return seconds(set.keepalive_interval);
  if (name == TCP_KEEPCNT) return set.keepalive_probes;
  if (name == TCP_SYNCNT) return s.options.syn_retries;
  if (name == TCP_INQ) return s.options.tells_unread;
  if (name == TCP_QUICKACK) return 1;
  if (name == TCP_LINGER2) return seconds(set.fin_wait_2);
  if (name == TCP_DEFER_ACCEPT) return s.options.defer_accept_seconds;
  if (name == TCP_USER_TIMEOUT) return static_cast<int>(set.user_timeout / std::chrono::milliseconds(1));
  if (name == TCP_NOTSENT_LOWAT) return static_cast<int>(set.notsent_lowat);
  return 0;
}

int read_socket_option(Socket& s, int name) {
  if (name == SO_ERROR) return s.take_error();
  if (name == SO_ZEROCOPY) return s.notices.zero_copy;
  if (name == SO_RCVLOWAT) return static_cast<int>(s.options.receive_low);
  if (name == SO_TYPE) return SOCK_STREAM;
  if (name == SO_DOMAIN) return s.v6 ? AF_INET6 : AF_INET;
  if (name == SO_PROTOCOL) return IPPROTO_TCP;
  if (name == SO_ACCEPTCONN) return s.listening;
  if (name == SO_KEEPALIVE) return s.settings.keepalive;
  if (name == SO_OOBINLINE) return s.settings.urgent_inline;
  if (name == SO_SNDBUF) return static_cast<int>(s.settings.send_bytes);
  if (name == SO_RCVBUF) return static_cast<int>(s.options.corrected_receive ? 2 * s.settings.receive_bytes : 131'072);
  const auto found = s.options.others.find({SOL_SOCKET, name});
  return found == s.options.others.end() ? 0 : found->second;
}

/// What there is of options: others are told to be unknown.
bool is_known(int level, int name) { return level != IPPROTO_TCP || (name >= TCP_NODELAY && name <= TCP_TX_DELAY); }

int give(const void* value, socklen_t size, void* to, socklen_t* length) {
  *length = std::min(*length, size);
  std::memcpy(to, value, *length);
  return 0;
}

int call_getsockopt(void* data, int fd, int level, int name, void* to, socklen_t* length) {
  Call call(data);
  const SocketPtr s = call.socket(fd);
  if (!s) return fail(EBADF);
  if (to == nullptr || length == nullptr) return fail(EFAULT);
  if (level == IPPROTO_TCP && name == TCP_INFO) {
    const engine::tcp::KernelTcpInfo info = make_info(*s, call.all.host.now());
    return give(&info, sizeof info, to, length);
  }
  if (!is_known(level, name)) return fail(ENOPROTOOPT);
  if (level == IPPROTO_TCP && name == TCP_CONGESTION) {
    std::array<char, 16> text{};
    std::strcpy(text.data(), s->settings.algorithm == engine::tcp::Algorithm::cubic ? "cubic" : "reno");
    return give(text.data(), text.size(), to, length);
  }
  if (level == SOL_SOCKET && name == SO_LINGER) {
    const linger value{s->options.linger, s->options.linger_seconds};
    return give(&value, sizeof value, to, length);
  }
  int value = 0;
  if (level == IPPROTO_TCP) value = read_tcp_option(*s, name);
  if (level == SOL_SOCKET) value = read_socket_option(*s, name);
  return give(&value, sizeof value, to, length);
}

bool set_tcp_option(Socket& s, int name, int value, Nanos now) {
  auto& set = s.settings;
  const bool one_to_127 = value >= 1 && value <= 127;
  const bool time = value >= 1 && value <= 32'767;
  if (name == TCP_NODELAY) return set.nodelay = value != 0, true;
  if (name == TCP_CORK) return set.cork = value != 0, true;
  if (name == TCP_MAXSEG) return set.most_mss = static_cast<std::uint16_t>(value), value >= 88 && value <= 32'767;
  if (name == TCP_KEEPIDLE) return set.keepalive_idle = std::chrono::seconds(value), time;
  if (name == TCP_KEEPINTVL) return set.keepalive_interval = std::chrono::seconds(value), time;
  if (name == TCP_KEEPCNT) return set.keepalive_probes = static_cast<std::uint8_t>(value), one_to_127;
  if (name == TCP_SYNCNT) return s.options.syn_retries = set.syn_retries = static_cast<std::uint8_t>(value), one_to_127;
  if (name == TCP_INQ) return s.options.tells_unread = value != 0, value == 0 || value == 1;
  if (name == TCP_LINGER2) return set.fin_wait_2 = std::chrono::seconds(std::max(value, 0)), true;
  if (name == TCP_DEFER_ACCEPT) return s.options.defer_accept_seconds = std::max(value, 0), true;
  if (name == TCP_USER_TIMEOUT) return set.user_timeout = std::chrono::milliseconds(value), value >= 0;
  if (name == TCP_NOTSENT_LOWAT) return set.notsent_lowat = static_cast<std::uint32_t>(value), true;
  if (name == TCP_QUICKACK && s.started) s.tcp.set_quick_ack(value != 0, now);
  return true;
}

void set_socket_option(Socket& s, int name, int value) {
  const auto bytes = static_cast<std::uint32_t>(std::clamp(value, name == SO_SNDBUF ? 2304 : 1152, 212'992));
  if (name == SO_ZEROCOPY) s.notices.zero_copy = value != 0;
  if (name == SO_TIMESTAMPING) s.notices.set_time_stamping(static_cast<std::uint32_t>(value));
  if (name == SO_RCVLOWAT) s.options.receive_low = static_cast<std::size_t>(std::max(value, 1));
  if (name == SO_KEEPALIVE) s.settings.keepalive = value != 0;
  if (name == SO_OOBINLINE) s.settings.urgent_inline = value != 0;
  if (name == SO_SNDBUF) s.settings.send_bytes = s.settings.most_send_bytes = 2 * bytes;
  if (name == SO_RCVBUF) {
    s.settings.receive_bytes = s.settings.most_receive_bytes = bytes;  // half of what Linux reserves is for the window
    s.options.corrected_receive = true;
  }
  s.options.others[{SOL_SOCKET, name}] = value;
}

bool set_wide_option(Socket& s, int name, const void* from, socklen_t length) {
  if (name == SO_LINGER && length >= sizeof(linger)) {
    linger value;
    std::memcpy(&value, from, sizeof value);
    s.options.linger = value.l_onoff != 0;
    s.options.linger_seconds = value.l_linger;
    return true;
  }
  if ((name != SO_RCVTIMEO && name != SO_SNDTIMEO) || length < sizeof(timeval)) return false;
  timeval value;
  std::memcpy(&value, from, sizeof value);
  const Nanos time = std::chrono::seconds(value.tv_sec) + std::chrono::microseconds(value.tv_usec);
  (name == SO_RCVTIMEO ? s.options.receive_timeout : s.options.send_timeout) = time;
  return true;
}

/// tcp(7), TCP_CONGESTION.
int set_congestion(Socket& s, std::string_view name, Nanos now) {
  name = name.substr(0, name.find('\0'));
  if (name != "cubic" && name != "reno") return fail(ENOENT);
  s.settings.algorithm = name == "cubic" ? engine::tcp::Algorithm::cubic : engine::tcp::Algorithm::new_reno;
  if (s.started) s.tcp.set(s.settings, now);
  return 0;
}

int call_setsockopt(void* data, int fd, int level, int name, const void* from, socklen_t length) {
  Call call(data);
  const SocketPtr s = call.socket(fd);
  if (!s) return fail(EBADF);
  if (from == nullptr) return fail(EFAULT);
  if (!is_known(level, name)) return fail(ENOPROTOOPT);
  if (level == IPPROTO_TCP && name == TCP_CONGESTION)
    return set_congestion(*s, {static_cast<const char*>(from), length}, call.all.host.now());
  if (level == SOL_SOCKET && set_wide_option(*s, name, from, length)) return 0;
  if (length < sizeof(int)) return fail(EINVAL);
  int value = 0;
  std::memcpy(&value, from, sizeof value);
  const auto before = s->settings;
  if (level == IPPROTO_TCP && !set_tcp_option(*s, name, value, call.all.host.now())) {
    s->settings = before;
    return fail(EINVAL);
  }
  if (level == SOL_SOCKET) set_socket_option(*s, name, value);
  if ((level == IPPROTO_IP && name == IP_RECVERR) || (level == IPPROTO_IPV6 && name == IPV6_RECVERR))
    s->options.hears_of_icmp = value != 0;
  if (s->started) s->tcp.set(s->settings, call.all.host.now());
  call.all.host.pump();
  return 0;
}

int look(Call& call, pollfd* fds, nfds_t count) {
  int ready = 0;
  for (nfds_t i = 0; i < count; ++i) {
    fds[i].revents = 0;
    if (fds[i].fd < 0) continue;
    const SocketPtr s = call.socket(fds[i].fd);
    const int bits = s ? poll_bits(*s) & (fds[i].events | POLLERR | POLLHUP) : POLLNVAL;
    fds[i].revents = static_cast<short>(bits);
    if (bits != 0) ++ready;
  }
  return ready;
}

Nanos poll_deadline(const Call& call, int timeout_ms) {
  return timeout_ms < 0 ? Nanos::max() : call.all.host.now() + std::chrono::milliseconds(timeout_ms);
}

int call_poll(void* data, pollfd* fds, nfds_t count, int timeout_ms) {
  Call call(data);
  const std::function<bool()> ready = [&] { return look(call, fds, count) != 0; };
  if (timeout_ms != 0) call.all.host.wait(call.lock, ready, poll_deadline(call, timeout_ms));
  return look(call, fds, count);
}

int call_epoll_create(void* data, int size) {
  Call call(data);
  if (size <= 0) return fail(EINVAL);
  call.all.epolls[call.all.next] = {};
  return call.all.next++;
}

int call_epoll_ctl(void* data, int set_fd, int operation, int fd, epoll_event* event) {
  Call call(data);
  const auto set = call.all.epolls.find(set_fd);
  if (set == call.all.epolls.end() || !call.socket(fd)) return fail(EBADF);
  const bool known = set->second.wanted.count(fd) != 0;
  if (operation == EPOLL_CTL_ADD && known) return fail(EEXIST);
  if (operation != EPOLL_CTL_ADD && !known) return fail(ENOENT);
  set->second.seen.erase(fd);
  if (operation == EPOLL_CTL_DEL) return set->second.wanted.erase(fd), 0;
  if (event == nullptr) return fail(EFAULT);
  set->second.wanted[fd] = *event;
  return 0;
}

/// Returns the bits that a descriptor of the set would report now.
std::uint32_t pending(Call& call, EpollSet& set, int fd, const epoll_event& wanted) {
  const SocketPtr s = call.socket(fd);
  if (!s || (wanted.events & ~(EPOLLET | EPOLLONESHOT)) == 0) return 0;
  const auto bits = static_cast<std::uint32_t>(poll_bits(*s)) & (wanted.events | EPOLLERR | EPOLLHUP);
  const auto seen = set.seen.find(fd);
  const bool old = (wanted.events & EPOLLET) != 0 && seen != set.seen.end() && seen->second == s->arrivals;
  return old ? 0 : bits;
}

int call_epoll_wait(void* data, int set_fd, epoll_event* out, int most, int timeout_ms) {
  Call call(data);
  const auto found = call.all.epolls.find(set_fd);
  if (found == call.all.epolls.end()) return fail(EBADF);
  if (most <= 0 || out == nullptr) return fail(EINVAL);
  EpollSet& set = found->second;
  const std::function<bool()> ready = [&] {
    return std::any_of(set.wanted.begin(), set.wanted.end(),
                       [&](const auto& one) { return pending(call, set, one.first, one.second) != 0; });
  };
  if (timeout_ms != 0) call.all.host.wait(call.lock, ready, poll_deadline(call, timeout_ms));
  int count = 0;
  for (auto& [fd, wanted] : set.wanted) {
    const std::uint32_t bits = count < most ? pending(call, set, fd, wanted) : 0;
    if (bits == 0) continue;
    out[count] = wanted;
    out[count++].events = bits;
    set.seen[fd] = call.socket(fd)->arrivals;
    if ((wanted.events & EPOLLONESHOT) != 0) wanted.events &= EPOLLET | EPOLLONESHOT;
  }
  return count;
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
