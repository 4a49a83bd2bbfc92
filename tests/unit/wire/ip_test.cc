#include "core/wire/ip.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/wire/emit.h"
#include "core/wire/udp.h"

namespace ringsock::wire {
namespace {

using Bytes = std::vector<std::byte>;

constexpr Be32 kAlice{0xc0a80001}, kBob{0xc0a800c7};
constexpr Ipv6Address kAlice6{0x20, 0x01, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
constexpr Ipv6Address kBob6{0x20, 0x01, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2};

template <class Header>
Bytes bytes_of(const Header& header, const Bytes& behind) {
  Bytes out(sizeof header + behind.size());
  std::ranges::copy(behind, emit(out, header).begin());
  return out;
}

Bytes text(std::string_view characters) {
  const auto bytes = std::as_bytes(std::span(characters));
  return {bytes.begin(), bytes.end()};
}

/// A valid packet with `change` done to its header; the checksum is made to fit again.
template <class Change>
Result<Ipv4Packet> parse_changed(Bytes& storage, Change change, std::size_t behind = 40) {
  Ipv4Header header = make_ipv4_header({.payload_bytes = static_cast<std::uint16_t>(behind),
                                        .protocol = kIpProtocolUdp,
                                        .source = kAlice,
                                        .destination = kBob});
  change(header);
  storage = bytes_of(header, Bytes(behind));
  const std::size_t words = std::min<std::size_t>(header.header_bytes(), storage.size());
  storage[10] = storage[11] = std::byte{0};
  const Be16 checksum = InternetSum().add(std::span(storage).first(words)).checksum();
  std::memcpy(&storage[10], &checksum, sizeof checksum);
  return parse_ipv4(storage);
}

TEST(Ipv4, HeaderHasTheChecksumOfAWellKnownExample) {
  const Ipv4Header header = make_ipv4_header({.payload_bytes = 0x73 - 20,
                                              .fragment = kIpv4DontFragment,
                                              .protocol = kIpProtocolUdp,
                                              .source = kAlice,
                                              .destination = kBob});
  EXPECT_EQ(header.checksum, Be16(0xb861));
}

TEST(Ipv4, PacketIsReadAsItWasWrittenAndPaddingIsLeftOut) {
  const Bytes payload = text("hello");
  auto bytes = bytes_of(make_ipv4_header({.tos = 0x2e,
                                          .payload_bytes = 5,
                                          .identification = 77,
                                          .fragment = kIpv4MoreFragments | 3,
                                          .ttl = 9,
                                          .protocol = kIpProtocolTcp,
                                          .source = kAlice,
                                          .destination = kBob}),
                        payload);
  bytes.resize(46);
  const auto packet = parse_ipv4(bytes);
  ASSERT_TRUE(packet);
  EXPECT_EQ(packet->header.tos, 0x2e);
  EXPECT_EQ(packet->header.identification, Be16(77));
  EXPECT_EQ(packet->header.ttl, 9);
  EXPECT_EQ(packet->header.protocol, kIpProtocolTcp);
  EXPECT_EQ(packet->header.source, kAlice);
  EXPECT_EQ(packet->header.destination, kBob);
  EXPECT_TRUE(packet->header.is_fragment());
  EXPECT_EQ(packet->header.fragment_offset(), 24u);
  EXPECT_TRUE(packet->options.empty());
  EXPECT_TRUE(std::ranges::equal(packet->payload, payload));
}

TEST(Ipv4, WholePacketsAreNoFragments) {
  Bytes storage;
  const auto packet = parse_changed(storage, [](Ipv4Header& header) { header.fragment = Be16(kIpv4DontFragment); });
  ASSERT_TRUE(packet);
  EXPECT_FALSE(packet->header.is_fragment());
}

TEST(Ipv4, WrongChecksumIsToldUnlessTheDeviceHasLooked) {
  auto bytes =
      bytes_of(make_ipv4_header({.payload_bytes = 0, .protocol = 17, .source = kAlice, .destination = kBob}), {});
  bytes[8] ^= std::byte{1};
  const auto packet = parse_ipv4(bytes);
  ASSERT_FALSE(packet);
  EXPECT_EQ(packet.error().code, EBADMSG);
  EXPECT_TRUE(parse_ipv4(bytes, false));
}

TEST(Ipv4, LengthsThatContradictEachOtherAreRefused) {
  Bytes storage;
  const auto refused = [&](auto change) { return !parse_changed(storage, change); };
  EXPECT_FALSE(refused([](Ipv4Header&) {}));
  EXPECT_TRUE(refused([](Ipv4Header& header) { header.version_and_words = 0x65; }));
  EXPECT_TRUE(refused([](Ipv4Header& header) { header.version_and_words = 0x44; }));
  EXPECT_TRUE(refused([](Ipv4Header& header) { header.total_bytes = Be16(61); })) << "more than there is";
  EXPECT_TRUE(refused([](Ipv4Header& header) { header.total_bytes = Be16(19); })) << "less than the header";
  EXPECT_TRUE(refused([](Ipv4Header& header) {
    header.version_and_words = 0x4f;
    header.total_bytes = Be16(59);
  })) << "less than the header with its options";
  EXPECT_TRUE(refused([](Ipv4Header& header) { header.fragment = Be16(0x1fff); })) << "beyond 65535: ping of death";
}

TEST(Ipv4, EveryTruncationIsRefused) {
  const auto bytes =
      bytes_of(make_ipv4_header({.payload_bytes = 8, .protocol = 17, .source = kAlice, .destination = kBob}), Bytes(8));
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(parse_ipv4(std::span(bytes).first(length))) << length;
  }
}

TEST(Ipv4, OptionsStandBetweenHeaderAndPayload) {
  Bytes storage;
  const auto packet = parse_changed(storage, [](Ipv4Header& header) { header.version_and_words = 0x47; });
  ASSERT_TRUE(packet);
  EXPECT_EQ(packet->options.size(), 8u);
  EXPECT_EQ(packet->payload.size(), 32u);
  EXPECT_EQ(packet->payload.data(), storage.data() + 28);
}

TEST(Ipv4Options, MustBeComplete) {
  const auto valid = [](std::initializer_list<int> values) {
    Bytes bytes;
    for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
    return valid_ipv4_options(bytes);
  };
  EXPECT_TRUE(valid({}));
  EXPECT_TRUE(valid({1, 1, 1, 0}));
  EXPECT_TRUE(valid({148, 4, 0, 0}));               // router alert
  EXPECT_TRUE(valid({1, 7, 3, 4, 0, 99, 200, 1}));  // nothing counts behind the end
  EXPECT_FALSE(valid({7}));
  EXPECT_FALSE(valid({7, 0, 0, 0})) << "would never end";
  EXPECT_FALSE(valid({7, 1, 0, 0}));
  EXPECT_FALSE(valid({7, 5, 0, 0}));
}

TEST(Ipv6, PacketIsReadAsItWasWrittenAndPaddingIsLeftOut) {
  const Bytes payload = text("hello");
  auto bytes = bytes_of(make_ipv6_header({.traffic_class = 0xb8,
                                          .flow_label = 0xfedcb,
                                          .payload_bytes = 5,
                                          .next_header = kIpProtocolUdp,
                                          .hop_limit = 3,
                                          .source = kAlice6,
                                          .destination = kBob6}),
                        payload);
  bytes.resize(60);
  EXPECT_EQ(bytes[0], std::byte{0x6b});
  const auto packet = parse_ipv6(bytes);
  ASSERT_TRUE(packet);
  EXPECT_EQ(packet->header.traffic_class(), 0xb8);
  EXPECT_EQ(packet->header.flow_label(), 0xfedcbu);
  EXPECT_EQ(packet->header.next_header, kIpProtocolUdp);
  EXPECT_EQ(packet->header.hop_limit, 3);
  EXPECT_EQ(packet->header.source, kAlice6);
  EXPECT_EQ(packet->header.destination, kBob6);
  EXPECT_TRUE(std::ranges::equal(packet->payload, payload));
}

TEST(Ipv6, TruncationsAndOtherVersionsAreRefused) {
  auto bytes = bytes_of(
      make_ipv6_header({.payload_bytes = 4, .next_header = 17, .source = kAlice6, .destination = kBob6}), Bytes(4));
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(parse_ipv6(std::span(bytes).first(length))) << length;
  }
  bytes[0] = std::byte{0x40};
  EXPECT_FALSE(parse_ipv6(bytes));
}

// -- UDP ------------------------------------------------------------------------------------------

/// A datagram from port 1024 to 53 with its checksum for addresses of type Address.
template <class Address>
Bytes datagram(const Bytes& payload, const Address& source, const Address& destination) {
  const auto length = static_cast<std::uint16_t>(sizeof(UdpHeader) + payload.size());
  UdpHeader header = make_udp_header(Be16(1024), Be16(53), static_cast<std::uint16_t>(payload.size()));
  header.checksum = sent_udp_checksum(pseudo_header_sum(source, destination, kIpProtocolUdp, length)
                                          .add(std::as_bytes(std::span(&header, 1)))
                                          .add(payload));
  return bytes_of(header, payload);
}

TEST(Udp, DatagramIsReadAsItWasWritten) {
  auto bytes = datagram(text("query"), kAlice, kBob);
  bytes.resize(30);  // more than the datagram's own length
  const auto parsed = parse_udp(bytes);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->header.source_port, Be16(1024));
  EXPECT_EQ(parsed->header.destination_port, Be16(53));
  EXPECT_TRUE(std::ranges::equal(parsed->payload, text("query")));
  EXPECT_TRUE(udp_checksum_is_fine(*parsed, pseudo_header_sum(kAlice, kBob, 17, 13), UdpChecksumRule::ipv4));
  EXPECT_FALSE(udp_checksum_is_fine(*parsed, pseudo_header_sum(kAlice, kAlice, 17, 13), UdpChecksumRule::ipv4));
}

