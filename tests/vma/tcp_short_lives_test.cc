// Where connections have been short, they stay with the kernel until they prove to last (VMA_TCP=on).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/wait.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "tests/vma/tcp_bytes.h"
#include "tests/vma/tcp_world.h"

namespace ringsock::vma_tests {
namespace {

constexpr const char* kHere = "10.9.0.1";
constexpr const char* kThere = "10.9.0.2";

/// Connections of one place, whose listener is on either host.
class TcpShortLives : public testing::TestWithParam<bool> {
 protected:
  Pair connection() const {
    const auto end_here = [&] {
      return GetParam() ? connected_to(listener_.name(), Calls::librarys) : listener_.accept();
    };
    const auto end_there = [&] {
      return over_there(
          [&] { return GetParam() ? listener_.accept() : connected_to(listener_.name(), Calls::kernels); });
    };
    Pair out;
    if (GetParam()) out.here = end_here();
    out.there = end_there();
    if (!GetParam()) out.here = end_here();
    return out;
  }
  /// A question, an answer and the end.
  void live_shortly(int times) const {
    for (int i = 0; i < times; ++i) {
      Pair pair = connection();
      ASSERT_EQ(pair.here.send("question"), 8U);
      ASSERT_EQ(pair.there.receive(8), "question");
      ASSERT_EQ(pair.there.send("answer"), 6U);
      ASSERT_EQ(pair.here.receive(6), "answer");
      pair.here.close();
      ASSERT_EQ(pair.there.error_of_receive(), 0);
    }
  }
  static void talk(const Pair& pair, int rounds) {
    for (int i = 0; i < rounds; ++i) {
      const std::string word = "word " + std::to_string(i);
      ASSERT_EQ(pair.here.send(word), word.size());
      ASSERT_EQ(pair.there.receive(word.size()), word);
      ASSERT_EQ(pair.there.send(word), word.size());
      ASSERT_EQ(pair.here.receive(word.size()), word);
    }
  }

