// Connections per second of the embedded device's connection manager: one iteration connects, accepts and closes both
// sides, in one thread, with queue pairs of rsockets' default size. Beside it the same over kernel TCP.
#include <benchmark/benchmark.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>

#include "core/base/unique_fd.h"
#include "core/device/soft/cm/soft_id.h"
#include "core/device/soft/soft_device.h"

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

CmEvent expect(ConnectionId& id, CmEventType type) {
  for (;;) {
    auto event = id.next_event();
    if (!event) continue;
    require(event->type == type, "event");
    return std::move(*event);
  }
}

/// Argument: bytes of receive memory a side.
void BM_SoftConnectAcceptClose(benchmark::State& state) {
  const auto receive_bytes = static_cast<std::size_t>(state.range(0));
  Host host;
  auto listener = std::move(*host.device->create_id(PortSpace::tcp));
  require(static_cast<bool>(listener->bind(kLoopback)) && static_cast<bool>(listener->listen(8)), "listen");
  for (auto _ : state) {
    Host::Side client, server;
    client.id = std::move(*host.device->create_id(PortSpace::tcp));
    require(static_cast<bool>(client.id->resolve_addr(listener->local_address(), Nanos(0))), "resolve_addr");
    expect(*client.id, CmEventType::addr_resolved);
    require(static_cast<bool>(client.id->resolve_route(Nanos(0))), "resolve_route");
    expect(*client.id, CmEventType::route_resolved);
    host.make_queue_pair(client, receive_bytes);
    require(static_cast<bool>(client.id->connect({})), "connect");
    server.id = std::move(expect(*listener, CmEventType::connect_request).request);
    host.make_queue_pair(server, receive_bytes);
    require(static_cast<bool>(server.id->accept({})), "accept");
    expect(*client.id, CmEventType::established);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_SoftConnectAcceptClose)->Arg(0)->Arg(128 << 10)->Unit(benchmark::kMicrosecond);

void BM_TcpConnectAcceptClose(benchmark::State& state) {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in name = kLoopback.in4();
  socklen_t length = sizeof name;
  require(::bind(listener.get(), reinterpret_cast<sockaddr*>(&name), length) == 0, "bind");
  require(::listen(listener.get(), 8) == 0, "listen");
  require(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&name), &length) == 0, "getsockname");
  for (auto _ : state) {
    const UniqueFd client(::socket(AF_INET, SOCK_STREAM, 0));
    // Without a TIME_WAIT state, or the ports run out.
    const linger reset{1, 0};
    require(::setsockopt(client.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset) == 0, "linger");
    require(::connect(client.get(), reinterpret_cast<sockaddr*>(&name), length) == 0, "connect");
    const UniqueFd server(::accept(listener.get(), nullptr, nullptr));
    require(static_cast<bool>(server), "accept");
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_TcpConnectAcceptClose)->Unit(benchmark::kMicrosecond);

}  // namespace

BENCHMARK_MAIN();
