// What the tests of packet devices have in common.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

#include "tests/unit/device_packet/net_world.h"
#include "tests/unit/device_packet/test_ring.h"

namespace ringsock::testing {

class PacketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* reason = NetWorld::unavailable()) GTEST_SKIP() << reason;
    world = std::make_unique<NetWorld>();
    if (const auto device = open_device(world->bob); !device && device.error().code == EPERM)
      GTEST_SKIP() << "BPF programs are not permitted here";
  }
  /// A failure may be a packet that the hosts have lost: what they counted.
  void TearDown() override {
    if (!HasFailure() || !world) return;
    for (const Host* host : {&world->alice, &world->bob}) {
      host->sh("{ ip -s -s link show dev " + host->interface +
               "; grep -v '[[:space:]]0$' /proc/net/snmp6; cat /proc/net/softnet_stat; } | sed 's/^/host: /'");
    }
  }
  static Result<std::unique_ptr<soft::PacketDevice>> open_device(const Host& host,
                                                                 soft::PacketDeviceOptions options = {}) {
    InNamespace there(host.space.get());
    return soft::PacketDevice::open(host.ifindex, options);
  }

  std::unique_ptr<NetWorld> world;
};

inline SocketAddress address(const Host& host, int family) { return family == AF_INET ? host.v4 : host.v6; }

inline SocketAddress with_port(SocketAddress address, std::uint16_t port) {
  address.set_port(port);
  return address;
}

inline void send_to(const UniqueFd& socket, const SocketAddress& to, std::string_view data) {
  ASSERT_EQ(::sendto(socket.get(), data.data(), data.size(), 0, to.get(), to.length()),
            static_cast<ssize_t>(data.size()))
      << std::strerror(errno);
}

/// The next datagram of a kernel socket; "(nothing)" when none comes in time.
inline std::string receive_from(const UniqueFd& socket, int limit_ms = 5000) {
  pollfd waiting{socket.get(), POLLIN, 0};
  if (::poll(&waiting, 1, limit_ms) != 1) return "(nothing)";
  std::string data(1 << 16, '\0');
  const ssize_t got = ::recv(socket.get(), data.data(), data.size(), 0);
  data.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return data;
}

}  // namespace ringsock::testing
