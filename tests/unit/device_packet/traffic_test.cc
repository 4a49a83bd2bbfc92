// A ring and the kernel of another host talk to each other.
#include <gtest/gtest.h>

#include "tests/unit/device_packet/packet_test.h"

namespace ringsock::testing {
namespace {

class PacketTraffic : public PacketTest, public ::testing::WithParamInterface<int> {
 protected:
  [[nodiscard]] int family() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Families, PacketTraffic, ::testing::Values(AF_INET, AF_INET6),
                         [](const auto& info) { return info.param == AF_INET ? "IPv4" : "IPv6"; });

TEST_P(PacketTraffic, TheKernelSendsAndTheRingReceives) {
  TestRing ring(world->bob);
  const auto flow = ring.take({.protocol = IPPROTO_UDP, .destination = with_port(address(world->bob, family()), 4000)});
  const UniqueFd alice = world->alice.udp_socket(family());

  send_to(alice, with_port(address(world->bob, family()), 4000), "hello, ring");

  const auto arrival = ring.receive();
  ASSERT_TRUE(arrival);
  EXPECT_EQ(arrival->payload(), "hello, ring");
  EXPECT_EQ(arrival->wc_flags, unsigned{IBV_WC_IP_CSUM_OK});
  EXPECT_EQ(ring.counters().rx_packets, 1U);
}

TEST_P(PacketTraffic, TheRingSendsAndTheKernelReceives) {
  TestRing ring(world->bob);
  const UniqueFd alice = world->alice.udp_socket(family());

  ASSERT_EQ(ring.send(udp_frame(world->bob, 4000, world->alice, local_address(alice.get()).port(), "hello, kernel",
                                family())),
            0);

  EXPECT_EQ(receive_from(alice), "hello, kernel");
}

TEST_P(PacketTraffic, TwoRingsTalk) {
  TestRing alice(world->alice), bob(world->bob);
  const auto at_alice =
      alice.take({.protocol = IPPROTO_UDP, .destination = with_port(address(world->alice, family()), 4000)});
  const auto at_bob =
      bob.take({.protocol = IPPROTO_UDP, .destination = with_port(address(world->bob, family()), 4000)});

  ASSERT_EQ(alice.send(udp_frame(world->alice, 4000, world->bob, 4000, "ping", family())), 0);
  auto arrival = bob.receive();
  ASSERT_TRUE(arrival);
  EXPECT_EQ(arrival->payload(), "ping");
  ASSERT_EQ(bob.send(udp_frame(world->bob, 4000, world->alice, 4000, "pong", family())), 0);
  arrival = alice.receive();
  ASSERT_TRUE(arrival);
  EXPECT_EQ(arrival->payload(), "pong");
}

}  // namespace
}  // namespace ringsock::testing
