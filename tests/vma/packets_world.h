// A socket of this host on a ring, whose datagrams programs get in buffers of the ring by VMA's Extra API.
#pragma once

#include <gtest/gtest.h>
#include <mellanox/vma_extra.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "tests/support/extra_api.h"
#include "tests/vma/far_socket.h"
#include "tests/vma/udp_world.h"

namespace ringsock::vma_tests {

using support::api;
using support::error_of;
using support::free_one;

/// A socket of this host on a ring, and a sender on the other host.
class Packets : public ::testing::Test {
 protected:
  Packets() {
    socket_.limit_waits();
    bind_here(socket_);
    EXPECT_EQ(api().get_socket_rings_num(socket_), 1);
  }
  static void bind_here(const Socket& socket) {
    const Address here("10.9.0.1", 0);
    ASSERT_EQ(::bind(socket, here.get(), here.length()), 0) << std::strerror(errno);
  }
  void send(const std::string& text) { send_to(socket_, text); }
  void send_to(const Socket& socket, const std::string& text) {
    ASSERT_EQ(far_.send(socket.name(), text), static_cast<long>(text.size())) << std::strerror(errno);
  }
  /// Waits until `done`, which looks, says so.
  static void until(const std::function<bool()>& done) {
    for (int left = 30'000; left > 0; --left) {
      if (done()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    FAIL() << "waited for 30 seconds";
  }

  Socket socket_{AF_INET};
  FarSocket far_{"10.9.0.2"};
};

}  // namespace ringsock::vma_tests
