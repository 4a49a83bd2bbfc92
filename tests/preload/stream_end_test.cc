// Ends of a stream: in order, by a reset, and what each call tells of them.
#include <csignal>

#include "tests/preload/tcp_world.h"

namespace ringsock::preload_tests {
namespace {

TEST(PreloadedEnds, HalfCloseGivesTheReaderTheEndAndLeavesTheOtherDirection) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::write(alice, "last", 4), 4);
  ASSERT_EQ(::shutdown(alice, SHUT_WR), 0);
  EXPECT_EQ(read_all(bob, 10), "last");
  ASSERT_EQ(::write(bob, "ok", 2), 2);
  EXPECT_EQ(read_all(alice, 2), "ok");
}

/// What poll(2), SO_ERROR and getpeername(2) say of a connection.
struct Health {
  explicit Health(int fd) {
    pollfd entry{fd, POLLIN | POLLOUT | POLLRDHUP, 0};
    ::poll(&entry, 1, 0);
    bits = entry.revents;
    socklen_t length = sizeof error;
    ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    Address peer;
    peer.length = sizeof peer.storage;
    has_peer = ::getpeername(fd, peer.get(), &peer.length) == 0;
  }
  int bits = 0;
  int error = -1;
  bool has_peer = false;
};

TEST(PreloadedEnds, WhatIsSentFirstAfterThePeersCloseIsTakenAndComesBackAsAReset) {
  auto [alice, bob] = connected_pair();
  bob.reset();
  EXPECT_EQ(read_all(alice, 1), "");
  const Health ended(alice);
  EXPECT_EQ(ended.bits, POLLIN | POLLOUT | POLLRDHUP);
  EXPECT_EQ(ended.error, 0);
  EXPECT_TRUE(ended.has_peer);

  EXPECT_EQ(::send(alice, "too late", 8, MSG_NOSIGNAL), 8);
  const Health reset(alice);
  EXPECT_EQ(reset.bits, POLLIN | POLLOUT | POLLRDHUP | POLLERR | POLLHUP);
  EXPECT_EQ(reset.error, EPIPE);
  EXPECT_FALSE(reset.has_peer);
  const Health told(alice);
  EXPECT_EQ(told.bits, POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
  EXPECT_EQ(told.error, 0);
  EXPECT_EQ(read_all(alice, 1), "");
  EXPECT_EQ(::send(alice, "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
  EXPECT_EQ(::shutdown(alice, SHUT_RDWR), -1);
  EXPECT_EQ(errno, ENOTCONN);
}

TEST(PreloadedEnds, AnEmptySendTellsNothingOfThePeersEndUntilTheReset) {
  auto [alice, bob] = connected_pair();
  bob.reset();
  EXPECT_EQ(read_all(alice, 1), "");
  EXPECT_EQ(::send(alice, "", 0, MSG_NOSIGNAL), 0);
  EXPECT_EQ(::send(alice, "", 0, MSG_NOSIGNAL), 0);
  EXPECT_EQ(::send(alice, "x", 1, MSG_NOSIGNAL), 1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(::send(alice, "", 0, MSG_NOSIGNAL), -1);
    EXPECT_EQ(errno, EPIPE);
  }
}

int error_of(int fd) {
  int error = -1;
  socklen_t length = sizeof error;
  EXPECT_EQ(::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length), 0);
  return error;
}

TEST(PreloadedEnds, WhatIsSentBeforeThePeersCloseIsKnownComesBackAsAReset) {
  auto [alice, bob] = connected_pair();
  bob.reset();
  ASSERT_EQ(::send(alice, "?", 1, MSG_NOSIGNAL), 1);
  EXPECT_NE(poll_once(alice, POLLIN, 5000) & POLLHUP, 0);
  EXPECT_EQ(error_of(alice), EPIPE);
  EXPECT_EQ(::send(alice, "?", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
}

TEST(PreloadedEnds, BytesLeftUnreadByAPeerThatHasShutDownAndClosedAreAReset) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::send(alice, "?", 1, 0), 1);
  ASSERT_EQ(::shutdown(bob, SHUT_RDWR), 0);
  bob.reset();
  EXPECT_NE(poll_once(alice, POLLIN, 5000) & POLLHUP, 0);
  EXPECT_EQ(error_of(alice), EPIPE);
}

TEST(PreloadedEnds, BytesThatComeAfterAShutdownOfBothDirectionsAreAReset) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::shutdown(bob, SHUT_RDWR), 0);
  ASSERT_EQ(::send(alice, "?", 1, MSG_NOSIGNAL), 1);
  EXPECT_NE(poll_once(bob, POLLIN, 5000) & POLLERR, 0);
  EXPECT_EQ(error_of(bob), ECONNRESET);
  char byte = 0;
  EXPECT_EQ(::read(bob, &byte, 1), 0);
}

