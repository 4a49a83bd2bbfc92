// What the kernel says of interfaces and addresses, at once and later.
#include <linux/if_bonding.h>
#include <linux/if_link.h>
#include <linux/if_vlan.h>
#include <linux/rtnetlink.h>

#include <algorithm>

#include "tests/unit/net/network_namespace.h"

namespace ringsock::net {
namespace {

using Links = TwoHosts;

TEST_F(Links, VethAsItIs) {
  const auto link = state->link("v0");
  ASSERT_TRUE(link);
  EXPECT_EQ(link->kind, LinkKind::veth);
  EXPECT_EQ(link->mac, (MacAddress{2, 0, 0, 0, 0, 1}));
  EXPECT_EQ(link->broadcast, kBroadcastMac);
  EXPECT_EQ(link->mtu, 1500u);
  EXPECT_TRUE(link->is_ethernet());
  EXPECT_TRUE(link->is_running());
  EXPECT_TRUE(link->needs_neighbours());
  EXPECT_TRUE(link->lower_elsewhere) << "its peer is in the other namespace";
  EXPECT_EQ(link->master, 0);
}

TEST_F(Links, LoopbackIsNone) {
  const auto link = state->link("lo");
  ASSERT_TRUE(link);
  EXPECT_TRUE(link->is_loopback());
  EXPECT_FALSE(link->is_ethernet());
  EXPECT_FALSE(link->needs_neighbours());
  EXPECT_EQ(link->kind, LinkKind::physical);
}

TEST_F(Links, UnknownOnesAreNothing) {
  EXPECT_FALSE(state->link("v9"));
  EXPECT_FALSE(state->link(99999));
  EXPECT_TRUE(state->addresses(99999).empty());
}

TEST_F(Links, ChangesAreSeenAndTold) {
  std::vector<int> told;
  const auto listener = state->add_listener([&](const NetworkChange& change) {
    if (change.what == NetworkChange::What::link) told.push_back(change.ifindex);
  });
  const auto before = state->generation();
  here.run("ip link set v0 mtu 1400");
  EXPECT_TRUE(wait_until(*state, [&] { return state->link(v0)->mtu == 1400; }));
  EXPECT_GT(state->generation(), before);
  EXPECT_EQ(told, std::vector{v0});
  here.run("ip link set v0 address 02:00:00:00:00:77");
  EXPECT_TRUE(wait_until(*state, [&] { return state->link(v0)->mac[5] == 0x77; }));
  here.run("ip link set v0 name other");
  EXPECT_TRUE(wait_until(*state, [&] { return state->link("other").has_value(); }));
  EXPECT_FALSE(state->link("v0"));
  state->remove_listener(listener);
}

TEST_F(Links, CarrierGoesWithThePeer) {
  there.run("ip link set v1 down");
  EXPECT_TRUE(wait_until(*state, [&] { return !state->link(v0)->is_running(); }));
  EXPECT_TRUE(state->link(v0)->is_up());
  there.run("ip link set v1 up");
  EXPECT_TRUE(wait_until(*state, [&] { return state->link(v0)->is_running(); }));
}

TEST_F(Links, RemovedOneIsGoneWithItsAddresses) {
  EXPECT_FALSE(state->addresses(v0).empty());
  there.run("ip link del v1");
  EXPECT_TRUE(wait_until(*state, [&] { return !state->link(v0); }));
  EXPECT_TRUE(state->addresses(v0).empty());
}

TEST_F(Links, BridgeAndItsPorts) {
  here.run("ip link add br0 type bridge && ip link set v0 master br0");
  EXPECT_TRUE(wait_until(*state, [&] { return state->link("br0") && state->link(v0)->master != 0; }));
  const auto bridge = state->link("br0");
  EXPECT_EQ(bridge->kind, LinkKind::bridge);
  EXPECT_EQ(state->link(v0)->master, bridge->index);
  ASSERT_EQ(state->members_of(bridge->index).size(), 1u);
  EXPECT_EQ(state->members_of(bridge->index)[0].index, v0);
  // The bridge tells of it by a message that removes the port, not the link.
  here.run("ip link set v0 nomaster");
  EXPECT_TRUE(wait_until(*state, [&] { return state->link(v0) && state->link(v0)->master == 0; }));
  EXPECT_TRUE(state->members_of(bridge->index).empty());
}

TEST_F(Links, MacvlanAndItsMode) {
  here.run("ip link add m0 link v0 address 02:00:00:00:00:0a type macvlan mode bridge");
  EXPECT_TRUE(wait_until(*state, [&] { return state->link("m0").has_value(); }));
  const auto link = state->link("m0");
  EXPECT_EQ(link->kind, LinkKind::macvlan);
  EXPECT_EQ(link->kind_name, "macvlan");
  EXPECT_EQ(link->lower, v0);
  EXPECT_FALSE(link->lower_elsewhere);
  EXPECT_EQ(link->macvlan_mode, static_cast<std::uint32_t>(MACVLAN_MODE_BRIDGE));
}

TEST_F(Links, VlanAndItsTag) {
  if (!here.try_to("ip link add link v0 name v0.7 type vlan id 7")) GTEST_SKIP() << "the kernel has no VLANs";
  EXPECT_TRUE(wait_until(*state, [&] { return state->link("v0.7").has_value(); }));
  const auto link = state->link("v0.7");
  EXPECT_EQ(link->kind, LinkKind::vlan);
  EXPECT_EQ(link->lower, v0);
  EXPECT_EQ(link->vlan, (VlanTag{7, 0x8100}));
}

TEST_F(Links, BondAndItsMembers) {
  if (!here.try_to("ip link add bond0 type bond mode active-backup")) GTEST_SKIP() << "the kernel has no bonding";
  here.run("ip link set v0 down && ip link set v0 master bond0 && ip link set bond0 up && ip link set v0 up");
  EXPECT_TRUE(wait_until(*state, [&] {
    const auto bond = state->link("bond0");
    return bond && bond->bond && bond->bond->active_member == v0;
  }));
  EXPECT_EQ(state->link("bond0")->bond->mode, BOND_MODE_ACTIVEBACKUP);
  EXPECT_EQ(state->members_of(state->link("bond0")->index).size(), 1u);
}

// -- addresses

TEST_F(Links, AddressesAsTheyAre) {
  const auto found = state->find_address(ip("10.0.0.1"));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->ifindex, v0);
  EXPECT_EQ(found->prefix_length, 24);
  EXPECT_EQ(found->broadcast, ip("10.0.0.255"));
  EXPECT_EQ(found->scope, RT_SCOPE_UNIVERSE);
  EXPECT_EQ(state->find_address(ip("127.0.0.1"))->scope, RT_SCOPE_HOST);
  EXPECT_FALSE(state->find_address(ip("10.0.0.2")));
  EXPECT_FALSE(state->find_address(ip("10.0.0.1"), v0 + 1));
  EXPECT_TRUE(state->find_address(ip("fd00::1"), v0));
  const auto all = state->addresses(v0);
  EXPECT_TRUE(std::ranges::any_of(all, [](const InterfaceAddress& a) { return a.scope == RT_SCOPE_LINK; }))
      << "the link-local one";
}

TEST_F(Links, AddressesComeAndGo) {
  here.run("ip addr add 10.9.0.1 peer 10.9.0.2/32 dev v0");
  EXPECT_TRUE(wait_until(*state, [&] { return state->find_address(ip("10.9.0.1")).has_value(); }));
  EXPECT_EQ(state->find_address(ip("10.9.0.1"))->peer, ip("10.9.0.2"));
  here.run("ip addr del 10.9.0.1 peer 10.9.0.2/32 dev v0");
  EXPECT_TRUE(wait_until(*state, [&] { return !state->find_address(ip("10.9.0.1")); }));
}

TEST_F(Links, DeprecatedAndTentativeAddresses) {
  here.run("ip addr add fd00::8/64 dev v0 nodad preferred_lft 0");
  EXPECT_TRUE(wait_until(*state, [&] { return state->find_address(ip("fd00::8")).has_value(); }));
  EXPECT_TRUE(state->find_address(ip("fd00::8"))->is_deprecated());
  EXPECT_FALSE(state->find_address(ip("fd00::1"))->is_deprecated());
  // The other host has this one: duplicate address detection fails.
  here.set("ipv6/conf/v0/accept_dad", "1");
  here.run("ip addr add fd00::2/64 dev v0");
  EXPECT_TRUE(wait_until(*state, [&] {
    const auto found = state->find_address(ip("fd00::2"));
    return found && found->is_tentative();
  }));
}

}  // namespace
}  // namespace ringsock::net
