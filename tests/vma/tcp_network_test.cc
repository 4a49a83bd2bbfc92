// TCP connections that rings carry (VMA_TCP=on), on a network that loses packets, and that changes meanwhile.
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>

#include "tests/vma/shell.h"
#include "tests/vma/tcp_bytes.h"

namespace ringsock::vma_tests {
namespace {

/// The other host's name.
std::string peer_namespace() {
  const char* const name = std::getenv("TWO_HOSTS_PEER");
  return name != nullptr ? name : "";
}

constexpr const char* kHere = "10.9.0.1";
constexpr const char* kThere = "10.9.0.2";

/// Loses packets behind the ring of this host as long as it exists: those that leave the other host, and, where the
/// kernel has the connection there, those that reach it.
class Loss {
 public:
  /// @param which  packets: "random mod 100 < 1", or "inc mod 10 < 1" for every tenth
  explicit Loss(const std::string& which) {
    const std::string rule = " tcp dport 1-65535 numgen " + which + " drop; ";
    sh(
        nft("add table netdev loss; add chain netdev loss in { type filter hook ingress device eth0 priority 0; }; "
            "add chain netdev loss out { type filter hook egress device eth0 priority 0; }; "
            "add rule netdev loss in" +
            rule + "add rule netdev loss out" + rule));
  }
  Loss(const Loss&) = delete;
  Loss& operator=(const Loss&) = delete;
  ~Loss() { sh(nft("delete table netdev loss")); }

