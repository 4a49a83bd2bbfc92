// The library's own processes and a program that waits for its children: the program finds its children only.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "tests/preload/calls.h"
#include "tests/preload/preloaded.h"
#include "tests/support/thread_status.h"

namespace ringsock::preloaded {
namespace {

/// One way to wait for the next child. Returns its number, 0 with WNOHANG when none has ended, or -1 and errno.
using Wait = pid_t (*)(int options);

pid_t by_wait(int options) { return options == 0 ? ::wait(nullptr) : ::waitpid(-1, nullptr, options); }
pid_t by_waitpid_group(int options) { return ::waitpid(0, nullptr, options); }
pid_t by_waitpid_minus_group(int options) { return ::waitpid(-::getpgrp(), nullptr, options); }
pid_t by_wait3(int options) {
  rusage usage{};
  return ::wait3(nullptr, options, &usage);
}
pid_t by_wait4(int options) {
  rusage usage{};
  return ::wait4(-1, nullptr, options, &usage);
}
pid_t child_of(int result, const siginfo_t& news) { return result == 0 ? news.si_pid : -1; }
pid_t by_waitid(int options) {
  siginfo_t news{};
  return child_of(::waitid(P_ALL, 0, &news, WEXITED | options), news);
}
pid_t by_waitid_group(int options) {
  siginfo_t news{};
  return child_of(::waitid(P_PGID, static_cast<id_t>(::getpgrp()), &news, WEXITED | options), news);
}
pid_t by_system_call_wait4(int options) {
  return static_cast<pid_t>(::syscall(SYS_wait4, -1, nullptr, options, nullptr));
}
pid_t by_system_call_waitid(int options) {
  siginfo_t news{};
  return child_of(static_cast<int>(::syscall(SYS_waitid, P_ALL, 0, &news, WEXITED | options, nullptr)), news);
}

struct Way {
  const char* name;
  Wait wait;
};
constexpr Way kWays[] = {{"wait", by_wait},
                         {"waitpid0", by_waitpid_group},
                         {"waitpidGroup", by_waitpid_minus_group},
                         {"wait3", by_wait3},
                         {"wait4", by_wait4},
                         {"waitid", by_waitid},
                         {"waitidGroup", by_waitid_group},
                         {"syscallWait4", by_system_call_wait4},
                         {"syscallWaitid", by_system_call_waitid}};

/// Makes this process a subreaper that ends by SIGALRM when a wait hangs.
void become_subreaper() {
  expect(::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0, "PR_SET_CHILD_SUBREAPER");
  ::alarm(60);
}

/// Both processes use the connection while both live, so that it has a relay, which the child makes. The child ends.
pid_t use_with_child(int fd) {
  Signal used;
  Signal end;
  const pid_t child = spawn([&] {
    send_all(fd, "child");
    expect(receive(fd, 5) == "child", "the child's echo");
    used.give();
    end.wait();
  });
  used.wait();
  send_all(fd, "parent");
  expect(receive(fd, 6) == "parent", "the parent's echo");
  expect(!is_on_ring(fd), "the connection has a relay");
  end.give();
  siginfo_t news{};
  expect(::waitid(P_PID, static_cast<id_t>(child), &news, WEXITED | WNOWAIT) == 0, "the child's end");
  return child;
}

/// A program that is run with the number of a port, where it finds an echo.
template <class Program>
int run_with_echo(Program program) {
  const Listener listener = listen_anywhere();
  const pid_t process = spawn([&] {
    ::close(listener.fd);
    program(connect_to(listener.port));
  });
  const int client = ::accept(listener.fd, nullptr, nullptr);
  ::close(listener.fd);
  echo(client);
  ::close(client);
  return wait_for(process);
}

class Children : public ::testing::TestWithParam<Way> {};

TEST_P(Children, OfASubreaperAreFoundAndTheRelayIsNot) {
  EXPECT_EQ(run_with_echo([wait = GetParam().wait](int fd) {
              become_subreaper();
              const pid_t child = use_with_child(fd);
              expect(wait(0) == child, "the child is found");
              expect(wait(0) == -1 && errno == ECHILD, "no other child");
              expect(wait(WNOHANG) == -1 && errno == ECHILD, "no other child without sleep");
              Signal end;
              const pid_t later = spawn([&] { end.wait(); });
              expect(wait(WNOHANG) == 0, "a child that has not ended");
              end.give();
              expect(wait(0) == later, "a child that ends beside the relay");
              send_all(fd, "still here");
              expect(receive(fd, 10) == "still here", "the connection goes on");
            }),
            0);
}

TEST_P(Children, OfASubreaperAreFoundBesideARelayThatHasEnded) {
  EXPECT_EQ(run_with_echo([wait = GetParam().wait](int fd) {
              become_subreaper();
              const pid_t child = use_with_child(fd);
              expect(wait(0) == child, "the child is found");
              Signal end;
              const pid_t later = spawn([&, fd] {
                ::close(fd);
                end.wait();
              });
              const pid_t last = spawn([&, fd] {
                // The end of the stream comes by the relay, which then ends, too.
                expect(receive_all(fd).empty(), "the end");
                end.give();
              });
              ::shutdown(fd, SHUT_WR);
              ::close(fd);
              std::set<pid_t> found{wait(0), wait(0)};
              expect(found == std::set<pid_t>{later, last}, "two children");
              expect(wait(0) == -1 && errno == ECHILD, "no other child");
            }),
            0);
}

INSTANTIATE_TEST_SUITE_P(Calls, Children, ::testing::ValuesIn(kWays),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

TEST(ChildrenThatAreForgotten, LeaveASubreaperWithoutChildrenThoughARelayRuns) {
  EXPECT_EQ(run_with_echo([](int fd) {
              become_subreaper();
              expect(::waitpid(use_with_child(fd), nullptr, 0) > 0, "the child is found");
              ::signal(SIGCHLD, SIG_IGN);
              for (int i = 0; i < 3; ++i) spawn([] {});
              expect(::wait(nullptr) == -1 && errno == ECHILD, "wait() returns when all children have ended");
            }),
            0);
}

/// A relay that cannot be made because a number has just been closed is made again, also where the kernel does not say
/// how the library's child has ended.
TEST(ChildrenThatAreForgotten, ShareAConnectionWhoseNumbersAreClosedMeanwhile) {
  for (int round = 0; round < 20; ++round) {
    ASSERT_EQ(run_with_echo([](int fd) {
                ::signal(SIGCHLD, SIG_IGN);
                ::alarm(60);
                Signal begin, used;
                spawn([&, fd] {
                  begin.wait();
                  ask(fd, "child");
                  used.give();
                });
                std::vector<int> numbers{fd};
                while (numbers.size() < 20) numbers.push_back(::dup(fd));
                const int last = ::dup(fd);
                ask(last, "parent");  // so the child asks the parent for the connection
                begin.give();
                for (const int number : numbers) {
                  ::usleep(200);
                  ::close(number);
                }
                used.wait();
                ask(last, "again");
              }),
              0)
        << "round " << round;
  }
}

/// The kernel wakes no thread when another one takes a child: there is still the relay.
TEST(ChildrenOfThreads, OfASubreaperEndForAllThreadsThoughARelayRuns) {
  for (const Way& way : {kWays[0], kWays[5]}) {
    EXPECT_EQ(run_with_echo([wait = way.wait](int fd) {
                become_subreaper();
                const pid_t child = use_with_child(fd);
                expect(wait(0) == child, "the child is found");
                Signal end;
                const pid_t last = spawn([&] { end.wait(); });
                constexpr std::size_t kThreads = 4;
                std::array<pid_t, kThreads> found{};
                std::array<int, kThreads> errors{};
                std::array<std::atomic<pid_t>, kThreads> ids{};
                std::vector<std::thread> threads;
                for (std::size_t i = 0; i < kThreads; ++i) {
                  threads.emplace_back([&, i] {
                    ids[i] = ::gettid();
                    found[i] = wait(0);
                    errors[i] = errno;
                  });
                }
                for (auto& id : ids) {
                  while (id == 0) std::this_thread::yield();
                  support::falls_asleep(id);
                }
                end.give();
                for (auto& thread : threads) thread.join();
                expect(std::count(found.begin(), found.end(), last) == 1, "one thread finds the child");
                expect(std::count(found.begin(), found.end(), -1) == kThreads - 1, "the others have no child");
                expect(std::count(errors.begin(), errors.end(), ECHILD) == kThreads - 1, "ECHILD");
              }),
              0);
  }
}

TEST(ChildrenOfThreads, AreFoundWhileAnotherThreadMakesARelay) {
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(run_with_echo([](int fd) {
                ::alarm(60);
                send_all(fd, "parent");
                expect(receive(fd, 6) == "parent", "the parent's echo");
                Signal begin, used, end;
                const pid_t child = spawn([&, fd] {
                  begin.wait();
                  send_all(fd, "child");
                  expect(receive(fd, 5) == "child", "the child's echo");
                  used.give();
                  end.wait();
                });
                send_all(fd, "again!");
                expect(receive(fd, 6) == "again!", "the parent's second echo");
                pid_t found = 0;
                // A loop meets the moment in which the library's child has ended more often than a sleep does.
                std::thread waiter([&] {
                  while ((found = ::waitpid(-1, nullptr, WNOHANG)) == 0) std::this_thread::yield();
                });
                // The parent used the connection last, so a thread of the parent makes the relay.
                begin.give();
                used.wait();
                end.give();
                waiter.join();
                expect(found == child, "the thread finds the child");
              }),
              0);
  }
}

}  // namespace
}  // namespace ringsock::preloaded
