// What a signal handler does while its thread is in a call on a connection: it leaves the call by siglongjmp(3), or
// uses the same connection.
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <ucontext.h>

#include <array>
#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <string>
#include <thread>

#include "tests/preload/tcp_world.h"
#include "tests/support/sanitizers.h"
#include "tests/support/signals.h"

namespace ringsock::preload_tests {
namespace {

using support::Disposition;

/// Ends the program when a test hangs.
class EndsInTime : public testing::Test {
 protected:
  void SetUp() override {
    if (support::kDelaysHandlers) GTEST_SKIP() << "ThreadSanitizer delays the handler";
    ::alarm(120);
  }
  void TearDown() override { ::alarm(0); }
};

// -- leaving a call --------------------------------------------------------------------------------

sigjmp_buf place;
void jump(int) { ::siglongjmp(place, 1); }

/// Sends SIGUSR1 to the thread that has made it, once for each ask(), when that thread sleeps.
class Interrupter {
 public:
  Interrupter() : thread_([this] { work(); }) {}
  Interrupter(const Interrupter&) = delete;
  Interrupter& operator=(const Interrupter&) = delete;
  ~Interrupter() {
    ends_ = true;
    thread_.join();
  }
  void ask() { asked_.fetch_add(1); }

 private:
  void work() {
    for (int done = 0; !ends_;) {
      if (asked_ == done || !support::is_interruptible(id_, SIGUSR1)) {
        std::this_thread::yield();
        continue;
      }
      ++done;
      ::pthread_kill(victim_, SIGUSR1);
    }
  }

  const pthread_t victim_ = ::pthread_self();
  const pid_t id_ = ::gettid();
  std::atomic<int> asked_{0};
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

/// A connection on which nothing comes, with a full buffer from Bob to Alice, and a listener that nobody calls.
struct Quiet {
  Fd listener = listening();
  Pair pair = connected_pair();
  Fd set{::epoll_create1(0)};

