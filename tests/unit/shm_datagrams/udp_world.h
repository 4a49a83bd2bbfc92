// UDP sockets of the kernel on the loopback address.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>

#include "core/base/socket_address.h"
#include "core/base/unique_fd.h"
#include "core/device/shm/names/port_lookup.h"

namespace ringsock::tests {

inline SocketAddress local(std::uint16_t port) { return SocketAddress::v4(INADDR_LOOPBACK, port); }

/// A UDP socket that is bound to the loopback address.
struct UdpEnd {
  explicit UdpEnd(std::uint16_t port = 0) : fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    const SocketAddress wanted = local(port);
    EXPECT_EQ(::bind(fd.get(), wanted.get(), wanted.length()), 0);
    name = *name_by(::getsockname, fd.get(), "getsockname");
    cookie = soft::socket_cookie(fd.get()).value_or(0);
  }
  void connect(const SocketAddress& peer) const { EXPECT_EQ(::connect(fd.get(), peer.get(), peer.length()), 0); }

  UniqueFd fd;
  SocketAddress name;
  std::uint64_t cookie = 0;
};

}  // namespace ringsock::tests
