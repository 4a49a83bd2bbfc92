#include "core/device/shm/names/port_name.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

namespace ringsock::soft {
namespace {

using verbs::PortSpace;

SocketAddress v6(const char* text, std::uint16_t port, std::uint32_t scope = 0) {
  in6_addr host{};
  EXPECT_EQ(::inet_pton(AF_INET6, text, &host), 1);
  return SocketAddress::v6(host, port, scope);
}
PortBinding tcp(const SocketAddress& address, bool v6_only = false) { return {PortSpace::tcp, address, v6_only}; }

const auto kLoopback = SocketAddress::v4(INADDR_LOOPBACK, 80);
const auto kOther = SocketAddress::v4(0x0a000001, 80);
const auto kAny4 = SocketAddress::wildcard(AF_INET, 80);
const auto kAny6 = SocketAddress::wildcard(AF_INET6, 80);

TEST(PortName, AListeningNameTellsItsBinding) {
  EXPECT_EQ(listening_name(tcp(kLoopback)), "ringsock1/tcp/80/listen/127.0.0.1");
  EXPECT_EQ(listening_name(tcp(kLoopback), 3), "ringsock1/tcp/80/listen/127.0.0.1//3");
  EXPECT_EQ(listening_name(tcp(kAny6, true), 3), "ringsock1/tcp/80/listen/::/v6only/3");
  EXPECT_EQ(listening_name(tcp(kAny6)), "ringsock1/tcp/80/listen/::");
  EXPECT_EQ(listening_name(tcp(kAny6, true)), "ringsock1/tcp/80/listen/::/v6only");
  EXPECT_EQ(listening_name(tcp(v6("::1", 80), true)), "ringsock1/tcp/80/listen/::1");
  EXPECT_EQ(listening_name({PortSpace::udp, v6("fe80::1", 7, 3), false}), "ringsock1/udp/7/listen/fe80::1%3");
}

TEST(PortName, EveryNameOfOursIsReadBack) {
  for (const PortBinding& binding : {tcp(kLoopback), tcp(kAny4), tcp(kAny6), tcp(kAny6, true), tcp(v6("fe80::1", 9, 4)),
                                     PortBinding{PortSpace::udp, v6("2001:db8::1", 65535), false}}) {
    const auto listening = parse_port_name(listening_name(binding));
    ASSERT_TRUE(listening) << listening_name(binding);
    EXPECT_EQ(listening->role, PortRole::listening);
    EXPECT_EQ(listening->binding.address, binding.address);
    EXPECT_EQ(listening->binding.space, binding.space);
    EXPECT_EQ(listening->binding.v6_only, binding.v6_only);
    const auto bound = parse_port_name(bound_name(binding, false, 0xffffffff));
    ASSERT_TRUE(bound);
    EXPECT_EQ(bound->role, PortRole::bound);
    EXPECT_EQ(bound->binding.v6_only, binding.v6_only);
    EXPECT_EQ(bound->binding.address, binding.address);
    EXPECT_EQ(parse_port_name(bound_name(binding, true, 1))->role, PortRole::bound_reusing);
  }
}

TEST(PortName, TheLongestNameFits) {
  const auto longest = v6("fe80:1111:2222:3333:4444:5555:6666:7777", 65535, 0xffffffff);
  const std::string name = bound_name(tcp(longest, true), true, 0xffffffff);
  EXPECT_EQ(AbstractAddress(name).length, offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

/// The sum of a name's bytes, in twos, by which the kernel finds it (csum_fold).
std::uint32_t sum_of(const std::string& name) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < name.size(); ++i)
    sum += std::uint32_t{static_cast<unsigned char>(name[i])} << (i % 2 == 0 ? 0 : 8);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  return sum;
}

TEST(PortName, TheKernelFindsOneAmongThousandsByAShortList) {
  constexpr std::size_t kLists = 256;
  constexpr std::uint16_t kPorts = 5120;
  std::array<unsigned, kLists> lists{};
  for (std::uint16_t i = 0; i < kPorts; ++i) {
    const SocketAddress here = SocketAddress::v4(INADDR_LOOPBACK, static_cast<std::uint16_t>(32768 + i));
    const std::uint32_t sum = sum_of(bound_name({PortSpace::tcp, here, false}, false, 0));
    ++lists[(sum ^ sum >> 8) % kLists];
  }
  EXPECT_LT(*std::ranges::max_element(lists), std::size_t{4} * kPorts / kLists);
}

TEST(PortName, HoldersOfOnePortHaveDifferentNames) {
  EXPECT_NE(bound_name(tcp(kAny4), false, 0), bound_name(tcp(kAny4), false, 1));
  EXPECT_EQ(bound_name(tcp(kAny4), false, 0), bound_name(tcp(kAny4), false, 0)) << "so that only one has it";
}

TEST(PortName, NamesOfOthersAreNotOurs) {
  for (const char* name :
       {"", "/tmp/.X11-unix/X0", "ringsock1/", "ringsock1/tcp/80/listen/", "ringsock1/tcp/80/listen/x",
        "ringsock1/sctp/80/listen/::", "ringsock1/tcp/65536/listen/::", "ringsock1/tcp//listen/::",
        "ringsock1/tcp/80/serve/::", "ringsock1/tcp/80/listen/fe80::1%x", "ringsock2/tcp/80/listen/::"}) {
    EXPECT_FALSE(parse_port_name(name)) << name;
  }
}

TEST(PortBindings, OverlapAsBindSeesIt) {
  struct Case {
    PortBinding a, b;
    bool overlapping;
  };
  const Case cases[] = {
      {tcp(kLoopback), tcp(kLoopback), true},
      {tcp(kLoopback), tcp(kOther), false},
      {tcp(kLoopback), tcp(kAny4), true},
      {tcp(kLoopback), tcp(kAny6), true},
      {tcp(kLoopback), tcp(kAny6, true), false},
      {tcp(kAny4), tcp(kAny6), true},
      {tcp(kAny4), tcp(kAny6, true), false},
      {tcp(kAny6, true), tcp(kAny6), true},
      {tcp(v6("::1", 80)), tcp(kAny6, true), true},
      {tcp(v6("::1", 80)), tcp(kLoopback), false},
      {tcp(v6("::1", 80)), tcp(kAny4), false},
      {tcp(v6("fe80::1", 80, 1)), tcp(v6("fe80::1", 80, 2)), false},
      {tcp(kLoopback), tcp(SocketAddress::v4(INADDR_LOOPBACK, 81)), false},
      {tcp(kLoopback), {PortSpace::udp, kLoopback, false}, false},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(overlap(c.a, c.b), c.overlapping) << listening_name(c.a) << " and " << listening_name(c.b);
    EXPECT_EQ(overlap(c.b, c.a), c.overlapping) << listening_name(c.b) << " and " << listening_name(c.a);
  }
}

TEST(CanonicalAddress, MappedIsIpv4AndOnlyLinkLocalKeepsItsScope) {
  EXPECT_EQ(canonical_address(kLoopback.mapped()), kLoopback);
  EXPECT_EQ(canonical_address(v6("::ffff:0.0.0.0", 80)), kAny4);
  EXPECT_EQ(canonical_address(v6("::1", 80, 5)), v6("::1", 80));
  EXPECT_EQ(canonical_address(v6("fe80::1", 80, 5)), v6("fe80::1", 80, 5));
}

}  // namespace
}  // namespace ringsock::soft
