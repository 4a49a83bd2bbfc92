// What the kernel decides about paths, and how soon we know that it decides otherwise.
#include <cerrno>
#include <set>

#include "tests/unit/net/network_namespace.h"

namespace ringsock::net {
namespace {

using Paths = TwoHosts;

TEST_F(Paths, OnLinkDestinationIsItsOwnNextHop) {
  const Path found = path("10.0.0.2");
  EXPECT_EQ(found.type, PathType::unicast);
  EXPECT_EQ(found.oif, v0);
  EXPECT_EQ(found.source, ip("10.0.0.1"));
  EXPECT_EQ(found.next_hop, ip("10.0.0.2"));
  EXPECT_FALSE(found.has_gateway);
  EXPECT_EQ(found.mtu, 1500u);
  EXPECT_EQ(found.hop_limit, 64);
  EXPECT_FALSE(found.kernel_only);
}

TEST_F(Paths, Ipv6Too) {
  const Path found = path("fd00::2");
  EXPECT_EQ(found.type, PathType::unicast);
  EXPECT_EQ(found.oif, v0);
  EXPECT_EQ(found.source, ip("fd00::1"));
  EXPECT_EQ(found.next_hop, ip("fd00::2"));
  EXPECT_EQ(found.mtu, 1500u);
  EXPECT_EQ(found.hop_limit, 64);
}

TEST_F(Paths, TypesOfDestinations) {
  EXPECT_EQ(path("10.0.0.1").type, PathType::local);
  EXPECT_EQ(path("127.0.0.1").type, PathType::local);
  EXPECT_EQ(path("fd00::1").type, PathType::local);
  EXPECT_EQ(path("10.0.0.255").type, PathType::broadcast);
  EXPECT_EQ(path({.destination = ip("255.255.255.255"), .oif = v0}).type, PathType::broadcast);
  EXPECT_EQ(path({.destination = ip("239.1.2.3"), .oif = v0}).type, PathType::multicast);
  EXPECT_EQ(path({.destination = ip("ff02::1"), .oif = v0}).type, PathType::multicast);
}

TEST_F(Paths, RoutesThatSayNoTellWhy) {
  here.run(
      "ip route add unreachable 192.0.2.0/28 && ip route add blackhole 192.0.2.16/28 && "
      "ip route add prohibit 192.0.2.32/28 && ip -6 route add unreachable 2001:db8:1::/48 && "
      "ip -6 route add prohibit 2001:db8:2::/48");
  const auto error_to = [&](const char* destination) {
    const Path found = path(destination);
    EXPECT_EQ(found.type, PathType::unreachable) << destination;
    return found.error;
  };
  EXPECT_EQ(error_to("192.0.2.1"), EHOSTUNREACH);
  EXPECT_EQ(error_to("192.0.2.17"), EINVAL);
  EXPECT_EQ(error_to("192.0.2.33"), EACCES);
  EXPECT_EQ(error_to("198.51.100.1"), ENETUNREACH);
  EXPECT_EQ(error_to("2001:db8:1::1"), EHOSTUNREACH);
  EXPECT_EQ(error_to("2001:db8:2::1"), EACCES);
  EXPECT_EQ(error_to("2001:db8:3::1"), ENETUNREACH);
}

TEST_F(Paths, QuestionWithoutDestinationIsRefused) { EXPECT_EQ(state->path_to({}).error().code, EINVAL); }

TEST_F(Paths, GatewayAndMetricsOfTheRoute) {
  here.run(
      "ip route add 192.0.2.0/24 via 10.0.0.2 mtu lock 1300 advmss 1200 hoplimit 9 initcwnd 20 initrwnd 30 "
      "rto_min 50ms window 65000 quickack 1 features ecn");
  const Path found = path("192.0.2.1");
  EXPECT_EQ(found.next_hop, ip("10.0.0.2"));
  EXPECT_TRUE(found.has_gateway);
  EXPECT_EQ(found.mtu, 1300u);
  EXPECT_TRUE(found.mtu_locked);
  EXPECT_EQ(found.hop_limit, 9);
  EXPECT_EQ(found.tcp, (TcpMetrics{1200, 65000, 20, 30, 50, 1, true}));
}

TEST_F(Paths, RouteMtuAboveTheLinksIsCutToIt) {
  here.run("ip route add 192.0.2.0/24 via 10.0.0.2 mtu 9000");
  EXPECT_EQ(path("192.0.2.1").mtu, 1500u);
}

TEST_F(Paths, DefaultHopLimitIsTheNamespaces) {
  here.set("ipv4/ip_default_ttl", "77");
  EXPECT_EQ(path("10.0.0.2").hop_limit, 77);
}

TEST_F(Paths, SourceIsTheRoutesOrTheQuestions) {
  here.run("ip addr add 10.0.0.9/24 dev v0 && ip route add 192.0.2.0/24 via 10.0.0.2 src 10.0.0.9");
  EXPECT_EQ(path("192.0.2.1").source, ip("10.0.0.9"));
  EXPECT_EQ(path({.destination = ip("192.0.2.1"), .source = ip("10.0.0.1")}).source, ip("10.0.0.1"));
  EXPECT_EQ(path({.destination = ip("fd00::2"), .source = ip("fd00::1")}).source, ip("fd00::1"));
}

TEST_F(Paths, Ipv4DestinationThroughAnIpv6NextHop) {
  here.run("ip route add 192.0.2.0/24 via inet6 fd00::2 dev v0");
  const Path found = path("192.0.2.1");
  EXPECT_EQ(found.next_hop, ip("fd00::2"));
  EXPECT_TRUE(found.has_gateway);
  EXPECT_EQ(found.source, ip("10.0.0.1"));
  EXPECT_EQ(found.hop_limit, 64);
}

TEST_F(Paths, EncapsulatedOnesAreTheKernels) {
  if (!here.try_to("ip -6 route add 2001:db8:9::/64 encap seg6 mode encap segs fd00::2 dev v0")) {
    GTEST_SKIP() << "the kernel has no segment routing";
  }
  EXPECT_TRUE(path("2001:db8:9::1").kernel_only);
  EXPECT_FALSE(path("fd00::2").kernel_only);
}

TEST_F(Paths, IpsecPoliciesMakeAllOfThemTheKernels) {
  EXPECT_FALSE(path("10.0.0.2").kernel_only);
  const auto before = state->generation();
  if (!here.try_to("ip xfrm policy add src 0.0.0.0/0 dst 192.0.2.0/24 dir out tmpl proto esp mode transport")) {
    GTEST_SKIP() << "the kernel has no XFRM";
  }
  EXPECT_TRUE(wait_until(*state, [&] { return path("10.0.0.2").kernel_only; }));
  EXPECT_GT(state->generation(), before);
  here.run("ip xfrm policy flush");
  EXPECT_TRUE(wait_until(*state, [&] { return !path("10.0.0.2").kernel_only; }));
}

// -- rules

class Rules : public TwoHosts {
 protected:
  void SetUp() override {
    TwoHosts::SetUp();
    if (IsSkipped()) return;
    here.run("ip addr add 10.0.0.9/24 dev v0");
    here.run("ip route add 192.0.2.0/24 via 10.0.0.2");
    here.run("ip route add 192.0.2.0/24 via 10.0.0.3 table 100");
    here.run("ip -6 route add 2001:db8::/64 via fd00::2 && ip -6 route add 2001:db8::/64 via fd00::3 table 100");
  }
  /// Whether table 100 decides.
  bool is_by_rule(const PathQuery& query) { return path(query).next_hop == ip("10.0.0.3"); }
};

TEST_F(Rules, Mark) {
  here.run("ip rule add fwmark 0x5 table 100");
  EXPECT_TRUE(is_by_rule({.destination = ip("192.0.2.1"), .mark = 5}));
  EXPECT_FALSE(is_by_rule({.destination = ip("192.0.2.1"), .mark = 4}));
}

TEST_F(Rules, SourceAndDestination) {
  here.run("ip rule add from 10.0.0.9 to 192.0.2.0/25 table 100");
  EXPECT_TRUE(is_by_rule({.destination = ip("192.0.2.1"), .source = ip("10.0.0.9")}));
  EXPECT_FALSE(is_by_rule({.destination = ip("192.0.2.1"), .source = ip("10.0.0.1")}));
  EXPECT_FALSE(is_by_rule({.destination = ip("192.0.2.200"), .source = ip("10.0.0.9")}));
}

TEST_F(Rules, Tos) {
  here.run("ip rule add tos 0x10 table 100");
  EXPECT_TRUE(is_by_rule({.destination = ip("192.0.2.1"), .tos = 0x10}));
  EXPECT_TRUE(is_by_rule({.destination = ip("192.0.2.1"), .tos = 0x12})) << "ECN bits do not matter";
  EXPECT_FALSE(is_by_rule({.destination = ip("192.0.2.1"), .tos = 0}));
}

TEST_F(Rules, User) {
  here.run("ip rule add uidrange 1000-1999 table 100");
  EXPECT_TRUE(is_by_rule({.destination = ip("192.0.2.1"), .uid = 1500}));
  EXPECT_FALSE(is_by_rule({.destination = ip("192.0.2.1"), .uid = 0}));
}

TEST_F(Rules, ProtocolAndPorts) {
  here.run("ip rule add ipproto udp sport 5000-5009 dport 53 table 100");
  const PathQuery dns{
      .destination = ip("192.0.2.1"), .protocol = IPPROTO_UDP, .source_port = 5001, .destination_port = 53};
  EXPECT_TRUE(is_by_rule(dns));
  PathQuery other = dns;
  other.destination_port = 54;
  EXPECT_FALSE(is_by_rule(other));
  other = dns;
  other.source_port = 6000;
  EXPECT_FALSE(is_by_rule(other));
  other = dns;
  other.protocol = IPPROTO_TCP;
  EXPECT_FALSE(is_by_rule(other));
}

TEST_F(Rules, PortsMatterFromTheFirstRuleThatNamesThemOn) {
  const PathQuery dns{
      .destination = ip("192.0.2.1"), .protocol = IPPROTO_UDP, .source_port = 5001, .destination_port = 53};
  EXPECT_FALSE(path(dns).depends_on_ports);
  EXPECT_FALSE(is_by_rule(dns));
  here.run("ip rule add ipproto udp dport 53 table 100");
  EXPECT_TRUE(wait_until(*state, [&] { return is_by_rule(dns); }));
  EXPECT_TRUE(path(dns).depends_on_ports);
  PathQuery other = dns;
  other.destination_port = 54;
  EXPECT_FALSE(is_by_rule(other));
  here.run("ip rule delete ipproto udp dport 53 table 100");
  EXPECT_TRUE(wait_until(*state, [&] { return !is_by_rule(dns); }));
  EXPECT_FALSE(path(dns).depends_on_ports);
}

TEST_F(Rules, OutgoingInterfaceOfABoundSocket) {
  here.run("ip rule add oif v0 table 100");
  EXPECT_TRUE(is_by_rule({.destination = ip("192.0.2.1"), .oif = v0}));
  EXPECT_FALSE(is_by_rule({.destination = ip("192.0.2.1")}));
}

TEST_F(Rules, Ipv6) {
  here.run("ip -6 rule add fwmark 7 dport 443 ipproto tcp table 100");
  const PathQuery web{.destination = ip("2001:db8::1"), .mark = 7, .protocol = IPPROTO_TCP, .destination_port = 443};
  EXPECT_EQ(path(web).next_hop, ip("fd00::3"));
  EXPECT_EQ(path("2001:db8::1").next_hop, ip("fd00::2"));
}

TEST_F(Rules, NewAndDeletedOnesCountAtOnce) {
  EXPECT_FALSE(is_by_rule({.destination = ip("192.0.2.1")}));
  const auto before = state->generation();
  here.run("ip rule add to 192.0.2.1 table 100");
  EXPECT_TRUE(wait_until(*state, [&] { return is_by_rule({.destination = ip("192.0.2.1")}); }));
  EXPECT_GT(state->generation(), before);
  here.run("ip rule del to 192.0.2.1 table 100");
  EXPECT_TRUE(wait_until(*state, [&] { return !is_by_rule({.destination = ip("192.0.2.1")}); }));
}

// -- live updates

TEST_F(Paths, DeletedRouteIsForgotten) {
  here.run("ip route add 192.0.2.0/24 via 10.0.0.2");
  EXPECT_EQ(path("192.0.2.1").type, PathType::unicast);
  const auto before = state->generation();
  here.run("ip route del 192.0.2.0/24");
  EXPECT_TRUE(wait_until(*state, [&] { return state->generation() > before; }));
  EXPECT_EQ(path("192.0.2.1").error, ENETUNREACH);
}

TEST_F(Paths, RoutesToOthersDisturbNobody) {
  here.run("ip route add 192.0.2.0/24 via 10.0.0.2");
  path("192.0.2.1");
  ASSERT_TRUE(wait_until(*state, [&] { return path("192.0.2.1").has_gateway; }));
  state->process_events();
  path("192.0.2.1");
  const auto before = state->generation();
  here.run("ip route add 198.51.100.0/24 via 10.0.0.2");
  here.run("ip route add 192.0.2.128/25 via 10.0.0.3");
  here.run("ip link set v0 mtu 1400");  // the last event tells that the others were taken
  EXPECT_TRUE(wait_until(*state, [&] { return state->link(v0)->mtu == 1400; }));
  EXPECT_EQ(state->generation(), before + 1);
}

TEST_F(Paths, AMoreSpecificRouteTakesOver) {
  here.run("ip route add 192.0.2.0/24 via 10.0.0.2");
  EXPECT_EQ(path("192.0.2.1").next_hop, ip("10.0.0.2"));
  here.run("ip route add 192.0.2.0/25 via 10.0.0.3");
  EXPECT_TRUE(wait_until(*state, [&] { return path("192.0.2.1").next_hop == ip("10.0.0.3"); }));
}

TEST_F(Paths, LinkThatGoesDownTakesItsRoutesAlong) {
  EXPECT_EQ(path("10.0.0.2").type, PathType::unicast);
  here.run("ip link set v0 down");
  EXPECT_TRUE(wait_until(*state, [&] { return path("10.0.0.2").type == PathType::unreachable; }));
}

TEST_F(Paths, MtuOfTheLinkCounts) {
  EXPECT_EQ(path("10.0.0.2").mtu, 1500u);
  EXPECT_EQ(path("fd00::2").mtu, 1500u);
  here.run("ip link set v0 mtu 1400");
  EXPECT_TRUE(wait_until(*state, [&] { return path("10.0.0.2").mtu == 1400 && path("fd00::2").mtu == 1400; }));
}

TEST_F(Paths, Ipv6MtuAndHopLimitOfTheInterfaceCount) {
  here.set("ipv6/conf/v0/mtu", "1350");
  here.set("ipv6/conf/v0/hop_limit", "33");
  // The kernel tells of these with the next message about the link.
  here.run("ip link set v0 promisc on");
  EXPECT_TRUE(wait_until(*state, [&] { return path("fd00::2").hop_limit == 33; }));
  EXPECT_EQ(path("fd00::2").mtu, 1350u);
  EXPECT_EQ(path("10.0.0.2").mtu, 1500u);
}

TEST_F(Paths, AddressThatComesOrGoesChangesTheSource) {
  here.run("ip route add 192.0.2.0/24 dev v0");
  EXPECT_EQ(path("192.0.2.1").source, ip("10.0.0.1"));
  here.run("ip addr del 10.0.0.1/24 dev v0 && ip addr add 10.0.0.7/24 dev v0 && ip route replace 192.0.2.0/24 dev v0");
  EXPECT_TRUE(wait_until(*state, [&] { return path("192.0.2.1").source == ip("10.0.0.7"); }));
}

TEST_F(Paths, InterfaceMadeJustNowIsKnown) {
  here.run(
      "ip link add v2 mtu 1234 type veth peer name v3 && ip addr add 10.1.0.1/24 dev v2 && ip link set v2 up && "
      "ip link set v3 up");
  EXPECT_EQ(path("10.1.0.2").mtu, 1234u) << "without processing events";
}

TEST_F(Paths, NexthopObjectThatIsReplaced) {
  if (!here.try_to("ip nexthop add id 10 via 10.0.0.2 dev v0")) GTEST_SKIP() << "the kernel has no nexthop objects";
  here.run("ip route add 192.0.2.0/24 nhid 10");
  EXPECT_EQ(path("192.0.2.1").next_hop, ip("10.0.0.2"));
  here.run("ip nexthop replace id 10 via 10.0.0.3 dev v0");
  EXPECT_TRUE(wait_until(*state, [&] { return path("192.0.2.1").next_hop == ip("10.0.0.3"); }));
}

// -- multipath

class Multipath : public TwoHosts {
 protected:
  void SetUp() override {
    TwoHosts::SetUp();
    if (IsSkipped()) return;
    here.run("ip link add w0 type veth peer name w1 netns " + there.name());
    here.run("ip addr add 10.1.0.1/24 dev w0 && ip addr add fd01::1/64 dev w0 nodad && ip link set w0 up");
    there.run("ip addr add 10.1.0.2/24 dev w1 && ip addr add fd01::2/64 dev w1 nodad && ip link set w1 up");
    here.set("ipv4/fib_multipath_hash_policy", "1");
    here.set("ipv6/fib_multipath_hash_policy", "1");
    here.run("ip route add 192.0.2.0/24 nexthop via 10.0.0.2 weight 3 nexthop via 10.1.0.2 weight 1");
    here.run("ip -6 route add 2001:db8::/64 nexthop via fd00::2 weight 3 nexthop via fd01::2 weight 1");
  }

