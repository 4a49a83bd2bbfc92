#include "core/wire/tcp.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/wire/emit.h"
#include "core/wire/ip.h"

namespace ringsock::wire {
namespace {

/// A segment with 12 bytes of options and "hello!" behind them, its checksum left to a device.
std::vector<std::byte> segment(const InternetSum& pseudo_header) {
  TcpHeader header = make_tcp_header(12, pseudo_header);
  header.source_port = Be16(80);
  header.destination_port = Be16(40000);
  header.sequence = Be32(0xfffffff0);
  header.acknowledgement = Be32(7);
  header.flags = 0x18;
  header.window = Be16(500);
  std::vector<std::byte> out(sizeof header + 12, std::byte{1});
  emit(out, header);
  for (const char letter : {'h', 'e', 'l', 'l', 'o', '!'}) out.push_back(static_cast<std::byte>(letter));
  return out;
}

InternetSum between_hosts() { return pseudo_header_sum(Be32(0x0a000001), Be32(0x0a000002), kIpProtocolTcp, 38); }

TEST(Tcp, AParsedSegmentHasTheFieldsThatWereEmitted) {
  const auto bytes = segment(between_hosts());
  const auto read = parse_tcp(bytes);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->header.destination_port.host(), 40000);
  EXPECT_EQ(read->header.sequence.host(), 0xfffffff0);
  EXPECT_EQ(read->header.flags, 0x18);
  EXPECT_EQ(read->options.size(), 12U);
  EXPECT_EQ(read->payload.size(), 6U);
  EXPECT_EQ(read->payload[5], std::byte{'!'});
}

TEST(Tcp, EveryTruncationOfTheHeaderIsRefused) {
  const auto bytes = segment(between_hosts());
  for (std::size_t length = 0; length < 32; ++length) EXPECT_FALSE(parse_tcp(std::span(bytes).first(length))) << length;
  EXPECT_TRUE(parse_tcp(std::span(bytes).first(32)));
}

TEST(Tcp, AHeaderShorterThanItsFixedPartIsRefused) {
  auto bytes = segment(between_hosts());
  for (const int words : {0, 1, 4}) {
    bytes[12] = static_cast<std::byte>(words << 4);
    EXPECT_FALSE(parse_tcp(bytes)) << words;
  }
}

TEST(Tcp, APartialChecksumIsFineOnlyWhereDevicesCompleteIt) {
  const auto bytes = segment(between_hosts());
  EXPECT_TRUE(tcp_checksum_is_fine(*parse_tcp(bytes), between_hosts(), true));
  EXPECT_FALSE(tcp_checksum_is_fine(*parse_tcp(bytes), between_hosts(), false));
}

TEST(Tcp, WhatADeviceMakesOfAPartialChecksumIsFineAndAChangedBitIsNot) {
  auto bytes = segment(between_hosts());
  // The device sums header and payload, with the sum of the pseudo header that is in the field.
  const Be16 complete = InternetSum().add(bytes).checksum();
  std::memcpy(bytes.data() + offsetof(TcpHeader, checksum), &complete, sizeof complete);
  EXPECT_TRUE(tcp_checksum_is_fine(*parse_tcp(bytes), between_hosts(), false));
  bytes[33] ^= std::byte{4};
  EXPECT_FALSE(tcp_checksum_is_fine(*parse_tcp(bytes), between_hosts(), true));
}

}  // namespace
}  // namespace ringsock::wire
