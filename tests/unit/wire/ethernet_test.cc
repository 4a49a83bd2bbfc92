#include "core/wire/ethernet.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/wire/arp.h"
#include "core/wire/emit.h"

namespace ringsock::wire {
namespace {

constexpr MacAddress kAlice{0x02, 0, 0, 0, 0, 0xa}, kBob{0x02, 0, 0, 0, 0, 0xb};
constexpr Be32 kAliceIp{0x0a000001}, kBobIp{0x0a000002};

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

TEST(Arp, RequestHasTheBytesOfRfc826) {
  const auto bytes = bytes_of(make_arp_request(kAlice, kAliceIp, kBobIp));
  const std::array<std::uint8_t, 28> expected{0,  1, 8, 0, 6, 4, 0, 1, 2, 0, 0,  0, 0, 0xa,
                                              10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2};
  EXPECT_TRUE(std::ranges::equal(bytes, std::as_bytes(std::span(expected))));
}

TEST(Arp, BobAnswersAlice) {
  const auto request = parse_arp(bytes_of(make_arp_request(kAlice, kAliceIp, kBobIp), Be64(0)));  // padded
  ASSERT_TRUE(request);
  const auto reply = parse_arp(bytes_of(make_arp_reply(*request, kBob)));
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->operation, Be16(2));
  EXPECT_EQ(reply->sender_mac, kBob);
  EXPECT_EQ(reply->sender_ip, kBobIp);
  EXPECT_EQ(reply->target_mac, kAlice);
  EXPECT_EQ(reply->target_ip, kAliceIp);
}

TEST(Arp, WhatIsNotIpv4OverEthernetIsRefused) {
  const ArpPacket good = make_arp_request(kAlice, kAliceIp, kBobIp);
  for (std::size_t length = 0; length < sizeof good; ++length) {
    EXPECT_FALSE(parse_arp(std::as_bytes(std::span(&good, 1)).first(length))) << length;
  }
  const auto refused = [&](auto change) {
    ArpPacket packet = good;
    change(packet);
    return !parse_arp(std::as_bytes(std::span(&packet, 1)));
  };
  EXPECT_FALSE(refused([](ArpPacket&) {}));
  EXPECT_TRUE(refused([](ArpPacket& packet) { packet.hardware_type = Be16(32); }));
  EXPECT_TRUE(refused([](ArpPacket& packet) { packet.hardware_bytes = 20; }));
  EXPECT_TRUE(refused([](ArpPacket& packet) { packet.protocol_type = Be16(kEtherTypeIpv6); }));
  EXPECT_TRUE(refused([](ArpPacket& packet) { packet.protocol_bytes = 16; }));
  EXPECT_TRUE(refused([](ArpPacket& packet) { packet.operation = Be16(3); }));
}

}  // namespace
}  // namespace ringsock::wire
