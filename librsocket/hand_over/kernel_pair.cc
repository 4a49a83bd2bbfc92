#include "librsocket/hand_over/kernel_pair.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <array>
#include <cerrno>
#include <utility>

#include "core/base/raised_limit.h"
#include "librsocket/signal_owner.h"

namespace ringsock::rs {

using runtime::DescriptionValues;

Result<SocketAddress> name_of(int (*call)(int, sockaddr*, socklen_t*), int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (call(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return Error::last("hand-over: name");
  return SocketAddress::from(reinterpret_cast<const sockaddr*>(&storage), length);
}

void set_option(int fd, int level, int name) {
  const int on = 1;
  ::setsockopt(fd, level, name, &on, sizeof on);
}

bool bind_to(int fd, const SocketAddress& address) { return ::bind(fd, address.get(), address.length()) == 0; }

Status bind_as(int relays, const SocketAddress& peer) {
  set_option(relays, SOL_SOCKET, SO_REUSEADDR);
  SocketAddress any_port = peer;
  any_port.set_port(0);
  if (!bind_to(relays, peer) && !bind_to(relays, any_port)) return Error::last("hand-over: bind");
  return ok();
}

UniqueFd tcp_socket(int domain, int flags) {
  return out_of_the_way(UniqueFd(::socket(domain, SOCK_STREAM | SOCK_CLOEXEC | flags, IPPROTO_TCP)));
}

namespace {

/// Makes a TCP connection between the two addresses of the connection.
Result<SocketPair> tcp_pair(const SocketAddress& local, const SocketAddress& peer) {
  UniqueFd listener = tcp_socket(local.family());
  UniqueFd relays = tcp_socket(local.family());
  if (!listener || !relays) return Error::last("hand-over: socket");
  SocketAddress any_port = local;
  any_port.set_port(0);
  if (!bind_to(listener.get(), any_port) || ::listen(listener.get(), 1) != 0) return Error::last("hand-over: listen");
  if (Status bound = bind_as(relays.get(), peer); !bound) return bound.error();
  auto meeting_point = name_of(::getsockname, listener.get());
  if (!meeting_point) return meeting_point.error();
  if (::connect(relays.get(), meeting_point->get(), meeting_point->length()) != 0)
    return Error::last("hand-over: connect");
  auto expected = name_of(::getsockname, relays.get());
  UniqueFd theirs = out_of_the_way(UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  if (!theirs) return Error::last("hand-over: accept");
  auto caller = name_of(::getpeername, theirs.get());
  if (!expected || !caller || !(*expected == *caller)) return Error{EPERM, "hand-over: somebody else was faster"};
  set_option(relays.get(), IPPROTO_TCP, TCP_NODELAY);
  return SocketPair{std::move(theirs), std::move(relays)};
}

}  // namespace

void copy_options(StreamSocket& socket, int theirs) {
  struct Option {
    int level;
    int name;
  };
  static constexpr std::array kOptions{
      Option{SOL_SOCKET, SO_RCVTIMEO},       Option{SOL_SOCKET, SO_SNDTIMEO},    Option{SOL_SOCKET, SO_LINGER},
      Option{SOL_SOCKET, SO_RCVLOWAT},       Option{SOL_SOCKET, SO_KEEPALIVE},   Option{SOL_SOCKET, SO_OOBINLINE},
      Option{IPPROTO_TCP, TCP_KEEPIDLE},     Option{IPPROTO_TCP, TCP_KEEPINTVL}, Option{IPPROTO_TCP, TCP_KEEPCNT},
      Option{IPPROTO_TCP, TCP_USER_TIMEOUT}, Option{IPPROTO_TCP, TCP_INQ},       Option{IPPROTO_TCP, TCP_NODELAY},
  };
  for (const Option& option : kOptions) {
    std::array<std::byte, 64> value;
    auto length = static_cast<socklen_t>(value.size());
    if (socket.get_option(option.level, option.name, value.data(), &length))
      ::setsockopt(theirs, option.level, option.name, value.data(), length);
  }
  socket.kept_options.give_all_to(theirs);
}

void dress(StreamSocket& socket, int theirs) {
  const auto others = static_cast<int>(socket.endpoint().values.get(DescriptionValues::other_flags));
  const int flags = others | (socket.endpoint().is_nonblocking() ? O_NONBLOCK : 0);
  if (flags != 0) ::fcntl(theirs, F_SETFL, flags);
  copy_options(socket, theirs);
}

void shut_as_before(StreamSocket& socket, int theirs) {
  if (socket.core().write_shut.load(std::memory_order_acquire)) ::shutdown(theirs, SHUT_WR);
  if (socket.core().read_shut.load(std::memory_order_acquire)) ::shutdown(theirs, SHUT_RD);
}

Result<SocketPair> make_pair(StreamSocket& socket) {
  const RaisedLimit beyond_full_table;
  auto local = socket.local_name();
  auto peer = socket.last_peer();
  if (!local || !peer) return Error{ENOTCONN, "hand-over: not connected"};
  auto pair = tcp_pair(*local, *peer);
  if (!pair) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return Error::last("hand-over: socketpair");
    pair = SocketPair{out_of_the_way(UniqueFd(ends[0])), out_of_the_way(UniqueFd(ends[1]))};
  }
  if (socket.has_signal_owner.load()) SignalOwner::of(socket.descriptor()).give_to(pair->theirs.get());
  return pair;
}

}  // namespace ringsock::rs
