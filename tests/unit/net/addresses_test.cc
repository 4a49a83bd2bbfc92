#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/if_addr.h>

#include "core/net/interfaces.h"
#include "core/net/ip_address.h"
#include "core/net/mac_address.h"
#include "core/net/neighbour.h"

namespace ringsock::net {
namespace {

IpAddress v6(const char* text) {
  in6_addr address{};
  EXPECT_EQ(::inet_pton(AF_INET6, text, &address), 1) << text;
  return IpAddress::v6(address);
}

TEST(IpAddress, SaysWhatItIs) {
  EXPECT_TRUE(IpAddress().is_unspecified());
  EXPECT_FALSE(IpAddress().is_wildcard());
  EXPECT_TRUE(IpAddress::wildcard(AF_INET).is_wildcard());
  EXPECT_TRUE(v6("::").is_wildcard());
  EXPECT_TRUE(IpAddress::v4(0xe0000001).is_multicast());
  EXPECT_TRUE(IpAddress::v4(0xefffffff).is_multicast());
  EXPECT_FALSE(IpAddress::v4(0xf0000001).is_multicast());
  EXPECT_TRUE(v6("ff05::1").is_multicast());
  EXPECT_TRUE(IpAddress::v4(0x7f010203).is_loopback());
  EXPECT_TRUE(v6("::1").is_loopback());
  EXPECT_FALSE(v6("::2").is_loopback());
  EXPECT_TRUE(IpAddress::v4(0xa9fe0001).is_link_local());
  EXPECT_TRUE(v6("febf::1").is_link_local());
  EXPECT_FALSE(v6("fec0::1").is_link_local());
}

TEST(IpAddress, TakesOnlyTheLengthOfItsFamily) {
  const std::array<std::byte, 16> bytes{};
  EXPECT_TRUE(IpAddress::from_bytes(AF_INET, std::span(bytes).first(4)));
  EXPECT_FALSE(IpAddress::from_bytes(AF_INET, std::span(bytes).first(5)));
  EXPECT_FALSE(IpAddress::from_bytes(AF_INET6, std::span(bytes).first(4)));
  EXPECT_FALSE(IpAddress::from_bytes(AF_UNIX, std::span(bytes).first(4)));
}

TEST(IpAddress, SocketAddressesThereAndBack) {
  const SocketAddress address = v6("fe80::1").with_port(80, 3);
  EXPECT_EQ(address.to_string(), "[fe80::1]:80");
  EXPECT_EQ(address.in6().sin6_scope_id, 3u);
  EXPECT_EQ(IpAddress::of(address), v6("fe80::1"));
  EXPECT_EQ(IpAddress::of(SocketAddress::v4(0x0a000001, 1).mapped()), IpAddress::v4(0x0a000001));
  EXPECT_EQ(IpAddress::of(SocketAddress()), IpAddress());
  EXPECT_EQ(IpAddress::v4(0x0a000001).to_string(), "10.0.0.1");
  EXPECT_EQ(IpAddress().to_string(), "unspecified");
}

TEST(Prefix, ContainsWhatSharesItsBits) {
  const Prefix odd{IpAddress::v4(0xc0000280), 25};
  EXPECT_TRUE(odd.contains(IpAddress::v4(0xc00002ff)));
  EXPECT_FALSE(odd.contains(IpAddress::v4(0xc000027f)));
  const Prefix host{IpAddress::v4(0xc0000201), 32};
  EXPECT_TRUE(host.contains(IpAddress::v4(0xc0000201)));
  EXPECT_FALSE(host.contains(IpAddress::v4(0xc0000202)));
  const Prefix all{IpAddress::wildcard(AF_INET), 0};
  EXPECT_TRUE(all.contains(IpAddress::v4(0xc0000201)));
  EXPECT_FALSE(all.contains(v6("::1")));
  EXPECT_TRUE(Prefix{}.contains(v6("::1")));
  EXPECT_TRUE((Prefix{v6("2001:db8::"), 33}).contains(v6("2001:db8:7fff::1")));
  EXPECT_FALSE((Prefix{v6("2001:db8::"), 33}).contains(v6("2001:db8:8000::1")));
  EXPECT_TRUE((Prefix{v6("2001:db8::1"), 200}).contains(v6("2001:db8::1"))) << "a length nobody should send";
}

TEST(MulticastMac, FollowsTheRfcs) {
  EXPECT_EQ(to_string(multicast_mac(IpAddress::v4(0xe0000001))), "01:00:5e:00:00:01");
  EXPECT_EQ(to_string(multicast_mac(IpAddress::v4(0xefffffff))), "01:00:5e:7f:ff:ff");
  EXPECT_EQ(multicast_mac(IpAddress::v4(0xe0010203)), multicast_mac(IpAddress::v4(0xe0810203)));
  EXPECT_EQ(to_string(multicast_mac(v6("ff02::1:ff12:3456"))), "33:33:ff:12:34:56");
}

TEST(Neighbour, KeepsStateAndMacTogether) {
  const NeighbourFacts facts{NeighbourState::permanent, {0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa}};
  EXPECT_EQ(Neighbour(1, IpAddress::v4(1), facts).facts(), facts);
}

TEST(Neighbour, UsableStates) {
  const auto usable = [](NeighbourState state) { return NeighbourFacts{state, {}}.is_usable(); };
  for (const auto state : {NeighbourState::reachable, NeighbourState::stale, NeighbourState::delay,
                           NeighbourState::probe, NeighbourState::no_arp, NeighbourState::permanent}) {
    EXPECT_TRUE(usable(state)) << static_cast<int>(state);
  }
  for (const auto state : {NeighbourState::none, NeighbourState::incomplete, NeighbourState::failed}) {
    EXPECT_FALSE(usable(state)) << static_cast<int>(state);
  }
}

TEST(InterfaceAddress, OptimisticIsNotTentative) {
  InterfaceAddress address;
  EXPECT_FALSE(address.is_tentative());
  address.flags = IFA_F_TENTATIVE;
  EXPECT_TRUE(address.is_tentative());
  address.flags = IFA_F_TENTATIVE | IFA_F_OPTIMISTIC;
  EXPECT_FALSE(address.is_tentative());
  address.flags |= IFA_F_DADFAILED;
  EXPECT_TRUE(address.is_tentative());
}

}  // namespace
}  // namespace ringsock::net
