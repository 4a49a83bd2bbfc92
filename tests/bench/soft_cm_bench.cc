// Connections per second of the embedded device's connection manager: one iteration connects, accepts and closes both
// sides, with queue pairs of rsockets' default size. Beside it the same over kernel TCP.
#include <benchmark/benchmark.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "core/base/unique_fd.h"
#include "core/device/shm/cm/soft_id.h"
#include "core/device/shm/soft_device.h"

namespace {

using namespace ringsock;
using namespace ringsock::verbs;

const SocketAddress kLoopback = SocketAddress::v4(INADDR_LOOPBACK, 0);

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "soft_cm_bench: %s failed\n", what);
  std::abort();
}

struct Host {
  std::unique_ptr<soft::SoftDevice> device = std::move(*soft::SoftDevice::open());
  Pd pd = std::move(*device->alloc_pd());
  CompChannel channel = std::move(*device->create_comp_channel());

  struct Side {
    Cq cq;
    std::unique_ptr<ConnectionId> id;
    ConnectionQp qp;
    ~Side() {
      qp = {};
      id.reset();
    }
  };
  void make_queue_pair(Side& side, std::size_t receive_bytes) {
    side.cq = std::move(*device->create_cq(768, nullptr, channel.get(), 0));
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = side.cq.get();
    attr.cap = {384, 384, 2, 2, 64};
    attr.qp_type = IBV_QPT_RC;
    auto made = side.id->create_qp(*pd, attr, receive_bytes);
    require(static_cast<bool>(made), "create_qp");
    side.qp = std::move(*made);
  }
};

/// Spins for as long as rsockets do at first, then sleeps.
CmEvent expect(ConnectionId& id, CmEventType type) {
  constexpr Nanos kPollingTime{10'000};
  const Nanos sleep_from = monotonic_now() + kPollingTime;
  for (;;) {
    auto event = id.next_event();
    if (event) {
      require(event->type == type, "event");
      return std::move(*event);
    }
    if (monotonic_now() < sleep_from) continue;
    pollfd wait{id.event_fd(), POLLIN, 0};
    ::poll(&wait, 1, 1);
  }
}

std::unique_ptr<ConnectionId> listen(Host& host) {
  auto out = std::move(*host.device->create_id(PortSpace::tcp));
  require(static_cast<bool>(out->bind(kLoopback)) && static_cast<bool>(out->listen(64)), "listen");
  return out;
}

void start_connect(Host& host, Host::Side& client, const SocketAddress& to, std::size_t receive_bytes) {
  client.id = std::move(*host.device->create_id(PortSpace::tcp));
  require(static_cast<bool>(client.id->resolve_addr(to, Nanos(0))), "resolve_addr");
  expect(*client.id, CmEventType::addr_resolved);
  require(static_cast<bool>(client.id->resolve_route(Nanos(0))), "resolve_route");
  expect(*client.id, CmEventType::route_resolved);
  host.make_queue_pair(client, receive_bytes);
  require(static_cast<bool>(client.id->connect({})), "connect");
}

void take_and_accept(Host& host, Host::Side& server, ConnectionId& listener, std::size_t receive_bytes) {
  server.id = std::move(expect(listener, CmEventType::connect_request).request);
  host.make_queue_pair(server, receive_bytes);
  require(static_cast<bool>(server.id->accept({})), "accept");
}

/// Both sides in one thread: all the work of a connection, no wake-up. Argument: bytes of receive memory a side.
void BM_SoftConnectAcceptClose(benchmark::State& state) {
  const auto receive_bytes = static_cast<std::size_t>(state.range(0));
  Host host;
  const auto listener = listen(host);
  for (auto _ : state) {
    Host::Side client, server;
    start_connect(host, client, listener->local_address(), receive_bytes);
    take_and_accept(host, server, *listener, receive_bytes);
    expect(*client.id, CmEventType::established);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_SoftConnectAcceptClose)->Arg(0)->Arg(128 << 10)->Unit(benchmark::kMicrosecond);

/// A forked server; killed and reaped at the end.
class Server {
 public:
  /// `serve` runs in the child and writes the port to the descriptor first.
  explicit Server(void (*serve)(int)) {
    int ends[2];
    require(::pipe(ends) == 0, "pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      serve(ends[1]);
      ::_exit(0);
    }
    std::uint16_t port = 0;
    require(::read(ends[0], &port, sizeof port) == sizeof port, "read");
    ::close(ends[0]);
    ::close(ends[1]);
    address = SocketAddress::v4(INADDR_LOOPBACK, port);
  }
  ~Server() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  SocketAddress address;

 private:
  pid_t pid_;
};

void tell_port(int fd, std::uint16_t port) { require(::write(fd, &port, sizeof port) == sizeof port, "write"); }

void BM_SoftTwoProcesses(benchmark::State& state) {
  constexpr std::size_t kReceiveBytes = 128 << 10;
  const Server server([](int fd) {
    Host host;
    const auto listener = listen(host);
    tell_port(fd, listener->local_address().port());
    for (;;) {
      Host::Side side;
      take_and_accept(host, side, *listener, kReceiveBytes);
    }
  });
  Host host;
  for (auto _ : state) {
    Host::Side client;
    start_connect(host, client, server.address, kReceiveBytes);
    expect(*client.id, CmEventType::established);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_SoftTwoProcesses)->Unit(benchmark::kMicrosecond)->UseRealTime();

UniqueFd tcp_listener(sockaddr_in& name) {
  UniqueFd out(::socket(AF_INET, SOCK_STREAM, 0));
  name = kLoopback.in4();
  socklen_t length = sizeof name;
  require(::bind(out.get(), reinterpret_cast<sockaddr*>(&name), length) == 0, "bind");
  require(::listen(out.get(), 64) == 0, "listen");
  require(::getsockname(out.get(), reinterpret_cast<sockaddr*>(&name), &length) == 0, "getsockname");
  return out;
}

UniqueFd tcp_connect(const SocketAddress& to) {
  UniqueFd out(::socket(AF_INET, SOCK_STREAM, 0));
  // Without a TIME_WAIT state, or the ports run out.
  const linger reset{1, 0};
  require(::setsockopt(out.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset) == 0, "linger");
  require(::connect(out.get(), to.get(), to.length()) == 0, "connect");
  return out;
}

void BM_TcpConnectAcceptClose(benchmark::State& state) {
  sockaddr_in name{};
  const UniqueFd listener = tcp_listener(name);
  const SocketAddress address = SocketAddress::v4(INADDR_LOOPBACK, ntohs(name.sin_port));
  for (auto _ : state) {
    const UniqueFd client = tcp_connect(address);
    const UniqueFd server(::accept(listener.get(), nullptr, nullptr));
    require(static_cast<bool>(server), "accept");
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_TcpConnectAcceptClose)->Unit(benchmark::kMicrosecond);

/// Blocking, with one byte back, so that the client knows that it was accepted.
void BM_TcpTwoProcesses(benchmark::State& state) {
  const Server server([](int fd) {
    sockaddr_in name{};
    const UniqueFd listener = tcp_listener(name);
    tell_port(fd, ntohs(name.sin_port));
    for (;;) {
      const UniqueFd accepted(::accept(listener.get(), nullptr, nullptr));
      [[maybe_unused]] const ssize_t sent = ::send(accepted.get(), "x", 1, MSG_NOSIGNAL);
    }
  });
  for (auto _ : state) {
    const UniqueFd client = tcp_connect(server.address);
    char byte = 0;
    require(::recv(client.get(), &byte, 1, 0) == 1, "recv");
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_TcpTwoProcesses)->Unit(benchmark::kMicrosecond)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
