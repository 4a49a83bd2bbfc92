// A network that sends anything.
#include <gtest/gtest.h>

#include <random>

#include "tests/support/rounds.h"
#include "tests/unit/device_packet/packet_test.h"

namespace ringsock::testing {
namespace {

using PacketHostile = PacketTest;

/// A valid datagram with a few bytes changed, or of another length.
std::string mutate(std::string frame, std::mt19937& random) {
  const auto below = [&](std::size_t limit) {
    return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random);
  };
  for (std::size_t changes = 1 + below(3); changes != 0; --changes)
    frame[12 + below(frame.size() - 12)] = static_cast<char>(below(256));
  if (below(4) == 0) frame.resize(14 + below(1000), 'm');
  return frame;
}

TEST_F(PacketHostile, MutatedPacketsAreCountedAndDropped) {
  TestRing alice(world->alice), bob(world->bob);
  const auto flow = bob.take({.protocol = IPPROTO_UDP, .destination = with_port(world->bob.v4, 4000)});
  const auto flow6 = bob.take({.protocol = IPPROTO_UDP, .destination = with_port(world->bob.v6, 4000)});
  const auto tcp = bob.take({.protocol = IPPROTO_TCP, .destination = with_port(world->bob.v4, 4000)});
  const int packets = static_cast<int>(support::rounds(20'000, 1'000'000));
  std::mt19937 random(4711);
  std::uint64_t arrived = 0;
  for (int i = 0; i < packets; ++i) {
    const int family = i % 2 == 0 ? AF_INET : AF_INET6;
    alice.send(mutate(udp_frame(world->alice, 5000, world->bob, 4000, "harmless", family), random), 0);
    while (bob.receive(std::chrono::milliseconds(0))) ++arrived;
  }
  const auto counters = bob.counters();
  EXPECT_EQ(counters.rx_packets, arrived);
  EXPECT_GT(counters.rx_bad_checksum, 0U);
  EXPECT_GT(counters.rx_bad_length, 0U);

  ASSERT_EQ(alice.send(udp_frame(world->alice, 5000, world->bob, 4000, "healthy")), 0);
  EXPECT_EQ(bob.receive()->payload(), "healthy");
}

}  // namespace
}  // namespace ringsock::testing