 private:
  static std::string nft(const std::string& commands) {
    return "ip netns exec " + peer_namespace() + " nft '" + commands + "'";
  }
};

TEST(TcpLoss, OnePacketInAHundredIsLostAndNothingIsMissing) {
  const Pair pair = connect_from_here(kThere, Calls::kernels);
  const Loss loss("random mod 100 < 1");
  exchange(pair.here, pair.there, 5 * kMegabyte);
  EXPECT_TRUE(pair.here.is_on_ring());
}

TEST(TcpLoss, OnePacketInTenIsLostAndNothingIsMissing) {
  const Pair pair = accept_here(kHere, Calls::kernels);
  const Loss loss("inc mod 10 < 1");
  exchange(pair.here, pair.there, kMegabyte);
  EXPECT_TRUE(pair.here.is_on_ring());
}

TEST(TcpLoss, BetweenTwoRingsOnePacketInTenIsLostAndNothingIsMissing) {
  const Pair pair = connect_from_here(kThere, Calls::librarys);
  const Loss loss("inc mod 10 < 1");
  exchange(pair.here, pair.there, kMegabyte);
  EXPECT_TRUE(pair.here.is_on_ring());
  EXPECT_TRUE(pair.there.is_on_ring());
}

/// Waits until the network is as it was: neighbours have been found again, so that rings carry new connections.
void until_rings_carry() {
  for (const char* const there : {kThere, "fd09::2"}) {
    for (int i = 0; i < 500 && !connect_from_here(there, Calls::kernels).here.is_on_ring(); ++i) ::usleep(10'000);
  }
}

/// Bytes that are sent while `command` takes the network away and gives it back arrive, and so do those behind them.
void expect_to_outlive(const std::string& command) {
  const Pair pair = connect_from_here(kThere, Calls::kernels);
  std::thread sends([&] { send_pattern(pair.here, 5, 2'000'000); });
  sh(command);
  expect_pattern(pair.there, 5, 2'000'000);
  sends.join();
  ASSERT_EQ(pair.there.send("and back"), 8U);
  EXPECT_EQ(pair.here.receive(8), "and back");
  until_rings_carry();
}

TEST(TcpNetwork, AConnectionOutlivesALinkThatIsDown) {
  expect_to_outlive(
      "ip link set eth0 down; sleep 0.3; ip link set eth0 up; ip address replace fd09::1/64 dev eth0 nodad");
}

TEST(TcpNetwork, AConnectionOutlivesAnAddressThatIsAway) {
  expect_to_outlive("ip address del 10.9.0.1/24 dev eth0; sleep 0.3; ip address add 10.9.0.1/24 dev eth0");
}

/// A second cable between the hosts, by which the other host sends what goes to this one's first address, from
/// `address_there`, which this host reaches by the first cable.
class OtherWayHere {
 public:
  /// @param last  of the addresses there, 10.9.9.N and fd09:9::N: no two stories have the same peer
  explicit OtherWayHere(int last) : last_(std::to_string(last)) {
    const std::string peer = peer_namespace();
    sh("ip link add eth1 type veth peer name eth1 netns " + peer + "; " + end_of_cable(1, "") + end_of_cable(2, peer));
    sh("ip route add 10.9.9." + last_ + " via 10.9.0.2; ip route add fd09:9::" + last_ + " via fd09::2; ip -n " + peer +
       " address add 10.9.9." + last_ + "/32 dev lo; ip -n " + peer + " address add fd09:9::" + last_ +
       "/128 dev lo nodad");
    sh("ip -n " + peer + " route add 10.9.0.1 dev eth0 src 10.9.9." + last_ + "; ip -n " + peer +
       " route add fd09::1 dev eth0 src fd09:9::" + last_);
  }
  OtherWayHere(const OtherWayHere&) = delete;
  OtherWayHere& operator=(const OtherWayHere&) = delete;
  ~OtherWayHere() {
    const std::string peer = peer_namespace();
    sh("ip -n " + peer + " route del 10.9.0.1; ip -n " + peer +
       " route del fd09::1; ip link del eth1; ip route del 10.9.9." + last_ + "; ip route del fd09:9::" + last_);
  }

  /// From now on packets come by the second cable.
  void begin() const {
    const std::string change = "ip -n " + peer_namespace() + " route change ";
    sh(change + "10.9.0.1 via 10.9.1.1 src 10.9.9." + last_ + "; " + change +
       "fd09::1 via fd09:1::1 src fd09:9::" + last_);
  }
  [[nodiscard]] std::string there(bool is_ipv6) const { return (is_ipv6 ? "fd09:9::" : "10.9.9.") + last_; }

 private:
  /// What makes the cable's end usable at once, in this namespace (where `in` is empty) or in another.
  static std::string end_of_cable(int number, const std::string& in) {
    const std::string exec = in.empty() ? "" : "ip netns exec " + in + " ", last = std::to_string(number);
    return exec + "sysctl -qw net.ipv6.conf.eth1.accept_dad=0 net.ipv4.conf.all.rp_filter=0; " + exec +
           "ip address add 10.9.1." + last + "/24 dev eth1; " + exec + "ip address add fd09:1::" + last +
           "/64 dev eth1 nodad; " + exec + "ip link set eth1 up; ";
  }
  std::string last_;
};

void expect_words(const Pair& pair) {
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(pair.here.send("question"), 8U);
    ASSERT_EQ(pair.there.receive(8), "question");
    ASSERT_EQ(pair.there.send("answer"), 6U);
    ASSERT_EQ(pair.here.receive(6), "answer");
  }
}

TEST(TcpDetour, AConnectionWhosePeerCameByAnotherInterfaceIsNotTakenOver) {
  const OtherWayHere way(1);
  way.begin();
  for (const char* const here : {kHere, "fd09::1", "::ffff:10.9.0.1"}) {
    const Pair pair = accept_here(here, Calls::kernels);
    EXPECT_FALSE(pair.here.is_on_ring()) << here;
    expect_words(pair);
  }
}

TEST(TcpDetour, AClientWhoseAnswersComeByAnotherInterfaceGoesOnByTheKernel) {
  const OtherWayHere way(2);
  way.begin();
  for (const bool is_ipv6 : {false, true}) {
    const Pair pair = connect_from_here(way.there(is_ipv6).c_str(), Calls::kernels);
    EXPECT_TRUE(pair.here.is_on_ring());
    expect_words(pair);
    EXPECT_FALSE(pair.here.is_on_ring());
    exchange(pair.here, pair.there, kMegabyte);
  }
}

TEST(TcpDetour, SuchAPeerIsRemembered) {
  const OtherWayHere way(3);
  way.begin();
  for (int i = 0; i < 2; ++i) expect_words(connect_from_here(way.there(false).c_str(), Calls::kernels));
  const Pair pair = connect_from_here(way.there(false).c_str(), Calls::kernels);
  EXPECT_FALSE(pair.here.is_on_ring());
  expect_words(pair);
}

/// The peer's route changes while bytes go both ways, and none is lost.
void expect_to_go_on(const OtherWayHere& way, const Pair& pair) {
  ASSERT_TRUE(pair.here.is_on_ring());
  expect_words(pair);
  way.begin();
  expect_words(pair);
  EXPECT_FALSE(pair.here.is_on_ring());
  exchange(pair.here, pair.there, kMegabyte);
}

TEST(TcpDetour, APeerMayChangeItsRouteMeanwhile) {
  const OtherWayHere way(4);
  expect_to_go_on(way, connect_from_here(way.there(false).c_str(), Calls::kernels));
}

TEST(TcpDetour, AnAcceptedConnectionsPeerMayChangeItsRouteMeanwhile) {
  const OtherWayHere way(5);
  expect_to_go_on(way, accept_here("fd09::1", Calls::kernels));
}

TEST(TcpDetour, AReceiverFindsThatItsPeerHasChangedItsRoute) {
  const OtherWayHere way(6);
  const Pair pair = accept_here(kHere, Calls::kernels);
  ASSERT_TRUE(pair.here.is_on_ring());
  std::thread sends([&] { send_pattern(pair.there, 6, 20 * kMegabyte); });
  way.begin();
  expect_pattern(pair.here, 6, 20 * kMegabyte);
  sends.join();
}

TEST(TcpNetwork, PacketsAreAsLongAsTheInterfacePermits) {
  const std::string peer = peer_namespace();
  const auto set_mtu = [&](const std::string& mtu) {
    sh("ip link set eth0 mtu " + mtu + "; ip -n " + peer + " link set eth0 mtu " + mtu);
  };
  const Pair pair = connect_from_here(kThere, Calls::kernels);
  const auto segment_bytes = [&] {
    tcp_info info{};
    socklen_t length = sizeof info;
    EXPECT_EQ(::getsockopt(pair.here.fd(), IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    return info.tcpi_snd_mss;
  };
  const auto segments_become = [&](auto are_right) {
    for (int i = 0; i < 1'000 && !are_right(segment_bytes()); ++i) ::usleep(10'000);
    EXPECT_TRUE(are_right(segment_bytes())) << segment_bytes();
  };
  const auto exchange_some = [&] { exchange(pair.here, pair.there, 100'000); };
  exchange_some();
  set_mtu("600");
  segments_become([](std::uint32_t bytes) { return bytes <= 560; });
  exchange_some();
  set_mtu("1500");
  segments_become([](std::uint32_t bytes) { return bytes > 1'400; });
  exchange_some();
  EXPECT_TRUE(pair.here.is_on_ring());
  sh("ip address replace fd09::1/64 dev eth0 nodad; ip address replace fd09::3/64 dev eth0 nodad preferred_lft 0; ip "
     "-n " +
     peer + " address replace fd09::2/64 dev eth0 nodad");  // IPv6 ends below 1280
  until_rings_carry();
}

}  // namespace
}  // namespace ringsock::vma_tests
