// Multicast and broadcast between two hosts, and among the sockets of one.
#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/wait.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/thread_status.h"
#include "tests/vma/udp_world.h"

namespace ringsock::vma_tests {
namespace {

struct Version {
  int family;
  const char *here, *there, *any, *group, *other_group, *services_group;
};

int eth0() { return static_cast<int>(::if_nametoindex("eth0")); }

class Multicast : public ::testing::TestWithParam<Version> {
 protected:
  Multicast() : echo_(GetParam().there, kEchoPort), messenger_(echo_) {}
  [[nodiscard]] bool is_v4() const { return GetParam().family == AF_INET; }

  /// A socket that hears what comes to its port by any address, or by `address` only.
  Socket bound(const char* address = nullptr, std::uint16_t port = 0) const {
    Socket socket(GetParam().family);
    socket.limit_waits();
    socket.set(SOL_SOCKET, SO_REUSEADDR, 1);
    const Address name(address != nullptr ? address : GetParam().any, port);
    EXPECT_EQ(::bind(socket, name.get(), name.length()), 0) << std::strerror(errno);
    return socket;
  }
  [[nodiscard]] group_req request(const char* group) const {
    group_req out{};
    out.gr_interface = static_cast<std::uint32_t>(eth0());
    const Address name(group, 0);
    std::memcpy(&out.gr_group, name.get(), name.length());
    return out;
  }
  [[nodiscard]] group_source_req request(const char* group, const char* source) const {
    group_source_req out{};
    out.gsr_interface = static_cast<std::uint32_t>(eth0());
    const Address name(group, 0), from(source, 0);
    std::memcpy(&out.gsr_group, name.get(), name.length());
    std::memcpy(&out.gsr_source, from.get(), from.length());
    return out;
  }
  [[nodiscard]] int level() const { return is_v4() ? IPPROTO_IP : IPPROTO_IPV6; }
  template <class Value>
  void option(const Socket& socket, int name, const Value& value) const {
    ASSERT_EQ(::setsockopt(socket, level(), name, &value, sizeof value), 0) << name << ": " << std::strerror(errno);
  }
  void join(const Socket& socket, const char* group) const { option(socket, MCAST_JOIN_GROUP, request(group)); }

  void other_host_sends(const std::string& text, const char* group, std::uint16_t port) {
    messenger_.send(text, group, port);
  }

