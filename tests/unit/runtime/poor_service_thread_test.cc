// A service thread that cannot be started, and one whose descriptors are closed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "core/runtime/service_thread.h"
#include "tests/support/child.h"
#include "tests/support/poor_process.h"

namespace ringsock::runtime {
namespace {

using namespace std::chrono_literals;
using testing::Channel;
using testing::Child;
using testing::Milliseconds;

TEST(PoorServiceThread, NobodyWaitsForAThreadThatWasNeverStarted) {
  ServiceThread nobody;
  nobody.unwatch(0);
  nobody.pause(0);
  EXPECT_TRUE(nobody.resume(0));
  EXPECT_FALSE(nobody.cancel(0));
  nobody.unwatch(7);
  EXPECT_FALSE(nobody.cancel(7));
}

#ifndef RINGSOCK_TSAN  // does not support threads of forked children

constexpr int kHung = -1;

/// What `body` answers in a process of its own, which is killed when it hangs.
int in_a_process(const std::function<int()>& body) {
  Child child = Child::start([&](Channel& channel) { return channel.send(body()) ? 0 : 1; });
  return child.channel().receive<int>(Milliseconds(10'000)).value_or(kHung);
}

int asks_in_vain() {
  const UniqueFd bell(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  const auto watch = service_thread().watch(bell.get(), EPOLLIN, [](std::uint32_t) {});
  const auto timer = service_thread().schedule(Nanos::zero(), [] {});
  service_thread().unwatch(0);
  service_thread().cancel(0);
  return !watch && !timer && watch.error().code == EAGAIN && timer.error().code == EAGAIN ? 1 : 0;
}

TEST(PoorServiceThread, SaysSoWhereNoThreadIsAllowed) {
  EXPECT_EQ(in_a_process([] { return testing::deny_threads() ? asks_in_vain() : 2; }), 1);
}

TEST(PoorServiceThread, SaysSoWhereTheUserMayHaveNoMoreThreads) {
  if (::geteuid() != 0) GTEST_SKIP() << "another user's limit needs root";
  EXPECT_EQ(in_a_process([] { return testing::become_lonely_user() ? asks_in_vain() : 2; }), 1);
}

TEST(PoorServiceThread, StartsOnceItMay) {
  if (::geteuid() != 0) GTEST_SKIP() << "a limit that binds needs another user";
  const int answer = in_a_process([] {
    rlimit limit{};
    ::getrlimit(RLIMIT_NPROC, &limit);
    const rlimit none{1, limit.rlim_max};
    if (::setuid(1'000'000 + static_cast<uid_t>(::getpid())) != 0 || ::setrlimit(RLIMIT_NPROC, &none) != 0) return 2;
    if (service_thread().schedule(Nanos::zero(), [] {})) return 3;
    ::setrlimit(RLIMIT_NPROC, &limit);
    std::promise<void> ran;
    // It looks at most once a second whether it may.
    while (!service_thread().schedule(Nanos::zero(), [&] { ran.set_value(); })) std::this_thread::sleep_for(10ms);
    ran.get_future().get();
    return 1;
  });
  EXPECT_EQ(answer, 1);
}

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

std::vector<int> open_numbers() {
  std::vector<int> out;
  for (int fd = 3; fd < 4096; ++fd) {
    if (is_open(fd)) out.push_back(fd);
  }
  return out;
}

/// Starts the thread, and says which descriptors it has.
std::vector<int> numbers_of_thread() {
  const std::vector<int> before = open_numbers();
  const UniqueFd bell(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  const auto watch = service_thread().watch(bell.get(), EPOLLIN, [](std::uint32_t) {});
  const std::vector<int> with_bell = open_numbers();
  std::vector<int> out;
  std::set_difference(with_bell.begin(), with_bell.end(), before.begin(), before.end(), std::back_inserter(out));
  std::erase(out, bell.get());
  service_thread().unwatch(*watch);
  return out;
}

/// A bell that the thread hears.
bool hears_new_bell() {
  const UniqueFd bell(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  std::promise<void> heard;
  std::atomic<bool> told{false};
  const auto watch = service_thread().watch(bell.get(), EPOLLIN, [&](std::uint32_t) {
    if (!told.exchange(true)) heard.set_value();
  });
  if (!watch) return false;
  ::eventfd_write(bell.get(), 1);
  heard.get_future().get();
  service_thread().unwatch(*watch);
  return true;
}

TEST(PoorServiceThread, GoesOnAfterItsDescriptorsWereClosed) {
  const int answer = in_a_process([] {
    for (int round = 0; round < 50; ++round) {
      const std::vector<int> numbers = numbers_of_thread();
      for (const int fd : numbers) ::close(fd);
      std::promise<void> ran;
      if (!service_thread().schedule(Nanos::zero(), [&] { ran.set_value(); })) return 2;
      ran.get_future().get();
      if (!hears_new_bell()) return 3;
    }
    return 1;
  });
  EXPECT_EQ(answer, 1);
}

TEST(PoorServiceThread, EachOfItsDescriptorsMayBeMissingAlone) {
  const int answer = in_a_process([] {
    for (std::size_t which = 0; which < 3; ++which) {
      const std::vector<int> numbers = numbers_of_thread();
      if (numbers.size() != 3 && which == 0) return 2;
      if (which < numbers.size()) ::close(numbers[which]);
      if (!hears_new_bell()) return 3;
    }
    return 1;
  });
  EXPECT_EQ(answer, 1);
}

TEST(PoorServiceThread, KeepsTheWatchesWhoseDescriptorsAreOpen) {
  const int answer = in_a_process([] {
    const UniqueFd kept(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    const std::vector<int> numbers = numbers_of_thread();
    std::atomic<int> calls{0};
    const auto watch = service_thread().watch(kept.get(), EPOLLIN, [&](std::uint32_t) {
      eventfd_t rung = 0;
      ::eventfd_read(kept.get(), &rung);
      ++calls;
    });
    for (const int fd : numbers) ::close(fd);
    if (!hears_new_bell()) return 2;
    ::eventfd_write(kept.get(), 1);
    while (calls == 0) std::this_thread::yield();
    service_thread().unwatch(*watch);
    return 1;
  });
  EXPECT_EQ(answer, 1);
}

/// The application has opened files with the thread's numbers: nothing comes in, nothing goes out, nothing is closed.
TEST(PoorServiceThread, LeavesTheFilesAloneThatHaveItsNumbersNow) {
  const int answer = in_a_process([] {
    const std::vector<int> numbers = numbers_of_thread();
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0 || ::write(pair[1], "theirs", 6) != 6) return 2;
    for (const int fd : numbers) ::dup2(pair[0], fd);
    std::promise<void> ran;
    if (!service_thread().schedule(Nanos::zero(), [&] { ran.set_value(); })) return 3;
    ran.get_future().get();
    if (!hears_new_bell()) return 4;
    for (const int fd : numbers) {
      if (!is_open(fd)) return 5;
    }
    char text[8];
    if (::recv(pair[0], text, sizeof text, MSG_DONTWAIT) != 6) return 6;
    if (::recv(pair[1], text, sizeof text, MSG_DONTWAIT) != -1) return 7;
    return 1;
  });
  EXPECT_EQ(answer, 1);
}

/// An epoll set of the application has the number of the thread's, and a pipe of the application the bell's.
TEST(PoorServiceThread, ChangesNoEpollSetOfTheApplication) {
  const int answer = in_a_process([] {
    const std::vector<int> numbers = numbers_of_thread();
    int ends[2];
    const int set = ::epoll_create1(0);
    if (::pipe(ends) != 0) return 2;
    // Every number means the set, but one, in turn, the pipe, which is in it.
    for (const int fd : numbers) ::dup2(set, fd);
    ::dup2(ends[0], numbers[0]);
    epoll_event event{EPOLLIN | EPOLLET, {.u64 = 4711}};
    if (::epoll_ctl(set, EPOLL_CTL_ADD, numbers[0], &event) != 0) return 3;
    const UniqueFd other(::eventfd(1, EFD_NONBLOCK));
    const auto watch = service_thread().watch(other.get(), EPOLLIN, [](std::uint32_t) {});
    if (!watch) return 4;
    service_thread().unwatch(*watch);
    if (!hears_new_bell()) return 5;
    if (::write(ends[1], "x", 1) != 1 || ::epoll_wait(set, &event, 1, 0) != 1 || event.data.u64 != 4711) return 6;
    if (::epoll_wait(set, &event, 1, 0) != 0) return 7;  // still edge-triggered
    return 1;
  });
  EXPECT_EQ(answer, 1);
}

TEST(PoorServiceThread, AProcessThatHasClosedEverythingMayFork) {
  const int answer = in_a_process([] {
    const std::vector<int> numbers = numbers_of_thread();
    for (const int fd : numbers) ::close(fd);
    return in_a_process([] { return hears_new_bell() ? 1 : 0; });
  });
  EXPECT_EQ(answer, 1);
}

/// Any moment is a good one for closing what one does not know.
TEST(PoorServiceThread, OutlivesCloseRangeWhileItIsBusy) {
  const int answer = in_a_process([] {
    for (int round = 0; round < 200; ++round) {
      std::promise<void> ran;
      if (!service_thread().schedule(monotonic_now() + 100us, [&] { ran.set_value(); })) return 2;
      testing::close_behind_all_backs(700);
      ran.get_future().get();
      if (!hears_new_bell()) return 3;
    }
    return 1;
  });
  EXPECT_EQ(answer, 1);
}

#endif

}  // namespace
}  // namespace ringsock::runtime