  static PathQuery flow(const std::string& destination, std::uint16_t source_port) {
    return {
        .destination = ip(destination), .protocol = IPPROTO_UDP, .source_port = source_port, .destination_port = 7777};
  }

  /// The source address that the kernel gives a connected socket of this flow: it shows the interface it chose.
  IpAddress kernels_source(const PathQuery& query) {
    const int family = query.destination.family();
    const UniqueFd socket = here.socket(family);
    const SocketAddress local = SocketAddress::wildcard(family, query.source_port);
    const SocketAddress remote = query.destination.with_port(query.destination_port);
    EXPECT_EQ(::bind(socket.get(), local.get(), local.length()), 0);
    EXPECT_EQ(::connect(socket.get(), remote.get(), remote.length()), 0);
    sockaddr_storage name{};
    socklen_t length = sizeof name;
    EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&name), &length), 0);
    return IpAddress::of(*SocketAddress::from(reinterpret_cast<const sockaddr*>(&name), length));
  }

  void expect_the_kernels_choice(const std::string& destination) {
    int first = 0;
    constexpr int kFlows = 100;
    for (std::uint16_t i = 0; i < kFlows; ++i) {
      const PathQuery query = flow(destination, static_cast<std::uint16_t>(20000 + i));
      const Path found = path(query);
      EXPECT_EQ(found.source, kernels_source(query)) << query.source_port;
      first += found.oif == v0;
    }
    // Three of four flows, give or take.
    EXPECT_GT(first, kFlows / 2);
    EXPECT_LT(first, kFlows);
  }
};