  Address echo_;
  const Messenger messenger_;
};

INSTANTIATE_TEST_SUITE_P(
    Over, Multicast,
    ::testing::Values(Version{AF_INET, "10.9.0.1", "10.9.0.2", "0.0.0.0", "239.9.0.1", "239.9.0.2", "239.9.0.7"},
                      Version{AF_INET6, "fd09::1", "fd09::2", "::", "ff15::901", "ff15::902", "ff15::907"}),
    [](const auto& info) { return info.param.family == AF_INET ? "IPv4" : "IPv6"; });

TEST_P(Multicast, AMemberHearsEachDatagramOnce) {
  const Socket socket = bound();
  join(socket, GetParam().group);
  Texts sent;
  for (int i = 0; i < 10; ++i) {
    sent.push_back("to all " + std::to_string(i));
    other_host_sends(sent.back(), GetParam().group, socket.name().port());
  }
  EXPECT_EQ(all_of(socket), sent);
  other_host_sends("to others", GetParam().other_group, socket.name().port());
  EXPECT_EQ(all_of(socket), Texts());

  option(socket, MCAST_LEAVE_GROUP, request(GetParam().group));
  other_host_sends("nobody listens", GetParam().group, socket.name().port());
  EXPECT_EQ(all_of(socket), Texts());
}

TEST_P(Multicast, JoiningBeforeBindingIsTheSame) {
  Socket socket(GetParam().family);
  join(socket, GetParam().group);
  const Address any(GetParam().any, 0);
  ASSERT_EQ(::bind(socket, any.get(), any.length()), 0);
  other_host_sends("hello", GetParam().group, socket.name().port());
  EXPECT_EQ(all_of(socket), Texts{"hello"});
}

TEST_P(Multicast, ASleepingMemberIsWoken) {
  const Socket socket = bound();
  join(socket, GetParam().group);
  std::thread later([&, self = ::gettid()] {
    EXPECT_TRUE(support::falls_asleep(self));
    messenger_.send_unwatched("up!", GetParam().group, socket.name().port());
  });
  EXPECT_EQ(socket.receive(), "up!");
  later.join();
}

TEST_P(Multicast, TheKernelsSocketTakesNothingThatRingsCarry) {
  if (!preloaded()) GTEST_SKIP() << "without libvma the kernel carries all";
  const Socket socket = bound();
  join(socket, GetParam().group);
  other_host_sends("hello", GetParam().group, socket.name().port());
  EXPECT_EQ(all_of(socket), Texts{"hello"});
  const long before = kernels_datagrams(GetParam().family);
  for (int i = 0; i < 50; ++i) other_host_sends("more", GetParam().group, socket.name().port());
  EXPECT_EQ(all_of(socket), Texts(50, "more"));
  EXPECT_LT(kernels_datagrams(GetParam().family) - before, 5);
}

TEST_P(Multicast, ASocketBoundToTheGroupHearsNothingElse) {
  const Socket socket = bound(GetParam().group);
  join(socket, GetParam().group);
  other_host_sends("to all", GetParam().group, socket.name().port());
  other_host_sends("to you", GetParam().here, socket.name().port());
  EXPECT_EQ(all_of(socket), Texts{"to all"});
  // What it sends has an address that can be answered.
  ASSERT_EQ(socket.send_to(echo_, "answer me"), 9) << std::strerror(errno);
  Address from;
  const Socket other = bound();
  ASSERT_EQ(other.send_to(echo_, "me, too"), 7);
  EXPECT_EQ(other.receive(&from), "me, too") << "the service lives";
  EXPECT_EQ(all_of(socket), Texts()) << "an answer goes to the host's address, not to the group";
}

TEST_P(Multicast, AllMembersHearIt) {
  const Socket first = bound(), second = bound(nullptr, first.name().port());
  join(first, GetParam().group);
  join(second, GetParam().group);
  for (int i = 0; i < 5; ++i) other_host_sends("both", GetParam().group, first.name().port());
  EXPECT_EQ(all_of(first), Texts(5, "both"));
  EXPECT_EQ(all_of(second), Texts(5, "both"));
}

TEST_P(Multicast, MembersInOtherProcessesHearItToo) {
  int ready[2], told[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(told), 0);
  const Socket mine = bound();
  const std::uint16_t port = mine.name().port();
  join(mine, GetParam().group);
  const pid_t child = ::fork();
  char byte = 0;
  if (child == 0) {
    const Socket theirs = bound(nullptr, port);
    join(theirs, GetParam().group);
    if (::write(ready[1], "r", 1) != 1 || ::read(told[0], &byte, 1) != 1) ::_exit(2);
    ::_exit(all_of(theirs) == Texts(5, "both") ? 0 : 1);
  }
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  for (int i = 0; i < 5; ++i) other_host_sends("both", GetParam().group, port);
  ASSERT_EQ(::write(told[1], "t", 1), 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(all_of(mine), Texts(5, "both"));
  for (const int fd : {ready[0], ready[1], told[0], told[1]}) ::close(fd);
}

TEST_P(Multicast, WhatIsTooLongForOnePacketArrivesOnce) {
  const Socket socket = bound();
  join(socket, GetParam().group);
  const std::string large(4000, 'x');
  for (int i = 0; i < 3; ++i) {
    other_host_sends(large, GetParam().group, socket.name().port());
    // Fragments and whole packets may overtake each other: the order to send it may still be under way.
    EXPECT_TRUE(socket.receive() == large) << std::strerror(errno);
  }
  EXPECT_EQ(all_of(socket).size(), 0U);
}

TEST_P(Multicast, ABlockedSourceIsNotHeard) {
  const Socket socket = bound();
  join(socket, GetParam().group);
  option(socket, MCAST_BLOCK_SOURCE, request(GetParam().group, GetParam().there));
  other_host_sends("unheard", GetParam().group, socket.name().port());
  EXPECT_EQ(all_of(socket), Texts());
  option(socket, MCAST_UNBLOCK_SOURCE, request(GetParam().group, GetParam().there));
  other_host_sends("heard", GetParam().group, socket.name().port());
  EXPECT_EQ(all_of(socket), Texts{"heard"});
}

TEST_P(Multicast, AMemberForOneSourceHearsNobodyElse) {
  const Socket socket = bound(), stranger = bound(nullptr, socket.name().port());
  option(socket, MCAST_JOIN_SOURCE_GROUP, request(GetParam().group, GetParam().there));
  option(stranger, MCAST_JOIN_SOURCE_GROUP, request(GetParam().group, is_v4() ? "10.9.0.77" : "fd09::77"));
  other_host_sends("from there", GetParam().group, socket.name().port());
  EXPECT_EQ(all_of(socket), Texts{"from there"});
  EXPECT_EQ(all_of(stranger), Texts());
  option(socket, MCAST_LEAVE_SOURCE_GROUP, request(GetParam().group, GetParam().there));
  other_host_sends("from there", GetParam().group, socket.name().port());
  EXPECT_EQ(all_of(socket), Texts());
}

TEST_P(Multicast, WhoIsNoMemberHearsOtherMembersGroupsUnlessToldOtherwise) {
  const Socket member = bound(), other = bound(nullptr, member.name().port());
  join(member, GetParam().group);
  other_host_sends("one", GetParam().group, member.name().port());
  EXPECT_EQ(all_of(member), Texts{"one"});
  EXPECT_EQ(all_of(other), Texts{"one"});
  other.set(level(), is_v4() ? IP_MULTICAST_ALL : IPV6_MULTICAST_ALL, 0);
  other_host_sends("two", GetParam().group, member.name().port());
  EXPECT_EQ(all_of(member), Texts{"two"});
  EXPECT_EQ(all_of(other), Texts());
}

TEST_P(Multicast, AConnectedMemberHearsItsPeerOnly) {
  const Socket socket = bound(GetParam().group), of_another = bound(GetParam().group, socket.name().port());
  join(socket, GetParam().group);
  join(of_another, GetParam().group);
  const Address stranger(GetParam().there, 7001);
  ASSERT_EQ(::connect(socket, echo_.get(), echo_.length()), 0);
  ASSERT_EQ(::connect(of_another, stranger.get(), stranger.length()), 0);
  other_host_sends("hello", GetParam().group, socket.name().port());
  EXPECT_EQ(all_of(socket), Texts{"hello"});
  EXPECT_EQ(all_of(of_another), Texts());
}

TEST_P(Multicast, SocketsOfThisHostHearEachOther) {
  const Socket member = bound();
  join(member, GetParam().group);
  const Socket sender(GetParam().family);
  if (is_v4()) {
    option(sender, IP_MULTICAST_IF, ip_mreqn{{}, {}, eth0()});
  } else {
    option(sender, IPV6_MULTICAST_IF, eth0());
  }
  const Address group(GetParam().group, member.name().port());
  for (int i = 0; i < 5; ++i) ASSERT_EQ(sender.send_to(group, "local"), 5);
  EXPECT_EQ(all_of(member), Texts(5, "local"));
  other_host_sends("far", GetParam().group, member.name().port());
  EXPECT_EQ(all_of(member), Texts{"far"});
  sender.set(level(), is_v4() ? IP_MULTICAST_LOOP : IPV6_MULTICAST_LOOP, 0);
  for (int i = 0; i < 5; ++i) ASSERT_EQ(sender.send_to(group, "for others"), 10);
  EXPECT_EQ(all_of(member), Texts());
}

TEST_P(Multicast, WhatIsSentToAGroupReachesTheOtherHost) {
  const Socket socket = bound();
  const Address group(GetParam().services_group, kEchoPort);
  if (is_v4()) {
    option(socket, IP_MULTICAST_IF, ip_mreq{{}, in_addr{::inet_addr(GetParam().here)}});
  } else {
    option(socket, IPV6_MULTICAST_IF, eth0());
  }
  for (const int loop : {1, 0}) {
    socket.set(level(), is_v4() ? IP_MULTICAST_LOOP : IPV6_MULTICAST_LOOP, loop);
    for (const std::size_t size : {4U, 1400U, 4000U}) {
      const std::string data(size, 'm');
      ASSERT_EQ(socket.send_to(group, data), static_cast<ssize_t>(size)) << std::strerror(errno);
      Address from;
      EXPECT_EQ(socket.receive(&from), data) << "loop " << loop;
      EXPECT_EQ(from.host(), GetParam().there);
    }
  }
}

TEST_P(Multicast, ASocketOfAnotherInterfaceHearsNothing) {
  const Socket socket = bound(), of_loopback = bound(nullptr, socket.name().port());
  ASSERT_EQ(::setsockopt(of_loopback, SOL_SOCKET, SO_BINDTODEVICE, "lo", 2), 0) << std::strerror(errno);
  ASSERT_EQ(::setsockopt(socket, SOL_SOCKET, SO_BINDTODEVICE, "eth0", 4), 0) << std::strerror(errno);
  join(socket, GetParam().group);
  join(of_loopback, GetParam().group);
  other_host_sends("all", GetParam().group, socket.name().port());
  other_host_sends("one", GetParam().here, socket.name().port());
  EXPECT_EQ(all_of(socket), (Texts{"all", "one"}));
  EXPECT_EQ(all_of(of_loopback), Texts());
}

/// IPv4's own ways.
class MulticastV4 : public Multicast {};
INSTANTIATE_TEST_SUITE_P(Over, MulticastV4,
                         ::testing::Values(Version{AF_INET, "10.9.0.1", "10.9.0.2", "0.0.0.0", "239.9.0.1", "239.9.0.2",
                                                   "239.9.0.7"}),
                         [](const auto&) { return "IPv4"; });

TEST_P(MulticastV4, EveryWayToJoinAndLeave) {
  const in_addr group{::inet_addr(GetParam().group)}, here{::inet_addr(GetParam().here)},
      there{::inet_addr(GetParam().there)};
  const ip_mreq by_address{group, here};
  const ip_mreqn by_index{group, {}, eth0()};
  const ip_mreq_source of_source{group, here, there};
  struct Way {
    const char* name;
    std::function<void(const Socket&)> join, leave;
  };
  const Way ways[] = {
      {"ip_mreq", [&](const Socket& s) { option(s, IP_ADD_MEMBERSHIP, by_address); },
       [&](const Socket& s) { option(s, IP_DROP_MEMBERSHIP, by_address); }},
      {"ip_mreqn", [&](const Socket& s) { option(s, IP_ADD_MEMBERSHIP, by_index); },
       [&](const Socket& s) { option(s, IP_DROP_MEMBERSHIP, by_index); }},
      {"ip_mreq_source", [&](const Socket& s) { option(s, IP_ADD_SOURCE_MEMBERSHIP, of_source); },
       [&](const Socket& s) { option(s, IP_DROP_SOURCE_MEMBERSHIP, of_source); }},
      {"blocked and unblocked",
       [&](const Socket& s) {
         option(s, IP_ADD_MEMBERSHIP, by_address);
         option(s, IP_BLOCK_SOURCE, of_source);
         option(s, IP_UNBLOCK_SOURCE, of_source);
       },
       [&](const Socket& s) { option(s, IP_BLOCK_SOURCE, of_source); }},
  };
  for (const Way& way : ways) {
    const Socket socket = bound();
    way.join(socket);
    other_host_sends("in", GetParam().group, socket.name().port());
    EXPECT_EQ(all_of(socket), Texts{"in"}) << way.name;
    way.leave(socket);
    other_host_sends("out", GetParam().group, socket.name().port());
    EXPECT_EQ(all_of(socket), Texts()) << way.name;
  }
}

TEST_P(MulticastV4, AnIPv6SocketMayBeAMember) {
  const Socket socket(AF_INET6);
  const Address any("::", 0);
  ASSERT_EQ(::bind(socket, any.get(), any.length()), 0);
  option(socket, IP_ADD_MEMBERSHIP, ip_mreqn{{::inet_addr(GetParam().group)}, {}, eth0()});
  other_host_sends("mapped", GetParam().group, socket.name().port());
  EXPECT_EQ(all_of(socket), Texts{"mapped"});
}

TEST_P(MulticastV4, BroadcastIsHeardByAll) {
  const Socket plain = bound(), asking = bound(nullptr, plain.name().port());
  asking.set(SOL_SOCKET, SO_BROADCAST, 1);
  for (int i = 0; i < 5; ++i) other_host_sends("all", "10.9.0.255", plain.name().port());
  EXPECT_EQ(all_of(plain), Texts(5, "all"));
  EXPECT_EQ(all_of(asking), Texts(5, "all"));
  // Its own.
  const Address subnet("10.9.0.255", plain.name().port());
  ASSERT_EQ(asking.send_to(subnet, "mine"), 4) << std::strerror(errno);
  EXPECT_EQ(all_of(plain), Texts{"mine"});
  EXPECT_EQ(all_of(asking), Texts{"mine"});
  EXPECT_EQ(plain.send_to(subnet, "may not"), -1);
  EXPECT_EQ(errno, EACCES);
}

}  // namespace
}  // namespace ringsock::vma_tests
