// A child uses the connection that it has by fork(2), and then loses its copy, or its life, or is stopped. Its parent
// goes on where the child was, as with the kernel's sockets.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/close_range.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "tests/preload/calls.h"
#include "tests/preload/preloaded.h"
#include "tests/support/raw_syscall.h"
#include "tests/support/sanitizers.h"

namespace ringsock::preloaded {
namespace {

using Leave = std::function<void(int fd)>;

/// The child asks, leaves its copy by `leave`, and lives on.
void leaves_and_lives(const Leave& leave) {
  Echo echo;
  Signal left;
  const pid_t child = spawn([&] {
    ask(echo.fd, "by the child");
    leave(echo.fd);
    left.give();
    ::pause();
  });
  left.wait();
  ask(echo.fd, "by the parent");
  EXPECT_TRUE(is_on_ring(echo.fd));
  ::kill(child, SIGKILL);
  EXPECT_EQ(wait_for(child), 128 + SIGKILL);
  ask(echo.fd, "by the only one");
  EXPECT_EQ(echo.end(), 0);
}

/// The child asks and ends by `end`, with this status.
void ends(const Leave& end, int status) {
  Echo echo;
  const pid_t child = spawn([&] {
    ask(echo.fd, "by the child");
    end(echo.fd);
  });
  EXPECT_EQ(wait_for(child), status);
  ask(echo.fd, "by the parent");
  EXPECT_TRUE(is_on_ring(echo.fd));
  EXPECT_EQ(echo.end(), 0);
}

TEST(Leaves, ByClose) {
  leaves_and_lives([](int fd) { ::close(fd); });
}

TEST(Leaves, ByCloseRange) {
  leaves_and_lives([](int fd) { ::close_range(static_cast<unsigned>(fd), static_cast<unsigned>(fd), 0); });
}

TEST(Leaves, ByCloseRangeInATableOfItsOwn) {
  leaves_and_lives(
      [](int fd) { ::close_range(static_cast<unsigned>(fd), static_cast<unsigned>(fd), CLOSE_RANGE_UNSHARE); });
}

TEST(Leaves, ByDup2OfAnotherFile) {
  leaves_and_lives([](int fd) {
    const int other = ::open("/dev/null", O_RDWR);
    expect(::dup2(other, fd) == fd, "dup2");
  });
}

TEST(Leaves, ByDup3OfAnotherFile) {
  leaves_and_lives([](int fd) {
    const int other = ::open("/dev/null", O_RDWR);
    expect(::dup3(other, fd, O_CLOEXEC) == fd, "dup3");
  });
}

TEST(Leaves, ByTheLastOfTwoNumbers) {
  leaves_and_lives([](int fd) {
    const int other = ::dup(fd);
    ::close(fd);
    ask(other, "by the other number");
    ::close(other);
  });
}

TEST(Leaves, ByExit) {
  // exit(3) of a child looks for leaks there, and finds what a child gives up on purpose.
  if (!support::kForksWhileThreadsAllocate) GTEST_SKIP() << "this sanitizer may look for leaks in the child";
  ends([](int) { std::exit(3); }, 3);
}

TEST(Leaves, ByUnderscoreExit) {
  ends([](int) { ::_exit(3); }, 3);
}

TEST(Leaves, ByQuickExit) {
  ends([](int) { std::quick_exit(3); }, 3);
}

TEST(Leaves, ByASystemCallThatNobodySees) {
  ends([](int) { raw_syscall(SYS_exit_group, 3); }, 3);
}

TEST(Leaves, ByBeingKilled) {
  ends([](int) { ::kill(::getpid(), SIGKILL); }, 128 + SIGKILL);
}

TEST(Leaves, ByExecutingAProgramThatNeverTouchesIt) {
  Echo echo;
  Signal left;
  const pid_t child = spawn([&] {
    ask(echo.fd, "by the child");
    left.give();
    ::execlp("sleep", "sleep", "60", nullptr);
  });
  left.wait();
  ask(echo.fd, "by the parent");
  ::kill(child, SIGKILL);
  EXPECT_EQ(wait_for(child), 128 + SIGKILL);
  ask(echo.fd, "by the only one");
  EXPECT_EQ(echo.end(), 0);
}

/// The parent wants the connection while its child, which has used it last, leaves it. Many times: either may be first.
void leaves_while_the_parent_asks(const Leave& leave) {
  constexpr int kRounds = 40;
  for (int round = 0; round < kRounds && !::testing::Test::HasFailure(); ++round) {
    Echo echo;
    Signal leaves;
    const pid_t child = spawn([&] {
      ask(echo.fd, "by the child");
      leaves.give();
      leave(echo.fd);
      ::execlp("sleep", "sleep", "60", nullptr);
    });
    leaves.wait();
    ASSERT_NO_THROW(ask(echo.fd, "by the parent")) << "round " << round;
    ::kill(child, SIGKILL);
    EXPECT_EQ(wait_for(child), 128 + SIGKILL);
    ASSERT_NO_THROW(ask(echo.fd, "by the only one")) << "round " << round;
    EXPECT_EQ(echo.end(), 0);
  }
}

TEST(Leaves, ByExecutingAProgramWhileTheParentAsks) {
  leaves_while_the_parent_asks([](int) {});
}

TEST(Leaves, ByCloseWhileTheParentAsks) {
  leaves_while_the_parent_asks([](int fd) { ::close(fd); });
}

TEST(Leaves, ByDup2WhileTheParentAsks) {
  leaves_while_the_parent_asks([](int fd) { expect(::dup2(STDERR_FILENO, fd) == fd, "dup2"); });
}

/// The child ends while another of its threads asks, again and again, and may have part of an answer. Many times, each
/// a little later.
void ends_while_a_thread_asks(const Leave& end) {
  constexpr int kRounds = 60;
  constexpr auto kLaterEachTime = std::chrono::microseconds(5);
  for (int round = 0; round < kRounds && !::testing::Test::HasFailure(); ++round) {
    Echo echo;
    const pid_t child = spawn([&] {
      std::atomic<bool> has_asked = false;
      std::thread([&] {
        for (;; has_asked = true) ask(echo.fd, "by a thread");
      }).detach();
      while (!has_asked) std::this_thread::yield();
      const auto until = std::chrono::steady_clock::now() + round * kLaterEachTime;
      while (std::chrono::steady_clock::now() < until) {
      }
      end(echo.fd);
    });
    EXPECT_EQ(wait_for(child), 3) << "no call of its thread failed";
    ASSERT_NO_THROW({
      send_all(echo.fd, "|");
      while (receive(echo.fd, 1) != "|") {
      }
    }) << "round "
       << round;
    ask(echo.fd, "by the parent");
    EXPECT_EQ(echo.end(), 0);
  }
}

TEST(Leaves, ByExitWhileAThreadOfItsAsks) {
  if (!support::kForksWhileThreadsAllocate) GTEST_SKIP() << "this sanitizer may look for leaks in the child";
  ends_while_a_thread_asks([](int) { std::exit(3); });
}

TEST(Leaves, ByUnderscoreExitWhileAThreadOfItsAsks) {
  ends_while_a_thread_asks([](int) { ::_exit(3); });
}

TEST(Leaves, ToAGrandchildThatEnds) {
  Echo echo;
  Signal asked;
  const pid_t child = spawn([&] {
    ask(echo.fd, "by the child");
    spawn([&] {
      ask(echo.fd, "by the grandchild");
      asked.give();
    });
  });
  EXPECT_EQ(wait_for(child), 0);
  asked.wait();
  ask(echo.fd, "by the parent");
  EXPECT_EQ(echo.end(), 0);
}

TEST(Leaves, ToAGrandchildThatDoesNothing) {
  Echo echo;
  Signal left;
  const pid_t child = spawn([&] {
    ask(echo.fd, "by the child");
    spawn([&] { left.wait(); });
  });
  EXPECT_EQ(wait_for(child), 0);
  ask(echo.fd, "by the parent");
  left.give();
  EXPECT_EQ(echo.end(), 0);
}

/// More bytes than the ring holds are on their way in both directions when the child is killed.
TEST(Leaves, WithBytesUnreadThatTheParentReads) {
  const std::string text = pattern(2'000'000, 5);
  Echo echo;
  send_all(echo.fd, text.substr(0, 700'000));
  const pid_t child = spawn([&] {
    expect(receive(echo.fd, 1) == text.substr(0, 1), "the first byte");
    send_all(echo.fd, text.substr(700'000, 300'000));
    expect(receive(echo.fd, 123'455) == text.substr(1, 123'455), "the next bytes");
    ::kill(::getpid(), SIGKILL);
  });
  EXPECT_EQ(wait_for(child), 128 + SIGKILL);
  send_all(echo.fd, text.substr(1'000'000));
  EXPECT_EQ(receive(echo.fd, text.size() - 123'456), text.substr(123'456));
  EXPECT_TRUE(is_on_ring(echo.fd));
  EXPECT_EQ(echo.end(), 0);
}

/// Each child goes on where the one before it was killed.
TEST(Leaves, OneAfterAnother) {
  Echo echo;
  for (int turn = 0; turn < 20; ++turn) {
    const pid_t child = spawn([&] {
      ask(echo.fd, pattern(100'000, static_cast<unsigned>(turn)));
      ::kill(::getpid(), SIGKILL);
    });
    EXPECT_EQ(wait_for(child), 128 + SIGKILL);
  }
  ask(echo.fd, "by the parent");
  EXPECT_TRUE(is_on_ring(echo.fd));
  EXPECT_EQ(echo.end(), 0);
}

TEST(Leaves, AfterItHasEndedItsDirection) {
  Echo echo;
  const pid_t child = spawn([&] {
    ask(echo.fd, "by the child");
    ::shutdown(echo.fd, SHUT_WR);
    ::kill(::getpid(), SIGKILL);
  });
  EXPECT_EQ(wait_for(child), 128 + SIGKILL);
  EXPECT_EQ(::send(echo.fd, "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
  EXPECT_EQ(receive_all(echo.fd), "");
  EXPECT_EQ(echo.end(), 0);
}

/// Serves one client: a question, its answer, and the end of the stream.
void serve_one(int listener) {
  const int client = ::accept(listener, nullptr, nullptr);
  expect(receive(client, 5) == "hello", "the question");
  send_all(client, "world");
  ::close(client);
}

/// The connections wait in the parent's queue, too, which drops its copies when it accepts the next client.
TEST(Leaves, WhatItsParentHasQueuedTooAndClientsSeeNoReset) {
  const Listener listener = listen_anywhere();
  constexpr int kClients = 6;
  std::array<int, kClients> clients;
  for (int& client : clients) send_all(client = connect_to(listener.port), "hello");
  const auto serve_half = [&] {
    for (int i = 0; i < kClients / 2; ++i) serve_one(listener.fd);
  };
  EXPECT_EQ(wait_for(spawn(serve_half)), 0);
  serve_half();
  ::close(listener.fd);
  for (const int client : clients) {
    EXPECT_EQ(receive_all(client), "world");
    char byte;
    EXPECT_EQ(::recv(client, &byte, 1, 0), 0) << "the end of the stream";
    ::close(client);
  }
}

/// A process that is stopped answers nobody. It goes on with its parent by the kernel when it is continued.
TEST(Stopped, ItsParentGoesOnAndSoDoesItLater) {
  if (!support::kForksWhileThreadsAllocate) GTEST_SKIP() << "this sanitizer's allocator may be locked in a child";
  Echo echo;
  const pid_t child = spawn([&] {
    ask(echo.fd, "by the child");
    ::raise(SIGSTOP);
    ask(echo.fd, "by the child again");
  });
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  ask(echo.fd, "by the parent");
  ::kill(child, SIGCONT);
  EXPECT_EQ(wait_for(child), 0);
  ask(echo.fd, "by the parent again");
  EXPECT_EQ(echo.end(), 0);
}

}  // namespace
}  // namespace ringsock::preloaded
