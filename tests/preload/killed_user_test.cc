// Children that are killed soon after they have touched a connection of their parent's: the parent goes on, as with the
// kernel's sockets, where the other end has seen nothing of the child.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>

#include "tests/preload/calls.h"
#include "tests/preload/preloaded.h"
#include "tests/support/sanitizers.h"

namespace ringsock::preloaded {
namespace {

[[maybe_unused]] const ::testing::Environment* const may_fork = ::testing::AddGlobalTestEnvironment(new MayFork);

/// Kills a child at different moments of what it does, and goes on with the connection each time.
/// @param use  what the child does with the connection; it need not return
template <class Use>
void go_on_after_kills(Use use) {
  constexpr int kMoments = 40;
  constexpr useconds_t kBetweenMoments = 400;
  Echo echo;
  ask(echo.fd, "before");
  for (unsigned moment = 0; moment < kMoments; ++moment) {
    Signal begins;
    const pid_t child = spawn([&] {
      begins.give();
      use(echo.fd);
      ::pause();
    });
    begins.wait();
    ::usleep(moment * kBetweenMoments);  // the moment is what the rounds differ in
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    ask(echo.fd, pattern(1000, moment));
    ASSERT_FALSE(::testing::Test::HasFailure()) << "moment " << moment;
  }
  EXPECT_EQ(echo.end(), 0);
}

TEST(KilledUser, WaitedForEvents) {
  go_on_after_kills([](int fd) {
    const int set = ::epoll_create1(0);
    epoll_event event{EPOLLIN, {}};
    ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    ::epoll_wait(set, &event, 1, -1);
  });
}

TEST(KilledUser, WaitedInPoll) {
  go_on_after_kills([](int fd) {
    pollfd entry{fd, POLLIN, 0};
    ::poll(&entry, 1, -1);
  });
}

TEST(KilledUser, WaitedInSelect) {
  go_on_after_kills([](int fd) {
    fd_set wanted;
    FD_ZERO(&wanted);
    FD_SET(fd, &wanted);
    ::select(fd + 1, &wanted, nullptr, nullptr, nullptr);
  });
}

TEST(KilledUser, WaitedForBytes) {
  go_on_after_kills([](int fd) {
    char byte = 0;
    ::recv(fd, &byte, 1, 0);
  });
}

/// The child has the connection, and is killed while its parent wants it, too.
TEST(KilledUser, WasBeingAskedForIt) {
  constexpr unsigned kMoments = 40;
  constexpr useconds_t kBetweenMoments = 100;
  for (unsigned moment = 0; moment < kMoments; ++moment) {
    Echo echo;
    Signal waits;
    const pid_t child = spawn([&] {
      ask(echo.fd, "child");
      waits.give();
      char byte = 0;
      ::recv(echo.fd, &byte, 1, 0);
    });
    waits.wait();
    const pid_t killer = ::fork();
    if (killer == 0) {
      ::close(echo.fd);
      ::usleep(moment * kBetweenMoments);  // the moment is what the rounds differ in
      ::kill(child, SIGKILL);
      ::_exit(0);
    }
    send_all(echo.fd, "parent");
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    ASSERT_EQ(wait_for(killer), 0);
    ::shutdown(echo.fd, SHUT_WR);
    EXPECT_TRUE(std::string("parent").ends_with(receive_all(echo.fd))) << "the child may have read some";
    ASSERT_FALSE(::testing::Test::HasFailure()) << "moment " << moment;
    EXPECT_EQ(echo.end(), 0);
  }
}

/// The same in the middle of calls that take nothing: the state that it has saved is still that of the connection.
TEST(KilledUser, WasPeekingWhenItWasAskedForIt) {
  constexpr unsigned kMoments = 60;
  constexpr useconds_t kBetweenMoments = 50;
  for (unsigned moment = 0; moment < kMoments; ++moment) {
    Echo echo;
    ask(echo.fd, "before");
    Signal peeks;
    const pid_t child = spawn([&] {
      char byte = 0;
      for (int call = 0;; ++call) {
        ::recv(echo.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (call == 100) peeks.give();
      }
    });
    peeks.wait();
    std::thread killer([&] {
      ::usleep(moment * kBetweenMoments);  // the moment is what the rounds differ in
      ::kill(child, SIGKILL);
    });
    ask(echo.fd, "by the parent");
    killer.join();
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    ASSERT_FALSE(::testing::Test::HasFailure()) << "moment " << moment;
    EXPECT_EQ(echo.end(), 0);
  }
}

/// A process lives on after the end of its first thread, though it looks like a zombie.
TEST(LivingUser, HasOnlyEndedItsFirstThread) {
  if (!support::kForksWhileThreadsAllocate) GTEST_SKIP() << "the child starts a thread";
  constexpr long kChilds = 3000;
  constexpr long kParents = 1000;
  for (int round = 0; round < 10; ++round) {
    const Call call([&](int fd) {
      const std::string all = receive_all(fd);
      expect(std::count(all.begin(), all.end(), 'c') == kChilds, "all of the child's bytes");
      expect(std::count(all.begin(), all.end(), 'p') == kParents, "all of the parent's bytes");
    });
    const pid_t child = ::fork();
    if (child == 0) {
      std::thread([&] {
        for (long i = 0; i < kChilds; ++i) {
          if (::send(call.fd, "c", 1, MSG_NOSIGNAL) != 1) ::_exit(1);
        }
        ::_exit(0);
      }).detach();
      ::syscall(SYS_exit, 0);  // as pthread_exit(3), which the test framework would catch
    }
    for (long i = 0; i < kParents; ++i) ASSERT_EQ(::send(call.fd, "p", 1, MSG_NOSIGNAL), 1) << std::strerror(errno);
    ASSERT_EQ(wait_for(child), 0);
    ::shutdown(call.fd, SHUT_WR);
    ASSERT_EQ(wait_for(call.peer), 0) << "round " << round;
  }
}

/// More children than the processes' record has places for are killed. The relay of the two that are left must not take
/// any of them for one that lives.
TEST(KilledUser, ManyOfThemDoNotKeepTheConnectionOpen) {
  constexpr int kChildren = 20;
  Echo echo;
  for (int i = 0; i < kChildren; ++i) {
    Signal lives;
    const pid_t child = spawn([&] {
      lives.give();
      ::pause();
    });
    lives.wait();
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  }
  ask(echo.fd, "by the parent");
  Signal used;
  const pid_t child = spawn([&] {
    ask(echo.fd, "by a child");
    used.give();
    ::pause();
  });
  used.wait();
  ask(echo.fd, "by the parent again");
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(echo.end(), 0);
}

}  // namespace
}  // namespace ringsock::preloaded
