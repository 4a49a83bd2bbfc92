// Children that are made in other ways than fork(3), while the parent has connections: each may close, use, inherit
// into a program or forget them, and the parent's go on.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "tests/preload/calls.h"
#include "tests/preload/preloaded.h"
#include "tests/support/rounds.h"
#include "tests/support/sanitizers.h"

namespace ringsock::preloaded {
namespace {

// -- ways to make a child
// ----------------------------------------------------------------------------------------------

using ChildBody = int (*)(int fd);

#define WHEN_CHILD(pid, body, fd) \
  if ((pid) == 0) ::_exit((body)(fd))

pid_t by_fork(ChildBody body, int fd) {
  const pid_t child = ::fork();
  WHEN_CHILD(child, body, fd);
  return child;
}

pid_t by_underscore_fork(ChildBody body, int fd) {
  const pid_t child = ::_Fork();
  WHEN_CHILD(child, body, fd);
  return child;
}

pid_t by_syscall_fork(ChildBody body, int fd) {
#ifdef SYS_fork
  const auto child = static_cast<pid_t>(::syscall(SYS_fork));
  WHEN_CHILD(child, body, fd);
  return child;
#else
  return by_fork(body, fd);
#endif
}

pid_t by_syscall_clone(ChildBody body, int fd) {
  const auto child = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  WHEN_CHILD(child, body, fd);
  return child;
}

/// With a flag more, as programs that also ask for new namespaces.
pid_t by_syscall_clone_with_flags(ChildBody body, int fd) {
  const auto child =
      static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD | CLONE_UNTRACED, nullptr, nullptr, nullptr, nullptr));
  WHEN_CHILD(child, body, fd);
  return child;
}

pid_t by_syscall_clone3(ChildBody body, int fd) {
  clone_args arguments{};
  arguments.exit_signal = SIGCHLD;
  const auto child = static_cast<pid_t>(::syscall(SYS_clone3, &arguments, sizeof arguments));
  WHEN_CHILD(child, body, fd);
  return child;
}

struct Order {
  ChildBody body;
  int fd;
};
int carry_out(void* pointer) {
  const Order order = *static_cast<Order*>(pointer);
  return order.body(order.fd);
}
pid_t by_clone_function(ChildBody body, int fd, int flags) {
  Order order{body, fd};
  std::vector<std::max_align_t> stack(8192);
  return ::clone(carry_out, stack.data() + stack.size(), flags, &order);
}
pid_t by_clone(ChildBody body, int fd) { return by_clone_function(body, fd, SIGCHLD); }
/// As implementations of posix_spawn(3) do.
pid_t by_sharing_clone(ChildBody body, int fd) { return by_clone_function(body, fd, CLONE_VM | CLONE_VFORK | SIGCHLD); }

pid_t by_vfork(ChildBody body, int fd) {
  const pid_t child = ::vfork();
  WHEN_CHILD(child, body, fd);
  return child;
}

#if defined(__x86_64__)
/// The system call itself: no library can know.
pid_t raw(long flags) {
  long answer = SYS_clone;
  register long fourth asm("r10") = 0;
  register long fifth asm("r8") = 0;
  asm volatile("syscall" : "+a"(answer) : "D"(flags), "S"(0), "d"(0), "r"(fourth), "r"(fifth) : "rcx", "r11", "memory");
  return static_cast<pid_t>(answer);
}
pid_t by_assembly(ChildBody body, int fd) {
  const pid_t child = raw(SIGCHLD);
  WHEN_CHILD(child, body, fd);
  return child;
}
#endif

struct Way {
  const char* name;
  pid_t (*make)(ChildBody body, int fd);
  bool has_handlers;  ///< the child may use the connection
};
const Way kWays[] = {
    {"fork", by_fork, true},
    {"underscore_fork", by_underscore_fork, false},
    {"syscall_fork", by_syscall_fork, true},
    {"syscall_clone", by_syscall_clone, true},
    {"syscall_clone_with_flags", by_syscall_clone_with_flags, true},
    {"syscall_clone3", by_syscall_clone3, true},
    {"clone", by_clone, true},
    {"sharing_clone", by_sharing_clone, true},
    {"vfork", by_vfork, true},
#if defined(__x86_64__)
    {"assembly", by_assembly, false},
#endif
};

