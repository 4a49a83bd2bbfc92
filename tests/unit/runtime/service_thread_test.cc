#include "core/runtime/service_thread.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "core/runtime/rcu.h"

namespace ringsock::runtime {
namespace {

using namespace std::chrono_literals;

/// An eventfd that rings and can be waited for.
struct Bell {
  UniqueFd fd{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  void ring() const { ::eventfd_write(fd.get(), 1); }
  void silence() const {
    eventfd_t count = 0;
    ::eventfd_read(fd.get(), &count);
  }
};

TEST(ServiceThread, CallsBackAsLongAsTheDescriptorIsReady) {
  const Bell bell;
  std::promise<std::uint32_t> second;
  int calls = 0;
  const auto watch = service_thread().watch(bell.fd.get(), EPOLLIN, [&](std::uint32_t events) {
    if (++calls < 2) return;
    bell.silence();
    second.set_value(events);
  });
  ASSERT_TRUE(watch);
  bell.ring();
  EXPECT_EQ(second.get_future().get(), std::uint32_t{EPOLLIN});
  service_thread().unwatch(*watch);
  EXPECT_EQ(calls, 2);
}

TEST(ServiceThread, RefusesWhatCannotBeWatched) {
  const UniqueFd directory(::open("/", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(service_thread().watch(-1, EPOLLIN, [](std::uint32_t) {}).error().code, EBADF);
  EXPECT_EQ(service_thread().watch(directory.get(), EPOLLIN, [](std::uint32_t) {}).error().code, EPERM);
  const Bell bell;
  const auto watch = service_thread().watch(bell.fd.get(), EPOLLIN, [](std::uint32_t) {});
  EXPECT_EQ(service_thread().watch(bell.fd.get(), EPOLLIN, [](std::uint32_t) {}).error().code, EEXIST);
  service_thread().unwatch(*watch);
}

TEST(ServiceThread, HasANameAndNoSignals) {
  std::promise<void> looked;
  std::array<char, 16> name{};
  sigset_t mask;
  const auto timer = service_thread().schedule(Nanos::zero(), [&] {
    ::pthread_getname_np(::pthread_self(), name.data(), name.size());
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    looked.set_value();
  });
  ASSERT_TRUE(timer);
  looked.get_future().get();
  EXPECT_STREQ(name.data(), "ringsock");
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGALRM}) EXPECT_TRUE(sigismember(&mask, signal));
}

TEST(ServiceThread, RunsOnTheCpusThatItWasGiven) {
  cpu_set_t usable;
  ASSERT_EQ(::sched_getaffinity(0, sizeof usable, &usable), 0);
  unsigned last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(last, &usable)) --last;

  const auto cpus_of_new_thread = [](const ThreadPlacement& placement) {
    ServiceThread service;
    service.set_placement(placement);
    std::promise<cpu_set_t> found;
    EXPECT_TRUE(service.schedule(Nanos::zero(), [&] {
      cpu_set_t cpus;
      ::sched_getaffinity(0, sizeof cpus, &cpus);
      found.set_value(cpus);
    }));
    const cpu_set_t cpus = found.get_future().get();
    service.rest();
    return cpus;
  };
  const cpu_set_t one = cpus_of_new_thread({.cpus = {last}});
  EXPECT_EQ(CPU_COUNT(&one), 1);
  EXPECT_TRUE(CPU_ISSET(last, &one));

