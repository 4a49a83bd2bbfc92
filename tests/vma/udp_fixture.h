// A test of UDP sockets for each IP version, beside the echo service (udp_world.h).
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/vma/udp_world.h"

namespace ringsock::vma_tests {

struct Version {
  int family;
  const char *here, *there, *loopback;
};

class Udp : public ::testing::TestWithParam<Version> {
 protected:
  Udp() : echo_(GetParam().there, kEchoPort), socket_(GetParam().family) { socket_.limit_waits(); }
  void bind_anywhere(const Socket& socket) {
    const Address any(GetParam().family == AF_INET ? "0.0.0.0" : "::", 0);
    ASSERT_EQ(::bind(socket, any.get(), any.length()), 0);
  }
  /// The neighbour is known afterwards, and the first datagrams, which the kernel may have had, are gone.
  void get_acquainted(const Socket& socket) {
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(socket.send_to(echo_, "hello"), 5) << std::strerror(errno);
      ASSERT_EQ(socket.receive(), "hello") << std::strerror(errno);
    }
  }
  /// libvma hears of a new neighbour soon after the kernel; until then the kernel sends. Without libvma it always does.
  void until_rings_send(const Socket& socket) {
    for (long sent = preloaded() ? 1 : 0; sent > 0 && !HasFatalFailure();) {
      const long before = kernels_sent_datagrams(GetParam().family);
      get_acquainted(socket);
      sent = kernels_sent_datagrams(GetParam().family) - before;
    }
  }

  Address echo_;
  Socket socket_;
};

inline auto both_versions() {
  return ::testing::Values(Version{AF_INET, "10.9.0.1", "10.9.0.2", "127.0.0.1"},
                           Version{AF_INET6, "fd09::1", "fd09::2", "::1"});
}
inline std::string name_of_version(const ::testing::TestParamInfo<Version>& info) {
  return info.param.family == AF_INET ? "IPv4" : "IPv6";
}

/// Control data of one datagram, by level and type.
template <class Value>
Value control_value(msghdr& message, int level, int type) {
  Value value{};
  bool found = false;
  for (cmsghdr* one = CMSG_FIRSTHDR(&message); one != nullptr; one = CMSG_NXTHDR(&message, one)) {
    if (one->cmsg_level != level || one->cmsg_type != type) continue;
    std::memcpy(&value, CMSG_DATA(one), sizeof value);
    found = true;
  }
  EXPECT_TRUE(found) << "level " << level << ", type " << type;
  return value;
}

/// One datagram with its control data.
struct Message {
  explicit Message(int flags_of_call = 0) : flags(flags_of_call) {}
  /// What recvmsg(2) answers.
  ssize_t receive(const Socket& socket) {
    part = {room, sizeof room};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    return ::recvmsg(socket, &header, flags);
  }
  template <class Value>
  Value value(int level, int type) {
    return control_value<Value>(header, level, type);
  }
  [[nodiscard]] bool has(int level, int type) {
    for (cmsghdr* one = CMSG_FIRSTHDR(&header); one != nullptr; one = CMSG_NXTHDR(&header, one)) {
      if (one->cmsg_level == level && one->cmsg_type == type) return true;
    }
    return false;
  }
  std::string text(ssize_t length) {
    return length < 0 ? "(error)" : std::string(room, static_cast<std::size_t>(length));
  }

  const int flags;
  msghdr header{};
  iovec part{};
  alignas(cmsghdr) char control[1024];
  char room[70000];
};

}  // namespace ringsock::vma_tests
