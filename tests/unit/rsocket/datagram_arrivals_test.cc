// The datagrams that wait to be read, and how they are copied to the caller.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <string_view>

#include "librsocket/datagram/arrivals.h"

namespace ringsock::rs {
namespace {

const SocketAddress kAlice = SocketAddress::v4(0x7f000001, 7);

Arrival owned(std::string_view text) {
  Arrival out;
  out.source = kAlice;
  out.own = std::make_unique<std::byte[]>(text.size() + 1);
  std::memcpy(out.own.get(), text.data(), text.size());
  out.bytes = {out.own.get(), text.size()};
  return out;
}

TEST(Arrivals, OfTheKernelHaveRoomForSoManyBytes) {
  Arrivals arrivals(10 + 2 * Arrivals::kOverhead);
  EXPECT_TRUE(arrivals.add(owned("1234")));
  EXPECT_TRUE(arrivals.add(owned("123456")));
  EXPECT_FALSE(arrivals.add(owned("")));
  EXPECT_EQ(arrivals.pop(), std::nullopt);
  EXPECT_TRUE(arrivals.add(owned("1")));
}

TEST(Arrivals, OfTheQueuePairGiveTheirSlotBack) {
  Arrivals arrivals(0);
  const std::byte bytes[4]{};
  EXPECT_TRUE(arrivals.add({kAlice, bytes, Slot{nullptr, 3}, nullptr}));
  EXPECT_TRUE(arrivals.add({kAlice, bytes, Slot{nullptr, 9}, nullptr}));
  EXPECT_EQ(arrivals.slots(), 2u);
  EXPECT_EQ(arrivals.pop(), (Slot{nullptr, 3}));
  EXPECT_EQ(arrivals.pop(), (Slot{nullptr, 9}));
  EXPECT_EQ(arrivals.slots(), 0u);
  EXPECT_TRUE(arrivals.empty());
}

struct Copied {
  ssize_t result;
  std::string text;
  int flags;
};

Copied copy(std::string_view text, std::size_t room, int flags) {
  char buffer[16] = "";
  iovec part{buffer, room};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_controllen = 99;
  const auto done = copy_out(owned(text), message, flags, AF_INET);
  EXPECT_EQ(message.msg_controllen, 0u);
  return {*done, std::string(buffer, room), message.msg_flags};
}

TEST(CopyOut, CutsWhatDoesNotFitAndSaysSo) {
  EXPECT_EQ(copy("abc", 3, 0).flags, 0);
  const Copied cut = copy("abc", 2, 0);
  EXPECT_EQ(cut.result, 2);
  EXPECT_EQ(cut.text, "ab");
  EXPECT_EQ(cut.flags, MSG_TRUNC);
  EXPECT_EQ(copy("abc", 2, MSG_TRUNC).result, 3);
  EXPECT_EQ(copy("", 0, 0).flags, 0);
}

TEST(CopyOut, MapsTheSourceForSocketsOfIpv6) {
  sockaddr_storage name{};
  msghdr message{};
  message.msg_name = &name;
  message.msg_namelen = sizeof name;
  ASSERT_TRUE(copy_out(owned("x"), message, 0, AF_INET6));
  EXPECT_EQ(message.msg_namelen, sizeof(sockaddr_in6));
  EXPECT_TRUE(SocketAddress::from(reinterpret_cast<const sockaddr*>(&name), message.msg_namelen)->is_v4_mapped());
  message.msg_namelen = sizeof name;
  ASSERT_TRUE(copy_out(owned("x"), message, 0, AF_INET));
  EXPECT_EQ(message.msg_namelen, sizeof(sockaddr_in));
}

TEST(CopyOut, RefusesTooManyParts) {
  msghdr message{};
  message.msg_iovlen = 1025;
  const auto done = copy_out(owned("x"), message, 0, AF_INET);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, EMSGSIZE);
}

}  // namespace
}  // namespace ringsock::rs
