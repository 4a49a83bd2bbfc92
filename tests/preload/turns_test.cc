// Parents and children that use one connection in turns or at once, as they may with the kernel's: whoever comes second
// goes on where the first one is.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/preload/preloaded.h"
#include "tests/support/sanitizers.h"

namespace ringsock::preloaded {
namespace {

/// Connections are handed over by processes with threads, which fork for it.
class MayFork : public ::testing::Environment {
  void SetUp() override {
    if (!support::kForksWhileThreadsAllocate) GTEST_SKIP() << "this sanitizer's allocator may be locked in a child";
  }
};
[[maybe_unused]] const ::testing::Environment* const may_fork = ::testing::AddGlobalTestEnvironment(new MayFork);

/// A connection to a process that sends back what it gets.
class Echo {
 public:
  Echo() {
    const Listener listener = listen_anywhere();
    peer_ = spawn([&] {
      const int client = ::accept(listener.fd, nullptr, nullptr);
      ::close(listener.fd);
      echo(client);
    });
    fd = connect_to(listener.port);
    ::close(listener.fd);
    expect(is_on_ring(fd), "the connection is on a ring");
  }
  Echo(const Echo&) = delete;
  Echo& operator=(const Echo&) = delete;
  /// The peer has seen the end of the stream when it ends with 0.
  int end() {
    ::close(fd);
    return wait_for(peer_);
  }

  int fd = -1;

 private:
  pid_t peer_ = 0;
};

void ask(int fd, const std::string& question) {
  send_all(fd, question);
  expect(receive(fd, question.size()) == question, "the answer is the question");
}

/// In turns: pipes tell whose turn it is.
class Turns {
 public:
  void give() { signal_.give(); }
  void take() { signal_.wait(); }

