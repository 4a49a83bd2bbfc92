// Programs that are executed with a connection which another process of the family has used since the fork.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/preload/calls.h"
#include "tests/preload/preloaded.h"

extern char** environ;

namespace ringsock::preloaded {
namespace {

constexpr int kGiven = 9;

/// Executes a program that echoes on the connection under the number `fd`.
void become_echo(int fd) {
  const std::string number = std::to_string(fd);
  ::execlp("sh", "sh", "-c", ("exec cat <&" + number + " >&" + number).c_str(), nullptr);
}
void become_echo_on_a_duplicate(int fd) {
  ::dup2(fd, kGiven);
  become_echo(kGiven);
}

/// How the program gets the connection.
struct Way {
  const char* name;
  void (*become)(int fd);
};
constexpr Way kWays[] = {{"duplicate", become_echo_on_a_duplicate}, {"inherited", become_echo}};

class UsedBeforeExec : public testing::TestWithParam<Way> {};

/// A server that forks after the first word, and uses the connection once more. Its child executes the program when the
/// server has called `leaves`, which has its end of the connection. The server then waits for the program.
template <class Use, class Leave>
void serve_by_program(int client, Use use, Leave leaves) {
  expect(receive(client, 4) == "head", "the first word");
  Signal left;
  const pid_t program = spawn([&] {
    left.wait();
    UsedBeforeExec::GetParam().become(client);
  });
  use(client);
  leaves(left);
  ::_exit(wait_for(program));
}

TEST_P(UsedBeforeExec, TheProgramGetsAConnectionThatItsParentHasWrittenToAndClosed) {
  const Call call([](int client) {
    serve_by_program(
        client, [](int fd) { send_all(fd, "used"); },
        [&](Signal& left) {
          ::close(client);
          left.give();
        });
  });
  send_all(call.fd, "head");
  EXPECT_EQ(receive(call.fd, 4), "used");
  expect_echo(call.fd, 300'000);
  EXPECT_EQ(call.end(), 0);
}

TEST_P(UsedBeforeExec, TheProgramGoesOnWhereItsParentHasStoppedReading) {
  const Call call([](int client) {
    serve_by_program(
        client, [](int fd) { expect(receive(fd, 4) == "more", "the second word"); },
        [&](Signal& left) {
          ::close(client);
          left.give();
        });
  });
  send_all(call.fd, "head");
  send_all(call.fd, "more");
  expect_echo(call.fd, 300'000);
  EXPECT_EQ(call.end(), 0);
}

TEST_P(UsedBeforeExec, TheProgramGetsAConnectionOfAParentThatHasEnded) {
  Signal ended;
  const Call call([&](int client) {
    expect(receive(client, 4) == "head", "the first word");
    spawn([&] {
      ended.wait();
      UsedBeforeExec::GetParam().become(client);
    });
    send_all(client, "used");
    ::_exit(0);
  });
  send_all(call.fd, "head");
  EXPECT_EQ(receive(call.fd, 4), "used");
  EXPECT_EQ(wait_for(call.peer), 0);
  ended.give();
  expect_echo(call.fd, 300'000);
  ::close(call.fd);
}

TEST_P(UsedBeforeExec, TheProgramGetsAConnectionOfAParentThatWasKilled) {
  Signal used, ended;
  const Call call([&](int client) {
    expect(receive(client, 4) == "head", "the first word");
    spawn([&] {
      ended.wait();
      UsedBeforeExec::GetParam().become(client);
    });
    send_all(client, "used");
    used.give();
    ::pause();
  });
  send_all(call.fd, "head");
  EXPECT_EQ(receive(call.fd, 4), "used");
  used.wait();
  ::kill(call.peer, SIGKILL);
  EXPECT_EQ(wait_for(call.peer), 128 + SIGKILL);
  ended.give();
  expect_echo(call.fd, 300'000);
  ::close(call.fd);
}

TEST_P(UsedBeforeExec, TheProgramGetsAConnectionThatAForkedProcessHasUsed) {
  const Call call([](int client) {
    expect(receive(client, 4) == "head", "the first word");
    expect(wait_for(spawn([&] { send_all(client, "used"); })) == 0, "a child that answers and ends");
    UsedBeforeExec::GetParam().become(client);
  });
  send_all(call.fd, "head");
  EXPECT_EQ(receive(call.fd, 4), "used");
  expect_echo(call.fd, 300'000);
  EXPECT_EQ(call.end(), 0);
}

TEST_P(UsedBeforeExec, TheProgramWritesToAConnectionThatItsParentHasUsedAndGoesOnWith) {
  const Call call([](int client) {
    expect(receive(client, 4) == "head", "the first word");
    Signal used;
    const int number = std::string(GetParam().name) == "inherited" ? client : kGiven;
    const pid_t program = spawn([&] {
      used.wait();
      if (number != client) ::dup2(client, number);
      ::execlp("sh", "sh", "-c", ("echo program >&" + std::to_string(number)).c_str(), nullptr);
    });
    send_all(client, "used");
    used.give();
    expect(wait_for(program) == 0, "the program");
    expect(receive(client, 8) == "question", "the question");
    send_all(client, "answer");
  });
  send_all(call.fd, "head");
  EXPECT_EQ(receive(call.fd, 12), "usedprogram\n");
  send_all(call.fd, "question");
  EXPECT_EQ(receive_all(call.fd), "answer");
  EXPECT_EQ(call.end(), 0);
}

INSTANTIATE_TEST_SUITE_P(Ways, UsedBeforeExec, testing::ValuesIn(kWays),
                         [](const auto& way) { return std::string(way.param.name); });

/// Spawns a program that echoes on the connection under the number kGiven. Returns it, or -1.
pid_t spawn_echo(int fd) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, fd, kGiven);
  std::array<char*, 4> arguments{const_cast<char*>("sh"), const_cast<char*>("-c"),
                                 const_cast<char*>("exec cat <&9 >&9"), nullptr};
  pid_t program = -1;
  const int error = ::posix_spawn(&program, "/bin/sh", &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  expect(error == 0, "posix_spawn");
  return program;
}

TEST(UsedBeforeSpawn, TheProgramGetsAConnectionThatAForkedProcessGoesOnWith) {
  const Call call([](int client) {
    expect(receive(client, 4) == "head", "the first word");
    Signal used, spawned;
    const pid_t child = spawn([&] {
      send_all(client, "used");
      used.give();
      spawned.wait();
      send_all(client, "once more");
    });
    used.wait();
    const pid_t program = spawn_echo(client);
    spawned.give();
    expect(wait_for(child) == 0, "the child");
    ::close(client);
    expect(wait_for(program) == 0, "the program");
  });
  send_all(call.fd, "head");
  EXPECT_EQ(receive(call.fd, 13), "usedonce more");
  expect_echo(call.fd, 300'000);
  EXPECT_EQ(call.end(), 0);
}

/// A server with many connections, all of which its child has, too. The child executes a program for the one that the
/// server has closed. The others need no relay, and stay on their rings.
TEST(LeaksBeforeExec, AmongManyLeaksTheProgramGetsTheConnectionThatNobodyElseHas) {
  constexpr std::size_t kLeaks = 20;
  Ends given;
  std::vector<std::unique_ptr<Ends>> leaks;
  while (leaks.size() < kLeaks) leaks.push_back(std::make_unique<Ends>());
  Signal closed;
  const pid_t program = spawn([&] {
    for (const auto& one : leaks) ::close(one->peers);
    ::close(given.peers);
    closed.wait();
    become_echo(given.ours);
  });
  send_all(given.ours, "used");
  ::close(std::exchange(given.ours, -1));
  for (const auto& one : leaks) send_all(one->ours, "used");
  closed.give();
  EXPECT_EQ(receive(given.peers, 4), "used");
  expect_echo(given.peers, 100'000);
  EXPECT_EQ(wait_for(program), 0);
  for (const auto& one : leaks) {
    EXPECT_EQ(receive(one->peers, 4), "used");
    send_all(one->peers, "answer");
    EXPECT_EQ(receive(one->ours, 6), "answer");
    EXPECT_TRUE(is_on_ring(one->ours));
  }
}

}  // namespace
}  // namespace ringsock::preloaded