 private:
  const Listener listener_ =
      GetParam() ? over_there([] { return Listener(kThere, Calls::kernels); }) : Listener(kHere, Calls::librarys);
};

INSTANTIATE_TEST_SUITE_P(All, TcpShortLives, testing::Bool(),
                         [](const auto& connects) { return connects.param ? "Connects" : "Accepts"; });

TEST_P(TcpShortLives, HaveTheNextConnectionStayWithTheKernelUntilItProvesToLast) {
  EXPECT_TRUE(connection().here.is_on_ring());
  live_shortly(5);
  const Pair pair = connection();
  EXPECT_FALSE(pair.here.is_on_ring());
  talk(pair, 2);
  EXPECT_FALSE(pair.here.is_on_ring());
  talk(pair, 20);
  EXPECT_TRUE(pair.here.is_on_ring());
}

TEST_P(TcpShortLives, AreForgottenWhereConnectionsLast) {
  live_shortly(20);
  for (int i = 0; i < 3; ++i) {
    const Pair pair = connection();
    EXPECT_FALSE(pair.here.is_on_ring() && i == 0);
    talk(pair, 20);
    EXPECT_TRUE(pair.here.is_on_ring());
  }
  EXPECT_TRUE(connection().here.is_on_ring());
}

TEST_P(TcpShortLives, AMoveUnderLoadLosesNothing) {
  live_shortly(5);
  for (int i = 0; i < 10 && !HasFailure(); ++i) {
    const Pair pair = connection();
    exchange(pair.here, pair.there, 2 * kMegabyte);
    EXPECT_TRUE(pair.here.is_on_ring());
    pair.here.shut_down(SHUT_WR);
    EXPECT_EQ(pair.there.error_of_receive(), 0);
    live_shortly(5);
  }
}

/// A send that is under way when another thread's has the connection move must not end at what is left behind.
TEST_P(TcpShortLives, AMoveWhileSeveralThreadsSendLosesNothing) {
  constexpr std::size_t kThreads = 4, kPieces = 300, kPieceBytes = 1000;
  live_shortly(5);
  for (int i = 0; i < 10 && !HasFailure(); ++i) {
    const Pair pair = connection();
    std::vector<std::thread> senders;
    for (std::size_t one = 0; one < kThreads; ++one) {
      senders.emplace_back([&, one] {
        const std::string piece(kPieceBytes, static_cast<char>('a' + one));
        for (std::size_t sent = 0; sent < kPieces; ++sent) ASSERT_EQ(pair.here.send(piece), kPieceBytes);
      });
    }
    const std::string all = pair.there.receive(kThreads * kPieces * kPieceBytes);
    for (std::thread& sender : senders) sender.join();
    for (std::size_t one = 0; one < kThreads; ++one)
      EXPECT_EQ(std::ranges::count(all, static_cast<char>('a' + one)), kPieces * kPieceBytes);
    EXPECT_TRUE(pair.here.is_on_ring());
    live_shortly(5);
  }
}

/// It waits for room at the kernel's socket.
TEST_P(TcpShortLives, OneLongSendEndsOnceThePeerReads) {
  live_shortly(5);
  const Pair pair = connection();
  std::thread reads([&] {
    ::usleep(100'000);  // the kernel's buffers are full by then
    expect_pattern(pair.there, 3, 20 * kMegabyte);
  });
  Pattern pattern(3);
  const std::string all = pattern.next(20 * kMegabyte);
  EXPECT_EQ(pair.here.send_some(all.data(), all.size()), static_cast<long>(all.size()));
  reads.join();
}

TEST_P(TcpShortLives, AForkDuringTheMoveLeavesBothProcessesTheConnection) {
  constexpr std::size_t kPieces = 100, kPieceBytes = 1000;
  live_shortly(5);
  for (int i = 0; i < 30 && !HasFailure(); ++i) {
    const Pair pair = connection();
    std::thread sends([&] {
      const std::string piece(kPieceBytes, 'p');
      for (std::size_t sent = 0; sent < kPieces; ++sent) ASSERT_EQ(pair.here.send(piece), kPieceBytes);
    });
    EXPECT_EQ(pair.there.receive((62 + static_cast<std::size_t>(i) % 4) * kPieceBytes).front(), 'p');
    const pid_t child = ::fork();
    if (child == 0) ::_exit(pair.here.send(std::string(kPieceBytes, 'c')) == kPieceBytes ? 0 : 1);
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    sends.join();
    const std::string rest = pair.there.receive((kPieces + 1 - 62 - static_cast<std::size_t>(i) % 4) * kPieceBytes);
    EXPECT_EQ(std::ranges::count(rest, 'c'), kPieceBytes);
    EXPECT_EQ(pair.here.send("parent"), 6U);
    EXPECT_EQ(pair.there.receive(6), "parent");
    live_shortly(5);
  }
}

TEST_P(TcpShortLives, AReceiverIsMovedToo) {
  live_shortly(5);
  const Pair pair = connection();
  EXPECT_FALSE(pair.here.is_on_ring());
  std::thread sends([&] { send_pattern(pair.there, 9, kMegabyte); });
  expect_pattern(pair.here, 9, kMegabyte);
  sends.join();
  EXPECT_TRUE(pair.here.is_on_ring());
}

/// As a download at a limited rate does: no call finds the queue empty.
TEST_P(TcpShortLives, AReceiverThatNeverWaitsIsMovedToo) {
  live_shortly(5);
  const Pair pair = connection();
  ASSERT_EQ(pair.here.send("question"), 8U);
  ASSERT_EQ(pair.there.receive(8), "question");
  std::thread sends([&] { send_pattern(pair.there, 9, kMegabyte); });
  Pattern pattern(9);
  char room[16384];
  for (std::size_t done = 0; done < kMegabyte;) {
    pollfd entry{pair.here.fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&entry, 1, 10'000), 1);
    const long got = pair.here.receive_some(room, sizeof room);
    ASSERT_GT(got, 0);
    ASSERT_TRUE(std::string_view(room, static_cast<std::size_t>(got)) == pattern.next(static_cast<std::size_t>(got)));
    done += static_cast<std::size_t>(got);
  }
  sends.join();
  EXPECT_TRUE(pair.here.is_on_ring());
}

TEST_P(TcpShortLives, AWaitForAllBytesGetsAllOfThem) {
  live_shortly(5);
  const Pair pair = connection();
  std::thread sends([&] { send_pattern(pair.there, 9, kMegabyte); });
  std::string all(kMegabyte, '\0');
  EXPECT_EQ(pair.here.receive_some(all.data(), all.size(), MSG_WAITALL), static_cast<long>(all.size()));
  sends.join();
  EXPECT_TRUE(all == Pattern(9).next(all.size()));
  talk(pair, 2);
  EXPECT_TRUE(pair.here.is_on_ring());
}

TEST_P(TcpShortLives, AnEpollSetFollowsTheConnectionToTheRing) {
  live_shortly(5);
  const Pair pair = connection();
  ASSERT_EQ(::fcntl(pair.here.fd(), F_SETFL, O_NONBLOCK), 0);
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{EPOLLIN | EPOLLET, {.fd = pair.here.fd()}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, pair.here.fd(), &event), 0);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(pair.there.send("question"), 8U);
    for (std::string got; got.size() < 8;) {
      ASSERT_EQ(::epoll_wait(set, &event, 1, 10'000), 1) << i;
      got += pair.here.receive(8 - got.size());
    }
    ASSERT_EQ(pair.here.error_of_receive(), EAGAIN);
    ASSERT_EQ(pair.here.send("answer"), 6U);
    ASSERT_EQ(pair.there.receive(6), "answer");
  }
  EXPECT_TRUE(pair.here.is_on_ring());
  ::close(set);
}

TEST_P(TcpShortLives, APeersHalfCloseAndAForkStayWithTheKernel) {
  live_shortly(5);
  Pair pair = connection();
  ASSERT_EQ(pair.there.send("all"), 3U);
  pair.there.shut_down(SHUT_WR);
  EXPECT_EQ(pair.here.receive(10), "all");
  const pid_t child = ::fork();
  if (child == 0) ::_exit(pair.here.send("from the child") == 14 ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(pair.there.receive(14), "from the child");
  EXPECT_FALSE(pair.here.is_on_ring());
  pair.here.close();
  EXPECT_EQ(pair.there.error_of_receive(), 0);
}

}  // namespace
}  // namespace ringsock::vma_tests
