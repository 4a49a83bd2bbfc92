// What the two ends of a stream see.
#include <poll.h>

#include <csignal>
#include <random>
#include <thread>

#include "tests/stories/rsocket_pair.h"
#include "tests/support/child.h"

namespace ringsock::stories {
namespace {

TEST(RsocketStream, CarriesBytesBothWays) {
  Pair pair;
  pair.alice.say("hello");
  EXPECT_EQ(pair.bob.hear(), "hello");
  pair.bob.say("good day");
  EXPECT_EQ(pair.alice.hear(), "good day");
}

TEST(RsocketStream, IsAStreamMessagesRunTogetherAndApart) {
  Pair pair;
  pair.alice.say("ab");
  pair.alice.say("cd");
  EXPECT_EQ(pair.bob.hear(3), "abc");
  EXPECT_EQ(pair.bob.hear(3), "d");
  EXPECT_EQ(pair.bob.hear(3, MSG_DONTWAIT), "<EAGAIN>");
}

TEST(RsocketStream, PeekLeavesTheBytes) {
  Pair pair;
  pair.alice.say("secret");
  EXPECT_EQ(pair.bob.hear(3, MSG_PEEK), "sec");
  EXPECT_EQ(pair.bob.hear(6, MSG_PEEK), "secret");
  EXPECT_EQ(pair.bob.hear(), "secret");
}

TEST(RsocketStream, TruncDiscardsTheBytes) {
  Pair pair;
  pair.alice.say("0123456789");
  EXPECT_EQ(rrecv(pair.bob, nullptr, 4, MSG_TRUNC), 4);
  EXPECT_EQ(pair.bob.hear(), "456789");
}

TEST(RsocketStream, WaitallWaitsForTheLastByte) {
  Pair pair;
  std::thread writer([&] {
    for (const char* part : {"one ", "two ", "three"}) pair.alice.say(part);
  });
  EXPECT_EQ(pair.bob.hear(13, MSG_WAITALL), "one two three");
  writer.join();
}

TEST(RsocketStream, WaitallGivesWhatThereIsWhenTheStreamEnds) {
  Pair pair;
  pair.alice.say("short");
  pair.alice.close();
  EXPECT_EQ(pair.bob.hear(100, MSG_WAITALL), "short");
  EXPECT_EQ(pair.bob.hear(), "");
}

TEST(RsocketStream, OneThreadMayWriteMuchBeforeItReads) {
  Pair pair;
  const std::string much(100'000, 'm');
  pair.alice.say(much);
  EXPECT_EQ(pair.bob.hear(much.size(), MSG_WAITALL), much);
}

/// Alice is another process that sends, by blocking calls, more than a new connection takes at once.
class LargeMessageOfAnotherProcess : public ::testing::Test {
 protected:
  LargeMessageOfAnotherProcess()
      : alice_(testing::Child::start([&](testing::Channel&) {
          connect_to(listener_).say(much_);
          return 0;
        })),
        bob_(listener_.accept()) {}
  ~LargeMessageOfAnotherProcess() override { EXPECT_EQ(alice_.wait(), 0); }

  const std::string much_ = std::string(60'000, 'm');
  Listener listener_;
  testing::Child alice_;
  Rsocket bob_;
};

TEST_F(LargeMessageOfAnotherProcess, IsPeekedAtAsAWhole) {
  EXPECT_EQ(bob_.hear(much_.size(), MSG_PEEK | MSG_WAITALL), much_);
  EXPECT_EQ(bob_.hear(much_.size(), MSG_WAITALL), much_);
}

TEST_F(LargeMessageOfAnotherProcess, ArrivesWhileNobodyReadsButPolls) {
  set_int(bob_, SOL_SOCKET, SO_RCVLOWAT, static_cast<int>(much_.size()));
  pollfd look{bob_, POLLIN, 0};
  EXPECT_EQ(rpoll(&look, 1, 20'000), 1);
  EXPECT_EQ(bob_.hear(much_.size()), much_);
}

TEST(RsocketStream, GathersAndScatters) {
  Pair pair;
  std::string a = "gather", b, c = " and ", d = "scatter";
  const iovec out[] = {{a.data(), a.size()}, {b.data(), 0}, {c.data(), c.size()}, {d.data(), d.size()}};
  ASSERT_EQ(rwritev(pair.alice, out, 4), 18);
  char first[3], second[20];
  const iovec in[] = {{first, sizeof first}, {nullptr, 0}, {second, sizeof second}};
  ASSERT_EQ(rreadv(pair.bob, in, 3), 18);
  EXPECT_EQ(std::string_view(first, 3), "gat");
  EXPECT_EQ(std::string_view(second, 15), "her and scatter");
}

TEST(RsocketStream, GathersMorePartsThanAWorkRequestHolds) {
  Pair pair;
  std::string bytes(1000, '\0');
  std::vector<iovec> parts;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(i);
    parts.push_back({&bytes[i], 1});
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  ASSERT_EQ(rsendmsg(pair.alice, &message, 0), 1000);
  EXPECT_EQ(pair.bob.hear(1000, MSG_WAITALL), bytes);
}

TEST(RsocketStream, RecvmsgFillsEveryPartAndClearsWhatAStreamDoesNotHave) {
  Pair pair;
  pair.alice.say("abcdef");
  char left[2], right[10], name[64], control[64];
  iovec parts[] = {{left, sizeof left}, {right, sizeof right}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  message.msg_name = name;
  message.msg_namelen = sizeof name;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ASSERT_EQ(rrecvmsg(pair.bob, &message, 0), 6);
  EXPECT_EQ(std::string_view(left, 2), "ab");
  EXPECT_EQ(std::string_view(right, 4), "cdef");
  EXPECT_EQ(message.msg_namelen, 0u);
  EXPECT_EQ(message.msg_controllen, 0u);
}

TEST(RsocketStream, HalfCloseEndsOneDirectionOnly) {
  Pair pair;
  pair.alice.say("last words");
  ASSERT_EQ(rshutdown(pair.alice, SHUT_WR), 0);
  EXPECT_EQ(pair.bob.hear(), "last words");
  EXPECT_EQ(pair.bob.hear(), "");
  EXPECT_EQ(pair.bob.hear(), "");
  pair.bob.say("still talking");
  EXPECT_EQ(pair.alice.hear(), "still talking");
  EXPECT_EQ(rsend(pair.alice, "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
}

TEST(RsocketStream, ReaderGetsEverythingThatWasSentBeforeTheClose) {
  Pair pair;
  const std::string text(50000, 'z');
  pair.alice.say(text);
  pair.alice.close();
  EXPECT_EQ(pair.bob.hear(text.size(), MSG_WAITALL), text);
  EXPECT_EQ(pair.bob.hear(), "");
}

TEST(RsocketStream, WriterToAClosedPeerGetsEpipeAndTheSignalUnlessItSaysNo) {
  static volatile std::sig_atomic_t pipes = 0;
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) { pipes = pipes + 1; };
  sigaction(SIGPIPE, &action, &before);
  Pair pair;
  pair.bob.close();
  EXPECT_EQ(pair.alice.hear(), "");
  EXPECT_EQ(rsend(pair.alice, "x", 1, MSG_NOSIGNAL), 1) << "as with TCP, the first is answered by a reset";
  EXPECT_EQ(rsend(pair.alice, "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
  EXPECT_EQ(pipes, 0);
  EXPECT_EQ(rwrite(pair.alice, "x", 1), -1);
  EXPECT_EQ(errno, EPIPE);
  EXPECT_EQ(pipes, 1);
  sigaction(SIGPIPE, &before, nullptr);
}

TEST(RsocketStream, LingerZeroIsAnAbortiveClose) {
  Pair pair;
  const linger abort{1, 0};
  ASSERT_EQ(rsetsockopt(pair.alice, SOL_SOCKET, SO_LINGER, &abort, sizeof abort), 0);
  pair.alice.say("seen");
  pair.alice.close();
  EXPECT_EQ(pair.bob.hear(), "seen");
  EXPECT_EQ(pair.bob.hear(), "<ECONNRESET>");
  EXPECT_EQ(pair.bob.hear(), "");  // told once, then the end, as Linux
}

TEST(RsocketStream, AResetIsTakenBySoErrorOnce) {
  Pair pair;
  const linger abort{1, 0};
  ASSERT_EQ(rsetsockopt(pair.alice, SOL_SOCKET, SO_LINGER, &abort, sizeof abort), 0);
  pair.alice.close();
  pollfd reset{pair.bob, POLLIN, 0};
  EXPECT_EQ(rpoll(&reset, 1, 1000), 1);
  EXPECT_EQ(reset.revents, POLLIN | POLLERR | POLLHUP);
  EXPECT_EQ(get_int(pair.bob, SOL_SOCKET, SO_ERROR), ECONNRESET);
  EXPECT_EQ(get_int(pair.bob, SOL_SOCKET, SO_ERROR), 0);
  EXPECT_EQ(pair.bob.hear(), "");
  EXPECT_EQ(rsend(pair.bob, "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
}

TEST(RsocketStream, ALongSendToAClosedPeerIsTakenOnlyAsFarAsASocketBuffers) {
  Pair pair;
  pair.bob.close();
  EXPECT_EQ(pair.alice.hear(), "");
  const std::string much(10 << 20, 'm');
  const ssize_t sent = rsend(pair.alice, much.data(), much.size(), MSG_NOSIGNAL);
  EXPECT_GT(sent, 0);
  EXPECT_LE(sent, get_int(pair.alice, SOL_SOCKET, SO_SNDBUF));
  EXPECT_EQ(rsend(pair.alice, much.data(), much.size(), MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
}

TEST(RsocketStream, AWriterThatNobodyReadsStopsAndGoesOn) {
  Pair pair;
  const std::string block(10000, 'b');
  std::size_t sent = 0;
  for (;;) {
    const ssize_t took = rsend(pair.alice, block.data(), block.size(), MSG_DONTWAIT);
    if (took < 0) break;
    sent += static_cast<std::size_t>(took);
  }
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_GT(sent, 100000u);
  pollfd writable{pair.alice, POLLOUT, 0};
  EXPECT_EQ(rpoll(&writable, 1, 0), 0);
  EXPECT_EQ(pair.bob.hear(sent, MSG_WAITALL).size(), sent);
  EXPECT_EQ(rpoll(&writable, 1, 1000), 1);
  pair.alice.say("again");
  EXPECT_EQ(pair.bob.hear(), "again");
}

TEST(RsocketStream, MegabytesInOddPiecesArriveUnchangedInBothDirectionsAtOnce) {
  Pair pair;
  constexpr std::size_t kBytes = 8 << 20;
  std::string data(kBytes, '\0');
  std::mt19937 random(7);
  for (char& byte : data) byte = static_cast<char>(random());
  const auto write_all = [&](const Rsocket& to, unsigned seed) {
    std::mt19937 sizes(seed);
    for (std::size_t done = 0; done < kBytes;) {
      const std::size_t step = std::min<std::size_t>(kBytes - done, 1 + sizes() % 70000);
      ASSERT_EQ(rsend(to, data.data() + done, step, 0), static_cast<ssize_t>(step));
      done += step;
    }
  };
  const auto read_all = [&](const Rsocket& from, unsigned seed) {
    std::mt19937 sizes(seed);
    std::string got;
    while (got.size() < kBytes) {
      const std::string part = from.hear(1 + sizes() % 50000);
      ASSERT_FALSE(part.empty());
      got += part;
    }
    ASSERT_EQ(got, data);
  };
  std::thread writer_a([&] { write_all(pair.alice, 1); });
  std::thread writer_b([&] { write_all(pair.bob, 2); });
  std::thread reader_a([&] { read_all(pair.alice, 3); });
  read_all(pair.bob, 4);
  writer_a.join();
  writer_b.join();
  reader_a.join();
}

TEST(RsocketStream, ReceiveTimeoutEndsTheWait) {
  Pair pair;
  const timeval timeout{0, 20000};
  ASSERT_EQ(rsetsockopt(pair.bob, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout), 0);
  EXPECT_EQ(pair.bob.hear(), "<EAGAIN>");
}

TEST(RsocketStream, AnAsleepReaderIsWokenByDataAndByTheEnd) {
  Pair pair;
  for (int round = 0; round < 50; ++round) {
    std::thread writer([&] {
      const timespec pause{0, 200000};  // long enough for the reader to have gone to sleep, most times
      nanosleep(&pause, nullptr);
      pair.alice.say("wake up");
    });
    EXPECT_EQ(pair.bob.hear(), "wake up");
    writer.join();
  }
  std::thread closer([&] {
    const timespec pause{0, 2000000};
    nanosleep(&pause, nullptr);
    pair.alice.close();
  });
  EXPECT_EQ(pair.bob.hear(), "");
  closer.join();
}

TEST(RsocketStream, CloseWhileAnotherThreadReadsWakesIt) {
  Pair pair;
  const int fd = pair.bob.fd();
  std::thread reader([&] {
    char byte;
    const ssize_t got = rrecv(fd, &byte, 1, 0);
    EXPECT_TRUE(got == 0 || (got == -1 && errno == EBADF)) << got << " " << errno;
  });
  const timespec pause{0, 5000000};
  nanosleep(&pause, nullptr);
  pair.bob.close();
  reader.join();
}

TEST(RsocketStream, CallsOnADescriptorThatAnotherThreadIsClosingAreEbadf) {
  for (int round = 0; round < 50; ++round) {
    Pair pair;
    const int fd = pair.bob.fd();
    std::thread closer([&] { pair.bob.close(); });
    char byte = 0;
    int error = EAGAIN;
    while (error == EAGAIN) error = rrecv(fd, &byte, 1, MSG_DONTWAIT) == -1 ? errno : 0;
    closer.join();
    ASSERT_TRUE(error == EBADF || error == 0) << error;
  }
}

TEST(RsocketStream, TwoReadersAndTwoWritersShareASocketWithoutLoss) {
  Pair pair;
  constexpr int kEach = 20000;
  std::atomic<long> sum{0};
  std::atomic<int> left{2 * kEach};
  const auto write = [&](unsigned char value) {
    for (int i = 0; i < kEach; ++i) ASSERT_EQ(rsend(pair.alice, &value, 1, 0), 1);
  };
  const auto read = [&] {
    unsigned char bytes[100];
    while (left.load() > 0) {
      const ssize_t got = rrecv(pair.bob, bytes, sizeof bytes, MSG_DONTWAIT);
      for (ssize_t i = 0; i < got; ++i) sum += bytes[i];
      if (got > 0) left -= static_cast<int>(got);
    }
  };
  std::thread threads[] = {std::thread(write, 1), std::thread(write, 3), std::thread(read), std::thread(read)};
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(sum.load(), 4L * kEach);
}

TEST(RsocketStream, EmptySendsAndReceivesDoNothing) {
  Pair pair;
  EXPECT_EQ(rsend(pair.alice, "", 0, 0), 0);
  EXPECT_EQ(pair.bob.hear(10, MSG_DONTWAIT), "<EAGAIN>");
  pair.alice.say("x");
  EXPECT_EQ(pair.bob.hear(), "x");
}

TEST(RsocketStream, AnEmptySendAfterThePeersEndIsAnErrorOnlyOnceSomethingWasSent) {
  Pair pair;
  pair.bob.close();
  EXPECT_EQ(pair.alice.hear(), "");
  EXPECT_EQ(rsend(pair.alice, "", 0, MSG_NOSIGNAL), 0);
  pair.alice.say("x");
  EXPECT_EQ(rsend(pair.alice, "", 0, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
}

}  // namespace
}  // namespace ringsock::stories