TEST(Udp, ChecksumCoversThePseudoHeaderOfIpv6) {
  const auto bytes = datagram(text("odd"), kAlice6, kBob6);
  const auto parsed = parse_udp(bytes);
  ASSERT_TRUE(parsed);
  EXPECT_TRUE(udp_checksum_is_fine(*parsed, pseudo_header_sum(kAlice6, kBob6, 17, 11), UdpChecksumRule::ipv6));
  EXPECT_FALSE(udp_checksum_is_fine(*parsed, pseudo_header_sum(kBob6, kBob6, 17, 11), UdpChecksumRule::ipv6));
}

TEST(Udp, ZeroMeansNoChecksumAndOnlyIpv4MayHaveNone) {
  const Bytes bytes = bytes_of(make_udp_header(Be16(1), Be16(2), 0), {});
  const auto parsed = parse_udp(bytes);
  ASSERT_TRUE(parsed);
  const InternetSum any = pseudo_header_sum(kAlice, kBob, 17, 8);
  EXPECT_TRUE(udp_checksum_is_fine(*parsed, any, UdpChecksumRule::ipv4));
  EXPECT_TRUE(udp_checksum_is_fine(*parsed, any, UdpChecksumRule::partial_ipv4));
  EXPECT_FALSE(udp_checksum_is_fine(*parsed, any, UdpChecksumRule::ipv6));
  EXPECT_FALSE(udp_checksum_is_fine(*parsed, any, UdpChecksumRule::partial_ipv6));
}

