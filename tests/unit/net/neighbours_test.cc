// The kernel's neighbour table as a sender sees it.
#include "tests/unit/net/network_namespace.h"

namespace ringsock::net {
namespace {

constexpr MacAddress kPeer = {2, 0, 0, 0, 0, 2};

class Neighbours : public TwoHosts {
 protected:
  void SetUp() override {
    TwoHosts::SetUp();
    if (IsSkipped()) return;
    // One question, 10 ms for the answer.
    for (const char* family : {"ipv4", "ipv6"}) {
      const std::string place = std::string(family) + "/neigh/v0/";
      here.set(place + "mcast_solicit", "1");
      here.set(place + "retrans_time_ms", "10");
    }
  }
  std::shared_ptr<Neighbour> neighbour(const std::string& destination) { return state->neighbour(path(destination)); }
  bool comes_to(const Neighbour& neighbour, NeighbourState wanted) {
    return wait_until(*state, [&] { return neighbour.facts().state == wanted; });
  }
};

TEST_F(Neighbours, AreResolvedByTheKernelWhenAsked) {
  const auto of_peer = there.state();
  ASSERT_TRUE(of_peer && wait_until(**of_peer, [&] { return has(**of_peer, "fe80::ff:fe00:2"); }));
  there.run("ip addr del fd00::2/64 dev v1 && ip addr add fd00::2/64 dev v1 nodad");
  for (const char* address : {"10.0.0.2", "fd00::2"}) {
    const auto peer = neighbour(address);
    EXPECT_EQ(peer->facts().state, NeighbourState::none) << address;
    const auto before = state->generation();
    ASSERT_TRUE(state->request_resolution(*peer));
    ASSERT_TRUE(wait_until(*state, [&] { return peer->facts().is_usable(); })) << address;
    EXPECT_EQ(peer->facts().mac, kPeer);
    EXPECT_GT(state->generation(), before);
  }
}

TEST_F(Neighbours, ThatTheKernelKnowsAreKnownAtOnce) {
  here.run("ip neigh add 10.0.0.2 lladdr 02:00:00:00:00:55 dev v0 nud permanent");
  const NeighbourFacts facts = neighbour("10.0.0.2")->facts();
  EXPECT_EQ(facts, (NeighbourFacts{NeighbourState::permanent, {2, 0, 0, 0, 0, 0x55}}));
}

TEST_F(Neighbours, NobodyAnswersIsAFailureAndCanBeAskedAgain) {
  const auto nobody = neighbour("10.0.0.77");
  ASSERT_TRUE(state->request_resolution(*nobody));
  EXPECT_TRUE(comes_to(*nobody, NeighbourState::failed));
  EXPECT_FALSE(nobody->facts().is_usable());
  there.run("ip addr add 10.0.0.77/24 dev v1");
  ASSERT_TRUE(state->request_resolution(*nobody));
  EXPECT_TRUE(comes_to(*nobody, NeighbourState::reachable));
  EXPECT_EQ(nobody->facts().mac, kPeer);
}

TEST_F(Neighbours, AnotherMacMovesTheGenerationAndIsTold) {
  here.run("ip neigh add 10.0.0.2 lladdr 02:00:00:00:00:55 dev v0 nud reachable");
  const auto peer = neighbour("10.0.0.2");
  std::vector<NetworkChange> told;
  const auto listener = state->add_listener([&](const NetworkChange& change) { told.push_back(change); });
  const auto before = state->generation();
  here.run("ip neigh replace 10.0.0.2 lladdr 02:00:00:00:00:66 dev v0 nud reachable");
  EXPECT_TRUE(wait_until(*state, [&] { return state->generation() > before; }));
  EXPECT_EQ(peer->facts().mac, (MacAddress{2, 0, 0, 0, 0, 0x66}));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].what, NetworkChange::What::neighbour);
  EXPECT_EQ(told[0].ifindex, v0);
  EXPECT_EQ(told[0].address, ip("10.0.0.2"));
  state->remove_listener(listener);
}

TEST_F(Neighbours, AgeingMovesNothing) {
  here.run("ip neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev v0 nud reachable");
  const auto peer = neighbour("10.0.0.2");
  const auto before = state->generation();
  here.run("ip neigh change 10.0.0.2 dev v0 nud stale");
  EXPECT_TRUE(comes_to(*peer, NeighbourState::stale));
  EXPECT_EQ(state->generation(), before);
  EXPECT_TRUE(peer->facts().is_usable());
}

