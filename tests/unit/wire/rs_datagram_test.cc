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

// -- what ringsock adds

TEST(RsUdpNote, IsTheByteThatTheOriginalSendsAsZero) {
  const RsUdpNote all{.is_on_ethernet = true, .takes_large = true, .asks = true, .knows = true, .mtu = 5};
  EXPECT_EQ(emit_rs_note({}), 0);
  EXPECT_EQ(emit_rs_note(all), 0x5f);
  EXPECT_EQ(parse_rs_note(0x5f), all);
  EXPECT_EQ(emit_rs_note({.is_shared = true}), 0x80);
  EXPECT_EQ(parse_rs_note(0x80), RsUdpNote{.is_shared = true});
  auto packet = kData4;
  packet[7] = 0x32;
  EXPECT_EQ(bytes_of(emit_rs_udp(RsUdpOp::data, 0xabcdef, kAlice4, {.takes_large = true, .mtu = 3})), packet);
  EXPECT_EQ(parse_rs_udp(view(packet), kAlice4)->note, (RsUdpNote{.takes_large = true, .mtu = 3}));
  EXPECT_EQ(parse_rs_udp(view(kData4), kAlice4)->note, RsUdpNote{});
}

TEST(RsUdpNote, TellsOfEveryMtu) {
  EXPECT_EQ(mtu_bytes(1), 256u);
  EXPECT_EQ(mtu_bytes(3), 1024u);
  EXPECT_EQ(mtu_bytes(5), 4096u);
  EXPECT_EQ(mtu_bytes(0), 256u);
  EXPECT_EQ(mtu_bytes(7), 4096u);
}

RsFragment fragment(std::uint32_t total, std::uint16_t index, std::uint16_t piece) {
  return {Be32(0x01020304), Be32(total), Be16(index), Be16(piece)};
}

std::vector<std::uint8_t> piece_of(const SocketAddress& source, const RsFragment& what, std::size_t bytes) {
  auto out = bytes_of(emit_rs_fragment(emit_rs_ud(source), what));
  out.resize(out.size() + bytes, 'x');
  return out;
}

TEST(RsFragment, LiesBehindTheHeaderOfADatagram) {
  const std::vector<std::uint8_t> four = {0x44, 20, 0x1c, 0x06, 10, 1, 2, 3,  // the header
                                          1,    2,  3,    4,                  // the datagram's number
                                          0,    0,  0x07, 0xd0,               // 2000 bytes
                                          0,    1,  0x03, 0xe8};              // the second piece of 1000
  EXPECT_EQ(bytes_of(emit_rs_fragment(emit_rs_ud(kAlice4), fragment(2000, 1, 1000))), four);
  const auto parsed = parse_rs_fragment(view(piece_of(kAlice4, fragment(2000, 1, 1000), 1000)));
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->source, kAlice4);
  EXPECT_EQ(parsed->datagram, 0x01020304u);
  EXPECT_EQ(parsed->total_bytes, 2000u);
  EXPECT_EQ(parsed->piece_bytes, 1000u);
  EXPECT_EQ(parsed->index, 1u);
  EXPECT_EQ(parsed->payload.size(), 1000u);
  const SocketAddress six = v6("2001:db8::77", 9);
  EXPECT_EQ(parse_rs_fragment(view(piece_of(six, fragment(300, 2, 128), 44)))->source, six);
}

TEST(RsFragment, IsNoDatagramForTheOriginal) {
  const auto bytes = piece_of(kAlice4, fragment(2000, 1, 1000), 1000);
  EXPECT_FALSE(parse_rs_ud(view(bytes)));
  EXPECT_TRUE(is_rs_fragment(view(bytes)));
  EXPECT_FALSE(is_rs_fragment(view(kUd4)));
  EXPECT_FALSE(is_rs_fragment({}));
  EXPECT_FALSE(parse_rs_fragment(view(kUd4)));
  EXPECT_FALSE(parse_rs_fragment(view(kUd6)));
}

TEST(RsFragment, ThatIsCutOrOfAnotherVersionIsRefused) {
  const auto whole = piece_of(kAlice4, fragment(300, 2, 128), 44);
  ASSERT_TRUE(parse_rs_fragment(view(whole)));
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_FALSE(parse_rs_fragment(view(whole).first(length))) << length;
  for (const int version : {0x04, 0x45, 0x46, 0x40, 0xc4, 0xff}) {
    auto wrong = whole;
    wrong[0] = static_cast<std::uint8_t>(version);
    EXPECT_FALSE(parse_rs_fragment(view(wrong))) << version;
  }
  for (int length = 0; length < 256; ++length) {
    auto wrong = whole;
    wrong[1] = static_cast<std::uint8_t>(length);
    EXPECT_EQ(static_cast<bool>(parse_rs_fragment(view(wrong))), length == 20) << length;
  }
}

TEST(RsFragment, ThatDoesNotFitItsPlaceIsRefused) {
  struct Case {
    RsFragment what;
    std::size_t bytes;
    const char* why;
  };
  for (const Case& one :
       {Case{fragment(2000, 1, 1000), 999, "shorter than its place"}, Case{fragment(2000, 1, 1000), 1001, "longer"},
        Case{fragment(2000, 2, 1000), 1000, "behind the end"},
        Case{fragment(2000, 65535, 1000), 1000, "far behind the end"},
        Case{fragment(1500, 1, 1000), 1000, "beyond the end"}, Case{fragment(0, 0, 1000), 0, "nothing"},
        Case{fragment(2000, 0, 0), 0, "pieces of nothing"},
        Case{fragment(200, 0, 127), 127, "pieces of fewer bytes than anybody sends"},
        Case{fragment(60000, 0, 4097), 4097, "larger than a packet"},
        Case{fragment(kMaxRsLarge + 1, 0, 1000), 1000, "larger than a datagram"},
        Case{fragment(0xffffffff, 0, 1000), 1000, "larger than memory"}}) {
    const auto parsed = parse_rs_fragment(view(piece_of(kAlice4, one.what, one.bytes)));
    ASSERT_FALSE(parsed) << one.why;
    EXPECT_EQ(parsed.error().code, EPROTO) << one.why;
  }
}

TEST(RsDatagram, FitsIntoASlotOf2048Bytes) {
  EXPECT_EQ(max_rs_datagram(AF_INET), 2040u);
  EXPECT_EQ(max_rs_datagram(AF_INET6), 2024u);
}

}  // namespace
}  // namespace ringsock::wire
