#include "core/base/socket_address.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

namespace ringsock {
namespace {

SocketAddress v6(const char* text, std::uint16_t port) {
  in6_addr address{};
  EXPECT_EQ(::inet_pton(AF_INET6, text, &address), 1);
  return SocketAddress::v6(address, port);
}
const SocketAddress kHost = SocketAddress::v4(0x0a000001, 80);

TEST(SocketAddress, TellsWhatItIs) {
  EXPECT_EQ(kHost.to_string(), "10.0.0.1:80");
  EXPECT_EQ(kHost.host_to_string(), "10.0.0.1");
  EXPECT_EQ(v6("::1", 80).to_string(), "[::1]:80");
  EXPECT_EQ(SocketAddress().to_string(), "unspecified");
  EXPECT_EQ(SocketAddress().host_to_string(), "");
}

TEST(SocketAddress, KnowsSpecialAddresses) {
  EXPECT_TRUE(SocketAddress::v4(INADDR_LOOPBACK, 1).is_loopback());
  EXPECT_TRUE(SocketAddress::v4(INADDR_LOOPBACK + 5, 1).is_loopback());
  EXPECT_TRUE(v6("::1", 1).is_loopback());
  EXPECT_FALSE(kHost.is_loopback());
  EXPECT_TRUE(SocketAddress::wildcard(AF_INET, 7).is_wildcard());
  EXPECT_TRUE(SocketAddress::wildcard(AF_INET6, 7).is_wildcard());
  EXPECT_EQ(SocketAddress::wildcard(AF_INET6, 7).port(), 7);
  EXPECT_FALSE(kHost.is_wildcard());
  EXPECT_TRUE(SocketAddress().is_unspecified());
}

TEST(SocketAddress, MapsIntoIpv6AndBack) {
  const SocketAddress mapped = kHost.mapped();
  EXPECT_EQ(mapped.family(), AF_INET6);
  EXPECT_TRUE(mapped.is_v4_mapped());
  EXPECT_EQ(mapped.host_to_string(), "::ffff:10.0.0.1");
  EXPECT_EQ(mapped.unmapped(), kHost);
  EXPECT_EQ(v6("fd00::1", 9).unmapped(), v6("fd00::1", 9));
  EXPECT_EQ(SocketAddress::wildcard(AF_INET, 7).mapped(), SocketAddress::wildcard(AF_INET6, 7));
}

TEST(SocketAddress, IsReadAsTheKernelReadsIt) {
  const auto again = SocketAddress::from(kHost.get(), kHost.length());
  ASSERT_TRUE(again);
  EXPECT_EQ(*again, kHost);
  EXPECT_EQ(SocketAddress::from(kHost.get(), kHost.length() - 1).error().code, EINVAL);
  EXPECT_EQ(SocketAddress::from(kHost.get(), 1).error().code, EINVAL);
  sockaddr_un other{};
  other.sun_family = AF_UNIX;
  EXPECT_EQ(SocketAddress::from(reinterpret_cast<const sockaddr*>(&other), sizeof other).error().code, EAFNOSUPPORT);
}

TEST(SocketAddress, IsCopiedAsFarAsThereIsRoom) {
  sockaddr_in out{};
  std::memset(&out, 0xee, sizeof out);
  socklen_t length = 4;
  kHost.copy_to(reinterpret_cast<sockaddr*>(&out), &length);
  EXPECT_EQ(length, sizeof(sockaddr_in));
  EXPECT_EQ(out.sin_family, AF_INET);
  EXPECT_EQ(ntohs(out.sin_port), 80);
  EXPECT_EQ(out.sin_addr.s_addr, 0xeeeeeeee) << "behind the room";
  kHost.copy_to(nullptr, &length);
  kHost.copy_to(reinterpret_cast<sockaddr*>(&out), nullptr);
}

}  // namespace
}  // namespace ringsock
