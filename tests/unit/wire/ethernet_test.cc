#include "core/wire/ethernet_frame.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/wire/emit.h"

namespace ringsock::wire {
namespace {

constexpr MacAddress kAlice{0x02, 0, 0, 0, 0, 0xa}, kBob{0x02, 0, 0, 0, 0, 0xb};

/// Writes headers into a buffer of exactly their size.
template <class... Headers>
std::vector<std::byte> bytes_of(const Headers&... headers) {
  std::vector<std::byte> out((sizeof headers + ...));
  std::span<std::byte> rest = out;
  ((rest = emit(rest, headers)), ...);
  return out;
}

TEST(Ethernet, FrameIsReadAsItWasWritten) {
  const auto bytes = bytes_of(EthernetHeader{kBob, kAlice, Be16(kEtherTypeIpv4)}, Be32(0x01020304));
  const auto frame = parse_ethernet(bytes);
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->destination, kBob);
  EXPECT_EQ(frame->source, kAlice);
  EXPECT_EQ(frame->type, kEtherTypeIpv4);
  EXPECT_FALSE(frame->vlan_control);
  ASSERT_EQ(frame->payload.size(), 4u);
  EXPECT_EQ(frame->payload[0], std::byte{1});
}

TEST(Ethernet, TagStandsBeforeTheTypeOfThePayload) {
  const auto bytes = bytes_of(EthernetHeader{kBob, kAlice, Be16(kEtherTypeVlan)},
                              VlanTag{Be16(0x6064), Be16(kEtherTypeIpv6)}, Be16(0x6000));
  const auto frame = parse_ethernet(bytes);
  ASSERT_TRUE(frame);
  ASSERT_TRUE(frame->vlan_control);
  EXPECT_EQ(*frame->vlan_control & kVlanIdMask, 100);
  EXPECT_EQ(frame->type, kEtherTypeIpv6);
  EXPECT_EQ(frame->payload.size(), 2u);
}

TEST(Ethernet, EveryTruncationIsRefused) {
  const auto bytes =
      bytes_of(EthernetHeader{kBob, kAlice, Be16(kEtherTypeVlan)}, VlanTag{Be16(1), Be16(kEtherTypeIpv4)});
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const auto frame = parse_ethernet(std::span(bytes).first(length));
    ASSERT_FALSE(frame) << length;
    EXPECT_EQ(frame.error().code, EPROTO);
  }
  EXPECT_TRUE(parse_ethernet(bytes));
}

TEST(MulticastMac, HasTheLowBitsOfTheGroup) {
  EXPECT_EQ(multicast_mac(Be32(0xe0000001)), (MacAddress{0x01, 0x00, 0x5e, 0, 0, 1}));
  // 239.129.2.3 and 239.1.2.3 share an address: the 24th bit is lost.
  EXPECT_EQ(multicast_mac(Be32(0xef810203)), (MacAddress{0x01, 0x00, 0x5e, 1, 2, 3}));
  EXPECT_EQ(multicast_mac(Be32(0xef010203)), multicast_mac(Be32(0xef810203)));
  const std::array<std::uint8_t, 16> all_nodes{0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xde, 0xad, 0, 1};
  EXPECT_EQ(multicast_mac(all_nodes), (MacAddress{0x33, 0x33, 0xde, 0xad, 0, 1}));
  EXPECT_TRUE(is_multicast(multicast_mac(all_nodes)));
  EXPECT_TRUE(is_multicast(kBroadcastMac));
  EXPECT_FALSE(is_multicast(kAlice));
}

}  // namespace
}  // namespace ringsock::wire
