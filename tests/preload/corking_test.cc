// TCP_CORK and MSG_MORE (tcp(7), send(2)): sends that wait for more, and short sends that arrive in one piece.
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <array>
#include <chrono>

#include "tests/preload/tcp_world.h"

namespace ringsock::preload_tests {
namespace {

using Clock = std::chrono::steady_clock;

void cork(int fd, int on) { ASSERT_EQ(::setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on), 0); }

void write_text(int fd, const std::string& text) {
  ASSERT_EQ(::write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

/// Receives once.
std::string receive_once(int fd) {
  std::string out(100'000, '\0');
  const ssize_t got = ::recv(fd, out.data(), out.size(), 0);
  out.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return out;
}

/// Calls `send`, and returns whether nothing comes to `fd` for it. The answer is certain only before the ceiling of 200
/// ms: a thread that loses the CPU for so long begins again, with a pair of sockets of its own.
template <class Send>
bool holds_back(const Send& send) {
  for (;;) {
    auto [alice, bob] = connected_pair();
    const auto before = Clock::now();
    send(static_cast<int>(alice));
    const bool nothing = poll_once(bob, POLLIN) == 0;
    if (Clock::now() - before < std::chrono::milliseconds(100)) return nothing;
  }
}

TEST(Corking, HoldsSmallSendsBack) {
  EXPECT_TRUE(holds_back([](int alice) {
    cork(alice, 1);
    write_text(alice, "head");
    write_text(alice, "body");
  }));
  EXPECT_TRUE(holds_back([](int alice) { EXPECT_EQ(::send(alice, "head", 4, MSG_MORE), 4); }));
  EXPECT_FALSE(holds_back([](int alice) {
    cork(alice, 1);
    write_text(alice, "head");
    cork(alice, 0);
  }));
}

TEST(Corking, WhatWasHeldBackComesInOnePieceWithWhatFollows) {
  auto [alice, bob] = connected_pair();
  for (int i = 0; i < 1000; ++i) {
    cork(alice, 1);
    write_text(alice, std::string(170, 'h'));
    write_text(alice, std::string(5'000, 'b'));
    cork(alice, 0);
    ASSERT_EQ(receive_once(bob), std::string(170, 'h') + std::string(5'000, 'b')) << i;
    ASSERT_EQ(::send(alice, "more", 4, MSG_MORE), 4);
    ASSERT_EQ(::send(alice, " and the rest", 13, 0), 13);
    ASSERT_EQ(receive_once(bob), "more and the rest") << i;
  }
}

TEST(Corking, EndsByItselfWhenNothingFollows) {
  auto [alice, bob] = connected_pair();
  cork(alice, 1);
  for (const std::string text : {"question", "another one"}) {
    write_text(alice, text);
    EXPECT_EQ(read_all(bob, text.size()), text);
  }
  ASSERT_EQ(::send(alice, "more", 4, MSG_MORE), 4);
  EXPECT_EQ(read_all(bob, 4), "more");
}

TEST(Corking, EndsWithTheStream) {
  auto [alice, bob] = connected_pair();
  cork(alice, 1);
  write_text(alice, "last");
  ASSERT_EQ(::shutdown(alice, SHUT_WR), 0);
  EXPECT_EQ(read_all(bob, 10), "last");

  auto [carol, dave] = connected_pair();
  ASSERT_EQ(::send(carol, "last", 4, MSG_MORE), 4);
  carol.reset();
  EXPECT_EQ(read_all(dave, 10), "last");
}

TEST(Corking, EndsWithNodelay) {
  EXPECT_FALSE(holds_back([](int alice) {
    cork(alice, 1);
    write_text(alice, "now");
    const int on = 1;
    EXPECT_EQ(::setsockopt(alice, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), 0);
  }));
}

TEST(Corking, KeepsTheOrderOfSmallAndLargeSends) {
  auto [alice, bob] = connected_pair();
  cork(alice, 1);
  const std::string head(300, 'h'), tail(7, 't');
  std::string body(3'000'000, '\0');
  for (std::size_t i = 0; i < body.size(); ++i) body[i] = static_cast<char>('a' + i % 23);
  std::thread sends([&, fd = static_cast<int>(alice)] {
    for (const std::string& text : {head, body, tail}) {
      for (std::size_t done = 0; done < text.size();) {
        const ssize_t sent = ::send(fd, text.data() + done, text.size() - done, 0);
        ASSERT_GT(sent, 0);
        done += static_cast<std::size_t>(sent);
      }
    }
    cork(fd, 0);
  });
  EXPECT_TRUE(read_all(bob, head.size() + body.size() + tail.size()) == head + body + tail);
  sends.join();
}

TEST(Corking, HoldsWhileThePeerReadsNothing) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::fcntl(alice, F_SETFL, O_NONBLOCK), 0);
  cork(alice, 1);
  std::string sent;
  const std::string piece(999, 'p');
  for (ssize_t one = 0; (one = ::send(alice, piece.data(), piece.size(), 0)) > 0;)
    sent.append(piece, 0, static_cast<std::size_t>(one));
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_TRUE(read_all(bob, sent.size()) == sent);
}

TEST(Corking, AnAcceptedSocketIsCorkedAsItsListener) {
  const Fd listener = listening();
  cork(listener, 1);
  const Fd alice = connected_to(listener);
  const Fd bob(::accept(listener, nullptr, nullptr));
  int on = 0;
  socklen_t length = sizeof on;
  ASSERT_EQ(::getsockopt(bob, IPPROTO_TCP, TCP_CORK, &on, &length), 0);
  EXPECT_EQ(on, 1);
  write_text(bob, "head ");
  write_text(bob, "body");
  cork(bob, 0);
  EXPECT_EQ(read_all(alice, 9), "head body");
}

TEST(Corking, AForkedChildAndItsParentSendInOrder) {
  auto [alice, bob] = connected_pair();
  cork(alice, 1);
  write_text(alice, "parent, ");
  const pid_t child = ::fork();
  if (child == 0) {
    const bool wrote = ::write(alice, "child, ", 7) == 7;
    ::_exit(wrote ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  write_text(alice, "parent");
  alice.reset();
  EXPECT_EQ(read_all(bob, 100), "parent, child, parent");
}

TEST(Corking, AProcessThatEndsSendsWhatItHasHeldBack) {
  const Fd listener = listening();
  const pid_t child = ::fork();
  if (child == 0) {
    const Fd alice = connected_to(listener);
    cork(alice, 1);
    write_text(alice, "farewell");
    ::_exit(0);
  }
  const Fd bob(::accept(listener, nullptr, nullptr));
  EXPECT_EQ(read_all(bob, 100), "farewell");
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST(Corking, ACorkedPipeGoesOnBySplice) {
  auto [alice, bob] = connected_pair();
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const Fd out(ends[0]), in(ends[1]);
  write_text(in, "piece");
  ASSERT_EQ(::splice(out, nullptr, alice, nullptr, 5, SPLICE_F_MORE), 5);
  write_text(alice, ", the rest");
  EXPECT_EQ(read_all(bob, 15), "piece, the rest");
}

/// Many programs take one receive for one message. The kernel's packets are longer than these.
TEST(Corking, AShortSendIsReceivedInOnePiece) {
  auto [alice, bob] = connected_pair();
  for (int i = 0; i < 3000; ++i) {
    const std::string text(static_cast<std::size_t>(1 + i * 7 % 4000), static_cast<char>('a' + i % 26));
    const std::size_t half = text.size() / 2;
    if (i % 2 == 0) {
      write_text(alice, text);
    } else {
      std::string copy = text;
      const std::array<iovec, 2> parts{iovec{copy.data(), half}, iovec{copy.data() + half, copy.size() - half}};
      ASSERT_EQ(::writev(alice, parts.data(), 2), static_cast<ssize_t>(text.size()));
    }
    ASSERT_EQ(receive_once(bob).size(), text.size()) << i;
  }
}

/// The same beside a reader that waits, as it may look in the middle of a send.
TEST(Corking, AWaitingReaderGetsAShortSendInOnePiece) {
  auto [alice, bob] = connected_pair();
  static constexpr int kRounds = 3000;
  static constexpr std::size_t kBytes = 900;
  std::thread reads([fd = static_cast<int>(bob)] {
    for (int i = 0; i < kRounds; ++i) {
      EXPECT_EQ(receive_once(fd).size(), kBytes) << i;
      EXPECT_EQ(::write(fd, "k", 1), 1);
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    write_text(alice, std::string(kBytes, 'x'));
    ASSERT_EQ(read_all(alice, 1), "k");
  }
  reads.join();
}

}  // namespace
}  // namespace ringsock::preload_tests
