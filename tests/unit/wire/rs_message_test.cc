#include "core/wire/rs_message.h"

#include <gtest/gtest.h>

namespace ringsock::wire {
namespace {

TEST(RsMessage, HasTheWordsOfTheFactSheet) {
  EXPECT_EQ(encode_rs_message({RsOpcode::data, 1000}), 0x000003E8u);
  EXPECT_EQ(encode_rs_message({RsOpcode::sgl, 384}), 0x80000180u);
  EXPECT_EQ(encode_rs_message({RsOpcode::iomap_sgl, 0}), 0xC0000000u);
  EXPECT_EQ(encode_rs_message({RsOpcode::ctrl, static_cast<std::uint32_t>(RsControl::disconnect)}), 0xE0000000u);
  EXPECT_EQ(encode_rs_message({RsOpcode::ctrl, static_cast<std::uint32_t>(RsControl::shutdown)}), 0xE0000002u);
}

TEST(RsMessage, ComesBackAsItWent) {
  for (const std::uint32_t word : {0u, 1u, 0x1fffffffu, 0x20000000u, 0x80000180u, 0xffffffffu}) {
    EXPECT_EQ(encode_rs_message(decode_rs_message(word)), word);
  }
}

TEST(PeerSge, SwapsFieldByField) {
  const PeerSge swapped = swap_bytes(PeerSge{0x0102030405060708, 0x11121314, 0x21222324});
  EXPECT_EQ(swapped.addr, 0x0807060504030201u);
  EXPECT_EQ(swapped.key, 0x14131211u);
  EXPECT_EQ(swapped.length, 0x24232221u);
}

}  // namespace
}  // namespace ringsock::wire
