#include "core/poll/poll_set.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <memory>
#include <thread>
#include <vector>

#include "core/poll/wait.h"
#include "core/runtime/fork_registry.h"
#include "tests/fakes/fake_endpoint.h"
#include "tests/support/signals.h"

namespace ringsock::runtime {
namespace {

using namespace std::chrono_literals;
using fakes::FakeEndpoint;
using fakes::OpenFake;

/// Two connected sockets of the kernel.
struct SocketPair {
  SocketPair() {
    std::array<int, 2> fd{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd.data()), 0);
    mine.reset(fd[0]);
    peer.reset(fd[1]);
  }
  void peer_writes() const { EXPECT_EQ(::write(peer.get(), "x", 1), 1); }
  UniqueFd mine, peer;
};

void until_armed(const FakeEndpoint& endpoint, int arms = 1) {
  while (endpoint.arms() < arms) std::this_thread::yield();
}

TEST(Poll, ReportsOursAndTheKernelsInOneCall) {
  OpenFake ready;
  OpenFake quiet;
  const SocketPair kernel;
  ready->become(EPOLLIN | EPOLLOUT);
  kernel.peer_writes();

  std::array<pollfd, 5> entries{{{ready.fd(), POLLIN, 0},
                                 {quiet.fd(), POLLIN | POLLOUT, 0},
                                 {kernel.mine.get(), POLLIN | POLLOUT, 0},
                                 {-1, POLLIN, 99},
                                 {ready.fd(), POLLOUT | POLLPRI, 0}}};
  EXPECT_EQ(*poll_endpoints(entries, Nanos::max(), nullptr), 3);
  EXPECT_EQ(entries[0].revents, POLLIN);
  EXPECT_EQ(entries[1].revents, 0);
  EXPECT_EQ(entries[2].revents, POLLIN | POLLOUT);
  EXPECT_EQ(entries[3].revents, 0) << "negative descriptors are ignored";
  EXPECT_EQ(entries[4].revents, POLLOUT) << "a descriptor may come twice";
}

/// While it exists calls ask the kernel after so many hits.
struct HitsPerKernelLook {
  explicit HitsPerKernelLook(unsigned hits) { kernel_looks().set_hits(hits); }
  HitsPerKernelLook(const HitsPerKernelLook&) = delete;
  HitsPerKernelLook& operator=(const HitsPerKernelLook&) = delete;
  ~HitsPerKernelLook() { kernel_looks().set_hits(KernelLooks::kAutomatic); }
};

TEST(Poll, AsksTheKernelAfterAsManyHitsAsItWasTold) {
  OpenFake ours;
  const SocketPair kernel;
  std::array<pollfd, 2> entries{{{ours.fd(), POLLIN, 0}, {kernel.mine.get(), POLLIN, 0}}};
  EXPECT_EQ(*poll_endpoints(entries, 0ns, nullptr), 0) << "the kernel has been asked just now";
  ours->become(EPOLLIN);
  kernel.peer_writes();

  const HitsPerKernelLook three(3);
  for (int call = 0; call < 3; ++call) {
    EXPECT_EQ(*poll_endpoints(entries, 0ns, nullptr), 1) << call;
    EXPECT_EQ(entries[1].revents, 0) << call;
  }
  EXPECT_EQ(*poll_endpoints(entries, 0ns, nullptr), 2);
  EXPECT_EQ(entries[1].revents, POLLIN);
  EXPECT_EQ(*poll_endpoints(entries, 0ns, nullptr), 1);

  // What endpoints do not have is looked for at the kernel at once.
  entries[0].events = POLLPRI;
  EXPECT_EQ(*poll_endpoints(entries, 0ns, nullptr), 1);
  EXPECT_EQ(entries[1].revents, POLLIN);
}

TEST(Poll, MasksAreThoseOfAKernelSocket) {
  // The same conditions on both: data there, space there, the peer has shut down.
  SocketPair kernel;
  kernel.peer_writes();
  ASSERT_EQ(::shutdown(kernel.peer.get(), SHUT_WR), 0);
  OpenFake fake;
  fake->become(EPOLLIN | EPOLLOUT | EPOLLRDHUP);
  for (const int events : {0, POLLIN, POLLOUT, POLLRDNORM, POLLWRNORM, POLLRDHUP, POLLPRI,
                           POLLIN | POLLRDNORM | POLLRDHUP, POLLOUT | POLLWRNORM}) {
    std::array<pollfd, 1> ours{{{fake.fd(), static_cast<short>(events), 0}}};
    std::array<pollfd, 1> theirs{{{kernel.mine.get(), static_cast<short>(events), 0}}};
    EXPECT_EQ(*poll_endpoints(ours, 0ns, nullptr), ::poll(theirs.data(), 1, 0));
    EXPECT_EQ(ours[0].revents, theirs[0].revents) << events;
  }
}

/// One CPU, of which nobody is relieved unless he offers it. @return 77 when this process may not.
int share_one_cpu() {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(::sched_getcpu(), &one);
  if (::sched_setaffinity(0, sizeof one, &one) != 0) return 77;
  const sched_param priority{1};
  return ::sched_setscheduler(0, SCHED_FIFO, &priority) == 0 ? 0 : 77;
}

TEST(Poll, WhoTurnsInALoopLeavesTheCpuToTheDevice) {
  const pid_t child = ::fork();
  if (child == 0) {
    OpenFake fake;
    fake->wait_for_our_cpus();
    if (const int refused = share_one_cpu(); refused != 0) ::_exit(refused);
    std::thread device([&] { fake->become(EPOLLIN); });
    std::array<pollfd, 1> entry{{{fake.fd(), POLLIN, 0}}};
    int turns = 0;
    while (*poll_endpoints(entry, 0ns, nullptr) == 0 && turns < 100'000) ++turns;
    device.join();
    ::_exit(turns < 100'000 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no right to a real-time priority";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Poll, AThreadThatSleepsLooksAgainAfterAForkBecauseTheChildMayTakeItsBell) {
  OpenFake fake;
  fork_registry().enter(*fake);
  std::thread sleeper([&] {
    std::array<pollfd, 1> entry{{{fake.fd(), POLLIN, 0}}};
    EXPECT_EQ(*poll_endpoints(entry, Nanos::max(), nullptr), 1);
  });
  until_armed(*fake);
  const int before = fake->arms();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  for (int left = 10'000; left > 0 && fake->arms() == before; --left) std::this_thread::sleep_for(1ms);
  EXPECT_GT(fake->arms(), before);
  fake->become(EPOLLIN);
  sleeper.join();
  fork_registry().leave(*fake);
}

TEST(Poll, HangUpAndErrorAreReportedUnasked) {
  OpenFake fake;
  fake->become(EPOLLERR | EPOLLHUP);
  std::array<pollfd, 1> entry{{{fake.fd(), 0, 0}}};
  EXPECT_EQ(*poll_endpoints(entry, Nanos::max(), nullptr), 1);
  EXPECT_EQ(entry[0].revents, POLLERR | POLLHUP);
}

TEST(Poll, ADescriptorThatIsNotOpenIsInvalid) {
  OpenFake fake;
  const int closed = ::dup(0);
  ::close(closed);
  std::array<pollfd, 2> entries{{{fake.fd(), POLLIN, 0}, {closed, POLLIN, 0}}};
  EXPECT_EQ(*poll_endpoints(entries, Nanos::max(), nullptr), 1);
  EXPECT_EQ(entries[1].revents, POLLNVAL);
}

TEST(Poll, TimesOutExactlyAndLooksOnceWhenTheTimeIsZero) {
  OpenFake fake;
  std::array<pollfd, 1> entry{{{fake.fd(), POLLIN, 77}}};
  EXPECT_EQ(*poll_endpoints(entry, 0ns, nullptr), 0);
  EXPECT_EQ(fake->looks(), 1);
  EXPECT_EQ(fake->arms(), 0);
  EXPECT_EQ(entry[0].revents, 0);

  const Nanos begun = monotonic_now();
  EXPECT_EQ(*poll_endpoints(entry, 1'234us, nullptr), 0);
  EXPECT_GE(monotonic_now() - begun, 1'234us);
}

TEST(Poll, KernelDescriptorsAloneGoStraightToTheKernel) {
  const SocketPair kernel;
  std::array<pollfd, 1> entry{{{kernel.mine.get(), POLLIN, 0}}};
  EXPECT_EQ(*poll_endpoints(entry, 0ns, nullptr), 0);
  EXPECT_EQ(*poll_endpoints(entry, 100us, nullptr), 0);
  kernel.peer_writes();
  EXPECT_EQ(*poll_endpoints(entry, Nanos::max(), nullptr), 1);
}

TEST(Poll, WakesForOurs) {
  OpenFake first;
  OpenFake second;
  const SocketPair kernel;
  std::thread peer([&] {
    until_armed(*second);
    second->become(EPOLLIN);
  });
  std::array<pollfd, 3> entries{{{first.fd(), POLLIN, 0}, {second.fd(), POLLIN, 0}, {kernel.mine.get(), POLLIN, 0}}};
  EXPECT_EQ(*poll_endpoints(entries, Nanos::max(), nullptr), 1);
  EXPECT_EQ(entries[1].revents, POLLIN);
  peer.join();
}

TEST(Poll, WakesForTheKernels) {
  OpenFake fake;
  const SocketPair kernel;
  std::thread peer([&] {
    until_armed(*fake);
    kernel.peer_writes();
  });
  std::array<pollfd, 2> entries{{{fake.fd(), POLLIN, 0}, {kernel.mine.get(), POLLIN, 0}}};
  EXPECT_EQ(*poll_endpoints(entries, Nanos::max(), nullptr), 1);
  EXPECT_EQ(entries[1].revents, POLLIN);
  peer.join();
}

TEST(Poll, CloseByAnotherThreadEndsTheWaitForThatDescriptor) {
  OpenFake fake;
  std::thread closer([&] {
    until_armed(*fake);
    fake.close();
  });
  std::array<pollfd, 1> entry{{{fake.fd(), POLLIN, 0}}};
  EXPECT_EQ(*poll_endpoints(entry, Nanos::max(), nullptr), 1);
  EXPECT_EQ(entry[0].revents, POLLNVAL);
  closer.join();
}

TEST(Poll, ThreadsThatPollTheSameDescriptorAllSeeTheEvent) {
  constexpr int kThreads = 4;
  for (int round = 0; round < 50; ++round) {
    OpenFake fake;
    const int fd = fake.fd();
    std::vector<std::thread> pollers;
    pollers.reserve(kThreads);
    for (int i = 0; i < kThreads; ++i) {
      pollers.emplace_back([fd] {
        std::array<pollfd, 1> entry{{{fd, POLLIN, 0}}};
        EXPECT_EQ(*poll_endpoints(entry, 20s, nullptr), 1);
      });
    }
    until_armed(*fake, kThreads);
    fake->become(EPOLLIN);
    for (std::thread& poller : pollers) poller.join();
  }
}

class PollSignals : public testing::Test {
 protected:
  PollSignals() {
    sigset_t usr2;
    sigemptyset(&usr2);
    sigaddset(&usr2, SIGUSR2);
    ::pthread_sigmask(SIG_BLOCK, &usr2, &let_through_);
  }
  ~PollSignals() override { ::pthread_sigmask(SIG_SETMASK, &let_through_, nullptr); }
  support::Disposition counted_{SIGUSR2, support::count_handled, SA_RESTART};
  sigset_t let_through_{};
};

TEST_F(PollSignals, APendingSignalThatTheMaskLetsThroughInterrupts) {
  OpenFake fake;
  std::array<pollfd, 1> entry{{{fake.fd(), POLLIN, 0}}};
  ::raise(SIGUSR2);
  EXPECT_EQ(*poll_endpoints(entry, 100us, nullptr), 0) << "still blocked";
  EXPECT_EQ(support::handled, 0);
  EXPECT_EQ(poll_endpoints(entry, Nanos::max(), &let_through_).error().code, EINTR);
  EXPECT_EQ(support::handled, 1);
}

TEST_F(PollSignals, ASignalStaysPendingWhenThereIsSomethingToReport) {
  OpenFake fake;
  fake->become(EPOLLIN);
  std::array<pollfd, 1> entry{{{fake.fd(), POLLIN, 0}}};
  ::raise(SIGUSR2);
  EXPECT_EQ(*poll_endpoints(entry, Nanos::max(), &let_through_), 1);
  EXPECT_EQ(support::handled, 0);
}

TEST_F(PollSignals, ASleeperIsInterrupted) {
  OpenFake fake;
  std::thread sender([&, victim = ::pthread_self()] {
    until_armed(*fake);
    ::pthread_kill(victim, SIGUSR2);
  });
  std::array<pollfd, 1> entry{{{fake.fd(), POLLIN, 0}}};
  EXPECT_EQ(poll_endpoints(entry, Nanos::max(), &let_through_).error().code, EINTR);
  sender.join();
}

/// Sets RLIMIT_NOFILE while it lives.
class NoFileLimit {
 public:
  explicit NoFileLimit(rlim_t soft) {
    ::getrlimit(RLIMIT_NOFILE, &old_);
    const rlimit changed{soft, old_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &changed), 0);
  }
  NoFileLimit(const NoFileLimit&) = delete;
  NoFileLimit& operator=(const NoFileLimit&) = delete;
  ~NoFileLimit() { ::setrlimit(RLIMIT_NOFILE, &old_); }

 private:
  rlimit old_{};
};

TEST(Poll, AsManyDescriptorsAsTheProcessMayHaveWorkAlthoughDoorbellsComeOnTop) {
  std::vector<std::unique_ptr<OpenFake>> fakes;
  std::vector<pollfd> entries;
  for (int i = 0; i < 100; ++i) {
    fakes.push_back(std::make_unique<OpenFake>());
    entries.push_back({fakes.back()->fd(), POLLIN, 0});
  }
  const int bell = thread_bell();
  ASSERT_GE(bell, 0);
  const NoFileLimit limit(100);
  // Some free numbers below the limit, for the descriptor that the call itself needs and those of sanitizers.
  for (std::size_t i = 0; i < 8; ++i) ::close(fakes[i]->fd());
  std::thread peer([&] {
    until_armed(**fakes[50]);
    (*fakes[50])->become(EPOLLIN);
  });
  EXPECT_EQ(*poll_endpoints(entries, Nanos::max(), nullptr), 1);
  EXPECT_EQ(entries[50].revents, POLLIN);
  peer.join();
}

// -- select

struct Sets {
  fd_set readable{}, writable{}, exceptional{};
};

TEST(Select, LeavesTheReadyDescriptorsInTheSets) {
  OpenFake fake;
  const SocketPair kernel;
  fake->become(EPOLLIN | EPOLLOUT);
  Sets sets;
  FD_SET(fake.fd(), &sets.readable);
  FD_SET(fake.fd(), &sets.writable);
  FD_SET(fake.fd(), &sets.exceptional);
  FD_SET(kernel.mine.get(), &sets.readable);
  FD_SET(kernel.mine.get(), &sets.writable);
  Nanos timeout = Nanos::max();
  EXPECT_EQ(*select_endpoints(FD_SETSIZE, &sets.readable, &sets.writable, &sets.exceptional, timeout, nullptr), 3);
  EXPECT_TRUE(FD_ISSET(fake.fd(), &sets.readable));
  EXPECT_TRUE(FD_ISSET(fake.fd(), &sets.writable));
  EXPECT_FALSE(FD_ISSET(fake.fd(), &sets.exceptional));
  EXPECT_FALSE(FD_ISSET(kernel.mine.get(), &sets.readable));
  EXPECT_TRUE(FD_ISSET(kernel.mine.get(), &sets.writable));
}

TEST(Select, TellsTheTimeThatIsLeft) {
  OpenFake fake;
  std::thread peer([&] {
    until_armed(*fake);
    fake->become(EPOLLIN);
  });
  Sets sets;
  FD_SET(fake.fd(), &sets.readable);
  Nanos timeout = 100s;
  EXPECT_EQ(*select_endpoints(fake.fd() + 1, &sets.readable, nullptr, nullptr, timeout, nullptr), 1);
  EXPECT_GT(timeout, 1s);
  EXPECT_LT(timeout, 100s);
  peer.join();
}

TEST(Select, ATimeOutClearsTheSetsAndLeavesNoTime) {
  OpenFake fake;
  Sets sets;
  FD_SET(fake.fd(), &sets.readable);
  Nanos timeout = 1ms;
  EXPECT_EQ(*select_endpoints(fake.fd() + 1, &sets.readable, nullptr, nullptr, timeout, nullptr), 0);
  EXPECT_FALSE(FD_ISSET(fake.fd(), &sets.readable));
  EXPECT_EQ(timeout, 0ns);
}

TEST(Select, HangUpIsReadableAndDoesNotWakeThoseWhoOnlyWrite) {
  OpenFake fake;
  fake->become(EPOLLHUP);
  Sets sets;
  FD_SET(fake.fd(), &sets.readable);
  Nanos timeout = Nanos::max();
  EXPECT_EQ(*select_endpoints(fake.fd() + 1, &sets.readable, nullptr, nullptr, timeout, nullptr), 1);

  FD_SET(fake.fd(), &sets.writable);
  timeout = 1ms;
  EXPECT_EQ(*select_endpoints(fake.fd() + 1, nullptr, &sets.writable, nullptr, timeout, nullptr), 0);
  EXPECT_EQ(timeout, 0ns);
}

TEST(Select, ADescriptorThatIsNotOpenIsAnErrorAndLeavesTheSets) {
  OpenFake fake;
  fake->become(EPOLLIN);
  const int closed = ::dup(0);
  ::close(closed);
  Sets sets;
  FD_SET(fake.fd(), &sets.readable);
  FD_SET(closed, &sets.readable);
  Nanos timeout = Nanos::max();
  EXPECT_EQ(select_endpoints(FD_SETSIZE, &sets.readable, nullptr, nullptr, timeout, nullptr).error().code, EBADF);
  EXPECT_TRUE(FD_ISSET(fake.fd(), &sets.readable));
  EXPECT_TRUE(FD_ISSET(closed, &sets.readable));
  EXPECT_EQ(select_endpoints(-1, nullptr, nullptr, nullptr, timeout, nullptr).error().code, EINVAL);
}

TEST(Select, DescriptorZeroCounts) {
  // Whatever descriptor 0 is in this run, it stands aside.
  const UniqueFd saved(::fcntl(0, F_DUPFD_CLOEXEC, 3));
  ::close(0);
  {
    OpenFake fake;
    ASSERT_EQ(fake.fd(), 0);
    fake->become(EPOLLIN);
    Sets sets;
    FD_SET(0, &sets.readable);
    Nanos timeout = Nanos::max();
    EXPECT_EQ(*select_endpoints(1, &sets.readable, nullptr, nullptr, timeout, nullptr), 1);
  }
  if (saved) ::dup2(saved.get(), 0);
}

TEST(Select, SetsMayBeLargerThanFdSetsize) {
  constexpr int kFar = 3'000;
  const OpenFake near;
  ASSERT_EQ(::fcntl(near.fd(), F_DUPFD_CLOEXEC, kFar), kFar) << "needs RLIMIT_NOFILE above " << kFar;
  Ref endpoint = fd_table().get(near.fd());
  static_cast<FakeEndpoint&>(*endpoint).become(EPOLLIN);
  ASSERT_TRUE(fd_table().insert(kFar, std::move(endpoint)));

  std::array<fd_set, 4> large{};
  auto* words = reinterpret_cast<fd_mask*>(large.data());
  words[kFar / NFDBITS] = fd_mask{1} << (kFar % NFDBITS);
  Nanos timeout = Nanos::max();
  EXPECT_EQ(*select_endpoints(kFar + 1, large.data(), nullptr, nullptr, timeout, nullptr), 1);
  EXPECT_EQ(words[kFar / NFDBITS], fd_mask{1} << (kFar % NFDBITS));
  EXPECT_TRUE(fd_table().remove(kFar));
  ::close(kFar);
}

TEST(Select, FindsNumbersAboveFdSetsizeWhereOtherNumbersAreBeyond) {
  constexpr int kFar = 1'500, kBits = 8'192;
  const OpenFake near;
  ASSERT_EQ(::fcntl(near.fd(), F_DUPFD_CLOEXEC, kFar), kFar) << "needs RLIMIT_NOFILE above " << kFar;
  Ref endpoint = fd_table().get(near.fd());
  static_cast<FakeEndpoint&>(*endpoint).become(EPOLLIN);
  ASSERT_TRUE(fd_table().insert(kFar, std::move(endpoint)));
  // As a process without /proc finds its numbers, and as others do.
  for (const int nfds : {kFar + 1, kFar + 200, 4'096, kBits}) {
    std::array<fd_set, kBits / FD_SETSIZE> large{};
    auto* words = reinterpret_cast<fd_mask*>(large.data());
    words[kFar / NFDBITS] = fd_mask{1} << (kFar % NFDBITS);
    Nanos timeout = Nanos::zero();
    EXPECT_EQ(*select_endpoints(nfds, large.data(), nullptr, nullptr, timeout, nullptr), 1) << nfds;
  }
  EXPECT_TRUE(fd_table().remove(kFar));
  ::close(kFar);
}

TEST(Select, HugeNfdsReadsNoFurtherThanTheKernelWould) {
  // Programs pass getdtablesize() with ordinary sets: what lies behind them must not be taken for descriptors.
  struct {
    fd_set set{};
    std::array<unsigned char, 8'192> behind;
  } memory;
  memory.behind.fill(0xff);
  OpenFake fake;
  fake->become(EPOLLIN);
  FD_SET(fake.fd(), &memory.set);
  // A child's descriptor table is as small as it can be, whatever other tests opened here before.
  const pid_t child = ::fork();
  if (child == 0) {
    Nanos timeout = Nanos::max();
    const Result<int> answer = select_endpoints(60'000, &memory.set, nullptr, nullptr, timeout, nullptr);
    ::_exit(answer && *answer == 1 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ringsock::runtime
