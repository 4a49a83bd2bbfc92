// What a datagram rsocket remembers of its peers, and for how long.
#include <gtest/gtest.h>

#include "librsocket/datagram/peers.h"

namespace ringsock::rs {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

SocketAddress host(std::uint32_t number) { return SocketAddress::v4(0x0a000000 + number, 5); }

TEST(Peers, RememberAThousandAddressesAndForgetTheLeastUsed) {
  Peers peers;
  for (std::uint32_t i = 0; i < Peers::kMost; ++i) peers.add(host(i));
  ASSERT_NE(peers.find(host(0)), nullptr);  // used: host(1) is the oldest now
  peers.add(host(5000));
  EXPECT_EQ(peers.size(), Peers::kMost);
  EXPECT_EQ(peers.find(host(1)), nullptr);
  EXPECT_NE(peers.find(host(0)), nullptr);
  EXPECT_NE(peers.find(host(5000)), nullptr);
}

TEST(Peers, SurviveAStormOfStrangersAsLongAsTheyAreUsed) {
  Peers peers;
  peers.add(host(0)).learn(77, seconds(1));
  for (std::uint32_t i = 1; i <= 10'000; ++i) {
    peers.add(host(i));
    ASSERT_NE(peers.find(host(0)), nullptr);
  }
  EXPECT_EQ(peers.find(host(0))->qp_number, 77u);
  EXPECT_EQ(peers.size(), Peers::kMost);
}

TEST(Peers, AreTheSameByHostAndPort) {
  Peers peers;
  peers.add(host(1));
  SocketAddress other_port = host(1);
  other_port.set_port(6);
  EXPECT_EQ(peers.find(other_port), nullptr);
  EXPECT_EQ(peers.find(host(2)), nullptr);
}

TEST(Peers, OfALinkAreFoundWithoutTheScope) {
  in6_addr link{};
  link.s6_addr[0] = 0xfe;
  link.s6_addr[1] = 0x80;
  link.s6_addr[15] = 9;
  Peers peers;
  peers.add(host(1));
  peers.add(SocketAddress::v6(link, 5, 3));
  const Peer* const found = peers.find_without_scope(SocketAddress::v6(link, 5));
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->address.in6().sin6_scope_id, 3u);
  EXPECT_EQ(peers.find_without_scope(SocketAddress::v6(link, 6)), nullptr);
}

TEST(Peer, IsUsableForThirtySecondsAfterItsNumberWasConfirmed) {
  Peer peer;
  EXPECT_FALSE(peer.is_usable(seconds(0)));
  peer.learn(7, seconds(100));
  EXPECT_TRUE(peer.is_usable(seconds(129)));
  EXPECT_FALSE(peer.is_usable(seconds(130)));
  peer.learn(7, seconds(130));
  EXPECT_TRUE(peer.is_usable(seconds(130)));
}

TEST(Peer, OfARealDeviceIsAskedWhenItIsSilent) {
  Peer peer;
  peer.learn(7, seconds(100), {.mtu = 3});
  EXPECT_FALSE(peer.is_question_due(seconds(100) + milliseconds(999)));
  EXPECT_TRUE(peer.is_question_due(seconds(101)));
  peer.asked = seconds(101);
  EXPECT_FALSE(peer.is_question_due(seconds(101)));
  EXPECT_TRUE(peer.is_question_due(seconds(102)));
  EXPECT_TRUE(peer.is_usable(seconds(104)));
  EXPECT_FALSE(peer.is_usable(seconds(105))) << "it does not answer";
  peer.learn(8, seconds(105), {.mtu = 3});
  EXPECT_FALSE(peer.is_question_due(seconds(105)));
  EXPECT_TRUE(peer.is_usable(seconds(105)));
}

TEST(Peer, OfTheOriginalIsNotAsked) {
  Peer peer;
  peer.learn(7, seconds(100));
  EXPECT_FALSE(peer.is_question_due(seconds(120)));
}

TEST(QuestionBudget, IsFullAgainEachSecond) {
  QuestionBudget budget;
  for (unsigned i = 0; i < QuestionBudget::kPerSecond; ++i) EXPECT_TRUE(budget.take(seconds(5)));
  EXPECT_FALSE(budget.take(seconds(5) + milliseconds(999)));
  EXPECT_TRUE(budget.take(seconds(6)));
}

}  // namespace
}  // namespace ringsock::rs