/// An echo until the end of the test.
class EchoToTheEnd : public Echo {
 public:
  EchoToTheEnd() = default;
  EchoToTheEnd(const EchoToTheEnd&) = delete;
  EchoToTheEnd& operator=(const EchoToTheEnd&) = delete;
  ~EchoToTheEnd() { EXPECT_EQ(end(), 0); }
};

void talk(int fd, unsigned seed, std::size_t bytes = 10'000) {
  const std::string text = pattern(bytes, seed);
  send_all(fd, text);
  EXPECT_TRUE(receive(fd, bytes) == text) << "message " << seed;
}

/// A child that hangs fails the test, not the suite.
int end_of(pid_t child) {
  for (int i = 0; i < 2000; ++i) {
    int status = 0;
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (ended < 0) return -1;
    ::usleep(5000);
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return -2;
}

class Child : public ::testing::TestWithParam<Way> {
 protected:
  pid_t make(ChildBody body, int fd) const {
    const pid_t child = GetParam().make(body, fd);
    EXPECT_GT(child, 0) << std::strerror(errno);
    return child;
  }
};
INSTANTIATE_TEST_SUITE_P(MadeBy, Child, ::testing::ValuesIn(kWays), [](const auto& way) { return way.param.name; });

// -- what the child does
// ---------------------------------------------------------------------------------------------

TEST_P(Child, ThatClosesTheConnectionLeavesItToTheParent) {
  const EchoToTheEnd call;
  talk(call.fd, 1);
  EXPECT_EQ(end_of(make([](int fd) { return ::close(fd); }, call.fd)), 0);
  talk(call.fd, 2);
}

TEST_P(Child, ThatClosesAllDescriptorsLeavesThemToTheParent) {
  const EchoToTheEnd call;
  talk(call.fd, 1);
  EXPECT_EQ(end_of(make([](int) { return ::close_range(3, ~0U, 0); }, call.fd)), 0);
  talk(call.fd, 2);
}

TEST_P(Child, ThatJustEndsLeavesTheConnectionToTheParent) {
  const EchoToTheEnd call;
  talk(call.fd, 1);
  EXPECT_EQ(end_of(make([](int) { return 7; }, call.fd)), 7);
  talk(call.fd, 2);
  EXPECT_EQ(end_of(make([](int) { return ::raise(SIGKILL); }, call.fd)), 128 + SIGKILL);
  talk(call.fd, 3);
}

TEST_P(Child, ThatExecutesAProgramLeavesTheConnectionToTheParent) {
  const EchoToTheEnd call;
  talk(call.fd, 1);
  const auto run_true = [](int) {
    char name[] = "true";
    char* arguments[] = {name, nullptr};
    char* environment[] = {nullptr};
    return ::execve("/bin/true", arguments, environment);
  };
  // Close-on-exec, as careful programs have it.
  ::fcntl(call.fd, F_SETFD, FD_CLOEXEC);
  EXPECT_EQ(end_of(make(run_true, call.fd)), 0);
  talk(call.fd, 2);
}

TEST_P(Child, ThatUsesTheConnectionHasItOrIsToldThatItHasNot) {
  const EchoToTheEnd call;
  talk(call.fd, 1);
  const auto use = [](int fd) {
    char data[4] = "abc";
    if (::send(fd, data, 4, MSG_NOSIGNAL) != 4) return errno;
    if (::recv(fd, data, 4, MSG_WAITALL) != 4) return errno;
    return std::memcmp(data, "abc", 4) == 0 ? 0 : 99;
  };
  EXPECT_EQ(end_of(make(use, call.fd)), GetParam().has_handlers ? 0 : EIO);
  if (!GetParam().has_handlers) talk(call.fd, 2);
}

TEST_P(Child, MayMakeConnectionsOfItsOwn) {
  const EchoToTheEnd call;
  talk(call.fd, 1);
  const auto meet_itself = [](int) {
    const Listener listener = listen_anywhere();
    const int fd = connect_to(listener.port);
    const int accepted = ::accept(listener.fd, nullptr, nullptr);
    send_all(fd, "hello");
    return receive(accepted, 5) == "hello" ? 0 : 1;
  };
  EXPECT_EQ(end_of(make(meet_itself, call.fd)), 0);
  talk(call.fd, 2);
}

TEST_P(Child, MayAcceptOnTheParentsListener) {
  // Else the parent does not know that the listener is not its own: its ring would take the client in.
  if (!GetParam().has_handlers) return;
  const Listener listener = listen_anywhere();
  const pid_t server = make(
      [](int fd) {
        echo(::accept(fd, nullptr, nullptr));
        return 0;
      },
      listener.fd);
  ::close(listener.fd);
  const int fd = connect_to(listener.port);
  talk(fd, 1);
  ::close(fd);
  EXPECT_EQ(end_of(server), 0);
}

TEST_P(Child, MayForkInTurn) {
  const EchoToTheEnd call;
  talk(call.fd, 1);
  const auto fork_again = [](int fd) {
    const pid_t grandchild = ::fork();
    if (grandchild == 0) ::_exit(::close(fd));
    return end_of(grandchild);
  };
  EXPECT_EQ(end_of(make(fork_again, call.fd)), 0);
  talk(call.fd, 2);
}

TEST_P(Child, ComesIntoTheWorldWhileOtherThreadsSendAndReceive) {
  if (!support::kForksWhileThreadsAllocate) GTEST_SKIP() << "this sanitizer's allocator may be locked in the child";
  // Made before the threads: the peer is a child, and would keep a copy of each connection that it inherits open.
  const EchoToTheEnd call;
  constexpr int kThreads = 3;
  std::atomic<bool> stop{false};
  std::atomic<int> rounds{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      const Listener listener = listen_anywhere();
      std::thread peer([&] { echo(::accept(listener.fd, nullptr, nullptr)); });
      const int fd = connect_to(listener.port);
      for (unsigned seed = 0; !stop.load(); ++seed) {
        talk(fd, seed, 2000);
        // Connections that come and go: locks, tables and caches are busy.
        const int another = ::socket(AF_INET, SOCK_STREAM, 0);
        ::close(another);
        rounds.fetch_add(1);
      }
      ::close(fd);
      peer.join();
      ::close(listener.fd);
    });
  }
  for (unsigned i = 0; i < support::rounds(20, 60); ++i) {
    // Only calls that are permitted in a child of a process with threads.
    const pid_t child = make([](int fd) { return ::close(fd); }, call.fd);
    EXPECT_EQ(end_of(child), 0) << "child " << i;
    talk(call.fd, i, 500);
  }
  stop.store(true);
  for (auto& thread : threads) thread.join();
  EXPECT_GT(rounds.load(), 0);
}

