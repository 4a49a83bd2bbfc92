#include "tools/stream_session.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <rdma/rsocket.h>

#include <cstdio>

#include "tools/resolve.h"

namespace ringsock::tools {

namespace {

ResolveRequest request_for(const StreamOptions& options, const std::string& node, bool passive) {
  return {
      .node = node, .port = options.port, .passive = passive, .format = options.format, .by_rdma_cm = options.resolve};
}

Result<Socket> new_socket(const SocketCalls& calls, int family) {
  const int fd = calls.socket(family, SOCK_STREAM, 0);
  if (fd < 0) return Error::last("socket");
  return Socket(calls, fd);
}

}  // namespace

StreamSession::StreamSession(const StreamOptions& options)
    : options_(options), calls_(options.kernel ? kernel_sockets() : rsockets()) {}

int StreamSession::call_flags() const { return options_.blocking ? MSG_WAITALL : MSG_DONTWAIT; }

Status StreamSession::set_keepalive(const Socket& socket) {
  const auto seconds = static_cast<int>(options_.keepalive_s);
  if (auto set = socket.set_option(SOL_SOCKET, SO_KEEPALIVE, 1, "setsockopt SO_KEEPALIVE"); !set) return set;
  if (auto set = socket.set_option(IPPROTO_TCP, TCP_KEEPIDLE, seconds, "setsockopt TCP_KEEPIDLE"); !set) return set;
  const auto on = socket.option(SOL_SOCKET, SO_KEEPALIVE, "getsockopt SO_KEEPALIVE");
  const auto time = socket.option(IPPROTO_TCP, TCP_KEEPIDLE, "getsockopt TCP_KEEPIDLE");
  if (!on) return on.error();
  if (!time) return time.error();
  std::printf("Keepalive: %s\n", *on ? "ON" : "OFF");
  if (*on) std::printf("  time: %d\n", *time);
  return ok();
}

Status StreamSession::set_inline(const Socket& socket, Optimization optimization) {
  if (!calls_.is_rsockets || optimization == Optimization::none) return ok();
  const int bytes = optimization == Optimization::latency ? options_.inline_bytes : 0;
  return socket.set_option(SOL_RDMA, RDMA_INLINE, bytes, "setsockopt RDMA_INLINE");
}

Status StreamSession::configure(const Socket& socket, Optimization optimization, int iomaps) {
  Status done = ok();
  const auto set = [&](int level, int name, int value, const char* where) {
    if (done) done = socket.set_option(level, name, value, where);
  };
  if (options_.buffer_bytes > 0) {
    set(SOL_SOCKET, SO_SNDBUF, options_.buffer_bytes, "setsockopt SO_SNDBUF");
    set(SOL_SOCKET, SO_RCVBUF, options_.buffer_bytes, "setsockopt SO_RCVBUF");
  }
  set(IPPROTO_TCP, TCP_NODELAY, 1, "setsockopt TCP_NODELAY");
  if (calls_.is_rsockets && iomaps > 0) set(SOL_RDMA, RDMA_IOMAPSIZE, iomaps, "setsockopt RDMA_IOMAPSIZE");
  if (done) done = set_inline(socket, optimization);
  if (done && options_.keepalive_s > 0) done = set_keepalive(socket);
  if (done && !options_.blocking) done = socket.set_nonblocking();
  return done;
}

Status StreamSession::listen(int iomaps) {
  const auto address = resolve(request_for(options_, options_.bind_node, true));
  if (!address) return address.error();
  auto socket = new_socket(calls_, address->family());
  if (!socket) return socket.error();
  if (auto set = socket->set_option(SOL_SOCKET, SO_REUSEADDR, 1, "setsockopt SO_REUSEADDR"); !set) return set;
  if (auto set = configure(*socket, Optimization::none, iomaps); !set) return set;
  if (calls_.bind(socket->fd(), address->get(), address->length) != 0) return Error::last("bind");
  constexpr int kBacklog = 16;
  if (calls_.listen(socket->fd(), kBacklog) != 0) return Error::last("listen");
  listener_ = std::move(*socket);
  return ok();
}

Status StreamSession::connect(Optimization optimization, int iomaps) {
  const auto address = resolve(request_for(options_, options_.server, false));
  if (!address) return address.error();
  auto socket = new_socket(calls_, address->family());
  if (!socket) return socket.error();
  if (auto set = configure(*socket, optimization, iomaps); !set) return set;
  if (!options_.bind_node.empty()) {
    const auto source = resolve({.node = options_.bind_node, .port = {}, .passive = true, .format = options_.format});
    if (!source) return source.error();
    if (calls_.bind(socket->fd(), source->get(), source->length) != 0) return Error::last("bind");
  }
  if (calls_.is_rsockets && !address->route.empty() &&
      calls_.setsockopt(socket->fd(), SOL_RDMA, RDMA_ROUTE, address->route.data(),
                        static_cast<socklen_t>(address->route.size())) != 0) {
    return Error::last("setsockopt RDMA_ROUTE");
  }
  if (auto connected = connect_socket(*socket, address->get(), address->length); !connected) return connected;
  connection_ = std::move(*socket);
  return ok();
}

Status StreamSession::adopt(Socket connection) {
  connection_ = std::move(connection);
  return configure(connection_, Optimization::none, 0);
}

Status StreamSession::open_connection(Optimization optimization, int iomaps) {
  if (options_.is_client()) return connect(optimization, iomaps);
  // An accepted connection inherits queue sizes and the like from the listener, so these are set first.
  if (auto set = set_inline(listener_, optimization); !set) return set;
  auto accepted = accept_one();
  if (!accepted) return accepted.error();
  return adopt(std::move(*accepted));
}

void StreamSession::close_connection() {
  if (connection_.fd() >= 0) calls_.shutdown(connection_.fd(), SHUT_RDWR);
  connection_.close();
}

Status StreamSession::wait_if_async(short event) {
  if (!options_.async) return ok();
  if (auto ready = connection_.wait(event, -1); !ready) return ready.error();
  return ok();
}

Status StreamSession::send_all(std::span<const std::byte> data) {
  while (!data.empty()) {
    if (auto ready = wait_if_async(POLLOUT); !ready) return ready;
    const ssize_t count = calls_.send(connection_.fd(), data.data(), data.size(), call_flags());
    if (count >= 0) {
      data = data.subspan(static_cast<std::size_t>(count));
    } else if (errno != EAGAIN && errno != EINTR) {
      return Error::last("send");
    }
  }
  return ok();
}

Status StreamSession::receive_all(std::span<std::byte> data) {
  while (!data.empty()) {
    if (auto ready = wait_if_async(POLLIN); !ready) return ready;
    const ssize_t count = calls_.recv(connection_.fd(), data.data(), data.size(), call_flags());
    if (count == 0) return Error{ECONNRESET, "recv: the peer closed the connection"};
    if (count > 0) {
      data = data.subspan(static_cast<std::size_t>(count));
    } else if (errno != EAGAIN && errno != EINTR) {
      return Error::last("recv");
    }
  }
  return ok();
}

}  // namespace ringsock::tools