  Quiet() {
    epoll_event event{EPOLLIN, {.fd = pair.bob}};
    EXPECT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, pair.bob, &event), 0);
  }
};

void fill(int fd) {
  const std::string data(1 << 16, 'x');
  while (::send(fd, data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
  }
}

struct BlockingCall {
  const char* name;
  void (*call)(Quiet&);
};
char byte;
iovec part{&byte, 1};
constexpr timespec kMinute{60, 0};

const BlockingCall kBlockingCalls[] = {
    {"recv", [](Quiet& quiet) { ::recv(quiet.pair.bob, &byte, 1, 0); }},
    {"read", [](Quiet& quiet) { EXPECT_LT(::read(quiet.pair.bob, &byte, 1), 0); }},
    {"readv", [](Quiet& quiet) { EXPECT_LT(::readv(quiet.pair.bob, &part, 1), 0); }},
    {"recvfrom", [](Quiet& quiet) { ::recvfrom(quiet.pair.bob, &byte, 1, 0, nullptr, nullptr); }},
    {"recvmsg",
     [](Quiet& quiet) {
       msghdr message = message_of(part);
       EXPECT_LT(::recvmsg(quiet.pair.bob, &message, 0), 0);
     }},
    {"recv_all",
     [](Quiet& quiet) {
       std::array<char, 100> room;
       ::recv(quiet.pair.bob, room.data(), room.size(), MSG_WAITALL);
     }},
    {"poll", [](Quiet& quiet) { poll_once(quiet.pair.bob, POLLIN, 60'000); }},
    {"ppoll",
     [](Quiet& quiet) {
       pollfd entry{quiet.pair.bob, POLLIN, 0};
       sigset_t none;
       sigemptyset(&none);
       ::ppoll(&entry, 1, &kMinute, &none);
     }},
    {"select", [](Quiet& quiet) { support::wait_in_select(quiet.pair.bob); }},
    {"pselect",
     [](Quiet& quiet) {
       fd_set readable;
       FD_ZERO(&readable);
       FD_SET(quiet.pair.bob, &readable);
       ::pselect(quiet.pair.bob + 1, &readable, nullptr, nullptr, &kMinute, nullptr);
     }},
    {"epoll_wait",
     [](Quiet& quiet) {
       epoll_event event;
       ::epoll_wait(quiet.set, &event, 1, 60'000);
     }},
    {"epoll_pwait",
     [](Quiet& quiet) {
       epoll_event event;
       sigset_t none;
       sigemptyset(&none);
       ::epoll_pwait(quiet.set, &event, 1, -1, &none);
     }},
    {"accept", [](Quiet& quiet) { ::accept(quiet.listener, nullptr, nullptr); }},
    {"send",
     [](Quiet& quiet) {
       fill(quiet.pair.bob);
       ::send(quiet.pair.bob, "xx", 2, MSG_NOSIGNAL);
     }},
};

class JumpOutOf : public EndsInTime, public testing::WithParamInterface<BlockingCall> {
 protected:
  Quiet quiet_;
  const Disposition handler_{SIGUSR1, jump};
};
INSTANTIATE_TEST_SUITE_P(Calls, JumpOutOf, testing::ValuesIn(kBlockingCalls),
                         [](const auto& info) { return std::string(info.param.name); });

/// All that a connection can do, by the thread that jumped and by another one.
void expect_all_works(Quiet& quiet) {
  const auto& [alice, bob] = quiet.pair;
  for (const auto& [from, to] : {std::pair<int, int>(alice, bob), std::pair<int, int>(bob, alice)}) {
    std::thread receiver([to = to] { EXPECT_EQ(read_all(to, 5), "hello"); });
    EXPECT_EQ(::send(from, "hello", 5, MSG_NOSIGNAL), 5);
    receiver.join();
    EXPECT_EQ(::send(from, "again", 5, MSG_NOSIGNAL), 5);
    EXPECT_EQ(poll_once(to, POLLIN, -1), POLLIN);
    EXPECT_EQ(read_all(to, 5), "again");
  }
  const Fd caller = connected_to(quiet.listener);
  const Fd accepted(::accept(quiet.listener, nullptr, nullptr));
  EXPECT_EQ(::send(caller, "hello", 5, 0), 5);
  EXPECT_EQ(read_all(accepted, 5), "hello");
  EXPECT_EQ(::shutdown(alice, SHUT_WR), 0);
  EXPECT_EQ(read_all(bob, 1), "");
}

/// Takes out what fill() has put in.
void drain(int fd) {
  std::string room(1 << 16, ' ');
  while (poll_once(fd, POLLIN, 100) != 0 && ::recv(fd, room.data(), room.size(), MSG_DONTWAIT) > 0) {
  }
}

void jump_ten_times(Quiet& quiet, void (*call)(Quiet&)) {
  Interrupter interrupter;
  volatile int jumps = 0;
  while (jumps < 10) {
    if (::sigsetjmp(place, 1) == 0) {
      interrupter.ask();
      call(quiet);
      ADD_FAILURE() << "it returned: " << std::strerror(errno);
    }
    jumps = jumps + 1;
    EXPECT_FALSE(support::is_blocked(SIGUSR1));
  }
  drain(quiet.pair.alice);
}

TEST_P(JumpOutOf, LeavesTheConnectionAsItWas) {
  jump_ten_times(quiet_, GetParam().call);
  expect_all_works(quiet_);
}

/// The structure of rt_sigaction(2).
struct KernelAction {
  void (*handler)(int) = nullptr;
  unsigned long flags = 0;
  void (*restorer)() = nullptr;
  unsigned long mask = 0;
};

TEST_P(JumpOutOf, ByAHandlerThatSyscallHasSetLeavesTheConnectionAsItWas) {
  KernelAction action;
  ASSERT_EQ(::syscall(SYS_rt_sigaction, SIGUSR1, nullptr, &action, sizeof action.mask), 0);
  EXPECT_EQ(action.handler, jump);
  const Disposition by_libc(SIGUSR1, support::count_handled);
  KernelAction old;
  ASSERT_EQ(::syscall(SYS_rt_sigaction, SIGUSR1, &action, &old, sizeof action.mask), 0);
  EXPECT_EQ(old.handler, support::count_handled);
  EXPECT_EQ(old.restorer, action.restorer);
  jump_ten_times(quiet_, GetParam().call);
  // The thread is outside of the library, so this one runs at once.
  ASSERT_EQ(::syscall(SYS_rt_sigaction, SIGUSR1, &old, nullptr, sizeof old.mask), 0);
  ::raise(SIGUSR1);
  EXPECT_EQ(support::handled, 1);
  expect_all_works(quiet_);
}

// -- at any moment ---------------------------------------------------------------------------------

/// SIGUSR1 for the thread that has made it, over and over.
class Timer {
 public:
  Timer() {
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGUSR1;
    event._sigev_un._tid = ::gettid();
    EXPECT_EQ(::timer_create(CLOCK_MONOTONIC, &event, &timer_), 0);
    const itimerspec often{{0, 151'000}, {0, 151'000}};
    EXPECT_EQ(::timer_settime(timer_, 0, &often, nullptr), 0);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() { ::timer_delete(timer_); }

 private:
  timer_t timer_{};
};

/// A round of calls of the thread that is interrupted. All are async-signal-safe by POSIX, or blocking calls.
void use_all(Quiet& quiet) {
  const auto& [alice, bob] = quiet.pair;
  std::array<char, 64> room;
  ::send(alice, "m", 1, MSG_NOSIGNAL);
  poll_once(bob, POLLIN, 1);
  ::recv(bob, room.data(), room.size(), MSG_DONTWAIT);
  epoll_event event;
  ::epoll_wait(quiet.set, &event, 1, 1);
  const int copy = ::dup(alice);
  if (copy >= 0) ::close(copy);
  support::wait_in_recv(bob);
}

class AtAnyMoment : public EndsInTime {
 protected:
  Quiet quiet_;
};

TEST_F(AtAnyMoment, AJumpLeavesTheConnectionAsItWas) {
  {
    const Disposition handler(SIGUSR1, jump);
    volatile int jumps = 0;
    static sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    ::pthread_sigmask(SIG_BLOCK, &usr1, nullptr);
    const Timer timer;
    if (::sigsetjmp(place, 1) != 0) jumps = jumps + 1;
    if (jumps < 500) {
      ::pthread_sigmask(SIG_UNBLOCK, &usr1, nullptr);
      for (;;) use_all(quiet_);
    }
  }
  sigset_t usr1;
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  const Disposition ignored(SIGUSR1, SIG_IGN);
  ::pthread_sigmask(SIG_UNBLOCK, &usr1, nullptr);
  drain(quiet_.pair.bob);
  expect_all_works(quiet_);
}

Pair* handlers_pair;
std::atomic<int> sent_by_handler{0}, received_by_handler{0};
void use_connection(int) {
  const int saved_errno = errno;
  char taken = 0;
  if (::poll(nullptr, 0, 0) == 0 && ::recv(handlers_pair->bob, &taken, 1, MSG_DONTWAIT) == 1) ++received_by_handler;
  if (::send(handlers_pair->alice, "h", 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1) ++sent_by_handler;
  pollfd entry{handlers_pair->bob, POLLIN, 0};
  ::poll(&entry, 1, 0);
  const int copy = ::dup(handlers_pair->alice);
  if (copy >= 0) ::close(copy);
  support::count_handled(0);
  errno = saved_errno;
}

/// Whether handlers have SA_RESTART.
class AHandlerUses : public AtAnyMoment, public testing::WithParamInterface<bool> {
 protected:
  const Disposition handler_{SIGUSR1, use_connection, GetParam() ? SA_RESTART : 0};
};
INSTANTIATE_TEST_SUITE_P(Restarts, AHandlerUses, testing::Bool());

TEST_P(AHandlerUses, TheSameConnectionAndNoByteIsLost) {
  handlers_pair = &quiet_.pair;
  sent_by_handler = received_by_handler = 0;
  int sent = 0, received = 0;
  {
    const Timer timer;
    while (support::handled < 500) {
      if (::send(quiet_.pair.alice, "m", 1, MSG_NOSIGNAL) == 1) ++sent;
      poll_once(quiet_.pair.bob, POLLIN, -1);
      char taken = 0;
      const ssize_t got = ::recv(quiet_.pair.bob, &taken, 1, 0);
      if (got == 1) ++received;
      EXPECT_TRUE(got == 1 || (errno == EINTR && !GetParam())) << std::strerror(errno);
    }
  }
  ::shutdown(quiet_.pair.alice, SHUT_WR);
  const std::string rest = read_all(quiet_.pair.bob, 1 << 20);
  EXPECT_EQ(sent + sent_by_handler, received + received_by_handler + static_cast<int>(rest.size()));
}

// -- while the call sleeps -------------------------------------------------------------------------

class AHandler : public EndsInTime {
 protected:
  void SetUp() override {
    EndsInTime::SetUp();
    handlers_pair = &pair_;
  }
  int receive() {
    return support::with_one_signal([&] { return support::wait_in_recv(pair_.bob); });
  }
  Pair pair_ = connected_pair();
};

TEST_F(AHandler, SendsWhatTheCallItInterruptsReceives) {
  const Disposition handler(
      SIGUSR1,
      [](int) {
        pollfd entry{handlers_pair->bob, POLLIN, 0};
        ::poll(&entry, 1, 0);
        ::send(handlers_pair->alice, "h", 1, 0);
        ::poll(&entry, 1, -1);
      },
      SA_RESTART);
  EXPECT_EQ(receive(), 1);
}

TEST_F(AHandler, ShutsTheConnectionDown) {
  const Disposition handler(
      SIGUSR1, [](int) { ::shutdown(handlers_pair->bob, SHUT_RDWR); }, SA_RESTART);
  EXPECT_EQ(receive(), 0);
}

TEST_F(AHandler, ClosesTheConnection) {
  const Disposition handler(
      SIGUSR1, [](int) { handlers_pair->bob.reset(); }, SA_RESTART);
  const int bob = pair_.bob;
  EXPECT_EQ(support::with_one_signal([&] { return support::wait_in_recv(bob); }), -1);
  EXPECT_EQ(errno, EBADF);
}

TEST_F(AHandler, ForksAChildThatSends) {
  static pid_t child;
  const Disposition handler(
      SIGUSR1,
      [](int) {
        child = ::fork();
        if (child != 0) return;
        ::_exit(::send(handlers_pair->alice, "c", 1, 0) == 1 ? 0 : 1);
      },
      SA_RESTART);
  EXPECT_EQ(receive(), 1);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(AHandler, WithSaRestartLetsTheCallGoOnThoughOthersHaveNoSaRestart) {
  const Disposition other(SIGUSR2);
  const Disposition handler(SIGUSR1, support::count_handled, SA_RESTART);
  const auto send = [&] {
    support::until_handled();
    EXPECT_EQ(::send(pair_.alice, "x", 1, 0), 1);
  };
  EXPECT_EQ(support::with_one_signal([&] { return support::wait_in_recv(pair_.bob); }, send), 1);
}

TEST_F(AHandler, RunsInPpollWithTheMaskOfThatCall) {
  const Disposition handler(SIGUSR1, [](int) { support::handled = support::is_blocked(SIGUSR2) ? 1 : 2; });
  sigset_t usr1;
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  sigset_t usr2;
  sigemptyset(&usr2);
  sigaddset(&usr2, SIGUSR2);
  ::pthread_sigmask(SIG_BLOCK, &usr1, nullptr);
  ::pthread_kill(::pthread_self(), SIGUSR1);
  pollfd entry{pair_.bob, POLLIN, 0};
  EXPECT_EQ(::ppoll(&entry, 1, nullptr, &usr2), -1);
  EXPECT_EQ(errno, EINTR);
  EXPECT_EQ(support::handled, 1);
  EXPECT_TRUE(support::is_blocked(SIGUSR1));
  EXPECT_FALSE(support::is_blocked(SIGUSR2));
  ::pthread_sigmask(SIG_UNBLOCK, &usr1, nullptr);
}

/// The masks that a handler saw in the context that it has interrupted.
std::atomic<std::uint64_t> interrupted_mask{0};
void note_mask(int, siginfo_t*, void* context) {
  std::uint64_t mask = 0;
  std::memcpy(&mask, &static_cast<ucontext_t*>(context)->uc_sigmask, sizeof mask);
  interrupted_mask = mask;
  support::count_handled(0);
}

/// Installs note_mask() for SIGUSR1.
class NotesMasks {
 public:
  NotesMasks() {
    struct sigaction action {};
    action.sa_sigaction = note_mask;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGUSR1, &action, nullptr);
  }

 private:
  const Disposition restored_{SIGUSR1};
};

TEST_F(AHandler, FindsInTheContextTheMaskOfTheThreadThatWaits) {
  const NotesMasks handler;
  sigset_t usr2;
  sigemptyset(&usr2);
  sigaddset(&usr2, SIGUSR2);
  ::pthread_sigmask(SIG_BLOCK, &usr2, nullptr);
  for (const auto& call : kBlockingCalls) {
    interrupted_mask = ~std::uint64_t{0};
    Quiet quiet;
    Interrupter interrupter;
    interrupter.ask();
    call.call(quiet);
    EXPECT_EQ(interrupted_mask, std::uint64_t{1} << (SIGUSR2 - 1)) << call.name;
    EXPECT_FALSE(support::is_blocked(SIGUSR1)) << call.name;
    EXPECT_TRUE(support::is_blocked(SIGUSR2)) << call.name;
  }
  ::pthread_sigmask(SIG_UNBLOCK, &usr2, nullptr);
}

TEST_F(AHandler, RunsOnceWithSaResethand) {
  const Disposition handler(SIGUSR1, support::count_handled, static_cast<int>(SA_RESETHAND));
  EXPECT_EQ(receive(), -1);
  EXPECT_EQ(support::handled, 1);
  struct sigaction now {};
  EXPECT_EQ(::sigaction(SIGUSR1, nullptr, &now), 0);
  EXPECT_EQ(now.sa_handler, SIG_DFL);
}

TEST_F(AHandler, RunsOnItsOwnStack) {
  static std::array<char, 1 << 16> room;
  static bool is_on_it = false;
  stack_t own{};
  own.ss_sp = room.data();
  own.ss_size = room.size();
  stack_t before{};
  ASSERT_EQ(::sigaltstack(&own, &before), 0);
  const Disposition handler(
      SIGUSR1,
      [](int) {
        // Sanitizers put local variables elsewhere.
        const auto* const here = static_cast<const char*>(__builtin_frame_address(0));
        is_on_it = here >= room.data() && here < room.data() + room.size();
      },
      SA_ONSTACK);
  EXPECT_EQ(receive(), -1);
  EXPECT_TRUE(is_on_it);
  ::sigaltstack(&before, nullptr);
}

/// A stack for handlers of 8,192 bytes, which was SIGSTKSZ for long, below which nobody may write.
class SmallSignalStack {
 public:
  static constexpr std::size_t kBytes = 8192;
  SmallSignalStack()
      : memory_(::mmap(nullptr, 2 * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    EXPECT_EQ(::mprotect(memory_, kBytes, PROT_NONE), 0);
    stack_t own{};
    own.ss_sp = static_cast<std::byte*>(memory_) + kBytes;
    own.ss_size = kBytes;
    EXPECT_EQ(::sigaltstack(&own, &before_), 0);
  }
  SmallSignalStack(const SmallSignalStack&) = delete;
  SmallSignalStack& operator=(const SmallSignalStack&) = delete;
  ~SmallSignalStack() {
    ::sigaltstack(&before_, nullptr);
    ::munmap(memory_, 2 * kBytes);
  }

 private:
  void* memory_;
  stack_t before_{};
};

TEST_F(AHandler, PollsConnectionsOnASmallSignalStack) {
  if (support::kHasAddressSanitizer || support::kHasThreadSanitizer) GTEST_SKIP() << "a sanitizer's frames are larger";
  if (::getauxval(AT_MINSIGSTKSZ) > SmallSignalStack::kBytes / 2) GTEST_SKIP() << "this CPU's registers fill the stack";
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::write(bob, "word", 4), 4);
  static int fd;
  static short polled;
  static bool is_selected, is_asleep_in_vain;
  fd = alice;
  const auto look = [](int) {
    pollfd entry{fd, POLLIN | POLLOUT, 0};
    polled = ::poll(&entry, 1, -1) == 1 ? entry.revents : short{0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    timeval none{};
    is_selected = ::select(fd + 1, &set, nullptr, nullptr, &none) == 1 && FD_ISSET(fd, &set);
    pollfd end{fd, POLLRDHUP, 0};
    is_asleep_in_vain = ::poll(&end, 1, 20) == 0;
  };
  look(0);  // the dynamic linker, which needs much of the stack, finds the functions
  polled = 0;
  is_selected = is_asleep_in_vain = false;

  const SmallSignalStack small;
  const Disposition handler(SIGUSR1, look, SA_ONSTACK);
  ASSERT_EQ(::raise(SIGUSR1), 0);
  EXPECT_EQ(polled, POLLIN | POLLOUT);
  EXPECT_TRUE(is_selected);
  EXPECT_TRUE(is_asleep_in_vain);
  EXPECT_EQ(read_all(alice, 4), "word");
}

TEST_F(AHandler, BlocksItsMaskAndItselfButWithSaNodefer) {
  for (const int flags : {0, SA_NODEFER}) {
    static bool blocks_own, blocks_mask;
    const Disposition restored(SIGUSR1);
    struct sigaction action {};
    action.sa_handler = [](int) {
      blocks_own = support::is_blocked(SIGUSR1);
      blocks_mask = support::is_blocked(SIGUSR2);
    };
    action.sa_flags = flags;
    sigaddset(&action.sa_mask, SIGUSR2);
    ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
    EXPECT_EQ(receive(), -1);
    EXPECT_EQ(blocks_own, flags == 0);
    EXPECT_TRUE(blocks_mask);
  }
}

TEST_F(AHandler, HearsWhoHasSentTheSignalAndWhatComesWithIt) {
  static siginfo_t heard;
  const Disposition restored(SIGUSR1);
  struct sigaction action {};
  action.sa_sigaction = [](int, siginfo_t* info, void*) { heard = *info; };
  action.sa_flags = SA_SIGINFO;
  ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
  std::atomic<bool> begun{false};
  std::thread sender([&begun, victim = ::pthread_self(), id = ::gettid()] {
    while (!begun || !support::is_interruptible(id, SIGUSR1)) std::this_thread::yield();
    ::pthread_sigqueue(victim, SIGUSR1, {.sival_int = 42});
  });
  begun = true;
  EXPECT_EQ(support::wait_in_recv(pair_.bob), -1);
  sender.join();
  EXPECT_EQ(heard.si_code, SI_QUEUE);
  EXPECT_EQ(heard.si_value.sival_int, 42);
  EXPECT_EQ(heard.si_pid, ::getpid());
}

// -- what the program sees of its handlers ---------------------------------------------------------

TEST(Handlers, TheDefaultAndIgnoringAreNoneWithSaSiginfoEither) {
  if (support::kDelaysHandlers) GTEST_SKIP() << "ThreadSanitizer has handlers of its own";
  static std::atomic<int> last;
  const Disposition restored(SIGUSR1);
  for (const sighandler_t wanted : {SIG_IGN, SIG_DFL}) {
    const pid_t child = ::fork();
    if (child == 0) {
      struct sigaction action {};
      action.sa_flags = SA_SIGINFO;
      action.sa_sigaction = [](int signal, siginfo_t*, void*) { last = signal; };
      ::sigaction(SIGUSR1, &action, nullptr);
      action.sa_handler = wanted;  // as PHP's engine does: the flags stay
      ::sigaction(SIGUSR1, &action, nullptr);
      ::raise(SIGUSR1);
      ::_exit(last == 0 ? 7 : 8);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (wanted == SIG_IGN) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
    } else {
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR1) << status;
    }
  }
}

TEST(Handlers, AreShownAsTheyWereSet) {
  if (support::kDelaysHandlers) GTEST_SKIP() << "ThreadSanitizer shows flags of its own";
  const Disposition restored(SIGUSR1);
  struct sigaction action {};
  action.sa_sigaction = [](int, siginfo_t*, void*) {};
  action.sa_flags = SA_SIGINFO | static_cast<int>(SA_RESETHAND) | SA_NODEFER;
  sigaddset(&action.sa_mask, SIGUSR2);
  ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
  struct sigaction shown {};
  ASSERT_EQ(::sigaction(SIGUSR1, nullptr, &shown), 0);
  EXPECT_EQ(shown.sa_sigaction, action.sa_sigaction);
  EXPECT_EQ(shown.sa_flags & ~0x04000000, action.sa_flags);  // SA_RESTORER
  EXPECT_EQ(sigismember(&shown.sa_mask, SIGUSR2), 1);

  EXPECT_EQ(::signal(SIGUSR1, support::count_handled), action.sa_handler);  // a union
  ASSERT_EQ(::sigaction(SIGUSR1, nullptr, &shown), 0);
  EXPECT_EQ(shown.sa_handler, support::count_handled);
  EXPECT_EQ(shown.sa_flags & (SA_RESTART | SA_SIGINFO), SA_RESTART);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  EXPECT_EQ(::siginterrupt(SIGUSR1, 1), 0);
  ASSERT_EQ(::sigaction(SIGUSR1, nullptr, &shown), 0);
  EXPECT_EQ(shown.sa_flags & SA_RESTART, 0);
  EXPECT_EQ(::siginterrupt(SIGUSR1, 0), 0);
#pragma GCC diagnostic pop
  EXPECT_EQ(::signal(SIGUSR1, SIG_IGN), support::count_handled);
  EXPECT_EQ(::signal(SIGUSR1, SIG_DFL), SIG_IGN);
  EXPECT_EQ(::signal(SIGKILL, support::count_handled), SIG_ERR);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(::signal(SIGUSR1, SIG_DFL), SIG_DFL);
}

}  // namespace
}  // namespace ringsock::preload_tests