 private:
  Signal signal_;
};

TEST(Turns, TheParentComesAfterItsChild) {
  Echo echo;
  ask(echo.fd, "before");
  const pid_t child = spawn([&] { ask(echo.fd, pattern(100'000, 1)); });
  EXPECT_EQ(wait_for(child), 0);
  ask(echo.fd, pattern(100'000, 2));
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, TheChildComesWhileItsParentIsTheUser) {
  Echo echo;
  Signal parent_was_there;
  Signal child_was_there;
  const pid_t child = spawn([&] {
    parent_was_there.wait();
    ask(echo.fd, pattern(100'000, 1));
    child_was_there.give();
  });
  ask(echo.fd, "parent");
  parent_was_there.give();
  child_was_there.wait();
  ask(echo.fd, pattern(100'000, 2));
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, TheyTakeManyTurns) {
  Echo echo;
  Signal to_child[50];
  Signal to_parent[50];
  const pid_t child = spawn([&] {
    for (unsigned i = 0; i < 50; ++i) {
      to_child[i].wait();
      ask(echo.fd, pattern(1000 + i, i));
      to_parent[i].give();
    }
  });
  for (unsigned i = 0; i < 50; ++i) {
    ask(echo.fd, pattern(2000 + i, i));
    to_child[i].give();
    to_parent[i].wait();
  }
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, OneReadsWhileTheOtherWrites) {
  Echo echo;
  const std::string sent = pattern(3'000'000, 7);
  const pid_t child = spawn([&] {
    send_all(echo.fd, sent);
    ::shutdown(echo.fd, SHUT_WR);
  });
  const std::string got = receive_all(echo.fd);
  EXPECT_EQ(got.size(), sent.size());
  EXPECT_TRUE(got == sent);
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, TheReaderSleepsAlreadyWhenTheOtherBegins) {
  Echo echo;
  std::string got;
  Signal reads;
  const pid_t child = spawn([&] {
    reads.wait();
    send_all(echo.fd, "from the child");
  });
  std::thread reader([&] { got = receive(echo.fd, 14); });
  ::usleep(50'000);
  reads.give();
  reader.join();
  EXPECT_EQ(got, "from the child");
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, WhoWaitsInPollAndEpollIsWokenByWhatTheOtherAskedFor) {
  for (const bool by_epoll : {false, true}) {
    Echo echo;
    Signal waits;
    const pid_t child = spawn([&] {
      waits.wait();
      ::usleep(50'000);
      send_all(echo.fd, "hello");
    });
    int ready = 0;
    if (by_epoll) {
      const int set = ::epoll_create1(0);
      epoll_event event{EPOLLIN, {}};
      EXPECT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, echo.fd, &event), 0);
      EXPECT_EQ(::epoll_wait(set, &event, 1, 0), 0);
      waits.give();
      ready = ::epoll_wait(set, &event, 1, 10'000);
      ::close(set);
    } else {
      pollfd entry{echo.fd, POLLIN, 0};
      EXPECT_EQ(::poll(&entry, 1, 0), 0);
      waits.give();
      ready = ::poll(&entry, 1, 10'000);
      EXPECT_EQ(entry.revents, POLLIN);
    }
    EXPECT_EQ(ready, 1);
    EXPECT_EQ(receive(echo.fd, 5), "hello");
    EXPECT_EQ(wait_for(child), 0);
    EXPECT_EQ(echo.end(), 0);
  }
}

TEST(Turns, OneChildComesAfterTheOther) {
  Echo echo;
  for (unsigned i = 0; i < 3; ++i) {
    const pid_t child = spawn([&] { ask(echo.fd, pattern(10'000, i)); });
    EXPECT_EQ(wait_for(child), 0);
  }
  ask(echo.fd, "the parent");
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, AChildThatEndsByUnderscoreExitLeavesItToItsParent) {
  Echo echo;
  const pid_t child = ::fork();
  if (child == 0) {
    const bool sent = ::send(echo.fd, "child", 5, 0) == 5;
    ::_exit(sent ? 0 : 1);
  }
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(receive(echo.fd, 5), "child");
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, AChildThatEndsWhereItSeesNoProcLeavesItToItsParent) {
  if (::geteuid() != 0) GTEST_SKIP() << "chroot(2)";
  char folder[] = "/tmp/ringsock-turns-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  Echo echo;
  const pid_t child = ::fork();
  if (child == 0) {
    const bool sent = ::chroot(folder) == 0 && ::chdir("/") == 0 && ::send(echo.fd, "child", 5, 0) == 5;
    ::_exit(sent ? 0 : 1);
  }
  EXPECT_EQ(wait_for(child), 0);
  ::rmdir(folder);
  EXPECT_EQ(receive(echo.fd, 5), "child");
  ask(echo.fd, "parent");
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, GrandchildrenAskAcrossGenerations) {
  Echo echo;
  Signal used;
  Signal done;
  const pid_t child = spawn([&] {
    const pid_t grandchild = spawn([&] {
      used.wait();
      ask(echo.fd, "grandchild");
      done.give();
    });
    ask(echo.fd, "child");
    used.give();
    expect(wait_for(grandchild) == 0, "the grandchild had its answer");
  });
  done.wait();
  ask(echo.fd, "parent");
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(echo.end(), 0);
}

/// A program that writes "said echo" to the connection, after `wait()`.
template <class Wait>
pid_t start_program_on(int fd, Wait wait) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  wait();
  ::dup2(fd, STDOUT_FILENO);
  ::execlp("echo", "echo", "-n", "said echo", nullptr);
  ::_exit(127);
}

TEST(Turns, AProgramWritesAndItsParentReadsTheAnswer) {
  Echo echo;
  ask(echo.fd, "before");
  const pid_t child = start_program_on(echo.fd, [] {});
  EXPECT_EQ(receive(echo.fd, 9), "said echo");
  EXPECT_EQ(wait_for(child), 0);
  ask(echo.fd, "after");
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, AProgramWritesAfterItsParentHasBegunToUseTheConnection) {
  Echo echo;
  Signal used;
  const pid_t child = start_program_on(echo.fd, [&] { used.wait(); });
  ask(echo.fd, "parent");
  used.give();
  EXPECT_EQ(receive(echo.fd, 9), "said echo");
  EXPECT_EQ(wait_for(child), 0);
  ask(echo.fd, "after");
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, TheEndComesOnceAllHaveClosed) {
  Echo echo;
  Signal used;
  Signal use_again;
  const pid_t child = spawn([&] {
    ask(echo.fd, "child");
    used.give();
    use_again.wait();
    ask(echo.fd, "child again");
  });
  used.wait();
  ask(echo.fd, "parent");
  ::close(echo.fd);
  ::usleep(100'000);
  use_again.give();
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, NoDescriptorIsLeftBehind) {
  const auto next_number = [] {
    const int fd = ::open("/dev/null", O_RDONLY);
    ::close(fd);
    return fd;
  };
  const int before = next_number();
  for (int i = 0; i < 40; ++i) {
    Echo echo;
    EXPECT_EQ(wait_for(spawn([&] { ask(echo.fd, "child"); })), 0);
    ask(echo.fd, "parent");
    EXPECT_EQ(echo.end(), 0);
  }
  constexpr int kAwaitingTheirDestructor = 34;  // objects that calls may still be using
  EXPECT_LE(next_number(), before + kAwaitingTheirDestructor);
}

TEST(Turns, TwoConnectionsOfOneChildGoOnInTheParent) {
  Echo one;
  Echo two;
  const pid_t child = spawn([&] {
    ask(one.fd, "child, one");
    ask(two.fd, "child, two");
  });
  EXPECT_EQ(wait_for(child), 0);
  ask(two.fd, "parent, two");
  ask(one.fd, "parent, one");
  EXPECT_EQ(two.end(), 0);  // its peer has a copy of the other one
  EXPECT_EQ(one.end(), 0);
}

TEST(Turns, NobodyGoesOnWithAnOldCopyAfterTheUserHasForked) {
  Echo one;
  Echo two;
  Signal used;
  Signal asked;
  const pid_t child = spawn([&] {
    ask(one.fd, "child, one");
    ask(two.fd, "child, two");
    wait_for(spawn([] {}));
    used.give();
    asked.wait();
    ask(one.fd, "child, once more");
    ask(two.fd, "child, once more");
  });
  used.wait();
  ask(one.fd, "parent, one");
  ask(two.fd, "parent, two");
  asked.give();
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(two.end(), 0);  // its peer has a copy of the other one
  EXPECT_EQ(one.end(), 0);
}

TEST(Turns, AChildMayCloseTheConnectionBeforeItEnds) {
  Echo echo;
  const pid_t child = spawn([&] {
    ask(echo.fd, "child");
    ::close(echo.fd);
  });
  EXPECT_EQ(wait_for(child), 0);
  ask(echo.fd, "parent");
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, OptionsStay) {
  Echo echo;
  const timeval limit{0, 50'000};
  EXPECT_EQ(::setsockopt(echo.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  EXPECT_EQ(wait_for(spawn([&] { ask(echo.fd, "child"); })), 0);
  ask(echo.fd, "parent");
  char byte = 0;
  EXPECT_EQ(error_of(::recv(echo.fd, &byte, 1, 0)), EAGAIN);
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, ASenderThatSleepsSinceBeforeTheForkGoesOn) {
  const Listener listener = listen_anywhere();
  const std::string parents = pattern(8'000'000, 1);
  const std::string childs = pattern(4'000'000, 2);
  const pid_t reader = spawn([&] {
    const int fd = ::accept(listener.fd, nullptr, nullptr);
    ::close(listener.fd);
    ::usleep(300'000);
    expect(receive_all(fd).size() == parents.size() + childs.size(), "all of both");
  });
  const int fd = connect_to(listener.port);
  ::close(listener.fd);
  std::thread sender([&] { send_all(fd, parents); });
  ::usleep(100'000);
  const pid_t child = spawn([&] { send_all(fd, childs); });
  sender.join();
  EXPECT_EQ(wait_for(child), 0);
  ::close(fd);
  EXPECT_EQ(wait_for(reader), 0);
}

TEST(Turns, AKilledHolderKeepsNoConnectionOpen) {
  Echo echo;
  const pid_t holder = spawn([&] { ::pause(); });
  const pid_t child = spawn([&] { ask(echo.fd, "child"); });
  EXPECT_EQ(wait_for(child), 0);
  ask(echo.fd, "parent");
  ::kill(holder, SIGKILL);
  EXPECT_EQ(wait_for(holder), 128 + SIGKILL);
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, AfterAKilledUserTheOtherOneSeesAnError) {
  Echo echo;
  Signal used;
  const pid_t child = spawn([&] {
    ask(echo.fd, "child");
    used.give();
    ::pause();
  });
  used.wait();
  ::kill(child, SIGKILL);
  EXPECT_EQ(wait_for(child), 128 + SIGKILL);
  EXPECT_EQ(error_of(::send(echo.fd, "x", 1, MSG_NOSIGNAL)), EIO);
}

TEST(Turns, ANonblockingSocketStaysSo) {
  Echo echo;
  ::fcntl(echo.fd, F_SETFL, ::fcntl(echo.fd, F_GETFL) | O_NONBLOCK);
  Signal used;
  Signal done;
  const pid_t child = spawn([&] {
    send_all(echo.fd, "x");
    used.give();
    done.wait();
  });
  used.wait();
  char byte = 0;
  pollfd entry{echo.fd, POLLIN, 0};
  ssize_t got = -1;
  while (got < 0 && ::poll(&entry, 1, 10'000) == 1) {
    got = ::recv(echo.fd, &byte, 1, 0);
    ASSERT_TRUE(got >= 0 || errno == EAGAIN);
  }
  EXPECT_EQ(got, 1);
  EXPECT_EQ(error_of(::recv(echo.fd, &byte, 1, 0)), EAGAIN);
  done.give();
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(echo.end(), 0);
}

}  // namespace
}  // namespace ringsock::preloaded
