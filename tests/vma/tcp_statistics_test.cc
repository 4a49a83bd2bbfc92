// What vma_stats(8) shows of TCP connections that rings carry. Runs with VMA_TCP=on (statistics.sh).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mellanox/vma_extra.h>
#include <poll.h>

#include <algorithm>
#include <string>

#include "tests/vma/shell.h"
#include "tests/vma/statistics_world.h"
#include "tests/vma/tcp_world.h"

namespace ringsock::vma_tests {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class TcpStatistics : public testing::Test {
 protected:
  TcpStatistics() { EXPECT_TRUE(pair_.here.is_on_ring()); }
  [[nodiscard]] std::string block() const { return vma_stats("-v 3 -c 1 -s " + std::to_string(pair_.here.fd())); }
  [[nodiscard]] std::string fd_line() const { return "Fd=[" + std::to_string(pair_.here.fd()) + "]"; }
  void go_to_kernel() const {
    const int clamp = 60'000;
    ASSERT_EQ(::setsockopt(pair_.here.fd(), IPPROTO_TCP, TCP_WINDOW_CLAMP, &clamp, sizeof clamp), 0);
    ASSERT_FALSE(pair_.here.is_on_ring());
  }

  Pair pair_ = connect_from_here("10.9.0.2", Calls::kernels);
};

TEST_F(TcpStatistics, TellWhoIsConnectedAndWhatWentEachWay) {
  const std::string data(1024, 'x');
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(pair_.here.send(data), data.size());
    ASSERT_EQ(pair_.there.receive(data.size()), data);
  }
  for (int i = 0; i < 25; ++i) {
    ASSERT_EQ(pair_.there.send(data), data.size());
    ASSERT_EQ(pair_.here.receive(data.size()), data);
  }
  const std::string full = block();
  EXPECT_THAT(full, HasSubstr(fd_line() + "\n- TCP, Blocked\n- Local Address   = [10.9.0.1:"));
  EXPECT_THAT(full, HasSubstr("- Foreign Address = [10.9.0.2:"));
  EXPECT_THAT(full, HasSubstr("- State = [ESTABLISHED]\n"));
  EXPECT_GT(number_in(full, "Round trip: (\\d+) / "), 0);
  EXPECT_GT(number_in(full, "Congestion window: (\\d+), "), 1'000);
  EXPECT_EQ(number_in(full, "Tx Offload: (\\d+) / "), 50);
  EXPECT_GE(number_in(full, "Tx Offload: \\d+ / (\\d+)"), 50);
  EXPECT_EQ(number_in(full, "Rx Offload: (\\d+) / "), 25);
  EXPECT_GE(number_in(full, "Rx Offload: \\d+ / (\\d+)"), 25);
  EXPECT_TRUE(pair_.here.is_on_ring());

  ASSERT_THAT(vma_stats("-z"), "");
  const std::string zeroed = block();
  EXPECT_LE(number_in(zeroed, "Tx Offload: (\\d+) / "), 0) << "an acknowledgement may have left since";
  EXPECT_THAT(zeroed, Not(HasSubstr("Rx Offload: 25")));
}

TEST_F(TcpStatistics, TellWhatWaitsInBothQueues) {
  ASSERT_EQ(pair_.there.send("five!"), 5U);
  pollfd waiting{pair_.here.fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&waiting, 1, 5'000), 1);
  const std::string much(1'000'000, 'x');
  while (pair_.here.send_some(much.data(), much.size(), MSG_DONTWAIT) > 0) {
  }
  const std::string row = vma_stats("-v 5 -c 1 -s " + std::to_string(pair_.here.fd()));
  EXPECT_THAT(row, ContainsRegex("tcp +Yes +5 +[1-9][0-9]+ +10.9.0.1:[0-9]+ +10.9.0.2:[0-9]+ +ESTABLISHED "));
}

TEST_F(TcpStatistics, TellThatThePeerHasClosed) {
  pair_.there.close();
  pollfd waiting{pair_.here.fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&waiting, 1, 5'000), 1);
  EXPECT_THAT(block(), HasSubstr("- State = [CLOSE_WAIT]\n"));
}

TEST_F(TcpStatistics, TellWhatHadToBeSentAgain) {
  ASSERT_EQ(pair_.here.send("first"), 5U);
  ASSERT_EQ(pair_.there.receive(5), "first");
  const std::string there = std::getenv("TWO_HOSTS_PEER");
  sh("ip netns exec " + there +
     " nft 'add table netdev loss; add chain netdev loss in { type filter hook ingress device eth0 priority 0; }; "
     "add rule netdev loss in tcp dport 1-65535 drop'");
  ASSERT_EQ(pair_.here.send("lost"), 4U);
  while (number_in(block(), "Retransmissions: (\\d+)") < 1) ::usleep(10'000);
  sh("ip netns exec " + there + " nft delete table netdev loss");
  EXPECT_EQ(pair_.there.receive(4), "lost");
}

TEST_F(TcpStatistics, TellOfDummySends) {
  for (int i = 0; i < 7; ++i) ASSERT_EQ(::send(pair_.here.fd(), "dummy", 5, VMA_SND_FLAGS_DUMMY), 5);
  EXPECT_THAT(block(), HasSubstr("Tx Dummy messages : 7\n"));
}

TEST_F(TcpStatistics, TellHowOftenTheProgramFoundNothing) {
  char one = 0;
  for (int i = 0; i < 3; ++i) ASSERT_EQ(pair_.here.receive_some(&one, 1, MSG_DONTWAIT), -1);
  EXPECT_THAT(block(), ContainsRegex("Rx Offload: 0 / [0-9]+ / 3 / 0 "));
}

TEST_F(TcpStatistics, LeaveOutWhatTheKernelCarries) {
  EXPECT_THAT(block(), HasSubstr(fd_line()));
  go_to_kernel();
  EXPECT_THAT(block(), Not(HasSubstr(fd_line())));
}

TEST_F(TcpStatistics, CanBeWrittenToTheLog) {
  ASSERT_THAT(contents_of("VMA_LOG_FILE"), Not(HasSubstr(fd_line() + "\n- TCP")));
  vma_get_api()->dump_fd_stats(pair_.here.fd(), 3);
  EXPECT_THAT(contents_of("VMA_LOG_FILE"), ContainsRegex("State = .ESTABLISHED."));
}

TEST_F(TcpStatistics, AreWrittenWhenASocketCloses) {
  const std::string fd = fd_line();
  ASSERT_EQ(pair_.here.send(std::string(2048, 'x')), 2048U);
  ASSERT_EQ(pair_.there.receive(2048).size(), 2048U);
  pair_.here.close();
  EXPECT_THAT(contents_of("VMA_STATS_FILE"), HasSubstr(fd + "\n- TCP, Blocked\n- Local Address   = [10.9.0.1:"));
}

TEST_F(TcpStatistics, RsstatCountsConnectionsApart) {
  ASSERT_THAT(block(), HasSubstr(fd_line()));
  EXPECT_THAT(output_of("tools/rsstat -p " + std::to_string(::getpid())),
              HasSubstr("libvma, 0 UDP sockets (0 by Ethernet rings), 1 TCP connections by Ethernet rings"));
}

// -- the trace of a connection

using TcpTrace = TcpStatistics;

TEST_F(TcpTrace, IsWrittenToTheLogUntilItHasItsSegments) {
  ASSERT_THAT(vma_stats("-T " + std::to_string(pair_.here.fd()) + " 4"), "");
  const std::size_t before = contents_of("VMA_LOG_FILE").size();
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(pair_.here.send("question"), 8U);
    ASSERT_EQ(pair_.there.receive(8), "question");
    ASSERT_EQ(pair_.there.send("the answer"), 10U);
    ASSERT_EQ(pair_.here.receive(10), "the answer");
  }
  std::string trace;
  while (trace.find("that was the last one\n") == std::string::npos) {
    ::usleep(10'000);
    trace = contents_of("VMA_LOG_FILE").substr(before);
  }
  EXPECT_THAT(trace, ContainsRegex("TCP 10.9.0.1:[0-9]+ - 10.9.0.2:[0-9]+: \\+0.[0-9]+ sent .P.. 0:8 ack 0 window "));
  EXPECT_THAT(trace, ContainsRegex("received .P.. 0:10 ack 8 window [0-9]+; cwnd [0-9]+, in flight "));
  EXPECT_EQ(number_in(trace, "cwnd (\\d+)") > 0, true);
  EXPECT_EQ(std::count(trace.begin(), trace.end(), '\n'), 5);
}

TEST_F(TcpTrace, OfAConnectionThatClosesIsWrittenToItsEnd) {
  ASSERT_THAT(vma_stats("-T " + std::to_string(pair_.here.fd())), "");
  ASSERT_EQ(pair_.here.send("the last words"), 14U);
  pair_.here.close();
  EXPECT_THAT(contents_of("VMA_LOG_FILE"), ContainsRegex("sent .P.. 0:14 ack 0 window "));
}

TEST_F(TcpTrace, OfWhatIsNoConnectionIsRefused) {
  ASSERT_THAT(vma_stats("-T 0"), "");
  EXPECT_THAT(contents_of("VMA_LOG_FILE"), HasSubstr("descriptor 0 is no TCP connection on a ring: it is not traced"));
}

}  // namespace
}  // namespace ringsock::vma_tests
