#include "core/poll/held_signals.h"
#include "core/base/poll_until.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <csetjmp>
#include <csignal>
#include <functional>
#include <string>

#include "core/poll/epoll_set.h"
#include "core/poll/poll_set.h"
#include "core/poll/sleeper.h"
#include "core/poll/spin_policy.h"
#include "core/poll/wait.h"
#include "tests/fakes/fake_endpoint.h"
#include "tests/support/signals.h"

namespace ringsock::runtime {
namespace {

using namespace std::chrono_literals;
using fakes::OpenFake;
using support::count_handled;
using support::Disposition;
using support::handled;
using support::is_blocked;
using support::with_one_signal;

/// Blocks a signal while it lives.
class Blocked {
 public:
  explicit Blocked(int signal) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    ::pthread_sigmask(SIG_BLOCK, &set, &before);
  }
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;
  ~Blocked() { ::pthread_sigmask(SIG_SETMASK, &before, nullptr); }

  sigset_t before;
};

constexpr Nanos kNow{1'000'000};
constexpr Nanos kShort = HeldSignals::kFreeSpin - 1ns;
constexpr Nanos kLong = HeldSignals::kFreeSpin;

/// As the sleep after a spin: lets through what is pending. @return errno, 0 when nothing came.
int let_through(const HeldSignals& signals) {
  const Result<int> slept = poll_until({}, Nanos::zero(), signals.mask());
  return slept ? 0 : slept.error().code;
}

TEST(HeldSignals, AShortSpinHoldsNothing) {
  HeldSignals signals(nullptr);
  EXPECT_FALSE(signals.interrupt(kShort, kNow));
  EXPECT_FALSE(is_blocked(SIGUSR1));
  EXPECT_EQ(signals.mask(), nullptr) << "the sleep needs no mask of its own";
}

TEST(HeldSignals, ALongOneIsInterruptedAndTheSleepRunsTheHandler) {
  const Disposition handler(SIGUSR1);
  {
    HeldSignals signals(nullptr);
    EXPECT_FALSE(signals.interrupt(kLong, kNow));
    ::raise(SIGUSR1);
    EXPECT_EQ(handled, 0);
    EXPECT_FALSE(signals.interrupt(kLong, kNow + HeldSignals::kInterval - 1ns)) << "looks now and then only";
    EXPECT_TRUE(signals.interrupt(kLong, kNow + HeldSignals::kInterval));
    EXPECT_EQ(let_through(signals), EINTR);
    EXPECT_EQ(handled, 1);
    EXPECT_FALSE(signals.interrupt(kLong, kNow + 2 * HeldSignals::kInterval)) << "it is gone";
    EXPECT_TRUE(is_blocked(SIGUSR1)) << "the same call may spin again";
  }
  EXPECT_FALSE(is_blocked(SIGUSR1));
}

TEST(HeldSignals, OnceHeldTheNextSpinOfTheCallLooksFromItsBeginning) {
  const Disposition handler(SIGUSR1);
  HeldSignals signals(nullptr);
  EXPECT_FALSE(signals.interrupt(kLong, kNow));
  ::raise(SIGUSR1);
  EXPECT_TRUE(signals.interrupt(0ns, kNow + HeldSignals::kInterval));
  EXPECT_EQ(let_through(signals), EINTR);
}

TEST(HeldSignals, WhatNobodySleptForComesAtTheEnd) {
  const Disposition handler(SIGUSR1);
  {
    HeldSignals signals(nullptr);
    EXPECT_FALSE(signals.interrupt(kLong, kNow));
    ::raise(SIGUSR1);
    EXPECT_EQ(handled, 0);
  }
  EXPECT_EQ(handled, 1);
}

TEST(HeldSignals, IgnoredOnesInterruptNothing) {
  const Disposition ignored(SIGUSR1, SIG_IGN);
  const Disposition by_default(SIGWINCH, SIG_DFL);
  HeldSignals signals(nullptr);
  EXPECT_FALSE(signals.interrupt(kLong, kNow));
  ::raise(SIGUSR1);
  ::raise(SIGWINCH);
  EXPECT_FALSE(signals.interrupt(kLong, kNow + HeldSignals::kInterval));
}

TEST(HeldSignals, WhatTheThreadItselfBlocksInterruptsNothing) {
  const Disposition handler(SIGUSR1);
  const Blocked blocked(SIGUSR1);
  {
    HeldSignals signals(nullptr);
    ::raise(SIGUSR1);
    EXPECT_FALSE(signals.interrupt(kLong, kNow));
    EXPECT_EQ(let_through(signals), 0);
  }
  EXPECT_EQ(handled, 0);
  EXPECT_TRUE(is_blocked(SIGUSR1));
}

TEST(HeldSignals, TheCallersMaskDecides) {
  const Disposition first(SIGUSR1), second(SIGUSR2);
  const Blocked blocked(SIGUSR1);
  sigset_t only_second_blocked = blocked.before;
  sigaddset(&only_second_blocked, SIGUSR2);
  {
    HeldSignals signals(&only_second_blocked);
    EXPECT_FALSE(signals.interrupt(kLong, kNow));
    ::raise(SIGUSR2);
    EXPECT_FALSE(signals.interrupt(kLong, kNow + HeldSignals::kInterval));
    ::raise(SIGUSR1);
    EXPECT_TRUE(signals.interrupt(kLong, kNow + 2 * HeldSignals::kInterval));
    EXPECT_EQ(let_through(signals), EINTR);
    EXPECT_EQ(handled, 1) << "the other waits for the call to end";
  }
  EXPECT_EQ(handled, 2);
}

TEST(HeldSignals, FaultsAreNeverHeld) {
  HeldSignals signals(nullptr);
  EXPECT_FALSE(signals.interrupt(kLong, kNow));
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) {
    EXPECT_FALSE(is_blocked(fault)) << fault;
  }
  EXPECT_TRUE(is_blocked(SIGTERM));
}

