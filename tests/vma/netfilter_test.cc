// Rules of nftables and of the older iptables hold for sockets, whatever carries them (netfilter_vma.sh).
#include <gmock/gmock.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <future>

#include "tests/vma/shell.h"
#include "tests/vma/udp_world.h"

namespace ringsock::vma_tests {
namespace {

using std::chrono::steady_clock;

void nft(const std::string& commands) { sh("nft '" + commands + "'"); }

class Netfilter : public ::testing::Test {
 protected:
  void SetUp() override {
    bind(socket_);
    ASSERT_TRUE(reaches_peer());
    ASSERT_TRUE(uses_a_ring());
  }
  void TearDown() override { nft("flush ruleset"); }

  static void bind(const Socket& socket) {
    ASSERT_EQ(::bind(socket, Address("0.0.0.0", 0).get(), sizeof(sockaddr_in)), 0);
  }
  /// One question, answered within 200 ms.
  bool is_answered() {
    const std::string question = "question " + std::to_string(++questions_);
    socket_.limit_waits(200);
    if (socket_.send_to(echo_, question) < 0) return false;
    std::string answer = socket_.receive();
    while (!answer.empty() && answer != question) answer = socket_.receive();
    return answer == question;
  }
  /// Rules that come and go are heard of a moment later.
  template <class Condition>
  static bool is_soon(Condition condition) {
    const auto end = steady_clock::now() + std::chrono::seconds(5);
    while (!condition()) {
      if (steady_clock::now() > end) return false;
    }
    return true;
  }
  bool reaches_peer() {
    return is_soon([this] { return is_answered(); });
  }
  bool loses_peer() {
    if (!is_soon([this] { return !is_answered(); })) return false;
    for (int i = 0; i < 3; ++i) {
      if (is_answered()) return false;
    }
    return true;
  }
  bool is_on_ring() {
    const long before = kernels_datagrams(AF_INET), sent_before = kernels_sent_datagrams(AF_INET);
    return is_answered() && kernels_datagrams(AF_INET) == before && kernels_sent_datagrams(AF_INET) == sent_before;
  }
  bool uses_a_ring() {
    return !preloaded() || is_soon([this] { return is_on_ring(); });
  }
  bool uses_the_kernel() {
    return is_soon([this] {
      const long before = kernels_datagrams(AF_INET), sent_before = kernels_sent_datagrams(AF_INET);
      return is_answered() && kernels_datagrams(AF_INET) > before && kernels_sent_datagrams(AF_INET) > sent_before;
    });
  }