TEST_F(Multipath, EveryFlowGoesWhereTheKernelWouldSendIt) { expect_the_kernels_choice("192.0.2.1"); }

TEST_F(Multipath, EveryIpv6FlowToo) { expect_the_kernels_choice("2001:db8::1"); }

TEST_F(Multipath, FlowsShareAPathWhileTheKernelDistributesByAddressesAlone) {
  EXPECT_TRUE(path(flow("192.0.2.1", 20000)).depends_on_ports);
  const auto before = state->generation();
  here.set("ipv4/fib_multipath_hash_policy", "0");
  EXPECT_TRUE(wait_until(*state, [&] { return !path(flow("192.0.2.1", 20000)).depends_on_ports; }));
  EXPECT_GT(state->generation(), before);
  const Path shared = path(flow("192.0.2.1", 20000));
  for (std::uint16_t port = 20001; port < 20050; ++port) EXPECT_EQ(path(flow("192.0.2.1", port)), shared);
  EXPECT_EQ(shared.source, kernels_source(flow("192.0.2.1", 20000)));
  EXPECT_TRUE(path(flow("2001:db8::1", 20000)).depends_on_ports);  // the other version has a policy of its own
}

TEST_F(Multipath, FlowsLeaveALinkThatGoesDown) {
  std::set<int> links;
  const auto look = [&] {
    links.clear();
    for (std::uint16_t port = 20000; port < 20050; ++port) links.insert(path(flow("192.0.2.1", port)).oif);
    return links.size();
  };
  EXPECT_EQ(look(), 2u);
  here.run("ip link set w0 down");
  EXPECT_TRUE(wait_until(*state, [&] { return look() == 1; }));
  EXPECT_EQ(*links.begin(), v0);
}

}  // namespace
}  // namespace ringsock::net