#ifndef RINGSOCK_TSAN  // whose own mask, that of all signals around each handler, would stay
std::jmp_buf way_out;
extern "C" void jump_out(int) { std::longjmp(way_out, 1); }

TEST(HeldSignals, AHandlerThatJumpsOutOfTheCallLeavesNothingHeld) {
  const Disposition handler(SIGUSR1, jump_out, SA_NODEFER);
  if (setjmp(way_out) == 0) {  // NOLINT: one that keeps no mask
    HeldSignals signals(nullptr);
    signals.interrupt(kLong, kNow);
    ::raise(SIGUSR1);
    let_through(signals);
    ADD_FAILURE() << "no handler ran";
  }
  EXPECT_FALSE(is_blocked(SIGUSR1));
  EXPECT_FALSE(is_blocked(SIGTERM));
}
#endif

// -- calls that spin

using WaitingCall = std::function<Result<int>(OpenFake&, Nanos timeout)>;

struct NamedCall {
  const char* name;
  WaitingCall call;
};

Result<int> receive_call(OpenFake& fake, Nanos timeout) {
  return retry_until_ready(*fake, EPOLLIN, deadline_after(timeout), [&] { return fake->attempt(EPOLLIN); });
}
Result<int> poll_call(OpenFake& fake, Nanos timeout) {
  std::array<pollfd, 1> entry{{{fake.fd(), POLLIN, 0}}};
  return poll_endpoints(entry, timeout, nullptr);
}
Result<int> select_call(OpenFake& fake, Nanos timeout) {
  fd_set readable;
  FD_ZERO(&readable);
  FD_SET(fake.fd(), &readable);
  return select_endpoints(fake.fd() + 1, &readable, nullptr, nullptr, timeout, nullptr);
}
Result<int> epoll_call(OpenFake& fake, Nanos timeout) {
  const UniqueFd set(*EpollSet::create(EPOLL_CLOEXEC));
  const epoll_event event{EPOLLIN, {.fd = fake.fd()}};
  EXPECT_TRUE(epoll_control(set.get(), EPOLL_CTL_ADD, fake.fd(), &event));
  epoll_event found{};
  const Result<int> count = epoll_wait_for(set.get(), &found, 1, timeout, nullptr);
  fd_table().remove(set.get())->retire();
  return count;
}

/// With a polling time that lasts longer than any test.
class SpinningCall : public testing::Test {
 protected:
  SpinningCall() { set_spin_policy({.polling_time = 1h, .adaptive = false}); }
  ~SpinningCall() override { set_spin_policy({}); }
};
class SpinningCalls : public SpinningCall, public testing::WithParamInterface<NamedCall> {};
INSTANTIATE_TEST_SUITE_P(Calls, SpinningCalls,
                         testing::Values(NamedCall{"receive", receive_call}, NamedCall{"poll", poll_call},
                                         NamedCall{"select", select_call}, NamedCall{"epoll", epoll_call}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(SpinningCalls, OneSignalInterrupts) {
  const Disposition handler(SIGUSR1);
  OpenFake fake;
  EXPECT_EQ(with_one_signal([&] { return GetParam().call(fake, Nanos::max()); }).error().code, EINTR);
  EXPECT_EQ(handled, 1);
  EXPECT_FALSE(is_blocked(SIGUSR1));
}

TEST_P(SpinningCalls, OneSignalInterruptsWaitsWithATimeOutAlsoWithSaRestart) {
  const Disposition handler(SIGUSR1, count_handled, SA_RESTART);
  OpenFake fake;
  EXPECT_EQ(with_one_signal([&] { return GetParam().call(fake, 1h); }).error().code, EINTR);
}

TEST_P(SpinningCalls, AnIgnoredSignalDoesNotInterrupt) {
  const Disposition handler(SIGUSR1, SIG_IGN);
  OpenFake fake;
  EXPECT_TRUE(with_one_signal([&] { return GetParam().call(fake, Nanos::max()); }, [&] { fake->become(EPOLLIN); }));
}

TEST_F(SpinningCall, AReceiveGoesOnAfterAHandlerWithSaRestart) {
  const Disposition handler(SIGUSR1, count_handled, SA_RESTART);
  OpenFake fake;
  EXPECT_TRUE(with_one_signal([&] { return receive_call(fake, Nanos::max()); },
                              [&] {
                                support::until_handled();
                                fake->become(EPOLLIN);
                              }));
  EXPECT_EQ(handled, 1);
}

}  // namespace
}  // namespace ringsock::runtime