  // CPUs that there are not, and a cpuset that there is not, do not keep it from working.
  const cpu_set_t all = cpus_of_new_thread({.cpus = {60000}});
  EXPECT_TRUE(CPU_EQUAL(&all, &usable));
  const cpu_set_t all_too = cpus_of_new_thread({.cpuset_directory = "/no/such/cpuset"});
  EXPECT_TRUE(CPU_EQUAL(&all_too, &usable));
}

TEST(ThreadPlacement, WritesTheThreadIntoItsCpuset) {
  std::string directory = "/tmp/cpuset.XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  EXPECT_EQ(place_this_thread({.cpuset_directory = directory}).error().code, ENOENT);
  std::ofstream(directory + "/cgroup.threads").close();
  EXPECT_TRUE(place_this_thread({.cpuset_directory = directory}));
  std::string written;
  std::ifstream(directory + "/cgroup.threads") >> written;
  EXPECT_EQ(written, std::to_string(::gettid()));
  std::filesystem::remove_all(directory);
}

TEST(ServiceThread, UnwatchWaitsForTheCallbackThatRuns) {
  for (int round = 0; round < 100; ++round) {
    const Bell bell;
    std::atomic<bool> alive{true};
    std::atomic<int> calls{0};
    const auto watch = service_thread().watch(bell.fd.get(), EPOLLIN, [&](std::uint32_t) {
      EXPECT_TRUE(alive);
      ++calls;
      std::this_thread::yield();
      EXPECT_TRUE(alive);
    });
    bell.ring();
    while (calls == 0) std::this_thread::yield();
    service_thread().unwatch(*watch);
    alive = false;
    const int calls_at_unwatch = calls;
    std::this_thread::yield();
    EXPECT_EQ(calls, calls_at_unwatch);
  }
}

TEST(ServiceThread, ACallbackMayUnwatchItself) {
  const Bell bell;
  std::promise<void> done;
  std::promise<ServiceThread::Id> id;
  const auto watch = service_thread().watch(bell.fd.get(), EPOLLIN, [&, self = id.get_future().share()](std::uint32_t) {
    service_thread().unwatch(self.get());
    done.set_value();
  });
  id.set_value(*watch);
  bell.ring();
  done.get_future().get();
}

TEST(ServiceThread, APausedWatchIsSilentUntilResumedAsOften) {
  const Bell bell;
  std::atomic<int> calls{0};
  const auto watch = service_thread().watch(bell.fd.get(), EPOLLIN, [&](std::uint32_t) {
    bell.silence();
    ++calls;
  });
  service_thread().pause(*watch);
  service_thread().pause(*watch);
  bell.ring();
  EXPECT_TRUE(service_thread().resume(*watch));

  // Whatever the thread had to do, it has done once this timer ran: the bell is not heard.
  std::promise<void> passed;
  ASSERT_TRUE(service_thread().schedule(monotonic_now(), [&] { passed.set_value(); }));
  passed.get_future().get();
  EXPECT_EQ(calls, 0);

  EXPECT_TRUE(service_thread().resume(*watch));
  while (calls == 0) std::this_thread::yield();
  service_thread().unwatch(*watch);
  EXPECT_EQ(calls, 1);
}

TEST(ServiceThread, TimersRunInOrderAndNotEarly) {
  std::vector<int> order;
  std::promise<Nanos> last;
  // It does not begin with the others before all are there.
  std::promise<void> all_are_there;
  ASSERT_TRUE(service_thread().schedule(Nanos::zero(), [&] { all_are_there.get_future().get(); }));
  const Nanos begun = monotonic_now();
  ASSERT_TRUE(service_thread().schedule(begun + 3ms, [&] {
    order.push_back(3);
    last.set_value(monotonic_now());
  }));
  ASSERT_TRUE(service_thread().schedule(begun + 1ms, [&] { order.push_back(1); }));
  ASSERT_TRUE(service_thread().schedule(begun + 2ms, [&] { order.push_back(2); }));
  all_are_there.set_value();
  EXPECT_GE(last.get_future().get(), begun + 3ms);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(ServiceThread, ACancelledTimerDoesNotRun) {
  std::atomic<bool> ran{false};
  const auto timer = service_thread().schedule(monotonic_now() + 1ms, [&] { ran = true; });
  const bool cancelled = service_thread().cancel(*timer);
  std::promise<void> later;
  ASSERT_TRUE(service_thread().schedule(monotonic_now() + 2ms, [&] { later.set_value(); }));
  later.get_future().get();
  EXPECT_NE(cancelled, ran) << "either it had run or it never does";
  EXPECT_FALSE(service_thread().cancel(*timer));
}

TEST(ServiceThread, CallbacksMayScheduleMore) {
  std::promise<void> done;
  ASSERT_TRUE(service_thread().schedule(
      Nanos::zero(), [&] { EXPECT_TRUE(service_thread().schedule(Nanos::zero(), [&] { done.set_value(); })); }));
  done.get_future().get();
}

std::ptrdiff_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

TEST(ServiceThread, WhileItRestsNobodyStartsIt) {
  std::atomic<bool> stop{false};
  std::atomic<int> due{0}, ran{0};
  std::thread another([&] {
    while (!stop) {
      if (!service_thread().schedule(Nanos::zero(), [&] { ++ran; })) continue;
      ++due;
      sched_yield();
    }
  });
  service_thread().rest();
  const auto without_it = threads_of_this_process();
  service_thread().go_on();
  int others = 0;
  for (int round = 0; round < 300; ++round) {
    service_thread().rest();
    others += threads_of_this_process() != without_it;
    service_thread().go_on();
  }
  stop = true;
  another.join();
  std::promise<void> last;
  EXPECT_TRUE(service_thread().schedule(monotonic_now() + 1ms, [&] { last.set_value(); }));
  last.get_future().get();
  EXPECT_EQ(ran, due) << "what was asked for meanwhile is done afterwards";
  EXPECT_EQ(others, 0);
}

TEST(ServiceThread, AForkedChildStartsItsOwn) {
#ifdef RINGSOCK_TSAN
  GTEST_SKIP() << "ThreadSanitizer does not support threads of forked children";
#endif
  const Bell bell;
  std::atomic<int> calls{0};
  const auto watch = service_thread().watch(bell.fd.get(), EPOLLIN, [&](std::uint32_t) {
    bell.silence();
    ++calls;
  });
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::promise<void> done;
    const auto timer = service_thread().schedule(Nanos::zero(), [&] { done.set_value(); });
    if (!timer) ::_exit(1);
    done.get_future().get();
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  bell.ring();
  while (calls == 0) std::this_thread::yield();
  service_thread().unwatch(*watch);
}

TEST(ServiceThread, AProcessMayExitWhileItIsBusy) {
#ifdef RINGSOCK_TSAN
  GTEST_SKIP() << "ThreadSanitizer does not support threads of forked children";
#endif
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    static const Bell& bell = *new Bell;
    static std::promise<void>& running = *new std::promise<void>;
    static int calls = 0;
    const auto watch = service_thread().watch(bell.fd.get(), EPOLLIN, [](std::uint32_t) {
      if (++calls == 1) running.set_value();
    });
    bell.ring();
    if (watch) running.get_future().get();
    // The callback is called without end meanwhile; nothing of what it uses goes away before the process does.
    std::exit(watch ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ringsock::runtime
