// Network namespaces of a test's own, without names: they go with the process.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "core/base/unique_fd.h"
#include "core/net/networks.h"

namespace ringsock::net {

/// Calls happen on threads of their own, so that the test's own stays where it is.
class NetworkNamespace {
 public:
  /// A new one with its loopback up; is_there() is false without permission.
  NetworkNamespace() {
    std::thread([this] {
      if (::unshare(CLONE_NEWNET) == 0) fd_ = UniqueFd(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    }).join();
    if (fd_) run("ip link set lo up");
  }

  [[nodiscard]] bool is_there() const { return static_cast<bool>(fd_); }

  /// Runs `body` in this namespace and gives its result.
  template <class Body>
  auto in(Body body) const {
    using Value = decltype(body());
    std::optional<Value> value;
    std::thread([&] {
      if (::setns(fd_.get(), CLONE_NEWNET) != 0) std::abort();
      value.emplace(body());
    }).join();
    return std::move(*value);
  }

  /// @return whether the shell command succeeded; its complaints are shown.
  bool try_to(const std::string& command) const {
    return in([&] { return std::system(command.c_str()) == 0; });
  }
  void run(const std::string& command) const { EXPECT_TRUE(try_to(command)) << command; }
  /// Writes below /proc/sys/net, which shows the settings of the writer's namespace.
  void set(const std::string& name, const std::string& value) const {
    run("echo " + value + " > /proc/sys/net/" + name);
  }

  /// As ip(8) takes it for a namespace.
  [[nodiscard]] std::string name() const {
    return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd_.get());
  }

  [[nodiscard]] UniqueFd socket(int family = AF_INET, int type = SOCK_DGRAM) const {
    return in([&] { return UniqueFd(::socket(family, type | SOCK_CLOEXEC, 0)); });
  }

  [[nodiscard]] Result<std::shared_ptr<NetworkState>> state() const {
    return in([] {
      const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      return networks().of_socket(socket.get());
    });
  }

 private:
  UniqueFd fd_;
};

/// Processes events until `holds`, at most for some seconds. @return whether it holds.
template <class Condition>
bool wait_until(NetworkState& state, Condition holds) {
  const Nanos deadline = monotonic_now() + std::chrono::seconds(10);
  while (!holds()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - monotonic_now());
    if (left.count() <= 0) return false;
    pollfd waiting{state.fd(), POLLIN, 0};
    ::poll(&waiting, 1, static_cast<int>(left.count()));
    state.process_events();
  }
  return true;
}

inline IpAddress ip(const std::string& text) {
  in_addr v4{};
  if (::inet_pton(AF_INET, text.c_str(), &v4) == 1) return IpAddress::v4(v4);
  in6_addr v6{};
  EXPECT_EQ(::inet_pton(AF_INET6, text.c_str(), &v6), 1) << text;
  return IpAddress::v6(v6);
}

/// Two namespaces and a cable: v0 here with 10.0.0.1/24 and fd00::1/64, v1 there with .2 and ::2.
class TwoHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!here.is_there() || !there.is_there()) GTEST_SKIP() << "no permission to make a network namespace";
    // Link-local addresses that work at once: NDP asks from them.
    for (const NetworkNamespace* host : {&here, &there}) {
      host->set("ipv6/conf/all/accept_dad", "0");
      host->set("ipv6/conf/default/accept_dad", "0");
      host->set("ipv6/conf/default/router_solicitation_delay", "0");
    }
    here.run("ip link add v0 address 02:00:00:00:00:01 type veth peer name v1 address 02:00:00:00:00:02 netns " +
             there.name());
    here.run("ip link set v0 up");
    there.run("ip link set v1 up");
    auto opened = here.state();
    ASSERT_TRUE(opened) << opened.error().where;
    state = *opened;
    ASSERT_TRUE(wait_until(*state, [&] { return has(*state, "fe80::ff:fe00:1"); }));
    ASSERT_TRUE(wait_until_usable(there, "fe80::ff:fe00:2"));
    here.run("ip addr add 10.0.0.1/24 brd + dev v0 && ip addr add fd00::1/64 dev v0 nodad");
    there.run("ip addr add 10.0.0.2/24 dev v1 && ip addr add fd00::2/64 dev v1 nodad");
    ASSERT_TRUE(wait_until(*state, [&] { return has(*state, "10.0.0.1") && has(*state, "fd00::1"); }));
    v0 = state->link("v0")->index;
  }

  /// IPv6 addresses that come before IPv6 has found the link up are of no use until some time after: waits for the
  /// link-local address of the link.
  static bool wait_until_usable(const NetworkNamespace& host, const char* link_local) {
    const auto its_state = host.state();
    return its_state && wait_until(**its_state, [&] { return has(**its_state, link_local); });
  }

  static bool has(const NetworkState& state, const char* address) {
    const auto found = state.find_address(ip(address));
    return found && !found->is_tentative();
  }

  /// A path that must be known.
  Path path(const PathQuery& query) {
    auto answer = state->path_to(query);
    EXPECT_TRUE(answer) << (answer ? "" : answer.error().where);
    return answer ? *answer : Path{};
  }
  Path path(const std::string& destination) { return path(PathQuery{.destination = ip(destination)}); }

  NetworkNamespace here;
  NetworkNamespace there;
  std::shared_ptr<NetworkState> state;
  int v0 = 0;
};

}  // namespace ringsock::net