TEST_F(Neighbours, RemovedOneIsNotUsable) {
  here.run("ip neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev v0 nud permanent");
  const auto peer = neighbour("10.0.0.2");
  EXPECT_TRUE(peer->facts().is_usable());
  here.run("ip neigh del 10.0.0.2 dev v0");
  EXPECT_TRUE(wait_until(*state, [&] { return !peer->facts().is_usable(); }));
}

TEST_F(Neighbours, OneInUseThatGoesStaleIsConfirmedByTheKernel) {
  here.set("ipv4/neigh/v0/delay_first_probe_time", "0");
  here.run("ip neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev v0 nud reachable");
  const auto peer = neighbour("10.0.0.2");
  EXPECT_FALSE(peer->needs_refresh());  // a packet is sent
  here.run("ip neigh change 10.0.0.2 dev v0 nud stale");
  EXPECT_TRUE(comes_to(*peer, NeighbourState::stale));
  EXPECT_TRUE(comes_to(*peer, NeighbourState::reachable));
}

TEST_F(Neighbours, OneThatWentStaleUnusedIsConfirmedWhenUsed) {
  here.set("ipv4/neigh/v0/delay_first_probe_time", "0");
  here.run("ip neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev v0 nud stale");
  const auto peer = neighbour("10.0.0.2");
  ASSERT_TRUE(peer->needs_refresh());
  EXPECT_FALSE(peer->needs_refresh()) << "once is enough";
  ASSERT_TRUE(state->request_resolution(*peer));
  EXPECT_TRUE(comes_to(*peer, NeighbourState::reachable));
}

TEST_F(Neighbours, PermanentOnesStaySo) {
  here.run("ip neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev v0 nud permanent");
  const auto peer = neighbour("10.0.0.2");
  EXPECT_TRUE(state->request_resolution(*peer));
  here.run("ip neigh show 10.0.0.2 dev v0 | grep -q PERMANENT");
}

TEST_F(Neighbours, GroupsAndBroadcastNeedNoResolution) {
  const auto facts = [&](const char* destination) {
    return state->neighbour(path({.destination = ip(destination), .oif = v0}))->facts();
  };
  EXPECT_EQ(facts("239.129.2.3"), (NeighbourFacts{NeighbourState::no_arp, {1, 0, 0x5e, 1, 2, 3}}));
  EXPECT_EQ(facts("ff02::1:ff00:5"), (NeighbourFacts{NeighbourState::no_arp, {0x33, 0x33, 0xff, 0, 0, 5}}));
  EXPECT_EQ(facts("10.0.0.255"), (NeighbourFacts{NeighbourState::no_arp, kBroadcastMac}));
}

TEST_F(Neighbours, LinksWithoutArpNeedNoneEither) {
  here.run("ip link set v0 arp off");
  EXPECT_TRUE(wait_until(*state, [&] { return !state->link(v0)->needs_neighbours(); }));
  EXPECT_EQ(neighbour("10.0.0.2")->facts(), (NeighbourFacts{NeighbourState::no_arp, {2, 0, 0, 0, 0, 1}}));
}

TEST_F(Neighbours, GatewayIsTheNeighbourOfFarDestinations) {
  here.run("ip route add 192.0.2.0/24 via 10.0.0.2");
  const auto gateway = neighbour("192.0.2.1");
  EXPECT_EQ(gateway, neighbour("10.0.0.2"));
  EXPECT_EQ(gateway->address(), ip("10.0.0.2"));
}

TEST_F(Neighbours, UnreachableAndLocalPathsHaveNone) {
  EXPECT_EQ(neighbour("198.51.100.1")->facts().state, NeighbourState::none);
  EXPECT_EQ(neighbour("10.0.0.1")->facts().state, NeighbourState::none);
}

TEST_F(Neighbours, OfARemovedInterfaceCannotBeAsked) {
  const auto peer = neighbour("10.0.0.2");
  there.run("ip link del v1");
  EXPECT_EQ(state->request_resolution(*peer).error().code, ENODEV);
}

}  // namespace
}  // namespace ringsock::net
