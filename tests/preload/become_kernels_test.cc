// Sockets that only the kernel can serve from some moment on: listeners that are sent to others, standard streams,
// SIGIO.
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <thread>

#include "tests/preload/tcp_world.h"
#include "tests/support/passed_descriptor.h"
#include "tests/support/sanitizers.h"
#include "tests/support/signals.h"
#include "tests/support/thread_status.h"

namespace ringsock::preload_tests {
namespace {

using support::Disposition;

void say(int fd, const std::string& text) {
  ASSERT_EQ(::write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

// -- sockets that are connected by the kernel

/// As epoll(7) says of duplicates: a registration lasts as long as the open file description. The number has another
/// file now.
TEST(PreloadedDuplicate, IsWatchedUnderTheNumberThatWasClosedBeforeTheKernelConnectedIt) {
  const Fd listener(static_cast<int>(raw_syscall(SYS_socket, AF_INET, SOCK_STREAM, 0)));
  ASSERT_EQ(raw_syscall(SYS_listen, int(listener), 16), 0);
  Address there = name_of(listener);
  there = Address::loopback(AF_INET, there.port());

  const Fd set(::epoll_create1(0));
  Fd first(::socket(AF_INET, SOCK_STREAM, 0));
  epoll_event event{EPOLLIN, {.u64 = 12345}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, first, &event), 0);
  const Fd duplicate(::dup(first));
  const int number = first;
  first.reset();
  const Fd other(::eventfd(1, 0));
  ASSERT_EQ(int(other), number) << "is ready to be read, and no member";

  ASSERT_EQ(::connect(duplicate, there.get(), there.length), 0) << std::strerror(errno);
  EXPECT_EQ(::epoll_wait(set, &event, 1, 0), 0);
  const Fd accepted(static_cast<int>(raw_syscall(SYS_accept4, int(listener), nullptr, nullptr, 0)));
  say(accepted, "hello");
  ASSERT_EQ(::epoll_wait(set, &event, 1, 60'000), 1);
  EXPECT_EQ(std::uint64_t{event.data.u64}, 12345u);
  EXPECT_EQ(read_all(duplicate, 5), "hello");
}

// -- listeners by SCM_RIGHTS

/// `fd` as another process gets it.
Fd passed(int fd) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  const Fd here(ends[0]), there(ends[1]);
  EXPECT_TRUE(support::send_descriptor(here, fd)) << std::strerror(errno);
  Fd number(support::receive_descriptor(there));
  EXPECT_GE(number, 0);
  return number;
}

/// The next client of `listener` says what `expected` says.
void expect_client(int listener, const std::string& expected) {
  ASSERT_EQ(poll_once(listener, POLLIN, 5000), POLLIN) << expected;
  const Fd client(::accept(listener, nullptr, nullptr));
  ASSERT_GE(client, 0) << std::strerror(errno);
  EXPECT_EQ(read_all(client, expected.size()), expected);
  EXPECT_EQ(::write(client, "answer", 6), 6);
}

TEST(PreloadedListener, WhoIsSentOneAcceptsTheClientThatWasWaitingAndThoseThatCome) {
  const Fd listener = listening();
  const Fd early = connected_to(listener);
  say(early, "early");
  const Fd received = passed(listener);
  EXPECT_EQ(::fcntl(received, F_GETFL), O_RDWR);
  expect_client(received, "early");
  EXPECT_EQ(read_all(early, 6), "answer");
  const Fd late = connected_to(listener);
  say(late, "late");
  expect_client(received, "late");
  EXPECT_EQ(read_all(late, 6), "answer");
}

TEST(PreloadedListener, WhoHasSentItMayGoOnAccepting) {
  const Fd listener = listening();
  const Fd received = passed(listener);
  const Fd client = connected_to(listener);
  say(client, "hello");
  expect_client(listener, "hello");
  EXPECT_EQ(poll_once(listener, POLLIN, 20), 0);
  EXPECT_EQ(::fcntl(listener, F_GETFL), O_RDWR);
}

TEST(PreloadedListener, WhoIsSentANonblockingOneFindsItSo) {
  const Fd listener = listening(AF_INET, SOCK_NONBLOCK);
  const Fd received = passed(listener);
  EXPECT_EQ(::fcntl(received, F_GETFL), O_RDWR | O_NONBLOCK);
  EXPECT_EQ(::accept(received, nullptr, nullptr), -1);
  EXPECT_EQ(errno, EAGAIN);
}

/// What the process has used of the CPUs.
std::chrono::microseconds cpu_time() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return std::chrono::seconds(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         std::chrono::microseconds(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

TEST(PreloadedListener, AForkedChildThatWaitsAtOneThatIsSentAwayGoesOnAccepting) {
  const Fd listener = listening();
  const pid_t child = ::fork();
  if (child == 0) {
    if (poll_once(listener, POLLIN, 10'000) != POLLIN) ::_exit(1);
    if (cpu_time() > std::chrono::milliseconds(300)) ::_exit(2);  // it has slept meanwhile
    const Fd client(::accept(listener, nullptr, nullptr));
    if (client < 0) ::_exit(3);
    ::_exit(::write(client, "child", 5) == 5 ? 0 : 4);
  }
  ::usleep(100'000);
  const Fd received = passed(listener);
  ::usleep(500'000);
  const Fd client = connected_to(listener);
  EXPECT_FALSE(is_on_ring(client));
  EXPECT_EQ(read_all(client, 5), "child");
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "exit status " << WEXITSTATUS(status);
}

// -- standard streams

/// Puts a standard stream back at its end.
class Restored {
 public:
  explicit Restored(int stream) : stream_(stream), saved_(::fcntl(stream, F_DUPFD_CLOEXEC, 100)) {}
  ~Restored() { ::dup2(saved_, stream_); }

 private:
  int stream_;
  Fd saved_;
};

TEST(PreloadedStreams, AConnectionThatBecomesStdinAndStdoutIsReadAndWrittenByStdio) {
  auto [alice, bob] = connected_pair();
  say(alice, "before ");
  EXPECT_EQ(read_all(bob, 7), "before ");
  say(alice, "line\n");
  std::array<char, 100> line{};
  std::fflush(stdout);
  {
    const Restored in(STDIN_FILENO), out(STDOUT_FILENO);
    ASSERT_EQ(::dup2(bob, STDIN_FILENO), STDIN_FILENO);
    ASSERT_EQ(::dup3(bob, STDOUT_FILENO, 0), STDOUT_FILENO);
    bob.reset();
    EXPECT_NE(std::fgets(line.data(), line.size(), stdin), nullptr) << std::strerror(errno);
    std::printf("reply to %s", line.data());
    std::fflush(stdout);
  }
  std::clearerr(stdin);
  EXPECT_STREQ(line.data(), "line\n");
  EXPECT_EQ(read_all(alice, 100), "reply to line\n");
}

TEST(PreloadedStreams, ADuplicateThatGetsAStandardStreamsNumberWorksWithStdio) {
  const std::function<int(int)> calls[] = {[](int fd) { return ::dup(fd); },
                                           [](int fd) { return ::fcntl(fd, F_DUPFD, 0); },
                                           [](int fd) { return ::fcntl(fd, F_DUPFD_CLOEXEC, 0); }};
  for (const auto& duplicate : calls) {
    auto [alice, bob] = connected_pair();
    say(alice, "line\nrest");
    std::array<char, 6> line{};
    {
      const Restored in(STDIN_FILENO);
      ::close(STDIN_FILENO);
      EXPECT_EQ(duplicate(bob), STDIN_FILENO);
      EXPECT_EQ((::fcntl(STDIN_FILENO, F_GETFD) & FD_CLOEXEC) != 0, &duplicate == &calls[2]);
      std::setvbuf(stdin, nullptr, _IONBF, 0);
      EXPECT_NE(std::fgets(line.data(), line.size(), stdin), nullptr) << std::strerror(errno);
    }
    std::clearerr(stdin);
    EXPECT_STREQ(line.data(), "line\n");
    EXPECT_EQ(read_all(bob, 4), "rest");
  }
}

TEST(PreloadedStreams, OtherNumbersStayOnTheRing) {
  auto [alice, bob] = connected_pair();
  const Fd copy(::dup(bob));
  ASSERT_GT(copy, STDERR_FILENO);
  EXPECT_EQ(is_on_ring(copy), preloaded());
}

// -- threads with a small stack

/// Calls `body` in a thread with the smallest stack that there is.
void on_smallest_stack(std::function<void()> body) {
  pthread_attr_t attributes;
  ASSERT_EQ(::pthread_attr_init(&attributes), 0);
  ASSERT_EQ(::pthread_attr_setstacksize(&attributes, static_cast<std::size_t>(PTHREAD_STACK_MIN)), 0);
  const auto call = [](void* function) -> void* {
    (*static_cast<std::function<void()>*>(function))();
    return nullptr;
  };
  pthread_t thread{};
  ASSERT_EQ(::pthread_create(&thread, &attributes, call, &body), 0);
  ::pthread_join(thread, nullptr);
  ::pthread_attr_destroy(&attributes);
}

/// Bob writes in a thread with the smallest stack. `give` makes his connection the kernel's before, and returns the
/// descriptor for it.
void expect_words_from_smallest_stack(const std::function<int(int)>& give) {
  auto [alice, bob] = connected_pair();
  EXPECT_EQ(is_on_ring(bob), preloaded());
  ssize_t written = -1;
  on_smallest_stack([&written, &give, fd = int(bob)] { written = ::write(give(fd), "abc", 3); });
  EXPECT_EQ(written, 3);
  EXPECT_FALSE(is_on_ring(bob));

  ASSERT_EQ(poll_once(alice, POLLIN, 60'000), POLLIN) << "the relay has passed nothing on";
  EXPECT_EQ(read_all(alice, 3), "abc");
  say(alice, "answer");
  EXPECT_EQ(read_all(bob, 6), "answer");
}

constexpr bool kFitsIntoSmallestStack = !support::kHasAddressSanitizer && !support::kHasThreadSanitizer;
constexpr char kDoesNotFit[] = "a sanitizer's frames do not fit into PTHREAD_STACK_MIN";

TEST(PreloadedSmallStack, IsEnoughForAConnectionThatIsToRaiseSigio) {
  if (!kFitsIntoSmallestStack) GTEST_SKIP() << kDoesNotFit;
  const Disposition ignored(SIGIO, SIG_IGN);
  expect_words_from_smallest_stack([](int fd) {
    ::fcntl(fd, F_SETFL, O_ASYNC);
    return fd;
  });
}

TEST(PreloadedSmallStack, IsEnoughForAConnectionThatIsSent) {
  if (!kFitsIntoSmallestStack) GTEST_SKIP() << kDoesNotFit;
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  const Fd here(ends[0]), there(ends[1]);
  Fd received;
  expect_words_from_smallest_stack([&](int fd) {
    if (support::send_descriptor(here, fd)) received = Fd(support::receive_descriptor(there));
    return int(received);
  });
}

// -- SIGIO

void expect_signal() {
  for (int i = 0; i < 500 && support::handled == 0; ++i) ::usleep(10'000);
  EXPECT_GT(support::handled, 0);
  support::handled = 0;
}

void ask_for_signals(int fd) {
  ASSERT_EQ(::fcntl(fd, F_SETOWN, ::getpid()), 0);
  ASSERT_EQ(::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_ASYNC), 0);
  EXPECT_EQ(::fcntl(fd, F_GETFL), O_RDWR | O_ASYNC);
}

TEST(PreloadedSigio, ComesForAConnection) {
  const Disposition handler(SIGIO, support::count_handled, SA_RESTART);
  auto [alice, bob] = connected_pair();
  say(alice, "1");
  ask_for_signals(bob);
  EXPECT_EQ(read_all(bob, 1), "1");
  support::handled = 0;
  say(alice, "2");
  expect_signal();
  EXPECT_EQ(read_all(bob, 1), "2");
}

TEST(PreloadedSigio, ComesWhereFioasyncAsksForIt) {
  const Disposition handler(SIGIO, support::count_handled, SA_RESTART);
  auto [alice, bob] = connected_pair();
  int on = 1;
  const int self = ::getpid();
  ASSERT_EQ(::ioctl(bob, FIOSETOWN, &self), 0);
  ASSERT_EQ(::ioctl(bob, FIOASYNC, &on), 0);
  EXPECT_EQ(::fcntl(bob, F_GETFL), O_RDWR | O_ASYNC);
  support::handled = 0;
  say(alice, "1");
  expect_signal();
  on = 0;
  ASSERT_EQ(::ioctl(bob, FIOASYNC, &on), 0);
  EXPECT_EQ(::fcntl(bob, F_GETFL), O_RDWR);
}

TEST(PreloadedSigio, ComesForASocketThatIsConnectedLater) {
  const Disposition handler(SIGIO, support::count_handled, SA_RESTART);
  const Fd listener = listening();
  Address there = name_of(listener);
  const Fd alice(::socket(AF_INET, SOCK_STREAM, 0));
  ask_for_signals(alice);
  ASSERT_EQ(::connect(alice, there.get(), there.length), 0);
  const Fd bob(::accept(listener, nullptr, nullptr));
  support::handled = 0;
  say(bob, "1");
  expect_signal();
}

TEST(PreloadedSigio, ComesToTheOwnerThatTheSocketHadBeforeItWasConnected) {
  const Disposition handler(SIGUSR1, support::count_handled, SA_RESTART);
  const Fd listener = listening();
  Address there = name_of(listener);
  const Fd alice(::socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(::fcntl(alice, F_SETOWN, ::getpid()), 0);
  ASSERT_EQ(::fcntl(alice, F_SETSIG, SIGUSR1), 0);
  ASSERT_EQ(::connect(alice, there.get(), there.length), 0);
  EXPECT_EQ(is_on_ring(alice), preloaded());
  EXPECT_EQ(::fcntl(alice, F_GETOWN), ::getpid());
  ASSERT_EQ(::fcntl(alice, F_SETFL, O_ASYNC), 0);
  const Fd bob(::accept(listener, nullptr, nullptr));
  support::handled = 0;
  say(bob, "1");
  expect_signal();
}

TEST(PreloadedSigio, ComesForAListener) {
  const Disposition handler(SIGIO, support::count_handled, SA_RESTART);
  const Fd listener = listening();
  const Fd early = connected_to(listener);
  say(early, "early");
  ask_for_signals(listener);
  expect_client(listener, "early");
  support::handled = 0;
  const Fd late = connected_to(listener);
  expect_signal();
  say(late, "late");
  expect_client(listener, "late");
}

// -- while another thread of the process is inside a call

struct Change {
  const char* name;
  void (*make)(int fd);
};
void as_standard_input(int fd) {
  const Fd before(::dup(STDIN_FILENO));
  EXPECT_EQ(::dup2(fd, STDIN_FILENO), STDIN_FILENO);
  EXPECT_EQ(::dup2(before, STDIN_FILENO), STDIN_FILENO);
}
constexpr std::array kChanges{
    Change{"AsStandardInput", as_standard_input},
    Change{"WithSigio", [](int fd) { EXPECT_EQ(::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_ASYNC), 0); }},
    Change{"WithTimestamps",
           [](int fd) {
             const int on = 1;
             EXPECT_EQ(::setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &on, sizeof on), 0);
           }},
    Change{"SentAway", [](int fd) { const Fd there = passed(fd); }},
};

/// A connection whose bytes are awaited by a thread that sleeps in a call.
class Awaited : public testing::TestWithParam<Change> {
 protected:
  void wait_in(ssize_t (*call)(int fd)) {
    std::atomic<pid_t> id{0};
    std::thread waiter([&] {
      id = ::gettid();
      for (const char* expected : {"hello", "again"}) {
        EXPECT_EQ(call(bob_), 5) << expected << ": " << std::strerror(errno);
      }
    });
    while (id == 0) std::this_thread::yield();
    ASSERT_TRUE(support::falls_asleep(id));
    GetParam().make(bob_);
    say(alice_, "hello");
    EXPECT_EQ(poll_once(alice_, POLLIN, 100), 0) << "the connection lives";
    say(alice_, "again");
    waiter.join();
    EXPECT_EQ(::send(bob_, "back", 4, MSG_NOSIGNAL), 4);
    EXPECT_EQ(read_all(alice_, 4), "back");
  }

  const Disposition ignored_{SIGIO, SIG_IGN};
  const Pair pair_ = connected_pair();
  const int alice_ = pair_.alice, bob_ = pair_.bob;
};
INSTANTIATE_TEST_SUITE_P(ThatBecomesTheKernels, Awaited, testing::ValuesIn(kChanges),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Awaited, InRecvComes) {
  wait_in([](int fd) {
    std::array<char, 16> room{};
    return ::recv(fd, room.data(), room.size(), 0);
  });
}

TEST_P(Awaited, InSpliceComes) {
  wait_in([](int fd) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    const Fd from(ends[0]), to(ends[1]);
    return ::splice(fd, nullptr, to, nullptr, 100, 0);
  });
}

TEST(PreloadedFlags, GetflTellsWhatSetflSaid) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::fcntl(bob, F_SETFL, O_APPEND), 0);
  EXPECT_EQ(::fcntl(bob, F_GETFL), O_RDWR | O_APPEND);
  int on = 1;
  ASSERT_EQ(::ioctl(bob, FIONBIO, &on), 0);
  EXPECT_EQ(::fcntl(bob, F_GETFL), O_RDWR | O_APPEND | O_NONBLOCK);
  ASSERT_EQ(::fcntl(bob, F_SETFL, 0), 0);
  EXPECT_EQ(::fcntl(bob, F_GETFL), O_RDWR);
  EXPECT_EQ(is_on_ring(bob), preloaded());
}

}  // namespace
}  // namespace ringsock::preload_tests
