// A signal while a thread waits for a connection, asleep or, with RINGSOCK_POLLING_TIME, spinning.
#include "tests/support/signals.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "tests/preload/tcp_world.h"

namespace ringsock::preload_tests {
namespace {

using support::Disposition;
using support::LibcWait;

class PreloadedSignals : public testing::TestWithParam<LibcWait> {
 protected:
  Pair pair_ = connected_pair();
};
INSTANTIATE_TEST_SUITE_P(Calls, PreloadedSignals, testing::ValuesIn(support::kLibcWaits),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(PreloadedSignals, OneInterruptsAWait) {
  const Disposition handler(SIGUSR1);
  EXPECT_EQ(support::with_one_signal([&] { return GetParam().call(pair_.bob); }), -1);
  EXPECT_EQ(errno, EINTR);
  EXPECT_EQ(support::handled, 1);
  EXPECT_FALSE(support::is_blocked(SIGUSR1));
}

TEST_P(PreloadedSignals, WithSaRestartAReadGoesOnAndAPollDoesNot) {
  if (support::kDelaysHandlers) GTEST_SKIP() << "ThreadSanitizer delays the handler";
  const Disposition handler(SIGUSR1, support::count_handled, SA_RESTART);
  const bool is_read = GetParam().call == support::wait_in_recv;
  const auto send = [&] {
    support::until_handled();
    EXPECT_EQ(::write(pair_.alice, "x", is_read ? 1 : 0), is_read ? 1 : 0);
  };
  const int answer = support::with_one_signal([&] { return GetParam().call(pair_.bob); }, send);
  EXPECT_EQ(answer, is_read ? 1 : -1);
  EXPECT_EQ(support::handled, 1);
}

/// What is partly done is never restarted, though nobody else goes on with it.
class PartialTransfer : public testing::Test {
 protected:
  void SetUp() override {
    if (support::kDelaysHandlers) GTEST_SKIP() << "ThreadSanitizer delays the handler";
    // A call that goes on instead ends all the same, with what it should not have waited for.
    rescue_ = std::thread([this] {
      const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (!done_ && std::chrono::steady_clock::now() < late)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      in_time_ = done_.load();
      if (!in_time_) ::shutdown(pair_.alice, SHUT_RDWR);
    });
  }
  void TearDown() override {
    done_ = true;
    if (rescue_.joinable()) rescue_.join();
    EXPECT_TRUE(in_time_ || IsSkipped());
  }

  Pair pair_ = connected_pair();
  const Disposition handler_{SIGUSR1, support::count_handled, SA_RESTART};
  const std::string data_ = std::string(std::size_t{16} << 20, 'x');
  std::atomic<bool> done_{false};
  bool in_time_ = false;
  std::thread rescue_;
};

TEST_F(PartialTransfer, ASendAnswersWhatItHasSent) {
  const ssize_t sent =
      support::with_one_signal([&] { return ::send(pair_.alice, data_.data(), data_.size(), MSG_NOSIGNAL); });
  EXPECT_GT(sent, 0);
  EXPECT_LT(sent, static_cast<ssize_t>(data_.size()));
}

TEST_F(PartialTransfer, AWritevAnswersWhatItHasWritten) {
  char* const bytes = const_cast<char*>(data_.data());
  const std::array<iovec, 2> parts{{{bytes, data_.size()}, {bytes, data_.size()}}};
  const ssize_t sent = support::with_one_signal([&] { return ::writev(pair_.alice, parts.data(), 2); });
  EXPECT_GT(sent, 0);
  EXPECT_LT(sent, static_cast<ssize_t>(2 * data_.size()));
}

TEST_F(PartialTransfer, AReceiveOfAllAnswersWhatItHas) {
  ASSERT_EQ(::send(pair_.alice, "abc", 3, 0), 3);
  std::string room(10, ' ');
  EXPECT_EQ(support::with_one_signal([&] { return ::recv(pair_.bob, room.data(), room.size(), MSG_WAITALL); }), 3);
  EXPECT_EQ(room.substr(0, 3), "abc");
}

TEST_F(PartialTransfer, OneThatHasNothingYetGoesOn) {
  std::string room(3, ' ');
  const ssize_t got = support::with_one_signal([&] { return ::recv(pair_.bob, room.data(), room.size(), MSG_WAITALL); },
                                               [&] {
                                                 support::until_handled();
                                                 EXPECT_EQ(::send(pair_.alice, "abc", 3, 0), 3);
                                               });
  EXPECT_EQ(got, 3);
}

// -- masks of waits

/// A wait for bytes that blocks the signals of `mask`, for ten seconds at most.
struct MaskedWait {
  const char* name;
  int (*call)(int fd, const sigset_t& mask);
};

int wait_in_ppoll(int fd, const sigset_t& mask) {
  pollfd entry{fd, POLLIN, 0};
  const timespec limit{10, 0};
  return ::ppoll(&entry, 1, &limit, &mask);
}
int wait_in_pselect(int fd, const sigset_t& mask) {
  fd_set readable;
  FD_ZERO(&readable);
  FD_SET(fd, &readable);
  const timespec limit{10, 0};
  return ::pselect(fd + 1, &readable, nullptr, nullptr, &limit, &mask);
}
int wait_in_epoll_pwait(int fd, const sigset_t& mask) {
  const Fd set(::epoll_create1(0));
  epoll_event event{EPOLLIN, {.fd = fd}};
  EXPECT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
  return ::epoll_pwait(set, &event, 1, 10'000, &mask);
}
constexpr MaskedWait kMaskedWaits[] = {
    {"ppoll", wait_in_ppoll}, {"pselect", wait_in_pselect}, {"epoll_pwait", wait_in_epoll_pwait}};

class MaskOfAWait : public testing::TestWithParam<MaskedWait> {
 protected:
  MaskOfAWait() {
    sigemptyset(&alarm_);
    sigaddset(&alarm_, SIGALRM);
  }
  ~MaskOfAWait() override {
    const itimerval never{};
    ::setitimer(ITIMER_REAL, &never, nullptr);
  }
  /// SIGALRM comes every 0.1 ms from now on, to this thread.
  void start_alarms() {
    const itimerval often{{0, 100}, {0, 100}};
    ASSERT_EQ(::setitimer(ITIMER_REAL, &often, nullptr), 0);
  }
  /// Runs `body` in a thread that gets no alarms.
  template <class Body>
  std::thread without_alarms(Body body) {
    ::pthread_sigmask(SIG_BLOCK, &alarm_, nullptr);
    std::thread out(std::move(body));
    ::pthread_sigmask(SIG_UNBLOCK, &alarm_, nullptr);
    return out;
  }

  Pair pair_ = connected_pair();
  const Disposition alarms_{SIGALRM};
  sigset_t alarm_{};
};
INSTANTIATE_TEST_SUITE_P(Calls, MaskOfAWait, testing::ValuesIn(kMaskedWaits),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(MaskOfAWait, ASignalThatItBlocksDoesNotEndTheWait) {
  constexpr int kRounds = 100;
  std::thread answers = without_alarms([&] {
    for (int i = 0; i < kRounds; ++i) {
      EXPECT_EQ(read_all(pair_.alice, 1), "?");
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      EXPECT_EQ(::write(pair_.alice, "!", 1), 1);
    }
  });
  start_alarms();
  for (int i = 0; i < kRounds; ++i) {
    EXPECT_EQ(::write(pair_.bob, "?", 1), 1);
    EXPECT_EQ(GetParam().call(pair_.bob, alarm_), 1) << std::strerror(errno);
    EXPECT_FALSE(support::is_blocked(SIGALRM));
    char answer = 0;
    EXPECT_EQ(::read(pair_.bob, &answer, 1), 1);
  }
  answers.join();
  EXPECT_GT(support::handled, 0);
}

TEST_P(MaskOfAWait, AnotherSignalEndsTheWaitMeanwhile) {
  constexpr int kRounds = 50;
  const Disposition handler(SIGUSR1);
  const pthread_t waiting = ::pthread_self();
  std::atomic<int> rounds{0};
  std::thread interrupts = without_alarms([&] {
    for (int i = 1; i <= kRounds; ++i) {
      while (rounds < i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ::pthread_kill(waiting, SIGUSR1);
    }
  });
  sigset_t users;
  sigemptyset(&users);
  sigaddset(&users, SIGUSR1);
  ::pthread_sigmask(SIG_BLOCK, &users, nullptr);
  start_alarms();
  for (int i = 0; i < kRounds; ++i) {
    ++rounds;
    EXPECT_EQ(GetParam().call(pair_.bob, alarm_), -1);
    EXPECT_EQ(errno, EINTR);
    EXPECT_FALSE(support::is_blocked(SIGALRM));
    EXPECT_TRUE(support::is_blocked(SIGUSR1));
  }
  interrupts.join();
  ::pthread_sigmask(SIG_UNBLOCK, &users, nullptr);
}

}  // namespace
}  // namespace ringsock::preload_tests