TEST(PreloadedEnds, AnEndOfThePeerAfterAResetHidesNothingOfIt) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::shutdown(bob, SHUT_RDWR), 0);
  ASSERT_EQ(::send(alice, "?", 1, MSG_NOSIGNAL), 1);
  ::shutdown(alice, SHUT_WR);  // over TCP she may know of the reset
  EXPECT_NE(poll_once(bob, POLLIN, 5000) & POLLERR, 0);
  char byte = 0;
  EXPECT_EQ(::read(bob, &byte, 1), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

TEST(PreloadedEnds, AReceiveOfNothingReportsAReset) {
  auto [alice, bob] = connected_pair();
  const linger at_once{1, 0};
  ASSERT_EQ(::setsockopt(bob, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  bob.reset();
  poll_once(alice, POLLIN, 5000);
  char byte = 0;
  EXPECT_EQ(::recv(alice, &byte, 0, 0), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

TEST(PreloadedEnds, OfALongWriteToOneWhoHasGoneOnlyWhatASocketBuffersIsTaken) {
  const std::string much(10 << 20, 'm');
  for (const int flags : {int{MSG_NOSIGNAL}, MSG_NOSIGNAL | MSG_DONTWAIT}) {
    for (const bool end_is_known : {false, true}) {
      auto [alice, bob] = connected_pair();
      bob.reset();
      if (end_is_known) {
        EXPECT_EQ(read_all(alice, 1), "");
      }
      const ssize_t sent = ::send(alice, much.data(), much.size(), flags);
      EXPECT_GT(sent, 0);
      EXPECT_LT(sent, 8 << 20);
      EXPECT_EQ(::send(alice, much.data(), much.size(), flags), -1);
      EXPECT_EQ(errno, EPIPE);
    }
  }
}

/// How `bob` ends a connection so that his peer hears of a reset.
enum class ResetBy { linger_of_nothing, unread_bytes };
constexpr ResetBy kResets[] = {ResetBy::linger_of_nothing, ResetBy::unread_bytes};

void reset_connection(int alice, Fd& bob, ResetBy how) {
  if (how == ResetBy::unread_bytes) {
    EXPECT_EQ(::send(alice, "unread", 6, 0), 6);
    EXPECT_NE(poll_once(bob, POLLIN, 1000) & POLLIN, 0);
  } else {
    const linger at_once{1, 0};
    EXPECT_EQ(::setsockopt(bob, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  }
  bob.reset();
}

constexpr int kAfterReset = POLLIN | POLLOUT | POLLRDHUP | POLLHUP;

TEST(PreloadedEnds, AResetIsTakenBySoError) {
  for (const ResetBy how : kResets) {
    auto [alice, bob] = connected_pair();
    reset_connection(alice, bob, how);
    const int error = Health(alice).error;
    EXPECT_EQ(error, ECONNRESET);
    const Health told(alice);
    EXPECT_EQ(told.bits, kAfterReset);
    EXPECT_EQ(told.error, 0);
    EXPECT_FALSE(told.has_peer);
    char byte = 0;
    EXPECT_EQ(::recv(alice, &byte, 1, 0), 0);
    EXPECT_EQ(::send(alice, "x", 1, MSG_NOSIGNAL), -1);
    EXPECT_EQ(errno, EPIPE);
  }
}

TEST(PreloadedEnds, AResetIsTakenByWhoeverReadsOrWrites) {
  for (const ResetBy how : kResets) {
    for (const bool reads : {false, true}) {
      auto [alice, bob] = connected_pair();
      reset_connection(alice, bob, how);
      EXPECT_NE(poll_once(alice, POLLIN, 1000), 0);
      EXPECT_EQ(poll_once(alice, POLLIN | POLLOUT | POLLRDHUP), kAfterReset | POLLERR);
      char byte = 0;
      EXPECT_EQ(reads ? ::recv(alice, &byte, 1, 0) : ::send(alice, "x", 1, 0), -1) << "no signal, either";
      EXPECT_EQ(errno, ECONNRESET);
      EXPECT_EQ(poll_once(alice, POLLIN | POLLOUT | POLLRDHUP), kAfterReset);
      EXPECT_EQ(Health(alice).error, 0);
      EXPECT_EQ(::recv(alice, &byte, 1, 0), 0);
      EXPECT_EQ(::send(alice, "x", 1, MSG_NOSIGNAL), -1);
      EXPECT_EQ(errno, EPIPE);
    }
  }
}

TEST(PreloadedEnds, AResetIsTakenByASendOfNothing) {
  for (const ResetBy how : kResets) {
    auto [alice, bob] = connected_pair();
    reset_connection(alice, bob, how);
    EXPECT_EQ(::write(alice, "", 0), -1);
    EXPECT_EQ(errno, ECONNRESET);
    EXPECT_EQ(::send(alice, "", 0, MSG_NOSIGNAL), -1);
    EXPECT_EQ(errno, EPIPE);
  }
}

TEST(PreloadedEnds, AResetIsToldThoughBothDirectionsWereShutDownHere) {
  for (const ResetBy how : kResets) {
    auto [alice, bob] = connected_pair();
    if (how == ResetBy::unread_bytes) {
      ASSERT_EQ(::send(alice, "unread", 6, 0), 6);
    }
    EXPECT_EQ(::shutdown(alice, SHUT_RDWR), 0);
    const linger at_once{how == ResetBy::linger_of_nothing, 0};
    EXPECT_EQ(::setsockopt(bob, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
    bob.reset();
    EXPECT_EQ(poll_once(alice, POLLIN | POLLOUT | POLLRDHUP), kAfterReset | POLLERR);
    EXPECT_EQ(socket_error(alice), ECONNRESET);
    EXPECT_EQ(socket_error(alice), 0);
  }
}

TEST(PreloadedEnds, NothingIsAResetOnceBothSidesHaveEnded) {
  for (const int bobs_end : {SHUT_WR, SHUT_RDWR}) {
    auto [alice, bob] = connected_pair();
    EXPECT_EQ(::shutdown(alice, SHUT_RDWR), 0);
    EXPECT_EQ(::shutdown(bob, bobs_end), 0);
    const linger at_once{1, 0};
    EXPECT_EQ(::setsockopt(bob, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
    bob.reset();
    EXPECT_EQ(poll_once(alice, POLLIN | POLLOUT | POLLRDHUP), kAfterReset);
    EXPECT_EQ(socket_error(alice), 0);
  }
}

TEST(PreloadedEnds, AShutdownHidesNoResetThatHasCome) {
  for (const ResetBy how : kResets) {
    for (const int direction : {SHUT_WR, SHUT_RDWR}) {
      auto [alice, bob] = connected_pair();
      reset_connection(alice, bob, how);
      EXPECT_EQ(::shutdown(alice, direction), -1);
      EXPECT_EQ(errno, ENOTCONN);
      EXPECT_EQ(poll_once(alice, POLLIN | POLLOUT | POLLRDHUP), kAfterReset | POLLERR);
      char byte = 0;
      EXPECT_EQ(::recv(alice, &byte, 1, 0), -1);
      EXPECT_EQ(errno, ECONNRESET);
    }
  }
}

TEST(PreloadedEnds, WhatCameBeforeAResetIsReadFirst) {
  for (const ResetBy how : kResets) {
    auto [alice, bob] = connected_pair();
    const std::string answer(50'000, 'a');
    EXPECT_EQ(::send(bob, answer.data(), answer.size(), 0), static_cast<ssize_t>(answer.size()));
    reset_connection(alice, bob, how);
    EXPECT_EQ(read_all(alice, answer.size()), answer);
    char byte = 0;
    EXPECT_EQ(::recv(alice, &byte, 1, 0), -1);
    EXPECT_EQ(errno, ECONNRESET);
    EXPECT_EQ(::recv(alice, &byte, 1, 0), 0);
  }
}

TEST(PreloadedEnds, AConnectionThatWasResetHasNoPeerThoughBytesWaitToBeRead) {
  for (const ResetBy how : kResets) {
    auto [alice, bob] = connected_pair();
    EXPECT_EQ(::send(bob, "plain text", 10, 0), 10);
    reset_connection(alice, bob, how);
    Address peer;
    peer.length = sizeof peer.storage;
    EXPECT_EQ(::getpeername(alice, peer.get(), &peer.length), -1);
    EXPECT_EQ(errno, ENOTCONN);
    EXPECT_EQ(read_all(alice, 10), "plain text");
  }
}

TEST(PreloadedEnds, AResetThatMeetsAReadOfManyBytesIsTheNextCallsToTell) {
  auto [alice, bob] = connected_pair();
  EXPECT_EQ(::send(bob, "answer", 6, 0), 6);
  std::thread resets([&alice = alice, &bob = bob] {
    ::usleep(50'000);
    reset_connection(alice, bob, ResetBy::linger_of_nothing);
  });
  char bytes[100];
  EXPECT_EQ(::recv(alice, bytes, sizeof bytes, MSG_WAITALL), 6);
  resets.join();
  EXPECT_EQ(::recv(alice, bytes, sizeof bytes, MSG_WAITALL), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

TEST(PreloadedEnds, AResetAfterTheEndOfTheStreamIsABrokenPipe) {
  for (const ResetBy how : kResets) {
    auto [alice, bob] = connected_pair();
    EXPECT_EQ(::shutdown(bob, SHUT_WR), 0);
    EXPECT_EQ(read_all(alice, 1), "");
    reset_connection(alice, bob, how);
    EXPECT_EQ(Health(alice).error, EPIPE);
    char byte = 0;
    EXPECT_EQ(::recv(alice, &byte, 1, 0), 0);
    EXPECT_EQ(::send(alice, "x", 1, MSG_NOSIGNAL), -1);
    EXPECT_EQ(errno, EPIPE);
  }
}

TEST(PreloadedEnds, AWriterThatSleepsHearsOfTheResetOfAPeerThatHasReadNothing) {
  auto [alice, bob] = connected_pair();
  std::thread closes([&bob = bob] {
    ::usleep(100'000);
    bob.reset();
  });
  const std::string block(100'000, 'b');
  ssize_t sent = 0;
  while (sent >= 0) sent = ::send(alice, block.data(), block.size(), MSG_NOSIGNAL);
  EXPECT_EQ(errno, ECONNRESET);
  closes.join();
  EXPECT_EQ(::send(alice, "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
  char byte = 0;
  EXPECT_EQ(::recv(alice, &byte, 1, 0), 0);
}

TEST(PreloadedEnds, AWriterThatNeitherSleepsNorReadsHearsOfAResetSoon) {
  for (const ResetBy how : kResets) {
    auto [alice, bob] = connected_pair();
    for (int i = 0; i < 100; ++i) EXPECT_EQ(::send(alice, "x", 1, 0), 1);
    EXPECT_EQ(read_all(bob, 100).size(), 100U);
    reset_connection(alice, bob, how);
    ::usleep(10'000);
    ssize_t sent = 0;
    for (int i = 0; i < 100 && sent >= 0; ++i) sent = ::send(alice, "x", 1, MSG_NOSIGNAL);
    EXPECT_EQ(sent, -1);
    EXPECT_EQ(errno, ECONNRESET);
  }
}

TEST(PreloadedEnds, WhoHasReadAllClosesInOrder) {
  auto [alice, bob] = connected_pair();
  EXPECT_EQ(::send(alice, "request", 7, 0), 7);
  EXPECT_EQ(read_all(bob, 7), "request");
  EXPECT_EQ(::send(bob, "answer", 6, 0), 6);
  bob.reset();
  EXPECT_EQ(read_all(alice, 100), "answer");
  EXPECT_EQ(Health(alice).error, 0);
}

TEST(PreloadedEnds, AConnectionWhoseBothDirectionsHaveEndedHasNoPeer) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::shutdown(alice, SHUT_WR), 0);
  EXPECT_EQ(read_all(bob, 1), "");
  ASSERT_EQ(::shutdown(bob, SHUT_WR), 0);
  EXPECT_EQ(read_all(alice, 1), "");
  EXPECT_FALSE(Health(alice).has_peer);
  EXPECT_FALSE(Health(bob).has_peer);
}

TEST(PreloadedEnds, WritingToOneWhoHasGoneIsEpipeWithASignal) {
  auto [alice, bob] = connected_pair();
  bob.reset();
  static volatile std::sig_atomic_t signals = 0;
  struct sigaction action {
  }, old{};
  action.sa_handler = [](int) { signals = signals + 1; };
  ASSERT_EQ(::sigaction(SIGPIPE, &action, &old), 0);
  ssize_t sent = 0;
  // One write is taken before the reset comes back.
  for (int i = 0; i < 100 && sent >= 0; ++i) sent = ::write(alice, "x", 1);
  EXPECT_EQ(errno, EPIPE);
  EXPECT_EQ(signals, 1);
  EXPECT_EQ(::send(alice, "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(signals, 1);
  ::sigaction(SIGPIPE, &old, nullptr);
}

TEST(PreloadedEnds, WhoSendsSeldomHearsOfThePeersEndAfterFewSends) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::write(alice, "first", 5), 5);
  EXPECT_EQ(read_all(bob, 5), "first");
  bob.reset();
  ::usleep(5'000);
  int taken = 0;
  while (taken < 10 && ::send(alice, "x", 1, MSG_NOSIGNAL) == 1) {
    ++taken;
    ::usleep(5'000);
  }
  EXPECT_EQ(errno, EPIPE);
  EXPECT_LE(taken, 4);
}

}  // namespace
}  // namespace ringsock::preload_tests