/// The child of a program that has no connection yet, and where another thread makes one before the child is done.
struct Meanwhile {
  int child_begins[2];
  int connection_is_there[2];
} meanwhile;

TEST_P(Child, ThatClosesAllDescriptorsLeavesWhatOtherThreadsMakeMeanwhile) {
  ASSERT_EQ(::pipe(meanwhile.child_begins), 0);
  ASSERT_EQ(::pipe(meanwhile.connection_is_there), 0);
  Listener listener = listen_anywhere();
  const pid_t peer = spawn([&] {
    for (const int end : {0, 1}) ::close(meanwhile.child_begins[end]), ::close(meanwhile.connection_is_there[end]);
    echo(::accept(listener.fd, nullptr, nullptr));
  });
  ::close(listener.fd);
  int connection = -1;
  std::thread connects([&] {
    char byte = 0;
    EXPECT_EQ(::read(meanwhile.child_begins[0], &byte, 1), 1);
    connection = connect_to(listener.port);
    EXPECT_EQ(::write(meanwhile.connection_is_there[1], "c", 1), 1);
  });
  const pid_t child = make(
      [](int) {
        char byte = 0;
        if (::write(meanwhile.child_begins[1], "b", 1) != 1) return 1;
        if (::read(meanwhile.connection_is_there[0], &byte, 1) != 1) return 2;
        return ::close_range(3, ~0U, 0);
      },
      -1);
  connects.join();
  EXPECT_EQ(end_of(child), 0);
  talk(connection, 1);
  ::close(connection);
  EXPECT_EQ(wait_for(peer), 0);
  for (const int end : {0, 1}) ::close(meanwhile.child_begins[end]), ::close(meanwhile.connection_is_there[end]);
}

