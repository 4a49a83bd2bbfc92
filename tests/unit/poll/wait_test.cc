#include "core/poll/wait.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "core/poll/epoll_set.h"
#include "core/poll/poll_set.h"
#include "core/poll/sleeper.h"
#include "core/poll/spin_policy.h"
#include "tests/fakes/fake_endpoint.h"
#include "tests/support/signals.h"

namespace ringsock::runtime {
namespace {

using namespace std::chrono_literals;
using fakes::FakeEndpoint;
using fakes::OpenFake;

Result<int> wait_for(FakeEndpoint& endpoint, std::uint32_t events, Nanos timeout = Nanos::max()) {
  return retry_until_ready(endpoint, events, deadline_after(timeout), [&] { return endpoint.attempt(events); });
}

/// Until the other thread sleeps or is about to: it has armed at least `arms` times.
void until_armed(const FakeEndpoint& endpoint, int arms = 1) {
  while (endpoint.arms() < arms) std::this_thread::yield();
}

TEST(Wait, WhatIsReadyCostsOneAttempt) {
  OpenFake fake;
  fake->become(EPOLLIN);
  EXPECT_EQ(*wait_for(*fake, EPOLLIN), static_cast<int>(EPOLLIN));
  EXPECT_EQ(fake->looks(), 1);
  EXPECT_EQ(fake->arms(), 0);
}

TEST(Wait, AnErrorEndsTheWaitAtOnce) {
  OpenFake fake;
  fake.close();
  EXPECT_EQ(wait_for(*fake, EPOLLIN).error().code, EBADF);
}

TEST(Wait, ASleeperIsWokenByTheDoorbell) {
  OpenFake fake;
  std::thread peer([&] {
    until_armed(*fake);
    fake->become(EPOLLIN);
  });
  EXPECT_TRUE(wait_for(*fake, EPOLLIN));
  peer.join();
}

/// Until that thread is inside epoll_pwait(2).
void until_in_epoll(pid_t thread) {
  const std::string file = "/proc/self/task/" + std::to_string(thread) + "/syscall";
  for (int call = -1; call != SYS_epoll_pwait; ::usleep(100)) std::ifstream(file) >> call;
}

TEST(Wait, OfThoseWhoSleepInTurnOneIsWoken) {
  const UniqueFd queue(::eventfd(0, EFD_NONBLOCK | EFD_SEMAPHORE | EFD_CLOEXEC));
  WaitFds fds;
  fds.shared[0] = queue.get();
  constexpr int kSleepers = 4;
  std::atomic<int> woken{0};
  std::atomic<bool> stop{false};
  std::array<std::atomic<pid_t>, kSleepers> asleep{};  // 0: not yet, or no more
  std::vector<std::thread> sleepers;
  for (std::size_t i = 0; i < kSleepers; ++i) {
    sleepers.emplace_back([&, i] {
      while (!stop) {
        asleep[i] = ::gettid();
        const auto found = sleep_in_turn(fds, 1, thread_bell(), Nanos::max(), nullptr);
        eventfd_t one = 0;
        EXPECT_TRUE(found && *found == 1U && ::eventfd_read(queue.get(), &one) == 0) << "woken in vain";
        if (stop) asleep[i] = 0;
        ++woken;
      }
    });
  }
  const auto ring = [&](int round) {
    for (const auto& thread : asleep) {
      while (thread == 0 && round == 1) ::usleep(100);
      if (thread != 0) until_in_epoll(thread);
    }
    ::eventfd_write(queue.get(), 1);
    while (woken < round) ::usleep(100);
    ::usleep(1000);  // for one more to come, if one did
    EXPECT_EQ(woken, round);
  };
  for (int round = 1; round <= 20; ++round) ring(round);
  stop = true;
  for (int round = 21; round <= 20 + kSleepers; ++round) ring(round);
  for (auto& sleeper : sleepers) sleeper.join();
}

TEST(Wait, TimesOutNeitherEarlyNorMuchTooLate) {
  OpenFake fake;
  const Nanos begun = monotonic_now();
  EXPECT_EQ(wait_for(*fake, EPOLLIN, 2'345us).error().code, EAGAIN);
  EXPECT_GE(monotonic_now() - begun, 2'345us);
  EXPECT_EQ(wait_for(*fake, EPOLLIN, 0us).error().code, EAGAIN);
}

TEST(Wait, LooksAgainAtTheDeadlineOfTheEndpoint) {
  OpenFake fake;
  fake->set_deadline(monotonic_now() + 2ms);
  // The condition appears by time alone, as a connect's time-out does.
  const auto answer = retry_until_ready(*fake, EPOLLIN, Nanos::max(), [&]() -> Result<int> {
    if (monotonic_now() < fake->deadline()) return Error{EAGAIN, "early"};
    return 1;
  });
  EXPECT_TRUE(answer);
}

TEST(Wait, CloseByAnotherThreadEndsTheWait) {
  OpenFake fake;
  const Ref pinned = fd_table().get(fake.fd());
  std::thread closer([&] {
    until_armed(*fake);
    fake.close();
  });
  EXPECT_EQ(wait_for(*fake, EPOLLIN).error().code, EBADF);
  closer.join();
}

TEST(Wait, OneThreadsWorkWakesTheOther) {
  OpenFake fake;
  std::thread other([&] {
    until_armed(*fake);
    fake->become_by_other_callers_work(EPOLLOUT);
  });
  EXPECT_TRUE(wait_for(*fake, EPOLLOUT));
  other.join();
}

TEST(Wait, WhoWorksForHimselfRingsNoBell) {
  OpenFake fake;
  static_cast<void>(thread_bell());
  silence_thread_bell();  // another thread may have rung it for an earlier wait that did not sleep
  const SleeperWatch watch(*fake, EPOLLIN, thread_bell());
  fake->become_by_other_callers_work(EPOLLIN);
  pollfd bell{thread_bell(), POLLIN, 0};
  EXPECT_EQ(::poll(&bell, 1, 0), 0);
  EXPECT_TRUE(take_own_ring());
  EXPECT_FALSE(take_own_ring());
}

// The last look before sleeping goes from one to the next: what looking at Bob changes at Alice, who was looked at
// already and whose doorbell stays silent, must not be slept over.
void bobs_look_changes_alice(OpenFake& alice, OpenFake& bob) {
  bob->on_armed_look([&alice] { alice->become_by_other_callers_work(EPOLLIN); });
}

TEST(Wait, PollDoesNotSleepOverWhatItsOwnLookChanged) {
  OpenFake alice, bob;
  bobs_look_changes_alice(alice, bob);
  std::array<pollfd, 2> entries{{{alice.fd(), POLLIN, 0}, {bob.fd(), POLLIN, 0}}};
  EXPECT_EQ(*poll_endpoints(entries, Nanos::max(), nullptr), 1);
  EXPECT_EQ(entries[0].revents, POLLIN);
}

TEST(Wait, EpollDoesNotSleepOverWhatItsOwnLookChanged) {
  OpenFake alice, bob;
  bobs_look_changes_alice(alice, bob);
  const UniqueFd set(*EpollSet::create(EPOLL_CLOEXEC));
  for (const int fd : {alice.fd(), bob.fd()}) {
    const epoll_event event{EPOLLIN, {.fd = fd}};
    ASSERT_TRUE(epoll_control(set.get(), EPOLL_CTL_ADD, fd, &event));
  }
  epoll_event found{};
  EXPECT_EQ(*epoll_wait_for(set.get(), &found, 1, Nanos::max(), nullptr), 1);
  EXPECT_EQ(found.data.fd, alice.fd());
  fd_table().remove(set.get())->retire();
}

TEST(Wait, ReaderAndWriterOnOneEndpointNeverLoseAWakeUp) {
  constexpr int kRounds = 2'000;
  OpenFake fake;
  auto waiter = [&](std::uint32_t events) {
    for (int i = 0; i < kRounds; ++i) {
      ASSERT_TRUE(wait_for(*fake, events, 20s));
      fake->lose(events);
    }
  };
  std::atomic<int> running{2};
  std::thread reader([&] { waiter(EPOLLIN), --running; });
  std::thread writer([&] { waiter(EPOLLOUT), --running; });
  // The peer: each condition comes again once it has been used up.
  while (running > 0) {
    const std::uint32_t missing = (EPOLLIN | EPOLLOUT) & ~fake->ready();
    if (missing != 0) fake->become(missing);
    std::this_thread::yield();
  }
  reader.join();
  writer.join();
}

/// Signals `thread` until told to stop: the first may come before it sleeps.
class Nuisance {
 public:
  Nuisance(pthread_t victim, FakeEndpoint& armed)
      : thread_([this, victim, &armed] {
          until_armed(armed);
          while (!stop_) {
            ::pthread_kill(victim, SIGUSR1);
            std::this_thread::yield();
          }
        }) {}
  ~Nuisance() { stop(); }
  void stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST(Wait, ASignalHandlerInterrupts) {
  const support::Disposition handler(SIGUSR1);
  OpenFake fake;
  Nuisance nuisance(::pthread_self(), *fake);
  EXPECT_EQ(wait_for(*fake, EPOLLIN).error().code, EINTR);
}

TEST(Wait, AHandlerWithSaRestartInterruptsOnlyWaitsWithATimeOut) {
  const support::Disposition handler(SIGUSR1, support::count_handled, SA_RESTART);
  OpenFake fake;
  {
    Nuisance nuisance(::pthread_self(), *fake);
    EXPECT_EQ(wait_for(*fake, EPOLLIN, 20s).error().code, EINTR);
  }
  const int arms = fake->arms();
  std::thread peer([&, self = ::pthread_self()] {
    until_armed(*fake, arms + 1);
    // Each signal makes it look and arm again, none ends the wait.
    for (int i = arms; i < arms + 3; i = fake->arms()) {
      ::pthread_kill(self, SIGUSR1);
      std::this_thread::yield();
    }
    fake->become(EPOLLIN);
  });
  EXPECT_TRUE(wait_for(*fake, EPOLLIN));
  peer.join();
}

TEST(Wait, OperationsAndReadinessHaveAPollingTimeEach) {
  // Without one: a first look, the few before the clock is read, one when armed, one at the end.
  constexpr int kFew = 40;
  const auto looks_of = [](auto call) {
    OpenFake fake;
    call(fake);
    return fake->looks();
  };
  // Where others want the CPU, a spin may be given up at once, or take turns with them although it has no time.
  constexpr int kTries = 20'000;
  const auto spins = [&](auto call) {
    int tries = 0;
    while (++tries < kTries && looks_of(call) < kFew) {
    }
    return tries < kTries;
  };
  const auto sleeps_at_once = [&](auto call) {
    int tries = 0;
    while (++tries < kTries && looks_of(call) >= kFew) {
    }
    return tries < kTries;
  };
  const auto receive = [](OpenFake& fake) { EXPECT_EQ(wait_for(*fake, EPOLLIN, 1ms).error().code, EAGAIN); };
  const auto poll = [](OpenFake& fake) {
    std::array<pollfd, 1> entry{{{fake.fd(), POLLIN, 0}}};
    EXPECT_EQ(*poll_endpoints(entry, 1ms, nullptr), 0);
  };

  set_spin_policy(WaitFor::operation, {.polling_time = 1h, .adaptive = false});
  set_spin_policy(WaitFor::readiness, {.polling_time = 0ns, .adaptive = false});
  EXPECT_TRUE(spins(receive));
  EXPECT_TRUE(sleeps_at_once(poll));

  set_spin_policy(WaitFor::operation, {.polling_time = 0ns, .adaptive = false});
  set_spin_policy(WaitFor::readiness, {.polling_time = 1h, .adaptive = false});
  EXPECT_TRUE(sleeps_at_once(receive));
  EXPECT_TRUE(spins(poll));
  set_spin_policy({});
}

TEST(Wait, ABlockedReaderWithoutTrafficSleepsInOneGo) {
  OpenFake fake;
  EXPECT_EQ(wait_for(*fake, EPOLLIN, 300ms).error().code, EAGAIN);
  EXPECT_EQ(fake->arms(), 1);
}

}  // namespace
}  // namespace ringsock::runtime
