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
    return std::string("ip netns exec ") + std::getenv("TWO_HOSTS_PEER") + " nft '" + commands + "'";
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

TEST(TcpNetwork, PacketsAreAsLongAsTheInterfacePermits) {
  const std::string peer = std::getenv("TWO_HOSTS_PEER");
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