TEST_P(Child, ComesIntoTheWorldWhileOtherThreadsComeAndGo) {
  if (!support::kForksWhileThreadsAllocate) GTEST_SKIP() << "this sanitizer's allocator may be locked in the child";
  const EchoToTheEnd call;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    // Lists of the threads that use sockets change all the time.
    threads.emplace_back([&] {
      while (!stop.load()) {
        std::thread([] {
          const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
          ::fcntl(fd, F_GETFL);
          ::close(fd);
        }).join();
      }
    });
  }
  for (unsigned i = 0; i < support::rounds(30, 100); ++i) {
    const int status = end_of(make([](int fd) { return ::close(fd); }, call.fd));
    EXPECT_EQ(status, 0) << "child " << i;
    if (status != 0) break;
  }
  stop.store(true);
  for (auto& thread : threads) thread.join();
  talk(call.fd, 1);
}

// -- tables of descriptors that are not the process's ------------------------------------------------
// In processes of their own, because these use rings no more afterwards.

void with_a_connection(void (*body)(const Ends& ends)) {
  EXPECT_EQ(wait_for(spawn([body] { body(Ends()); })), 0);
}

void expect_still_open(const Ends& ends) {
  send_all(ends.ours, "process");
  expect(receive(ends.peers, 7) == "process", "the process still has its connection");
}

TEST(Descriptors, OfAChildThatSharesThemAreItsParentsToo) {
  with_a_connection([](const Ends& ends) {
    const int spare = ::dup(ends.ours);
    const auto child =
        static_cast<pid_t>(::syscall(SYS_clone, CLONE_FILES | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
    if (child == 0) {
      const bool sent = ::send(ends.ours, "child", 5, MSG_NOSIGNAL) == 5;
      ::close(spare);
      ::_exit(sent ? 0 : 1);
    }
    expect(end_of(child) == 0, "the child sends");
    expect(receive(ends.peers, 5) == "child", "its bytes come");
    expect(::fcntl(spare, F_GETFD) == -1 && errno == EBADF, "the parent's number is closed, too");
    send_all(ends.ours, "parent");
    expect(receive(ends.peers, 6) == "parent", "the parent's bytes come");
  });
}

TEST(Descriptors, OfAThreadThatHasItsOwnAreNotTheProcesss) {
  with_a_connection([](const Ends& ends) {
    bool unshared = false;
    bool has_own = false;
    std::thread([&] {
      unshared = ::unshare(CLONE_FILES) == 0;
      ::close(ends.ours);
      const Listener listener = listen_anywhere();
      const int client = connect_to(listener.port);
      const int server = ::accept(listener.fd, nullptr, nullptr);
      has_own = ::send(client, "thread", 6, MSG_NOSIGNAL) == 6 && receive(server, 6) == "thread";
    }).join();
    expect(unshared && has_own, "the thread has descriptors of its own");
    expect_still_open(ends);
  });
}

/// The library's thread gets the same descriptors.
void they_go_on_after(int (*unshares)()) {
  const Listener before = listen_anywhere();
  expect(unshares() == 0, "a table of its own");
  const Listener after = listen_anywhere();
  for (const Listener& listener : {before, after}) {
    const int client = connect_to(listener.port);  // answered before anybody accepts it
    const int server = ::accept(listener.fd, nullptr, nullptr);
    send_all(client, "ping");
    expect(receive(server, 4) == "ping", "the bytes come");
  }
}

TEST(Descriptors, ThatAThreadClosesInATableOfItsOwnAreStillTheProcesss) {
  with_a_connection([](const Ends& ends) {
    bool closed = false;
    bool has_others = false;
    std::thread([&] {
      const auto number = static_cast<unsigned>(ends.ours);
      closed = ::close_range(number, number, CLOSE_RANGE_UNSHARE) == 0 && ::fcntl(ends.ours, F_GETFD) == -1;
      has_others = ::send(ends.peers, "thread", 6, MSG_NOSIGNAL) == 6;
    }).join();
    expect(closed && has_others, "the thread has descriptors of its own");
    expect(receive(ends.ours, 6) == "thread", "the others still have theirs");
    expect_still_open(ends);
  });
}

TEST(Descriptors, OfTheOnlyThreadMayBecomeItsOwnByCloseRange) {
  EXPECT_EQ(wait_for(spawn([] { they_go_on_after([] { return ::close_range(900, 950, CLOSE_RANGE_UNSHARE); }); })), 0);
}

TEST(Descriptors, OfTheOnlyThreadMayBecomeItsOwn) {
  EXPECT_EQ(wait_for(spawn([] { they_go_on_after([] { return ::unshare(CLONE_FILES); }); })), 0);
}

}  // namespace
}  // namespace ringsock::preloaded