  const Address echo_{"10.9.0.2", kEchoPort};
  Socket socket_{AF_INET};
  int questions_ = 0;
};

TEST_F(Netfilter, WhatAnInputRuleDropsDoesNotArrive) {
  nft("add table inet t; add chain inet t in { type filter hook input priority 0; }");
  nft("add rule inet t in udp sport 7000 drop");
  EXPECT_TRUE(loses_peer());
  nft("delete table inet t");
  EXPECT_TRUE(reaches_peer());
  EXPECT_TRUE(uses_a_ring());
}

TEST_F(Netfilter, WhatAPolicyDropsDoesNotArrive) {
  nft("add table ip t; add chain ip t in { type filter hook input priority 0; policy drop; }");
  EXPECT_TRUE(loses_peer());
}

TEST_F(Netfilter, WhatAnOutputRuleDropsDoesNotLeave) {
  nft("add table ip t; add chain ip t out { type filter hook output priority 0; }; add rule ip t out udp dport 7000 "
      "drop");
  EXPECT_TRUE(loses_peer());
  EXPECT_EQ(socket_.send_to(echo_, "no"), -1);
  EXPECT_EQ(errno, EPERM);
  nft("delete table ip t");
  EXPECT_TRUE(uses_a_ring());
}

TEST_F(Netfilter, WhatAnInterfacesRuleDropsDoesNotArrive) {
  nft("add table netdev t; add chain netdev t in { type filter hook ingress device eth0 priority 0; };"
      "add rule netdev t in udp sport 7000 drop");
  EXPECT_TRUE(loses_peer());
  nft("delete table netdev t");
  EXPECT_TRUE(uses_a_ring());
}

// A service's address, as Kubernetes has it.
TEST_F(Netfilter, TranslatedDestinationsAnswerEachDatagram) {
  sh("ip route add 10.96.0.0/16 via 10.9.0.2");
  const auto each_is_answered = [](const Socket& socket) {
    const Address service("10.96.0.1", 53);
    socket.limit_waits(1000);
    for (int i = 0; i < 20; ++i) {
      const std::string question = "name " + std::to_string(i);
      Address from;
      EXPECT_EQ(socket.send_to(service, question), static_cast<ssize_t>(question.size()));
      if (socket.receive(&from) != question || from.host() != service.host() || from.port() != 53) return false;
    }
    return true;
  };
  nft("add table ip n; add chain ip n out { type nat hook output priority -100; };"
      "add rule ip n out ip daddr 10.96.0.1 udp dport 53 dnat to 10.9.0.2:7000");
  EXPECT_TRUE(uses_the_kernel()) << "the rule has not been heard of";
  EXPECT_TRUE(each_is_answered(socket_));
  const Socket later(AF_INET), connected(AF_INET);
  bind(later);
  EXPECT_TRUE(each_is_answered(later));
  const Address service("10.96.0.1", 53);
  ASSERT_EQ(::connect(connected, service.get(), service.length()), 0);
  EXPECT_TRUE(each_is_answered(connected));
  sh("ip route delete 10.96.0.0/16 via 10.9.0.2");
}

// The program makes no call meanwhile.
TEST_F(Netfilter, RulesHoldForWhoSleeps) {
  const Socket quiet(AF_INET);
  bind(quiet);
  const std::string port = std::to_string(quiet.name().port());
  quiet.limit_waits(20'000);
  auto received = std::async(std::launch::async, [&] {
    std::string got;
    do {
      got = quiet.receive();
    } while (got == "early" || (got.empty() && errno == EINTR));  // the commands' ends are signals
    return got;
  });
  nft("add table ip t; add chain ip t in { type filter hook input priority 0; };"
      "add rule ip t in udp dport " +
      port + " counter drop");
  const Messenger messenger(echo_);
  EXPECT_TRUE(is_soon([&] {
    messenger.send("early", "10.9.0.1", quiet.name().port());
    return succeeds("nft list chain ip t in | grep -q 'packets [1-9]'");
  })) << "the sleeper is on its ring";
  messenger.send("dropped", "10.9.0.1", quiet.name().port());
  nft("flush chain ip t in");
  EXPECT_TRUE(uses_a_ring());
  messenger.send("let in", "10.9.0.1", quiet.name().port());
  EXPECT_EQ(received.get(), "let in");
}

TEST_F(Netfilter, RulesHoldForWhoMayNotSeeThem) {
  std::FILE* shell = nullptr;
  {
    const WithoutLibrary here;
    shell = ::popen(
        "read _; nft 'add table ip t; add chain ip t in { type filter hook input priority 0; policy drop; }'", "w");
  }
  ASSERT_NE(shell, nullptr);
  socket_ = Socket(AF_INET);  // one that the shell does not have
  bind(socket_);
  EXPECT_TRUE(uses_a_ring());
  constexpr uid_t kNobody = 65534;
  ASSERT_EQ(::seteuid(kNobody), 0);
  std::fputs("now\n", shell);
  EXPECT_EQ(::pclose(shell), 0);
  EXPECT_TRUE(loses_peer());
  ASSERT_EQ(::seteuid(0), 0);
}

TEST_F(Netfilter, RulesThatConcernNothingHereChangeNothing) {
  nft("add table inet t; add chain inet t in { type filter hook input priority 0; policy accept; };"
      "add chain inet t passing { type filter hook forward priority 0; policy drop; };"
      "add rule inet t passing udp dport 7000 drop; add chain inet t aside; add rule inet t aside drop;"
      "add table ip6 t; add chain ip6 t in { type filter hook input priority 0; policy drop; };"
      "add table bridge t; add chain bridge t in { type filter hook input priority 0; policy drop; };"
      "add table netdev t; add chain netdev t in { type filter hook ingress device lo priority 0; policy drop; }");
  EXPECT_TRUE(uses_a_ring());  // the kernel has the datagrams while the rules are read
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(!preloaded() || is_on_ring()) << i;
  }
  nft("delete table ip6 t");
}

TEST_F(Netfilter, StatisticsAndLogSayWhy) {
  if (!preloaded()) GTEST_SKIP() << "without libvma there are none";
  const auto shown = [] {
    const std::string command = "tools/vma_stats -v 3 -c 1 -p " + std::to_string(::getpid());
    const WithoutLibrary here;
    std::string out;
    std::FILE* const tool = ::popen(command.c_str(), "r");
    char part[4096];
    while (tool != nullptr && std::fgets(part, sizeof part, tool) != nullptr) out += part;
    if (tool != nullptr) ::pclose(tool);
    return out;
  };
  EXPECT_THAT(shown(), testing::Not(testing::HasSubstr("netfilter")));
  nft("add table inet t; add chain inet t only { type filter hook input priority 0; }; add rule inet t only counter");
  EXPECT_TRUE(uses_the_kernel());
  EXPECT_THAT(shown(), testing::HasSubstr("- Left to the kernel: rules of netfilter\n"));
  std::ifstream log(std::getenv("VMA_LOG_FILE"));
  const std::string text{std::istreambuf_iterator<char>(log), {}};
  EXPECT_THAT(text,
              testing::HasSubstr("left to the kernel: what netfilter may concern (nftables chain only of table t); "
                                 "VMA_IGNORE_NETFILTER=1 has rings carry it"));
}

class OlderIptables : public Netfilter {};

TEST_F(OlderIptables, ATableOfTheirsIsTheKernels) {
  // The kernel makes the table for who asks for it.
  constexpr int kGetInfo = 64;  // IPT_SO_GET_INFO, of struct ipt_getinfo: its header is not for C++
  std::array<char, 84> about{"filter"};
  socklen_t length = about.size();
  const Socket asking(AF_INET);
  if (::getsockopt(asking, IPPROTO_IP, kGetInfo, about.data(), &length) != 0)
    GTEST_SKIP() << "the kernel has none: " << std::strerror(errno);
  EXPECT_TRUE(uses_the_kernel());
}

class IgnoredNetfilter : public Netfilter {};

TEST_F(IgnoredNetfilter, RingsPassRulesBy) {
  nft("add table inet t; add chain inet t in { type filter hook input priority 0; policy drop; }");
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(is_on_ring()) << i;
}

}  // namespace
}  // namespace ringsock::vma_tests
