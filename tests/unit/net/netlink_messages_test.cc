// Messages as no well-meaning kernel sends them.
#include "core/net/netlink_messages.h"

#include <gtest/gtest.h>
#include <linux/if_link.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <netlink/msg.h>
#include <sys/socket.h>

#include <memory>
#include <vector>

#include "core/net/netlink_socket.h"
#include "core/net/route_query.h"

namespace ringsock::net {
namespace {

constexpr std::array<std::uint8_t, 4> kAddress = {192, 0, 2, 1};
constexpr MacAddress kMac = {2, 0, 0, 0, 0, 2};

template <std::size_t Size>
void put(const NetlinkMessage& message, int type, const std::array<std::uint8_t, Size>& bytes) {
  ASSERT_EQ(nla_put(message.get(), type, Size, bytes.data()), 0);
}

NetlinkMessage neighbour_message(std::uint16_t state) {
  ndmsg header{};
  header.ndm_family = AF_INET;
  header.ndm_ifindex = 2;
  header.ndm_state = state;
  NetlinkMessage message = make_message(RTM_NEWNEIGH, 0, header);
  put(message, NDA_DST, kAddress);
  return message;
}

NetlinkMessage link_message(std::uint8_t family) {
  ifinfomsg header{};
  header.ifi_family = family;
  header.ifi_index = 2;
  NetlinkMessage message = make_message(RTM_NEWLINK, 0, header);
  EXPECT_EQ(nla_put_string(message.get(), IFLA_IFNAME, "eth0"), 0);
  EXPECT_EQ(nla_put_u32(message.get(), IFLA_MTU, 1500), 0);
  put(message, IFLA_ADDRESS, kMac);
  nlattr* info = nla_nest_start(message.get(), IFLA_LINKINFO);
  EXPECT_EQ(nla_put_string(message.get(), IFLA_INFO_KIND, "vlan"), 0);
  nlattr* data = nla_nest_start(message.get(), IFLA_INFO_DATA);
  EXPECT_EQ(nla_put_u16(message.get(), IFLA_VLAN_ID, 7), 0);
  nla_nest_end(message.get(), data);
  nla_nest_end(message.get(), info);
  return message;
}

NetlinkMessage route_message() {
  rtmsg header{};
  header.rtm_family = AF_INET;
  header.rtm_dst_len = 32;
  header.rtm_type = RTN_UNICAST;
  NetlinkMessage message = make_message(RTM_NEWROUTE, 0, header);
  put(message, RTA_DST, kAddress);
  EXPECT_EQ(nla_put_u32(message.get(), RTA_OIF, 2), 0);
  put(message, RTA_VIA, std::array<std::uint8_t, 6>{AF_INET, 0, 10, 0, 0, 1});
  nlattr* metrics = nla_nest_start(message.get(), RTA_METRICS);
  EXPECT_EQ(nla_put_u32(message.get(), RTAX_MTU, 1300), 0);
  nla_nest_end(message.get(), metrics);
  return message;
}

/// `message` cut to `length` bytes, in memory that ends there.
std::unique_ptr<std::byte[]> cut(const nlmsghdr& message, std::size_t length) {
  auto bytes = std::make_unique<std::byte[]>(length);
  nlmsghdr header = message;
  header.nlmsg_len = static_cast<std::uint32_t>(length);
  std::memcpy(bytes.get(), &message, length);
  std::memcpy(bytes.get(), &header, sizeof header);
  return bytes;
}

template <class Event>
Event parsed(const NetlinkMessage& message) {
  const auto event = parse_event(*nlmsg_hdr(message.get()));
  EXPECT_TRUE(event && std::holds_alternative<Event>(*event));
  return event ? std::get<Event>(*event) : Event{};
}

TEST(NetlinkMessages, LinkAsItSays) {
  const Link link = parsed<LinkEvent>(link_message(AF_UNSPEC)).link;
  EXPECT_EQ(link.name, "eth0");
  EXPECT_EQ(link.mtu, 1500u);
  EXPECT_EQ(link.mac, kMac);
  EXPECT_EQ(link.kind, LinkKind::vlan);
  EXPECT_EQ(link.vlan, (VlanTag{7, 0x8100}));
}

TEST(NetlinkMessages, BridgesTalkOfPortsNotOfLinks) {
  EXPECT_FALSE(parse_event(*nlmsg_hdr(link_message(AF_BRIDGE).get())));
}

TEST(NetlinkMessages, BondAsItSays) {
  ifinfomsg header{};
  header.ifi_index = 3;
  NetlinkMessage message = make_message(RTM_NEWLINK, 0, header);
  nlattr* info = nla_nest_start(message.get(), IFLA_LINKINFO);
  EXPECT_EQ(nla_put_string(message.get(), IFLA_INFO_KIND, "bond"), 0);
  nlattr* data = nla_nest_start(message.get(), IFLA_INFO_DATA);
  EXPECT_EQ(nla_put_u8(message.get(), IFLA_BOND_MODE, 4), 0);
  EXPECT_EQ(nla_put_u8(message.get(), IFLA_BOND_XMIT_HASH_POLICY, 1), 0);
  EXPECT_EQ(nla_put_u32(message.get(), IFLA_BOND_ACTIVE_SLAVE, 9), 0);
  nla_nest_end(message.get(), data);
  nla_nest_end(message.get(), info);
  const Link link = parsed<LinkEvent>(message).link;
  EXPECT_EQ(link.kind, LinkKind::bond);
  EXPECT_EQ(link.bond, (BondFacts{4, 1, 9}));
}

TEST(NetlinkMessages, UsableNeighbourWithoutEthernetAddressIsNone) {
  const NetlinkMessage without = neighbour_message(NUD_REACHABLE);
  EXPECT_EQ(parsed<NeighbourEvent>(without).facts.state, NeighbourState::none);
  const NetlinkMessage infiniband = neighbour_message(NUD_REACHABLE);
  put(infiniband, NDA_LLADDR, std::array<std::uint8_t, 20>{});
  EXPECT_EQ(parsed<NeighbourEvent>(infiniband).facts.state, NeighbourState::none);
  const NetlinkMessage ethernet = neighbour_message(NUD_REACHABLE);
  put(ethernet, NDA_LLADDR, kMac);
  EXPECT_EQ(parsed<NeighbourEvent>(ethernet).facts, (NeighbourFacts{NeighbourState::reachable, kMac}));
}

TEST(NetlinkMessages, FailureNeedsNoAddress) {
  EXPECT_EQ(parsed<NeighbourEvent>(neighbour_message(NUD_FAILED)).facts.state, NeighbourState::failed);
}

TEST(NetlinkMessages, RouteByAGatewayOfEitherFamily) {
  const PathQuery query{.destination = IpAddress::v4(0xc0000201)};
  const auto answer = parse_route(*nlmsg_hdr(route_message().get()), query);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->path.next_hop, IpAddress::v4(0x0a000001));
  EXPECT_EQ(answer->path.mtu, 1300u);
  EXPECT_EQ(answer->path.oif, 2);
}

TEST(NetlinkMessages, TruncatedAnywhereTheyAreReadWithinTheirBounds) {
  const PathQuery query{.destination = IpAddress::v4(0xc0000201)};
  int understood = 0;
  for (const NetlinkMessage& message :
       {link_message(AF_UNSPEC), neighbour_message(NUD_FAILED), route_message(), link_message(AF_INET6)}) {
    const nlmsghdr& whole = *nlmsg_hdr(message.get());
    for (std::size_t length = sizeof(nlmsghdr); length <= whole.nlmsg_len; ++length) {
      const auto bytes = cut(whole, length);
      const auto& header = *reinterpret_cast<const nlmsghdr*>(bytes.get());
      understood += parse_event(header).has_value();
      understood += parse_route(header, query).has_value();
    }
  }
  EXPECT_GT(understood, 0);
}

TEST(NetlinkMessages, ManyMutationsAreReadWithinTheirBounds) {
  const PathQuery query{.destination = IpAddress::v4(0xc0000201)};
  std::uint32_t random = 12345;
  const auto next = [&random] { return random = random * 1664525 + 1013904223; };
  int understood = 0;
  for (const NetlinkMessage& message : {link_message(AF_UNSPEC), neighbour_message(NUD_FAILED), route_message()}) {
    const nlmsghdr& whole = *nlmsg_hdr(message.get());
    for (int i = 0; i < 20000; ++i) {
      const auto bytes = cut(whole, whole.nlmsg_len);
      for (int j = 0; j < 3; ++j) {
        const std::size_t where = sizeof(nlmsghdr) + (next() >> 8) % (whole.nlmsg_len - sizeof(nlmsghdr));
        bytes[where] = static_cast<std::byte>(next() >> 24);
      }
      const auto& header = *reinterpret_cast<const nlmsghdr*>(bytes.get());
      understood += parse_event(header).has_value();
      understood += parse_route(header, query).has_value();
    }
  }
  EXPECT_GT(understood, 0);
}

TEST(NetlinkMessages, QuestionNeedsADestination) {
  EXPECT_FALSE(make_route_query({}));
  EXPECT_TRUE(make_route_query({.destination = IpAddress::v4(1)}));
}

}  // namespace
}  // namespace ringsock::net
