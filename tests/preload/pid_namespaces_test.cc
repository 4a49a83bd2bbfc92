// Processes of several PID namespaces share sockets by fork(2). The same number may mean two of them, and none can ask
// whether a process of another namespace lives.
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <string>

#include "tests/preload/calls.h"
#include "tests/preload/preloaded.h"
#include "tests/support/sanitizers.h"

namespace ringsock::preloaded {
namespace {

/// A child that runs `body` as the first process of a PID namespace. Its status is that of a process between. The child
/// ends with that one.
pid_t spawn_in_namespace(const std::function<void()>& body) {
  return spawn([&] {
    expect(::unshare(CLONE_NEWPID) == 0, "unshare");
    const pid_t inside = spawn([&] {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      expect(::getpid() == 1, "the first process");
      body();
    });
    const int status = wait_for(inside);
    if (status != 0) ::_exit(status);
  });
}

class PidNamespaces : public testing::Test {
  void SetUp() override {
    if (!support::kForksWhileThreadsAllocate) GTEST_SKIP() << "this sanitizer may look for leaks in the child";
    if (wait_for(spawn_in_namespace([] {})) != 0) GTEST_SKIP() << "no PID namespace can be made";
  }
};

TEST_F(PidNamespaces, AParentGoesOnAfterAChildThatHasEnded) {
  Echo echo;
  const pid_t child = spawn_in_namespace([&] { ask(echo.fd, "by the child"); });
  EXPECT_EQ(wait_for(child), 0);
  ask(echo.fd, "by the parent");
  EXPECT_EQ(echo.end(), 0);
}

TEST_F(PidNamespaces, AParentGoesOnAfterAChildThatWasKilled) {
  Echo echo;
  have_user_killed(echo.fd, [](const auto& body) { return spawn_in_namespace(body); });
  ask(echo.fd, "by the parent");
  EXPECT_EQ(echo.end(), 0);
}

TEST_F(PidNamespaces, ParentAndChildTakeTurns) {
  Echo echo;
  ask(echo.fd, "before");
  Signal childs_turn, parents_turn;
  const pid_t child = spawn_in_namespace([&] {
    for (int turn = 0; turn < 3; ++turn) {
      childs_turn.wait();
      ask(echo.fd, "by the child");
      parents_turn.give();
    }
  });
  for (int turn = 0; turn < 3; ++turn) {
    ask(echo.fd, "by the parent");
    childs_turn.give();
    parents_turn.wait();
  }
  EXPECT_EQ(wait_for(child), 0);
  ask(echo.fd, "by the parent, alone");
  EXPECT_EQ(echo.end(), 0);
}

TEST_F(PidNamespaces, TwoChildrenOfTheSameNumberTakeTurns) {
  Echo echo;
  Signal first_turn, second_turn;
  const pid_t first = spawn_in_namespace([&] {
    ask(echo.fd, "by the first");
    first_turn.give();
    second_turn.wait();
    ask(echo.fd, "by the first again");
  });
  const pid_t second = spawn_in_namespace([&] {
    first_turn.wait();
    ask(echo.fd, "by the second");
    second_turn.give();
  });
  EXPECT_EQ(wait_for(first), 0);
  EXPECT_EQ(wait_for(second), 0);
  EXPECT_EQ(echo.end(), 0);
}

TEST_F(PidNamespaces, EachClientOfWorkersIsAcceptedOnce) {
  constexpr int kClients = 20;
  const Listener listener = listen_anywhere();
  int accepted[2];
  ASSERT_EQ(::pipe(accepted), 0);
  pid_t workers[3];
  for (pid_t& worker : workers) {
    worker = spawn_in_namespace([&] {
      for (;;) {
        const int client = ::accept(listener.fd, nullptr, nullptr);
        const std::string question = receive(client, 3);
        expect(::write(accepted[1], question == "who" ? "+" : "-", 1) == 1, "write");
        if (question == "who") send_all(client, question);
        ::close(client);
      }
    });
  }
  for (int i = 0; i < kClients; ++i) {
    const int client = connect_to(listener.port);
    ask(client, "who");
    EXPECT_EQ(receive_all(client), "");
    ::close(client);
  }
  // What else was accepted comes before the last client, or is being accepted.
  for (const pid_t worker : workers) {
    ::kill(worker, SIGKILL);
    wait_for(worker);
  }
  ::close(accepted[1]);
  std::string all;
  char one = 0;
  while (::read(accepted[0], &one, 1) == 1) all += one;
  EXPECT_EQ(all, std::string(kClients, '+'));
  ::close(accepted[0]);
  ::close(listener.fd);
}

}  // namespace
}  // namespace ringsock::preloaded
