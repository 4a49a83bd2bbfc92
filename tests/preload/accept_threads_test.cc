// Several threads in accept() on one listener.
#include <sys/resource.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <csignal>
#include <latch>
#include <thread>
#include <vector>

#include "tests/preload/tcp_world.h"
#include "tests/support/sanitizers.h"
#include "tests/support/signals.h"
#include "tests/support/thread_status.h"

namespace ringsock::preload_tests {
namespace {

/// Their clients take part, or are the kernel's.
class ThreadsInAccept : public testing::TestWithParam<bool> {
 protected:
  static constexpr int kThreads = 8;
  [[nodiscard]] Fd client() const { return client_of(listener_, GetParam()); }
  void start(auto body) {
    for (int i = 0; i < kThreads; ++i) threads_.emplace_back(body);
  }
  void join() {
    for (std::thread& thread : threads_) thread.join();
  }
  const Fd listener_ = listening();
  std::vector<std::thread> threads_;
};
INSTANTIATE_TEST_SUITE_P(Preloaded, ThreadsInAccept, testing::Bool(),
                         [](const auto& info) { return info.param ? "TakePart" : "AreTheKernels"; });

TEST_P(ThreadsInAccept, EachGetOneOfTheClientsThatComeAtOnce) {
  std::latch all_have_one(kThreads);
  start([&] {
    const Fd accepted(::accept(listener_, nullptr, nullptr));
    EXPECT_GE(accepted, 0);
    all_have_one.arrive_and_wait();
    EXPECT_EQ(::write(accepted, "x", 1), 1);
  });
  std::array<Fd, kThreads> clients;
  for (Fd& fd : clients) fd = client();
  for (const Fd& fd : clients) {
    char byte = 0;
    EXPECT_EQ(GetParam() ? ::read(fd, &byte, 1) : raw_syscall(SYS_read, int(fd), &byte, 1L), 1);
  }
  join();
}

/// In turns, so that a client costs no more wake-ups the more threads there are.
TEST_P(ThreadsInAccept, AreWokenOneForEachClient) {
  constexpr int kClients = 200;
  std::atomic<long> sleeps{0};
  start([&] {
    for (;;) {
      const Fd accepted(::accept(listener_, nullptr, nullptr));
      if (accepted < 0) break;
      EXPECT_EQ(::write(accepted, "x", 1), 1);
    }
    rusage used{};
    ::getrusage(RUSAGE_THREAD, &used);
    sleeps.fetch_add(used.ru_nvcsw);
  });
  for (int i = 0; i < kClients; ++i) {
    const Fd fd = client();
    char byte = 0;
    EXPECT_EQ(GetParam() ? ::read(fd, &byte, 1) : raw_syscall(SYS_read, int(fd), &byte, 1L), 1);
  }
  ::shutdown(listener_, SHUT_RDWR);
  join();
  // A sanitizer's threads also wait for each other where ours do not.
  if (!support::kHasAddressSanitizer && !support::kHasThreadSanitizer) {
    EXPECT_LT(sleeps.load(), 4 * kClients);
  }
}

TEST_P(ThreadsInAccept, AreInterruptedByNothingButAHandler) {
  // It asks for EINTR, as a server's handler does that stops it.
  const support::Disposition handled(SIGUSR2);
  std::atomic<int> interrupted{0};
  start([&] {
    for (;;) {
      const Fd accepted(::accept(listener_, nullptr, nullptr));
      if (accepted >= 0) continue;
      if (errno != EINTR) break;
      interrupted.fetch_add(1);
    }
  });
  for (int i = 0; i < 20; ++i) {
    const Fd fd = client();
    // A child's end, of which no thread wants to hear.
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  }
  EXPECT_EQ(interrupted.load(), 0);
  for (int i = 0; interrupted.load() == 0; ++i) {
    ::pthread_kill(threads_.front().native_handle(), SIGUSR2);
    ::usleep(1000);
    ASSERT_LT(i, 10'000);
  }
  ::shutdown(listener_, SHUT_RDWR);
  join();
}

/// The kernel's sleepers take one more client each; there are none of a ring that has been closed.
TEST(ThreadsInAcceptOfAListenerThatIsClosed, AllHearTheSame) {
  if (!preloaded()) GTEST_SKIP() << "the kernel's sleepers wait on";
  if (support::kHasThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer calls a close beside a use a race";
  constexpr std::size_t kThreads = 4;
  for (int round = 0; round < 20; ++round) {
    Fd listener = listening();
    std::vector<std::thread> threads;
    std::array<std::atomic<pid_t>, kThreads> ids{};
    std::array<int, kThreads> errors{};
    for (std::size_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i, fd = int(listener)] {
        ids.at(i) = ::gettid();
        errors.at(i) = ::accept(fd, nullptr, nullptr) < 0 ? errno : 0;
      });
    }
    for (const auto& id : ids) {
      while (id == 0) std::this_thread::yield();
      ASSERT_TRUE(support::falls_asleep(id));
    }
    listener.reset();
    for (std::thread& thread : threads) thread.join();
    for (const int error : errors) EXPECT_EQ(error, EINVAL);
  }
}

}  // namespace
}  // namespace ringsock::preload_tests
