#include "core/wire/rs_connect.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace ringsock::wire {
namespace {

/// The default little-endian client of the fact sheet, section 2.2: RQ 384, a receive ring of 131072 bytes.
const std::array<std::uint8_t, 40> kDefaultClient = {
    0x01, 0x02, 0x01, 0x80, 0x00, 0x00, 0x00, 0x00,                          // version, flags, credits, reserved, iomap
    0x00, 0x00, 0x7f, 0x12, 0x34, 0x56, 0x70, 0x00, 0x00, 0x00, 0xab, 0xcd,  // SGL address, key
    0x00, 0x00, 0x00, 0x02,                                                  // entries
    0x00, 0x00, 0x7f, 0x12, 0x34, 0x56, 0x80, 0x00, 0x00, 0x00, 0xab, 0xce,  // buffer address, key
    0x00, 0x01, 0x00, 0x00};                                                 // bytes

TEST(RsConnect, ReadsTheBytesOfAnUpstreamClient) {
  const auto parsed = parse_rs_connect(std::as_bytes(std::span(kDefaultClient)));
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->flags, kRsHasIomap);
  EXPECT_EQ(parsed->credits.host(), 384);
  EXPECT_EQ(decode_iomap_size(parsed->iomap_size_scaled), 0u);
  EXPECT_EQ(parsed->target_sgl.addr.host(), 0x00007f1234567000u);
  EXPECT_EQ(parsed->target_sgl.key.host(), 0xabcdu);
  EXPECT_EQ(parsed->target_sgl.length.host(), 2u);
  EXPECT_EQ(parsed->first_buffer.addr.host(), 0x00007f1234568000u);
  EXPECT_EQ(parsed->first_buffer.key.host(), 0xabceu);
  EXPECT_EQ(parsed->first_buffer.length.host(), 65536u);
}

TEST(RsConnect, AcceptsPaddingBehindTheStructure) {
  std::vector<std::uint8_t> padded(kDefaultClient.begin(), kDefaultClient.end());
  padded.resize(196);
  EXPECT_TRUE(parse_rs_connect(std::as_bytes(std::span(padded))));
}

TEST(RsConnect, RefusesEveryTruncation) {
  for (std::size_t length = 0; length < kDefaultClient.size(); ++length) {
    const auto parsed = parse_rs_connect(std::as_bytes(std::span(kDefaultClient).first(length)));
    ASSERT_FALSE(parsed) << length;
    EXPECT_EQ(parsed.error().code, EPROTO);
  }
}

TEST(RsConnect, RefusesOtherVersions) {
  auto bytes = kDefaultClient;
  for (const std::uint8_t version : std::initializer_list<std::uint8_t>{0, 2, 255}) {
    bytes[0] = version;
    const auto parsed = parse_rs_connect(std::as_bytes(std::span(bytes)));
    ASSERT_FALSE(parsed);
    EXPECT_EQ(parsed.error().code, ENOTSUP);
  }
}

TEST(IomapSize, IsLiteralUpTo128AndThenCountsIn256) {
  struct Case {
    std::uint32_t wanted;
    std::uint8_t encoded;
    std::uint32_t decoded;
  };
  for (const Case& c : {Case{0, 0, 0},
                        {1, 1, 1},
                        {128, 128, 128},
                        {129, 128, 128},
                        {255, 128, 128},
                        {256, 0x81, 256},
                        {511, 0x81, 256},
                        {512, 0x82, 512},
                        {32512, 0xff, 32512},
                        {100000, 0xff, 32512}}) {
    EXPECT_EQ(encode_iomap_size(c.wanted), c.encoded) << c.wanted;
    EXPECT_EQ(decode_iomap_size(c.encoded), c.decoded) << c.wanted;
  }
}

}  // namespace
}  // namespace ringsock::wire
