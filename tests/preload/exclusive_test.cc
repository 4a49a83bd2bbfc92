// Servers whose workers each have an epoll set with the same listener in it, by EPOLLEXCLUSIVE: a client wakes one.
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "tests/preload/tcp_world.h"
#include "tests/support/sanitizers.h"
#include "tests/support/signals.h"
#include "tests/support/thread_status.h"

namespace ringsock::preload_tests {
namespace {

constexpr std::size_t kWorkers = 4;

/// How a worker behaves once it is woken.
enum class Manner { takes_all, takes_one, dies_once, closes_once, stops_once };

/// What the workers say of themselves, in memory that all processes have.
struct Tally {
  std::array<std::atomic<pid_t>, kWorkers> ids;  ///< of workers that are about to wait
  std::atomic<int> accepted;
  std::atomic<int> vain;      ///< how often a worker was woken and found no client
  std::atomic<bool> is_done;  ///< one has died, or stopped
};

class SharedTally {
 public:
  SharedTally()
      : tally_(new (::mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
                   Tally{}) {}
  SharedTally(const SharedTally&) = delete;
  SharedTally& operator=(const SharedTally&) = delete;
  ~SharedTally() { ::munmap(tally_, sizeof *tally_); }
  Tally* operator->() const { return tally_; }

 private:
  Tally* tally_;
};

int add(int set, int fd, std::uint32_t events) {
  epoll_event interest{events, {.fd = fd}};
  return ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &interest);
}
Fd set_with(int listener, std::uint32_t trigger = 0) {
  Fd set(::epoll_create1(EPOLL_CLOEXEC));
  EXPECT_EQ(add(set, listener, EPOLLIN | EPOLLEXCLUSIVE | trigger), 0);
  return set;
}
/// The number of the member that the set reports, 0 when there is none in time.
int reported(int set, int timeout) {
  epoll_event event{};
  return ::epoll_wait(set, &event, 1, timeout) == 1 ? event.data.fd : 0;
}
constexpr int kLong = 20'000;

/// Gives a client that waits a byte. Returns whether there is one.
bool serve_one(int listener) {
  const Fd client(::accept(listener, nullptr, nullptr));
  if (client < 0) return false;
  EXPECT_EQ(::write(client, "x", 1), 1);
  return true;
}
/// Ends, or does not go on, with a client that it was told of.
void leave_it_to_others(int listener, Manner manner) {
  if (manner == Manner::dies_once) ::raise(SIGKILL);
  if (manner == Manner::stops_once) ::raise(SIGSTOP);
  ::close(listener);
  ::pause();
}

/// A worker of that listener, until it is shut down.
void work(int listener, std::uint32_t trigger, Manner manner, std::atomic<pid_t>& id, Tally& tally) {
  const Fd set = set_with(listener, trigger);
  id = ::gettid();
  for (;;) {
    epoll_event event{};
    if (::epoll_wait(set, &event, 1, -1) != 1) continue;
    if ((event.events & EPOLLHUP) != 0) return;
    if (manner > Manner::takes_one && !tally.is_done.exchange(true)) return leave_it_to_others(listener, manner);
    int served = 0;
    while (serve_one(listener) && ++served > 0 && manner != Manner::takes_one) {
    }
    tally.accepted += served;
    if (served == 0) ++tally.vain;
  }
}

/// Workers with one listener, in processes or threads.
class Workers {
 public:
  Workers(bool are_processes, std::uint32_t trigger, Manner manner) {
    for (std::atomic<pid_t>& id : tally_->ids) {
      const auto body = [this, trigger, manner, &id] { work(listener, trigger, manner, id, *tally_.operator->()); };
      if (!are_processes) {
        threads_.emplace_back(body);
      } else if (const pid_t child = ::fork(); child != 0) {
        processes_.push_back(child);
      } else {
        body();
        ::_exit(0);
      }
    }
    for (const auto& id : tally_->ids) {
      while (id == 0) ::usleep(1000);
    }
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  ~Workers() {
    for (const pid_t process : processes_) {
      ::kill(process, SIGKILL);
      ::waitpid(process, nullptr, 0);
    }
    processes_.clear();
    end();
  }
  /// Ends them by the end of the listener, of which all are told.
  void end() {
    ::shutdown(listener, SHUT_RDWR);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    for (const pid_t process : processes_) EXPECT_EQ(::waitpid(process, nullptr, 0), process);
    processes_.clear();
  }
  void wait_until_all_sleep() {
    for (const auto& id : tally_->ids) ASSERT_TRUE(support::falls_asleep(id));
  }
  /// How often they have slept.
  [[nodiscard]] long sleeps() const {
    long sum = 0;
    for (const auto& id : tally_->ids) sum += std::stol(support::status_of(id, "voluntary_ctxt_switches"));
    return sum;
  }
  [[nodiscard]] const Tally& tally() const { return *tally_.operator->(); }

  const Fd listener = listening(AF_INET, SOCK_NONBLOCK);

 private:
  SharedTally tally_;
  std::vector<pid_t> processes_;
  std::vector<std::thread> threads_;
};

/// A client whose connect(2) is under way.
Fd begin_connecting(int listener) {
  Address there = name_of(listener);
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  const int done = ::connect(fd, there.get(), there.length);
  EXPECT_TRUE(done == 0 || errno == EINPROGRESS);
  return fd;
}
/// Whether a worker has given it a byte.
bool is_served(int client) {
  char byte = 0;
  return poll_once(client, POLLIN, kLong) != 0 && ::read(client, &byte, 1) == 1;
}

struct Kind {
  const char* name;
  bool are_processes;
  bool takes_part;  ///< the client; or it is one of the kernel's
  std::uint32_t trigger;
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

class ExclusiveSets : public testing::TestWithParam<Kind> {
 protected:
  /// A client comes, is served and goes.
  static void be_served(int listener) {
    const Fd client = client_of(listener, GetParam().takes_part);
    char byte = 0;
    ASSERT_EQ(GetParam().takes_part ? ::read(client, &byte, 1) : raw_syscall(SYS_read, int(client), &byte, 1L), 1);
    EXPECT_EQ(is_on_ring(client), preloaded() && GetParam().takes_part);
  }
};
INSTANTIATE_TEST_SUITE_P(Preloaded, ExclusiveSets,
                         testing::Values(Kind{"OfProcesses", true, true, 0}, Kind{"OfThreads", false, true, 0},
                                         Kind{"OfProcessesByEdges", true, true, EPOLLET},
                                         Kind{"OfThreadsByEdges", false, true, EPOLLET},
                                         Kind{"OfProcessesForTheKernelsClients", true, false, 0},
                                         Kind{"OfThreadsForTheKernelsClients", false, false, 0}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(ExclusiveSets, OneIsWokenForEachClient) {
  constexpr int kClients = 20;
  Workers workers(GetParam().are_processes, GetParam().trigger, Manner::takes_all);
  workers.wait_until_all_sleep();
  const long slept_before = workers.sleeps();
  for (int i = 0; i < kClients; ++i) {
    be_served(workers.listener);
    workers.wait_until_all_sleep();
  }
  EXPECT_EQ(workers.tally().accepted, kClients);
  EXPECT_LE(workers.tally().vain, kClients / 4);
  // A worker sleeps once more where it is woken by a client's connect(2) and the request has not come yet.
  if (!support::kHasAddressSanitizer && !support::kHasThreadSanitizer) {
    EXPECT_LT(workers.sleeps() - slept_before, 3 * kClients);
  }
}

TEST_P(ExclusiveSets, ServeAllClientsThatComeAtOnce) {
  if (!GetParam().takes_part) GTEST_SKIP() << "as any client of the kernel's";
  constexpr int kRounds = 5;
  constexpr int kClients = 12;  // fewer than the backlog
  for (const Manner manner : {Manner::takes_all, Manner::takes_one}) {
    if (manner == Manner::takes_one && GetParam().trigger != 0) continue;  // an edge tells of several clients
    const Workers workers(GetParam().are_processes, GetParam().trigger, manner);
    for (int round = 0; round < kRounds; ++round) {
      std::vector<Fd> clients;
      for (int i = 0; i < kClients; ++i) clients.push_back(begin_connecting(workers.listener));
      for (const Fd& client : clients) ASSERT_TRUE(is_served(client));
    }
  }
}

TEST_P(ExclusiveSets, AreAllToldOfTheEnd) {
  Workers workers(GetParam().are_processes, GetParam().trigger, Manner::takes_all);
  be_served(workers.listener);
  workers.wait_until_all_sleep();
  workers.end();
}

/// The worker that is woken for the first client does not accept it, but fails in this manner.
void have_client_served_by_others(Manner manner) {
  Workers workers(true, 0, manner);
  workers.wait_until_all_sleep();
  const Fd first = begin_connecting(workers.listener);
  while (!workers.tally().is_done) ::usleep(1000);
  // The kernel tells the others when the next client comes.
  const Fd second = begin_connecting(workers.listener);
  EXPECT_TRUE(is_served(second));
  EXPECT_TRUE(is_served(first));
}

TEST(ExclusiveSetsOfProcesses, LoseNoClientWithAWorkerThatIsKilledOrClosesTheListenerBeforeItAccepts) {
  for (int round = 0; round < 6; ++round)
    have_client_served_by_others(round % 2 == 0 ? Manner::dies_once : Manner::closes_once);
}

/// With the usual patience of clients.
TEST(Patience, ServesAClientWhoseWorkerStopsBeforeItAccepts) { have_client_served_by_others(Manner::stops_once); }

TEST(ExclusiveSet, ReportsAClientUntilItIsTakenAndAnEdgeOnce) {
  for (const std::uint32_t trigger : {0U, std::uint32_t{EPOLLET}}) {
    const Fd listener = listening(AF_INET, SOCK_NONBLOCK);
    const Fd set = set_with(listener, trigger);
    EXPECT_EQ(reported(set, 0), 0);
    for (int i = 0; i < 3; ++i) {
      const Fd client = begin_connecting(listener);
      EXPECT_EQ(reported(set, kLong), listener);
      EXPECT_EQ(reported(set, 0), trigger == 0 ? int(listener) : 0);
      EXPECT_EQ(reported(set, 0), trigger == 0 ? int(listener) : 0);
      EXPECT_TRUE(serve_one(listener));
      EXPECT_EQ(reported(set, 0), 0);
      EXPECT_TRUE(is_served(client));
    }
    // Each client is an edge, also while others wait.
    const Fd one = begin_connecting(listener);
    EXPECT_EQ(reported(set, kLong), listener);
    const Fd another = begin_connecting(listener);
    EXPECT_EQ(reported(set, kLong), listener);
    // The edge may be told while the second request is under way, because the first is there. Then another follows.
    for (int served = 0; served < 2;) {
      if (serve_one(listener)) {
        ++served;
      } else {
        ASSERT_EQ(reported(set, kLong), listener);
      }
    }
    EXPECT_TRUE(is_served(one));
    EXPECT_TRUE(is_served(another));
  }
}

TEST(ExclusiveSet, ReportsAClientThatIsTakenLateAsOneEdge) {
  const Fd listener = listening(AF_INET, SOCK_NONBLOCK);
  const Fd set = set_with(listener, EPOLLET);
  const Fd client = begin_connecting(listener);
  EXPECT_EQ(reported(set, kLong), listener);
  EXPECT_EQ(reported(set, 100), 0) << "the library takes the client in meanwhile";
  EXPECT_TRUE(serve_one(listener));
  EXPECT_TRUE(is_served(client));
}

TEST(ExclusiveSet, LeavesEachClientAsAnEdgeToASetThatIsNotExclusive) {
  const Fd listener = listening(AF_INET, SOCK_NONBLOCK);
  const Fd exclusive = set_with(listener);
  const Fd other(::epoll_create1(EPOLL_CLOEXEC));
  ASSERT_EQ(add(other, listener, EPOLLIN | EPOLLET), 0);
  for (int i = 0; i < 3; ++i) {
    const Fd client = begin_connecting(listener);
    EXPECT_EQ(reported(exclusive, kLong), listener);
    EXPECT_EQ(reported(other, kLong), listener);
    EXPECT_TRUE(serve_one(listener));
    EXPECT_TRUE(is_served(client));
  }
  for (int i = 0; i < 3; ++i) {
    const Fd client = begin_connecting(listener);
    EXPECT_EQ(reported(other, kLong), listener);
    EXPECT_EQ(reported(exclusive, kLong), listener);
    EXPECT_EQ(reported(other, 0), 0);
    EXPECT_TRUE(serve_one(listener));
    EXPECT_TRUE(is_served(client));
  }
}

TEST(ExclusiveSet, ReportsItsOtherMembersAndTimeOutsAndSignals) {
  const Fd listener = listening(AF_INET, SOCK_NONBLOCK);
  const Fd set = set_with(listener);
  Pair pair = connected_pair();
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const Fd reading(pipe[0]);
  const Fd writing(pipe[1]);
  ASSERT_EQ(add(set, reading, EPOLLIN), 0);
  ASSERT_EQ(add(set, pair.bob, EPOLLIN), 0);
  EXPECT_EQ(reported(set, 30), 0);

  // Whatever happens wakes a thread that sleeps.
  std::atomic<pid_t> id{0};
  std::atomic<int> found{-1};
  std::thread sleeper([&] {
    id = ::gettid();
    for (int last = 0; last != int(listener);) {
      epoll_event event{};
      const int count = ::epoll_wait(set, &event, 1, -1);
      last = count == 1 ? event.data.fd : -errno;
      char byte = 0;
      if (last == reading || last == pair.bob) {
        EXPECT_EQ(::read(last, &byte, 1), 1);
      }
      found = last;
    }
  });
  const auto expect_found = [&](int what) {
    while (found == -1) ::usleep(1000);
    EXPECT_EQ(found, what);
    found = -1;
  };
  const auto wait_until_it_sleeps = [&] {
    while (id == 0) ::usleep(1000);
    EXPECT_TRUE(support::falls_asleep(id));
  };
  wait_until_it_sleeps();
  EXPECT_EQ(::write(writing, "x", 1), 1);
  expect_found(reading);
  wait_until_it_sleeps();
  EXPECT_EQ(::write(pair.alice, "x", 1), 1);
  expect_found(pair.bob);
  wait_until_it_sleeps();
  {
    const support::Disposition handled(SIGUSR2);
    ::pthread_kill(sleeper.native_handle(), SIGUSR2);
    expect_found(-EINTR);
    wait_until_it_sleeps();
  }
  const Fd client = begin_connecting(listener);
  expect_found(listener);
  sleeper.join();
}

TEST(ExclusiveSet, TellsThoseWhoPollIt) {
  const Fd listener = listening(AF_INET, SOCK_NONBLOCK);
  const Fd set = set_with(listener);
  const Fd around(::epoll_create1(EPOLL_CLOEXEC));
  ASSERT_EQ(add(around, set, EPOLLIN), 0);
  EXPECT_EQ(reported(set, 0), 0);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(poll_once(set, POLLIN), 0);
    EXPECT_EQ(reported(around, 0), 0);
    std::thread later([&] {
      ::usleep(20'000);
      EXPECT_TRUE(is_served(connected_to(listener)));
    });
    EXPECT_EQ(i == 0 ? int(poll_once(set, POLLIN, kLong)) : reported(around, kLong), i == 0 ? POLLIN : int(set));
    EXPECT_EQ(reported(set, 0), listener);
    while (serve_one(listener)) {
    }
    later.join();
  }
}

TEST(ExclusiveSet, MayHaveAListenerBeforeItListens) {
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  Address any = Address::loopback(AF_INET, 0);
  ASSERT_EQ(::bind(listener, any.get(), any.length), 0);
  const Fd set = set_with(listener);
  ASSERT_EQ(::listen(listener, 16), 0);
  while (reported(set, 0) != 0) {
  }
  const Fd client = begin_connecting(listener);
  EXPECT_EQ(reported(set, kLong), listener);
  EXPECT_TRUE(serve_one(listener));
  EXPECT_TRUE(is_served(client));
}

/// As nginx does, which so lets others be the first to be woken.
TEST(ExclusiveSet, MayLoseItsListenerAndGetItBack) {
  const Fd listener = listening(AF_INET, SOCK_NONBLOCK);
  const Fd set = set_with(listener);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(::epoll_ctl(set, EPOLL_CTL_DEL, listener, nullptr), 0);
    const Fd client = begin_connecting(listener);
    EXPECT_EQ(reported(set, 0), 0);
    EXPECT_EQ(add(set, listener, EPOLLIN | EPOLLEXCLUSIVE), 0);
    EXPECT_EQ(reported(set, kLong), listener);
    EXPECT_TRUE(serve_one(listener));
    EXPECT_TRUE(is_served(client));
    EXPECT_EQ(reported(set, 0), 0);
  }
}

TEST(ExclusiveSet, KeepsAClientThatItHasReportedOverAFork) {
  const Fd listener = listening(AF_INET, SOCK_NONBLOCK);
  const Fd set = set_with(listener);
  const pid_t other = ::fork();
  if (other == 0) {
    char byte = 0;
    ::_exit(::read(connected_to(listener), &byte, 1) == 1 ? 0 : 1);
  }
  EXPECT_EQ(reported(set, kLong), listener);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(reported(set, kLong), listener);
  {
    const Fd client(::accept(listener, nullptr, nullptr));
    EXPECT_EQ(is_on_ring(client), preloaded());
    EXPECT_EQ(::write(client, "x", 1), 1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
}

TEST(ExclusiveSet, OfAParentIsTheChildsToo) {
  const Fd listener = listening(AF_INET, SOCK_NONBLOCK);
  const Fd set = set_with(listener);
  EXPECT_TRUE([&] {
    const Fd client = begin_connecting(listener);
    return reported(set, kLong) == listener && serve_one(listener) && is_served(client);
  }());
  const pid_t child = ::fork();
  if (child == 0) {
    for (int served = 0; served < 3;) {
      if (reported(set, -1) == listener && serve_one(listener)) ++served;
    }
    ::_exit(0);
  }
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(is_served(begin_connecting(listener)));
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const Fd client = begin_connecting(listener);
  EXPECT_EQ(reported(set, kLong), listener);
  EXPECT_TRUE(serve_one(listener));
  EXPECT_TRUE(is_served(client));
}

/// A connection to the library's listener of that port, on which no request follows.
Fd silent_client_of(std::uint16_t port) {
  const std::string mark = "@ringsock1/tcp/" + std::to_string(port) + "/listen/";
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    const std::size_t begin = line.find(mark);
    if (begin == std::string::npos) continue;
    const std::string name = line.substr(begin + 1);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::copy(name.begin(), name.end(), std::begin(address.sun_path) + 1);
    const auto length = static_cast<long>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    Fd fd(static_cast<int>(raw_syscall(SYS_socket, AF_UNIX, SOCK_SEQPACKET, 0)));
    EXPECT_EQ(raw_syscall(SYS_connect, int(fd), &address, length), 0);
    return fd;
  }
  return {};
}

TEST(SharedListener, LetsItsProcessSleepWhenAClientSendsNoRequest) {
  if (!preloaded()) GTEST_SKIP() << "the kernel's clients send none";
  for (const std::uint32_t exclusive : {0U, std::uint32_t{EPOLLEXCLUSIVE}}) {
    const Fd listener = listening(AF_INET, SOCK_NONBLOCK);
    const pid_t sharer = ::fork();
    if (sharer == 0) {
      ::pause();
      ::_exit(0);
    }
    const SharedTally tally;
    std::atomic<pid_t>& id = tally->ids[0];
    const pid_t server = ::fork();
    if (server == 0) {
      const Fd set(::epoll_create1(0));
      add(set, listener, EPOLLIN | exclusive);
      id = ::gettid();
      for (;;) {
        epoll_event event{};
        ::epoll_wait(set, &event, 1, -1);
        serve_one(listener);
        ++tally->vain;
      }
    }
    while (id == 0) ::usleep(1000);
    EXPECT_TRUE(support::falls_asleep(id));
    const Fd silent = silent_client_of(name_of(listener).port());
    EXPECT_GE(int(silent), 0);
    // It gives the client up after 2 s.
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2500);
    while (std::chrono::steady_clock::now() < end) ::usleep(100'000);
    EXPECT_TRUE(support::status_of(id, "State").starts_with('S'));
    EXPECT_TRUE(is_served(begin_connecting(listener)));
    for (const pid_t process : {sharer, server}) {
      ::kill(process, SIGKILL);
      ::waitpid(process, nullptr, 0);
    }
  }
}

}  // namespace
}  // namespace ringsock::preload_tests
