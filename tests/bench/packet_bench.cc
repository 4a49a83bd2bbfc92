// Raw packet queue pairs, with both kinds of ring, beside the kernel's UDP sockets, over veth between two namespaces:
// datagrams of 64 bytes per second in each direction, and the round trip of two ends that spin. Prints a table; needs
// root.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "core/base/clock.h"
#include "tests/support/child.h"
#include "tests/unit/device_packet/test_ring.h"

namespace {

using namespace ringsock;
using namespace ringsock::testing;
using Clock = std::chrono::steady_clock;

constexpr std::uint16_t kPort = 4000;
constexpr std::chrono::milliseconds kRun{500};
constexpr int kRuns = 5;
const std::string kPayload(64, 'b');

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

SocketAddress port_of(const Host& host) {
  SocketAddress out = host.v4;
  out.set_port(kPort);
  return out;
}

verbs::FlowTuple flow_to(const Host& host) { return {.protocol = IPPROTO_UDP, .destination = port_of(host)}; }

UniqueFd kernel_socket(const Host& host) {
  InNamespace there(host.space.get());
  UniqueFd out(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const SocketAddress address = port_of(host);
  if (::bind(out.get(), address.get(), address.length()) != 0) throw std::runtime_error("bind");
  return out;
}

/// One way to send a datagram or to look for one. Made in the process that uses it.
struct End {
  std::function<bool()> send;     ///< false: not now
  std::function<bool()> receive;  ///< whether one was there
};

End kernel_end(const Host& here, const Host& there, std::shared_ptr<UniqueFd> socket) {
  *socket = kernel_socket(here);
  const SocketAddress to = port_of(there);
  return {
      .send = [=] { return ::sendto(socket->get(), kPayload.data(), kPayload.size(), 0, to.get(), to.length()) > 0; },
      .receive =
          [=] {
            char data[2048];
            return ::recv(socket->get(), data, sizeof data, MSG_DONTWAIT) > 0;
          }};
}

End ring_end(const Host& here, const Host& there, std::shared_ptr<TestRing> ring) {
  const std::string frame = udp_frame(here, kPort, there, kPort, kPayload);
  return {.send = [=] { return ring->send(frame) == 0; },
          .receive =
              [=] {
                ibv_wc wc;
                if (ibv_poll_cq(ring->receive_cq.get(), 1, &wc) != 1) return false;
                ring->post(wc.wr_id);
                return true;
              }};
}

enum class Kind { kernel, packet, xdp };

/// What one side is made of, and keeps alive.
struct Side {
  std::shared_ptr<UniqueFd> socket = std::make_shared<UniqueFd>();
  std::shared_ptr<TestRing> ring;
  verbs::Flow flow;
  End end;

  Side(Kind kind, const Host& here, const Host& there) {
    if (kind == Kind::kernel) {
      end = kernel_end(here, there, socket);
      return;
    }
    RingOptions options{.receives = 4096};
    if (kind == Kind::xdp) {
      options.device.ring = soft::RingKind::xdp;
      options.device.xdp_mode = tested_mode();
    }
    ring = std::make_shared<TestRing>(here, options);
    if (kind == Kind::xdp && ring->device->ring_kind() != soft::RingKind::xdp) throw std::runtime_error("no xdp ring");
    flow = ring->take(flow_to(here));
    end = ring_end(here, there, ring);
  }
};

/// Nanoseconds per round trip, against an echoing child.
double round_trip(const NetWorld& world, Kind kind, Kind peer) {
  Child echo = Child::start([&](Channel& channel) {
    Side bob(peer, world.bob, world.alice);
    channel.send(true);
    for (;;) {
      if (bob.end.receive()) bob.end.send();
    }
    return 0;
  });
  if (!echo.channel().receive<bool>()) return 0;
  Side alice(kind, world.alice, world.bob);
  const auto start = Clock::now();
  int trips = 0;
  while (Clock::now() - start < kRun) {
    alice.end.send();
    // One that was lost is sent again.
    const auto patience = Clock::now() + std::chrono::milliseconds(100);
    while (!alice.end.receive() && Clock::now() < patience) cpu_relax();
    ++trips;
  }
  return seconds_since(start) / trips * 1e9;
}

/// Datagrams per second, one call each, to a peer that nobody reads.
double sending(const NetWorld& world, Kind kind, Kind peer) {
  const Side bob(peer, world.bob, world.alice);
  Side alice(kind, world.alice, world.bob);
  const auto start = Clock::now();
  int sent = 0;
  while (Clock::now() - start < kRun) {
    for (int i = 0; i < 64; ++i) sent += alice.end.send();
  }
  return sent / seconds_since(start);
}

/// Datagrams per second that come in while a child sends as fast as it can: lists, by an xdp ring.
double receiving(const NetWorld& world, Kind kind) {
  Side bob(kind, world.bob, world.alice);
  Child flood = Child::start([&](Channel&) {
    TestRing ring(world.alice, {.device = {.ring = soft::RingKind::xdp}});
    const std::string frame = udp_frame(world.alice, kPort, world.bob, kPort, kPayload);
    constexpr std::size_t kList = 32;
    ibv_sge sge{reinterpret_cast<std::uint64_t>(frame.data()), static_cast<std::uint32_t>(frame.size()), 0};
    std::vector<ibv_send_wr> list(kList);
    for (std::size_t i = 0; i < kList; ++i) {
      list[i].sg_list = &sge;
      list[i].num_sge = 1;
      list[i].opcode = IBV_WR_SEND;
      list[i].send_flags = IBV_SEND_INLINE | IBV_SEND_IP_CSUM;
      list[i].next = i + 1 < kList ? &list[i + 1] : nullptr;
    }
    for (;;) {
      ibv_send_wr* bad = nullptr;
      ibv_post_send(ring.qp.get(), list.data(), &bad);
    }
    return 0;
  });
  while (!bob.end.receive()) cpu_relax();
  const auto start = Clock::now();
  int got = 0;
  while (Clock::now() - start < kRun) {
    for (int i = 0; i < 64; ++i) got += bob.end.receive();
  }
  return got / seconds_since(start);
}

template <class Measure>
double repeat(Measure measure) {
  std::vector<double> values;
  for (int i = 0; i < kRuns; ++i) values.push_back(measure());
  return median(values);
}

}  // namespace

int main() {
  if (const char* reason = NetWorld::unavailable()) {
    std::printf("packet_bench: skipped: %s\n", reason);
    return 77;
  }
  NetWorld world;
  std::printf("%-44s %9s %9s %9s %7s %7s\n", "64 B over veth, medians of five", "kernel", "packet", "xdp", "packet",
              "xdp");
  const auto rate = [&](const char* name, auto measure) {
    const auto of = [&](Kind kind) { return repeat([&] { return measure(world, kind); }); };
    const double kernel = of(Kind::kernel), packet = of(Kind::packet), xdp = of(Kind::xdp);
    std::printf("%-44s %9.0f %9.0f %9.0f %6.2fx %6.2fx\n", name, kernel, packet, xdp, packet / kernel, xdp / kernel);
  };
  rate("datagrams/s sent, one call each, to a kernel",
       [](const NetWorld& w, Kind kind) { return sending(w, kind, Kind::kernel); });
  rate("datagrams/s sent, one call each, to the same",
       [](const NetWorld& w, Kind kind) { return sending(w, kind, kind); });
  rate("datagrams/s received", receiving);
  const double kernel = repeat([&] { return round_trip(world, Kind::kernel, Kind::kernel); });
  const auto trip = [&](const char* name, bool to_kernel) {
    const auto of = [&](Kind kind) {
      return repeat([&] { return round_trip(world, kind, to_kernel ? Kind::kernel : kind); });
    };
    const double packet = of(Kind::packet), xdp = of(Kind::xdp);
    std::printf("%-44s %9.0f %9.0f %9.0f %6.2fx %6.2fx\n", name, kernel, packet, xdp, kernel / packet, kernel / xdp);
  };
  trip("round trip, ns, both ends spin, ring and ring", false);
  trip("round trip, ns, both ends spin, ring and kernel", true);
  return 0;
}
