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

void ask(int fd, const std::string& question) {
  send_all(fd, question);
  expect(receive(fd, question.size()) == question, "the answer is the question");
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