TEST(Udp, ChecksumThatComesOutAsZeroIsSentAsAllOnes) {
  EXPECT_EQ(sent_udp_checksum(InternetSum().add(Be16(0xffff))), Be16(0xffff));
  EXPECT_EQ(sent_udp_checksum(InternetSum().add(Be16(0x1234))), Be16(0xedcb));
  // A whole datagram of that kind: the payload is chosen so that everything adds up to 0xffff.
  const InternetSum before = pseudo_header_sum(kAlice, kBob, 17, 10).add(Be16(1024)).add(Be16(53)).add(Be16(10));
  const Be16 payload = before.checksum();
  const Bytes bytes = datagram({std::byte(payload.host() >> 8), std::byte(payload.host() & 0xff)}, kAlice, kBob);
  const auto parsed = parse_udp(bytes);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->header.checksum, Be16(0xffff));
  EXPECT_TRUE(udp_checksum_is_fine(*parsed, pseudo_header_sum(kAlice, kBob, 17, 10), UdpChecksumRule::ipv4));
}

TEST(Udp, SumOfThePseudoHeaderAloneIsFineOnlyWhereNoDeviceFillsInTheRest) {
  UdpHeader header = make_udp_header(Be16(7), Be16(8), 3);
  const InternetSum pseudo = pseudo_header_sum(kAlice, kBob, 17, 11);
  header.checksum = pseudo.folded();
  const Bytes bytes = bytes_of(header, text("abc"));
  const auto parsed = parse_udp(bytes);
  ASSERT_TRUE(parsed);
  EXPECT_TRUE(udp_checksum_is_fine(*parsed, pseudo, UdpChecksumRule::partial_ipv4));
  EXPECT_TRUE(udp_checksum_is_fine(*parsed, pseudo, UdpChecksumRule::partial_ipv6));
  EXPECT_FALSE(udp_checksum_is_fine(*parsed, pseudo, UdpChecksumRule::ipv4));
  EXPECT_FALSE(udp_checksum_is_fine(*parsed, pseudo, UdpChecksumRule::ipv6));
}

TEST(Udp, LengthsThatCannotBeAreRefused) {
  const Bytes good = datagram(text("abcd"), kAlice, kBob);
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(parse_udp(std::span(good).first(length))) << length;
  }
  for (const std::uint8_t length : std::initializer_list<std::uint8_t>{0, 7, 13}) {
    Bytes bytes = good;
    bytes[5] = std::byte{length};
    const auto parsed = parse_udp(bytes);
    ASSERT_FALSE(parsed) << unsigned{length};
    EXPECT_EQ(parsed.error().code, EPROTO);
  }
}

}  // namespace
}  // namespace ringsock::wire
