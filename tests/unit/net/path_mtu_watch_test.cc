#include "core/net/path_mtu_watch.h"

#include <gtest/gtest.h>

#include <vector>

namespace ringsock::net {
namespace {

/// An IPv4 packet with `options` bytes of options, an ICMP message, and the header of the packet that was too big.
std::vector<std::byte> message_v4(std::uint8_t type, std::uint8_t code, std::size_t options = 0) {
  std::vector<std::byte> out(20 + options + 8 + 20);
  out[0] = static_cast<std::byte>(0x40 | ((20 + options) / 4));
  out[20 + options] = std::byte{type};
  out[21 + options] = std::byte{code};
  const std::array destination = {std::byte{192}, std::byte{0}, std::byte{2}, std::byte{1}};
  std::copy(destination.begin(), destination.end(), out.end() - 4);
  return out;
}

std::vector<std::byte> message_v6(std::uint8_t type) {
  std::vector<std::byte> out(8 + 40);
  out[0] = std::byte{type};
  out.back() = std::byte{1};
  return out;
}

TEST(PathMtuWatch, FindsTheDestinationOfThePacketThatWasTooBig) {
  const IpAddress destination = IpAddress::v4(0xc0000201);
  EXPECT_EQ(too_big_destination_v4(message_v4(3, 4)), destination);
  EXPECT_EQ(too_big_destination_v4(message_v4(3, 4, 40)), destination) << "behind IP options";
  EXPECT_EQ(too_big_destination_v6(message_v6(2)), IpAddress::v6(in6addr_loopback));
}

TEST(PathMtuWatch, OtherMessagesAreNone) {
  EXPECT_FALSE(too_big_destination_v4(message_v4(3, 3)));
  EXPECT_FALSE(too_big_destination_v4(message_v4(8, 4)));
  EXPECT_FALSE(too_big_destination_v6(message_v6(1)));
}

TEST(PathMtuWatch, EveryTruncationIsRefused) {
  for (const auto& [whole, parse] :
       {std::pair(message_v4(3, 4, 8), &too_big_destination_v4), std::pair(message_v6(2), &too_big_destination_v6)}) {
    for (std::size_t length = 0; length < whole.size(); ++length) {
      const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
      EXPECT_FALSE(parse(cut)) << length;
    }
  }
}

TEST(PathMtuWatch, HeaderLengthThatIsALieIsRefused) {
  auto message = message_v4(3, 4);
  message[0] = std::byte{0x40};
  EXPECT_FALSE(too_big_destination_v4(message));
  message[0] = std::byte{0x4f};
  EXPECT_FALSE(too_big_destination_v4(message));
}

}  // namespace
}  // namespace ringsock::net
