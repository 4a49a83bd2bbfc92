// The packet by which a sender presents itself: what it is, and what a stranger may send in its place.
#include "core/device/shm/datagrams/knock.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace ringsock::soft {
namespace {

std::vector<std::byte> bytes_of(const Knock& knock) {
  std::vector<std::byte> out(sizeof knock);
  std::memcpy(out.data(), &knock, sizeof knock);
  return out;
}

TEST(Knock, TellsTheSendersNameAndDescriptor) {
  const SocketAddress v4 = SocketAddress::v4(0x0a000001, 4711);
  const SocketAddress v6 = SocketAddress::v6(in6addr_loopback, 65535);
  for (const SocketAddress& name : {v4, v6}) {
    const auto parsed = parse_knock(bytes_of(make_knock({name, 17})));
    ASSERT_TRUE(parsed);
    EXPECT_EQ(parsed->source, name);
    EXPECT_EQ(parsed->descriptor, 17);
  }
}

TEST(Knock, IsRefusedWithAnotherLength) {
  std::vector<std::byte> bytes = bytes_of(make_knock({SocketAddress::v4(1, 1), 3}));
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, bytes.size() - 1}) {
    EXPECT_EQ(parse_knock(std::span(bytes).first(length)).error().code, EPROTO);
  }
  bytes.push_back(std::byte{0});
  EXPECT_EQ(parse_knock(bytes).error().code, EPROTO);
}

TEST(Knock, IsRefusedWithValuesOutOfRange) {
  const Knock good = make_knock({SocketAddress::v4(1, 1), 3});
  Knock other = good;
  other.version = kKnockVersion + 1;
  EXPECT_EQ(parse_knock(bytes_of(other)).error().code, ENOTSUP);
  other = good;
  other.family = AF_UNIX;
  EXPECT_EQ(parse_knock(bytes_of(other)).error().code, EPROTO);
  other = good;
  other.port = 0;
  EXPECT_EQ(parse_knock(bytes_of(other)).error().code, EPROTO);
}

TEST(Knock, OfRandomBytesIsAnAddressOrAnError) {
  std::mt19937 random(5);
  std::vector<std::byte> bytes(sizeof(Knock));
  for (int i = 0; i < 100'000; ++i) {
    for (std::byte& one : bytes) one = static_cast<std::byte>(random());
    if (i % 2 == 0) std::memcpy(bytes.data(), &kKnockVersion, sizeof kKnockVersion);
    const auto parsed = parse_knock(bytes);
    EXPECT_TRUE(!parsed || parsed->source.port() != 0);
  }
}

TEST(Knock, DoorsOfTwoSocketsHaveTwoNames) {
  EXPECT_NE(door_name(1), door_name(2));
  EXPECT_LT(door_name(UINT64_MAX).size(), std::size_t{107});
}

}  // namespace
}  // namespace ringsock::soft
