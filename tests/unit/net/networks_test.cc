// Namespaces, forks, overruns, and path MTUs, with the real kernel.
#include "core/net/networks.h"

#include <sys/wait.h>

#include <array>
#include <atomic>

#include "tests/unit/net/network_namespace.h"

namespace ringsock::net {
namespace {

using Namespaces = TwoHosts;

Result<std::shared_ptr<NetworkState>> state_of(const UniqueFd& socket) { return networks().of_socket(socket.get()); }

TEST_F(Namespaces, SocketsOfOneShareItsState) {
  const UniqueFd socket = here.socket(AF_INET6, SOCK_STREAM);
  EXPECT_EQ(*state_of(socket), state);
}

TEST_F(Namespaces, SocketsOfAnotherHaveAnother) {
  const auto other = there.state();
  ASSERT_TRUE(other);
  EXPECT_NE(*other, state);
  EXPECT_TRUE((*other)->link("v1"));
  EXPECT_FALSE((*other)->link("v0"));
  EXPECT_NE(*network_namespace_of(here.socket().get()), *network_namespace_of(there.socket().get()));
  EXPECT_EQ(*network_namespace_of(here.socket().get()), *network_namespace_of(here.socket().get()));
}

TEST_F(Namespaces, SocketFromElsewhereIsRefusedUnlessItsStateIsThere) {
  const UniqueFd socket = there.socket();
  EXPECT_EQ(state_of(socket).error().code, EXDEV);
  const auto held = there.state();
  EXPECT_EQ(*state_of(socket), *held);
}

TEST_F(Namespaces, StateEndsWithItsLastHolder) {
  auto held = there.state();
  const std::weak_ptr<NetworkState> gone = *held;
  held = Error{0, ""};
  EXPECT_TRUE(gone.expired());
}

TEST_F(Namespaces, OtherDescriptorsAreNoSockets) {
  const UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(state_of(file).error().code, ENOTSOCK);
  EXPECT_EQ(networks().of_socket(-1).error().code, EBADF);
}

/// @return exit status of `body` in a child process
template <class Body>
int in_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(Namespaces, ChildAsksForItselfAndTakesNothingFromItsParent) {
  EXPECT_EQ(path("10.0.0.2").mtu, 1500u);
  const auto before = state->generation();
  here.run("ip link set v0 mtu 1400");  // told to the parent's socket
  const int status = here.in([&] {
    return in_child([&] {
      if (state->generation() == before) return 1;  // what was kept must be asked again
      state->process_events();
      const auto found = state->path_to({.destination = ip("10.0.0.2")});
      if (!found) return 2;
      return found->mtu == 1400 && state->link(v0)->mtu == 1400 ? 0 : 3;
    });
  });
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(wait_until(*state, [&] { return path("10.0.0.2").mtu == 1400; }));
}

TEST_F(Namespaces, ChildFollowsChangesToo) {
  const int status = here.in([&] {
    return in_child([&] {
      const int parents = state->fd();
      if (std::system("ip link set v0 mtu 1300") != 0) return 1;
      const bool seen = wait_until(*state, [&] { return state->link(v0)->mtu == 1300; });
      return seen && parents >= 0 ? 0 : 2;
    });
  });
  EXPECT_EQ(status, 0);
}

TEST_F(Namespaces, ChildInAnotherNamespaceIsToldSo) {
  const int status = in_child([&] {
    const auto found = state->path_to({.destination = ip("10.0.0.2")});
    return !found && found.error().code == EXDEV ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
}

TEST_F(Namespaces, LostEventsAreMadeUpFor) {
  const auto peer = [&] { return state->neighbour(path("10.0.0.2")); }();
  std::atomic<int> resyncs = 0;
  const auto listener = state->add_listener(
      [&](const NetworkChange& change) { resyncs += change.what == NetworkChange::What::everything; });
  // More than the socket's buffer holds, and what matters at the end.
  here.run(
      "for i in $(seq 0 19); do for j in $(seq 1 200); do echo route add 172.16.$i.$j/32 dev v0; done; done | "
      "ip -batch -");
  here.run("ip link set v0 mtu 1300 && ip neigh replace 10.0.0.2 lladdr 02:00:00:00:00:66 dev v0 nud permanent");
  EXPECT_TRUE(wait_until(*state, [&] { return resyncs > 0; }));
  EXPECT_EQ(state->link(v0)->mtu, 1300u);
  EXPECT_EQ(peer->facts().mac[5], 0x66);
  EXPECT_EQ(path("10.0.0.2").mtu, 1300u);
  EXPECT_TRUE(state->link("lo"));
  // And it goes on as before.
  here.run("ip link set v0 mtu 1310");
  EXPECT_TRUE(wait_until(*state, [&] { return state->link(v0)->mtu == 1310; }));
  state->remove_listener(listener);
}

TEST_F(Namespaces, SeveralThreadsAskWhileEventsCome) {
  std::atomic<bool> stop = false;
  std::atomic<int> wrong = 0;
  std::atomic<int> refreshes = 0;
  const auto ask = [&](const std::string& destination) {
    while (!stop) {
      const auto found = state->path_to({.destination = ip(destination)});
      wrong += !found;
      if (found && state->neighbour(*found)->needs_refresh()) ++refreshes;
    }
  };
  std::array threads = {std::thread(ask, "10.0.0.2"), std::thread(ask, "fd00::2"), std::thread([&] {
                          while (!stop) state->process_events();
                        })};
  for (int i = 0; i < 20; ++i) {
    const std::string address = "10.0.1." + std::to_string(i + 1);
    here.run("ip addr add " + address + "/32 dev v0");
    const Nanos deadline = monotonic_now() + std::chrono::seconds(10);
    while (!state->find_address(ip(address)) && monotonic_now() < deadline) std::this_thread::yield();
    EXPECT_TRUE(state->find_address(ip(address)));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// -- path MTU: here - there (a router) - far, whose link has an MTU of 1300

class PathMtu : public TwoHosts {
 protected:
  void SetUp() override {
    TwoHosts::SetUp();
    if (IsSkipped()) return;
    there.set("ipv4/ip_forward", "1");
    there.set("ipv6/conf/all/forwarding", "1");
    there.run("ip link add w0 address 02:00:00:00:00:03 mtu 1300 type veth peer name w1 mtu 1300 netns " + far.name());
    far.run("ip link set w1 up");
    there.run("ip link set w0 up");
    ASSERT_TRUE(wait_until_usable(there, "fe80::ff:fe00:3"));
    there.run("ip addr add 192.0.2.1/24 dev w0 && ip addr add 2001:db8::1/64 dev w0 nodad");
    far.run("ip addr add 192.0.2.2/24 dev w1 && ip addr add 2001:db8::2/64 dev w1 nodad");
    here.run("ip route add 192.0.2.0/24 via 10.0.0.2 && ip -6 route add 2001:db8::/64 via fd00::2");
  }

  /// A datagram that is too big for the far link, by a kernel socket that forbids fragments.
  void send_too_much(const std::string& destination, int level, int option, int value) {
    const SocketAddress target = ip(destination).with_port(9);
    const UniqueFd socket = here.socket(target.family());
    ASSERT_EQ(::setsockopt(socket.get(), level, option, &value, sizeof value), 0);
    const std::array<char, 1400> payload{};
    EXPECT_EQ(::sendto(socket.get(), payload.data(), payload.size(), 0, target.get(), target.length()), 1400);
  }

  NetworkNamespace far;
};

TEST_F(PathMtu, ShrinksWhenARouterSaysSo) {
  EXPECT_EQ(path("192.0.2.2").mtu, 1500u);
  const auto before = state->generation();
  send_too_much("192.0.2.2", IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
  EXPECT_TRUE(wait_until(*state, [&] { return path("192.0.2.2").mtu == 1300; }));
  EXPECT_GT(state->generation(), before);
  EXPECT_EQ(path("192.0.2.3").mtu, 1500u) << "another destination";
}

TEST_F(PathMtu, ShrinksForIpv6Too) {
  EXPECT_EQ(path("2001:db8::2").mtu, 1500u);
  send_too_much("2001:db8::2", IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO);
  EXPECT_TRUE(wait_until(*state, [&] { return path("2001:db8::2").mtu == 1300; }));
}

TEST_F(PathMtu, ComesBackWhenTheKernelForgets) {
  here.set("ipv4/route/mtu_expires", "1");
  send_too_much("192.0.2.2", IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
  EXPECT_TRUE(wait_until(*state, [&] { return path("192.0.2.2").mtu == 1300; }));
  EXPECT_TRUE(wait_until(*state, [&] { return path("192.0.2.2").mtu == 1500; }));
}

}  // namespace
}  // namespace ringsock::net
