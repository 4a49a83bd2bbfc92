// The headers of datagram rsockets, byte by byte as in the fact sheet, 3.2 and 3.4.
#include "core/wire/rs_datagram.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <vector>

namespace ringsock::wire {
namespace {

std::vector<std::uint8_t> bytes_of(const RsHeaderBytes& header) {
  std::vector<std::uint8_t> out(header.length);
  std::memcpy(out.data(), header.room.data(), out.size());
  return out;
}

std::span<const std::byte> view(const std::vector<std::uint8_t>& bytes) { return std::as_bytes(std::span(bytes)); }

SocketAddress v6(const char* text, std::uint16_t port) {
  in6_addr host{};
  EXPECT_EQ(inet_pton(AF_INET6, text, &host), 1);
  return SocketAddress::v6(host, port);
}

const SocketAddress kAlice4 = SocketAddress::v4(0x0a010203, 0x1c06);

const std::vector<std::uint8_t> kData4 = {0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0xab, 0xcd, 0xef, 10, 1, 2, 3};
const std::vector<std::uint8_t> kControl6 = {0x55, 0x55, 0x55, 0x55, 6, 7, 28, 0,  // tag, version, op, length, 0
                                             0,    0,    0x12, 0x34,               // QPN
                                             0,    0,    0,    0,                  // flow information
                                             0x20, 0x01, 0x0d, 0xb8, 0, 0, 0,  0, 0, 0, 0, 0};  // 12 bytes of it

TEST(RsUdpHeader, HasTheBytesOfTheOriginal) {
  EXPECT_EQ(bytes_of(emit_rs_udp(RsUdpOp::data, 0xabcdef, kAlice4)), kData4);
  EXPECT_EQ(bytes_of(emit_rs_udp(RsUdpOp::control, 0x1234, v6("2001:db8::77", 9))), kControl6);
}

TEST(RsUdpHeader, IsReadWithThePayloadBehindIt) {
  auto packet = kData4;
  packet.insert(packet.end(), {'h', 'i'});
  const auto parsed = parse_rs_udp(view(packet), kAlice4);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->op, RsUdpOp::data);
  EXPECT_EQ(parsed->qp_number, 0xabcdefu);
  ASSERT_EQ(parsed->payload.size(), 2u);
  EXPECT_EQ(parsed->payload[1], std::byte{'i'});
}

TEST(RsUdpHeader, OfAControlPacketHasNoPayload) {
  auto packet = kControl6;
  packet.push_back(1);
  const auto parsed = parse_rs_udp(view(packet), v6("2001:db8::77", 9));
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->op, RsUdpOp::control);
  EXPECT_TRUE(parsed->payload.empty());
}

TEST(RsUdpHeader, HasAQueuePairNumberOf24Bits) {
  auto packet = kData4;
  packet[8] = 0xff;
  EXPECT_EQ(parse_rs_udp(view(packet), kAlice4)->qp_number, 0xabcdefu);
}

TEST(RsUdpHeader, MustBeOfTheSendersFamily) {
  EXPECT_FALSE(parse_rs_udp(view(kData4), v6("2001:db8::77", 9)));
  EXPECT_FALSE(parse_rs_udp(view(kControl6), kAlice4));
  // A dual-stack socket sees an IPv4 sender as a mapped address; rdma-core's writes version 6 to such addresses.
  EXPECT_TRUE(parse_rs_udp(view(kData4), kAlice4.mapped()));
  EXPECT_TRUE(parse_rs_udp(view(kControl6), kAlice4.mapped()));
}

TEST(RsUdpHeader, RefusesEveryTruncationAndEveryWrongByte) {
  const SocketAddress six = v6("2001:db8::77", 9);
  for (std::size_t length = 0; length < kData4.size(); ++length) {
    EXPECT_FALSE(parse_rs_udp(view(kData4).first(length), kAlice4)) << length;
  }
  for (std::size_t length = 0; length < kControl6.size(); ++length) {
    EXPECT_FALSE(parse_rs_udp(view(kControl6).first(length), six)) << length;
  }
  for (std::size_t place = 0; place < 7; ++place) {
    auto wrong = kData4;
    wrong[place] ^= 0x40;
    const auto parsed = parse_rs_udp(view(wrong), kAlice4);
    ASSERT_FALSE(parsed) << place;
    EXPECT_EQ(parsed.error().code, EPROTO);
  }
}

const std::vector<std::uint8_t> kUd4 = {4, 8, 0x1c, 0x06, 10, 1, 2, 3};
const std::vector<std::uint8_t> kUd6 = {6,    24,   0,    9,    0, 0, 0, 0,                              // port, flow
                                        0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x77};  // address

TEST(RsUdHeader, HasTheBytesOfTheOriginal) {
  EXPECT_EQ(bytes_of(emit_rs_ud(kAlice4)), kUd4);
  EXPECT_EQ(bytes_of(emit_rs_ud(v6("2001:db8::77", 9))), kUd6);
}

TEST(RsUdHeader, TellsTheSource) {
  auto datagram = kUd4;
  datagram.push_back('x');
  const auto four = parse_rs_ud(view(datagram));
  ASSERT_TRUE(four);
  EXPECT_EQ(four->source, kAlice4);
  EXPECT_EQ(four->payload.size(), 1u);
  const auto six = parse_rs_ud(view(kUd6));
  ASSERT_TRUE(six);
  EXPECT_EQ(six->source, v6("2001:db8::77", 9));
  EXPECT_TRUE(six->payload.empty());
}

TEST(RsUdHeader, ThatIsLongerThanItsDatagramIsRefused) {
  for (std::size_t length = 0; length < kUd4.size(); ++length) EXPECT_FALSE(parse_rs_ud(view(kUd4).first(length)));
  for (std::size_t length = 0; length < kUd6.size(); ++length) EXPECT_FALSE(parse_rs_ud(view(kUd6).first(length)));
}

TEST(RsUdHeader, RefusesOtherVersionsAndLengths) {
  for (const auto& [version, length] : std::initializer_list<std::pair<std::uint8_t, std::uint8_t>>{
           {4, 24}, {6, 8}, {4, 9}, {5, 8}, {0, 0}, {255, 255}}) {
    auto wrong = kUd6;
    wrong[0] = version;
    wrong[1] = length;
    const auto parsed = parse_rs_ud(view(wrong));
    ASSERT_FALSE(parsed) << int{version} << " " << int{length};
    EXPECT_EQ(parsed.error().code, EPROTO);
  }
}

TEST(RsDatagram, FitsIntoASlotOf2048Bytes) {
  EXPECT_EQ(max_rs_datagram(AF_INET), 2040u);
  EXPECT_EQ(max_rs_datagram(AF_INET6), 2024u);
}

}  // namespace
}  // namespace ringsock::wire
