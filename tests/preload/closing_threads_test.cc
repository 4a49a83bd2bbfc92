// A descriptor that one thread closes, or puts something else in the place of, while another one uses it.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "tests/preload/tcp_world.h"
#include "tests/support/raw_syscall.h"
#include "tests/support/sanitizers.h"
#include "tests/support/thread_status.h"

namespace ringsock::preload_tests {
namespace {

struct HowItGoes {
  const char* name;
  void (*go)(int fd);
};
const HowItGoes kWays[] = {
    {"Closed", [](int fd) { ::close(fd); }},
    {"ClosedWithAll", [](int fd) { ::close_range(static_cast<unsigned>(fd), static_cast<unsigned>(fd), 0); }},
    {"Replaced",
     [](int fd) {
       const int nothing = ::open("/dev/null", O_RDWR);
       ::dup2(nothing, fd);
       ::close(nothing);
       ::close(fd);
     }},
};

void skip_under_thread_sanitizer() {
  if (support::kHasThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer calls a close(2) beside a send(2) a race";
}

class DescriptorOfTwoThreads : public testing::TestWithParam<HowItGoes> {
  void SetUp() override { skip_under_thread_sanitizer(); }
};
class NumberOfTwoThreads : public testing::Test {
  void SetUp() override { skip_under_thread_sanitizer(); }
};
INSTANTIATE_TEST_SUITE_P(Is, DescriptorOfTwoThreads, testing::ValuesIn(kWays),
                         [](const auto& way) { return std::string(way.param.name); });

/// Sends numbers until that fails: how many have gone.
std::uint32_t send_numbers(int fd, std::atomic<bool>& begun) {
  std::uint32_t next = 0;
  while (::send(fd, &next, sizeof next, 0) == sizeof next) {
    ++next;
    begun.store(true);
  }
  return next;
}

/// Until the end: how many have come in their turn.
std::uint32_t receive_numbers(int fd) {
  std::uint32_t next = 0;
  for (std::uint32_t number = 0; ::recv(fd, &number, sizeof number, MSG_WAITALL) == sizeof number;) {
    if (number == next) ++next;
  }
  return next;
}

/// /dev/null takes no send(2): ENOTSOCK ends the sender.
TEST_P(DescriptorOfTwoThreads, TakesNothingThatDoesNotArrive) {
  for (int round = 0; round < 60; ++round) {
    auto [alice, bob] = connected_pair();
    std::atomic<bool> begun{false};
    std::uint32_t sent = 0, received = 0;
    std::thread sender([&, fd = int(alice)] { sent = send_numbers(fd, begun); });
    std::thread receiver([&, fd = int(bob)] { received = receive_numbers(fd); });
    while (!begun.load()) std::this_thread::yield();
    GetParam().go(alice.release());
    sender.join();
    receiver.join();
    ASSERT_EQ(received, sent) << "round " << round;
  }
}

/// A thread in a call that waits. The kernel keeps the file as long as the call.
class ThreadInside {
 public:
  explicit ThreadInside(const std::function<void()>& call)
      : thread_([this, call] {
          number_.store(::gettid());
          call();
        }) {
    while (number_.load() == 0) std::this_thread::yield();
    EXPECT_TRUE(support::falls_asleep(number_.load()));
  }
  ~ThreadInside() { join(); }
  void join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<pid_t> number_{0};
  std::thread thread_;
};

/// Alice, who connected, or Bob, whom the listener accepted, and the other one.
struct Ends {
  explicit Ends(bool is_accepted = false) {
    Pair pair = connected_pair();
    number = (is_accepted ? pair.bob : pair.alice).release();
    peer = is_accepted ? std::move(pair.alice) : std::move(pair.bob);
  }
  int number;
  Fd peer;
};

TEST_P(DescriptorOfTwoThreads, LetsAReaderThatWaitsHaveTheNextBytes) {
  Ends ends;
  std::string got;
  ThreadInside reader([&] { got = read_all(ends.number, 1); });
  GetParam().go(ends.number);
  EXPECT_EQ(::fcntl(ends.number, F_GETFD), -1);
  EXPECT_EQ(poll_once(ends.peer, POLLIN | POLLRDHUP), 0);  // no end has come
  ASSERT_EQ(::send(ends.peer, "x", 1, 0), 1);
  reader.join();
  EXPECT_EQ(got, "x");
  EXPECT_EQ(poll_once(ends.peer, POLLIN, 5000), POLLIN);
  EXPECT_EQ(read_all(ends.peer, 1), "");
}

TEST_P(DescriptorOfTwoThreads, LetsAReaderThatWaitsSeeTheEnd) {
  Ends ends;
  ssize_t got = -2;
  ThreadInside reader([&] {
    char byte = 0;
    got = ::recv(ends.number, &byte, 1, 0);
  });
  GetParam().go(ends.number);
  ends.peer.reset();
  reader.join();
  EXPECT_EQ(got, 0);
}

TEST_P(DescriptorOfTwoThreads, LetsAReaderOfManyBytesHaveThemAll) {
  Ends ends;
  std::string got(6, '\0');
  ssize_t count = 0;
  ThreadInside reader([&] { count = ::recv(ends.number, got.data(), got.size(), MSG_WAITALL); });
  ASSERT_EQ(::send(ends.peer, "ab", 2, 0), 2);
  GetParam().go(ends.number);
  const Fd nothing(::open("/dev/null", O_RDWR));
  const Fd other(::dup2(nothing, ends.number));  // another file gets the number
  EXPECT_EQ(other, ends.number);
  ASSERT_EQ(::send(ends.peer, "cd", 2, 0), 2);
  ASSERT_EQ(::send(ends.peer, "ef", 2, 0), 2);
  reader.join();
  EXPECT_EQ(count, 6);
  EXPECT_EQ(got, "abcdef");
  char byte = 0;
  EXPECT_EQ(::recv(ends.peer, &byte, 1, 0), 0);
}

/// The set loses the socket, and that is no event: the thread waits for what else is in the set.
TEST_P(DescriptorOfTwoThreads, SaysNothingInASetOnWhichAThreadWaits) {
  for (int round = 0; round < 40; ++round) {
    Ends ends(round % 4 > 1);
    const Fd other(::eventfd(0, EFD_CLOEXEC));
    const Fd set(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event wanted{EPOLLIN | EPOLLRDHUP | (round % 2 == 0 ? EPOLLET : 0U), {.fd = ends.number}};
    ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, ends.number, &wanted), 0);
    wanted.data.fd = other;
    ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, other, &wanted), 0);
    epoll_event found{};
    ThreadInside waiter([&] { EXPECT_EQ(::epoll_wait(set, &found, 1, 10'000), 1); });
    GetParam().go(ends.number);
    ASSERT_EQ(::eventfd_write(other, 1), 0);
    waiter.join();
    ASSERT_EQ(found.data.fd, other) << "round " << round << ": events " << std::hex << found.events;
  }
}

TEST_P(DescriptorOfTwoThreads, LetsASenderThatWaitsSendTheRest) {
  Ends ends;
  const std::string much(64U << 20, 'm');
  ssize_t sent = 0;
  ThreadInside sender([&] { sent = ::send(ends.number, much.data(), much.size(), MSG_NOSIGNAL); });
  GetParam().go(ends.number);
  EXPECT_EQ(read_all(ends.peer, much.size()).size(), much.size());
  sender.join();
  EXPECT_EQ(sent, static_cast<ssize_t>(much.size()));
  char byte = 0;
  EXPECT_EQ(::recv(ends.peer, &byte, 1, 0), 0);
}

TEST_P(DescriptorOfTwoThreads, EndsForAChildOfAProcessWhoseThreadWaits) {
  Ends ends;
  std::string got;
  ThreadInside reader([&] { got = read_all(ends.number, 1); });
  int go_on[2];
  ASSERT_EQ(::pipe(go_on), 0);
  const pid_t child = ::fork();
  if (child == 0) {  // has a copy, and no thread inside
    char go = 0;
    ::close(ends.peer);
    ::close(go_on[1]);
    if (::read(go_on[0], &go, 1) != 0) ::_exit(1);
    ::close(ends.number);
    ::_exit(0);
  }
  GetParam().go(ends.number);
  ASSERT_EQ(::send(ends.peer, "x", 1, 0), 1);
  reader.join();
  EXPECT_EQ(got, "x");
  EXPECT_EQ(poll_once(ends.peer, POLLIN), 0);  // the child still has it
  ::close(go_on[1]);
  char byte = 0;
  EXPECT_EQ(::recv(ends.peer, &byte, 1, 0), 0);
  ::waitpid(child, nullptr, 0);
  ::close(go_on[0]);
}

TEST_P(DescriptorOfTwoThreads, IsNotInheritedWhileOnlyACallHasIt) {
  Ends ends;
  std::string got;
  ThreadInside reader([&] { got = read_all(ends.number, 1); });
  GetParam().go(ends.number);
  int go_on[2];
  ASSERT_EQ(::pipe(go_on), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char go = 0;
    ::close(go_on[1]);
    ::_exit(static_cast<int>(::read(go_on[0], &go, 1)));
  }
  ASSERT_EQ(::send(ends.peer, "x", 1, 0), 1);
  reader.join();
  EXPECT_EQ(got, "x");
  char byte = 0;
  EXPECT_EQ(::recv(ends.peer, &byte, 1, 0), 0);  // although the child lives
  ::close(go_on[1]);
  ::close(go_on[0]);
  ::waitpid(child, nullptr, 0);
}

/// The kernel keeps the file while poll(2) waits, and looks the number up again when the thread wakes.
TEST_P(DescriptorOfTwoThreads, LetsAPollerThatWaitsSleepUntilItsPeerSends) {
  for (const bool is_accepted : {false, true}) {
    Ends ends(is_accepted);
    pollfd entry{ends.number, POLLIN, 0};
    int ready = -1;
    ThreadInside poller([&] { ready = ::poll(&entry, 1, -1); });
    GetParam().go(ends.number);
    EXPECT_EQ(poll_once(ends.peer, POLLIN | POLLRDHUP), 0);  // no end has come
    ASSERT_EQ(::send(ends.peer, "x", 1, 0), 1);
    poller.join();
    EXPECT_EQ(ready, 1);
    EXPECT_EQ(entry.revents, POLLNVAL);
    EXPECT_NE(poll_once(ends.peer, POLLIN, 5000) & POLLHUP, 0);  // closed by the poller's end, with a byte unread
  }
}

TEST_P(DescriptorOfTwoThreads, IsClosedToAPollerWhoseTimeHasPassed) {
  Ends ends(true);
  const Fd nothing(::eventfd(0, 0));
  std::array<pollfd, 2> entries{{{nothing, POLLIN, 0}, {ends.number, POLLIN, 0}}};
  int ready = -1;
  ThreadInside poller([&] { ready = ::poll(entries.data(), 2, 500); });
  GetParam().go(ends.number);
  poller.join();
  EXPECT_EQ(ready, 1);
  EXPECT_EQ(entries[0].revents, 0);
  EXPECT_EQ(entries[1].revents, POLLNVAL);
  EXPECT_EQ(poll_once(ends.peer, POLLIN | POLLRDHUP, 5000), POLLIN | POLLRDHUP);
}

TEST_P(DescriptorOfTwoThreads, IsReadableToSelectWhenItWakes) {
  Ends ends(true);
  fd_set readable;
  FD_ZERO(&readable);
  FD_SET(ends.number, &readable);
  int ready = -1;
  ThreadInside selecter([&] { ready = ::select(ends.number + 1, &readable, nullptr, nullptr, nullptr); });
  GetParam().go(ends.number);
  ASSERT_EQ(::send(ends.peer, "x", 1, 0), 1);
  selecter.join();
  EXPECT_EQ(ready, 1);
  EXPECT_TRUE(FD_ISSET(ends.number, &readable));
}

TEST_P(DescriptorOfTwoThreads, LetsAReaderHaveTheNextBytesThoughItIsInASet) {
  for (const bool is_accepted : {false, true}) {
    Ends ends(is_accepted);
    const Fd set(::epoll_create1(0));
    epoll_event event{EPOLLIN, {.fd = ends.number}};
    ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, ends.number, &event), 0);
    std::string got;
    ThreadInside reader([&] { got = read_all(ends.number, 1); });
    GetParam().go(ends.number);
    ASSERT_EQ(::send(ends.peer, "x", 1, 0), 1);
    reader.join();
    EXPECT_EQ(got, "x");
    EXPECT_EQ(poll_once(ends.peer, POLLIN, 5000), POLLIN);
    EXPECT_EQ(read_all(ends.peer, 1), "");
    EXPECT_EQ(::epoll_wait(set, &event, 1, 0), 0);
  }
}

/// libc opens the files of fopen(3) past the library, under numbers that another thread has just closed.
TEST_F(NumberOfTwoThreads, IsAFilesOnceLibcHasOpenedOneUnderIt) {
  constexpr int kConnections = support::kHasAddressSanitizer ? 300 : 1000;
  std::atomic<bool> ends{false};
  std::thread closer([&] {
    for (int i = 0; i < kConnections; ++i) static_cast<void>(connected_pair());
    ends = true;
  });
  while (!ends && !HasFailure()) {
    std::FILE* const file = std::fopen("/dev/zero", "r");
    ASSERT_NE(file, nullptr);
    char byte = 'x';
    pollfd entry{::fileno(file), POLLIN, 0};
    EXPECT_EQ(::read(::fileno(file), &byte, 1), 1) << std::strerror(errno);
    EXPECT_EQ(::poll(&entry, 1, 0), 1);
    EXPECT_EQ(entry.revents, POLLIN);
    const int copy = ::dup(::fileno(file));
    EXPECT_GE(copy, 0) << std::strerror(errno);
    ::close(copy);
    std::fclose(file);
  }
  closer.join();
}

TEST_F(NumberOfTwoThreads, IsAnotherFilesWhenAPollerWakes) {
  for (const bool is_accepted : {false, true}) {
    Ends ends(is_accepted);
    pollfd entry{ends.number, POLLIN | POLLRDHUP, 0};
    int ready = -1;
    ThreadInside poller([&] { ready = ::poll(&entry, 1, -1); });
    const Fd nothing(::open("/dev/null", O_RDWR));
    const Fd other(::dup2(nothing, ends.number));
    EXPECT_EQ(poll_once(ends.peer, POLLIN | POLLRDHUP), 0);
    ends.peer.reset();
    poller.join();
    EXPECT_EQ(ready, 1);
    EXPECT_EQ(entry.revents, POLLIN);  // of /dev/null
  }
}

TEST_F(NumberOfTwoThreads, StaysAConnectionUnderAnotherNumber) {
  auto [alice, bob] = connected_pair();
  std::atomic<int> number{alice.release()};
  std::atomic<bool> is_over{false};
  std::uint32_t sent = 0, received = 0;
  std::thread sender([&] {
    while (!is_over.load()) {
      const ssize_t gone = ::send(number.load(), &sent, sizeof sent, 0);
      if (gone == sizeof sent) {
        ++sent;
      } else {
        ASSERT_EQ(errno, EBADF) << std::strerror(errno);  // between the two
      }
    }
  });
  std::thread receiver([&, fd = int(bob)] { received = receive_numbers(fd); });
  for (int i = 0; i < 300; ++i) {
    const int old = number.load();
    const int copy = ::fcntl(old, F_DUPFD, 300 + i);  // never a number that the sender may still have
    ::close(old);
    number.store(copy);
  }
  is_over.store(true);
  sender.join();
  ::close(number.load());
  receiver.join();
  EXPECT_EQ(received, sent);
}

/// A call that comes while dup2(2) puts the connection in its own place goes on with the connection.
TEST_F(NumberOfTwoThreads, StaysAConnectionThatReplacesItself) {
  constexpr int kTimes = 2000;
  auto [alice, bob] = connected_pair();
  std::atomic<bool> is_over{false};
  std::uint32_t sent = 0, received = 0;
  std::thread sender([&, fd = int(alice)] {
    for (; !is_over.load(); ++sent) ASSERT_EQ(::send(fd, &sent, sizeof sent, 0), sizeof sent) << std::strerror(errno);
  });
  std::thread receiver([&, fd = int(bob)] { received = receive_numbers(fd); });
  for (int i = 0; i < kTimes; ++i) {
    const Fd copy(::dup(alice));
    ASSERT_EQ(::dup2(copy, alice), int(alice));
  }
  is_over.store(true);
  sender.join();
  alice.reset();
  receiver.join();
  EXPECT_EQ(received, sent);
}

TEST_F(NumberOfTwoThreads, GivesNobodyAnErrorOfWhatIsBeneathAListener) {
  Fd first = listening();
  const Address there = name_of(first);
  std::atomic<int> number{first.release()};
  std::atomic<bool> is_over{false};
  std::thread acceptor([&] {
    while (!is_over.load()) {
      const Fd client(::accept(number.load(), nullptr, nullptr));
      if (client >= 0) continue;
      ASSERT_TRUE(errno == EBADF || errno == EINVAL) << std::strerror(errno);
    }
  });
  for (int i = 0; i < 100; ++i) {
    const int old = number.load();
    // Never a number that was closed: the acceptor may be about to use it.
    const int copy = ::fcntl(old, F_DUPFD, old + 1);
    ::close(old);
    number.store(copy);
    Address to = there;
    const Fd client(::socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(::connect(client, to.get(), to.length), 0) << std::strerror(errno);
  }
  is_over.store(true);
  Address to = there;
  const Fd last(::socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(::connect(last, to.get(), to.length), 0) << std::strerror(errno);
  acceptor.join();
  ::close(number.load());
}

/// A client whose connect(2) no library sees.
Fd client_of_kernel(Address to) {
  Fd client(static_cast<int>(raw_syscall(SYS_socket, AF_INET, SOCK_STREAM, 0)));
  EXPECT_EQ(raw_syscall(SYS_connect, int(client), to.get(), to.length), 0) << std::strerror(errno);
  return client;
}

// The number on which accept(2) is about to sleep is the client's by then.
TEST_F(NumberOfTwoThreads, LeavesNoClientOfTheKernelWaitingForAListenerUnderAnotherNumber) {
  Fd first = listening();
  const Address there = name_of(first);
  std::atomic<int> number{first.release()};
  std::atomic<int> accepted{0};
  std::atomic<bool> is_over{false};
  std::thread acceptor([&] {
    while (!is_over.load()) {
      if (const Fd client(::accept(number.load(), nullptr, nullptr)); client >= 0) ++accepted;
    }
  });
  for (int i = 0; i < 1'000; ++i) {
    const int old = number.load();
    const int copy = ::dup(old);
    ::close(old);
    number.store(copy);
    const Fd client = client_of_kernel(there);
    for (int waits = 0; accepted.load() <= i && waits < 20'000; ++waits) ::usleep(500);
    if (accepted.load() > i) continue;
    ADD_FAILURE() << "client " << i << " has waited for 10 s";
    break;
  }
  is_over.store(true);
  ::shutdown(number.load(), SHUT_RDWR);
  acceptor.join();
  ::close(number.load());
}

}  // namespace
}  // namespace ringsock::preload_tests
