// Programs that are spawned: posix_spawn(3), system(3), popen(3). They get the connections that they inherit, and those
// that file actions give them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>
#include <thread>

#include "tests/preload/calls.h"
#include "tests/preload/preloaded.h"

extern char** environ;

namespace ringsock::preloaded {
namespace {

/// A shell knows no numbers of two digits.
constexpr int kGiven = 9;
constexpr const char* kEcho = "exec cat <&9 >&9";

/// Has the connection under the number kGiven, which programs inherit, and no other number.
void keep_as_given(int client) {
  expect(::dup2(client, kGiven) == kGiven, "dup2");
  ::close(client);
}

/// File actions of posix_spawn(3).
struct Actions : posix_spawn_file_actions_t {
  Actions() : posix_spawn_file_actions_t{} { ::posix_spawn_file_actions_init(this); }
  Actions(const Actions&) = delete;
  Actions& operator=(const Actions&) = delete;
  ~Actions() { ::posix_spawn_file_actions_destroy(this); }
};

/// A shell that executes the command.
pid_t spawn_shell(const char* command, const posix_spawn_file_actions_t* actions = nullptr) {
  std::array<char*, 4> arguments{const_cast<char*>("sh"), const_cast<char*>("-c"), const_cast<char*>(command), nullptr};
  pid_t shell = -1;
  const int error = ::posix_spawn(&shell, "/bin/sh", actions, nullptr, arguments.data(), environ);
  expect(error == 0, "posix_spawn");
  return shell;
}

int run_by_posix_spawn(const char* command) { return wait_for(spawn_shell(command)); }
int run_by_posix_spawnp(const char* command) {
  std::array<char*, 4> arguments{const_cast<char*>("sh"), const_cast<char*>("-c"), const_cast<char*>(command), nullptr};
  pid_t shell = -1;
  expect(::posix_spawnp(&shell, "sh", nullptr, nullptr, arguments.data(), environ) == 0, "posix_spawnp");
  return wait_for(shell);
}
int exit_status(int status) {
  expect(status != -1 && WIFEXITED(status), "the shell has ended by itself");
  return WEXITSTATUS(status);
}
int run_by_system(const char* command) { return exit_status(::system(command)); }
int run_by_popen(const char* command, const char* mode) {
  FILE* const stream = ::popen(command, mode);
  expect(stream != nullptr, "popen");
  return exit_status(::pclose(stream));
}
int run_by_popen_to_read(const char* command) { return run_by_popen(command, "r"); }
int run_by_popen_to_write(const char* command) { return run_by_popen(command, "we"); }

/// A function that has a shell execute a command. Returns the shell's exit status once it has ended.
struct Function {
  const char* name;
  int (*run)(const char* command);
};
constexpr Function kFunctions[] = {{"posix_spawn", run_by_posix_spawn},
                                   {"posix_spawnp", run_by_posix_spawnp},
                                   {"system", run_by_system},
                                   {"popen_to_read", run_by_popen_to_read},
                                   {"popen_to_write", run_by_popen_to_write}};

class Inherited : public testing::TestWithParam<Function> {};
INSTANTIATE_TEST_SUITE_P(Spawn, Inherited, testing::ValuesIn(kFunctions),
                         [](const auto& about) { return std::string(about.param.name); });

TEST_P(Inherited, AConnectionIsTheProgramsAsItIs) {
  const Call call([](int client) {
    keep_as_given(client);
    ::_exit(GetParam().run(kEcho));
  });
  expect_echo(call.fd, 300'000);
  EXPECT_EQ(call.end(), 0);
}

TEST_P(Inherited, TheProgramAndThenItsParentUseAConnectionThatItsParentHasUsed) {
  const Call call([](int client) {
    keep_as_given(client);
    send_all(kGiven, "before ");
    expect(receive(kGiven, 5) == "first", "the parent reads first");
    expect(GetParam().run("head -c 6 <&9; echo program >&9") == 0, "the program has the connection");
    send_all(kGiven, "after");
  });
  send_all(call.fd, "firstsecond");
  EXPECT_EQ(receive_all(call.fd), "before program\nafter");
  EXPECT_EQ(call.end(), 0);
}

TEST_P(Inherited, AProgramThatDoesNotUseItLeavesItToItsParent) {
  const Call call([](int client) {
    keep_as_given(client);
    for (int i = 0; i < 5; ++i) {
      expect(receive(kGiven, 3) == "go ", "the parent reads");
      expect(GetParam().run("exit 7") == 7, "the status");
      send_all(kGiven, "done ");
    }
    echo(kGiven);
  });
  for (int i = 0; i < 5; ++i) {
    send_all(call.fd, "go ");
    EXPECT_EQ(receive(call.fd, 5), "done ");
  }
  expect_echo(call.fd, 300'000);
  EXPECT_EQ(call.end(), 0);
}

TEST_P(Inherited, NoProgramGetsAConnectionThatIsCloseOnExec) {
  const Call call([](int client) {
    expect(::dup3(client, kGiven, O_CLOEXEC) == kGiven, "dup3");
    expect(GetParam().run("echo mistaken 2>/dev/null >&9") != 0, "the program has no descriptor 9");
    send_all(kGiven, "right");
  });
  EXPECT_EQ(receive_all(call.fd), "right");
  EXPECT_EQ(call.end(), 0);
}

TEST_P(Inherited, ManyConnectionsLookLikeLeaksAndHinderNoProgram) {
  constexpr int kMany = 20;
  const Listener listener = listen_anywhere();
  const pid_t server = spawn([&] {
    std::deque<int> clients;
    for (int i = 0; i < kMany; ++i) clients.push_back(::accept(listener.fd, nullptr, nullptr));
    expect(GetParam().run("exit 5") == 5, "the status");
    for (const int client : clients) send_all(client, "still here");
  });
  std::deque<int> clients;
  for (int i = 0; i < kMany; ++i) clients.push_back(connect_to(listener.port));
  ::close(listener.fd);
  for (const int client : clients) {
    EXPECT_EQ(receive_all(client), "still here");
    ::close(client);
  }
  EXPECT_EQ(wait_for(server), 0);
}

TEST(Spawn, AProgramGoesOnWithAConnectionOfAParentThatHasEnded) {
  const Call call([](int client) {
    keep_as_given(client);
    spawn_shell(kEcho);
    ::_exit(0);
  });
  EXPECT_EQ(wait_for(call.peer), 0);
  expect_echo(call.fd, 300'000);
  ::close(call.fd);
}

TEST(Spawn, AProgramGoesOnWithAConnectionThatItsParentHasClosed) {
  const Call call([](int client) {
    keep_as_given(client);
    const pid_t program = spawn_shell(kEcho);
    ::close(kGiven);
    ::_exit(wait_for(program));
  });
  expect_echo(call.fd, 300'000);
  EXPECT_EQ(call.end(), 0);
}

TEST(Spawn, TheEndOfAProgramThatNeverUsedItIsNoEndOfTheConnection) {
  Signal ended;
  const Call call([&](int client) {
    keep_as_given(client);
    expect(wait_for(spawn_shell("exit 0")) == 0, "the program");
    ended.give();
    echo(kGiven);
  });
  ended.wait();
  pollfd entry{call.fd, POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 300), 0) << entry.revents;
  expect_echo(call.fd, 100'000);
  EXPECT_EQ(call.end(), 0);
}

TEST(Spawn, AProgramThatIsNotThereTakesNothingAlong) {
  const Call call([](int client) {
    keep_as_given(client);
    std::array<char*, 2> arguments{const_cast<char*>("x"), nullptr};
    pid_t program = -1;
    const int error = ::posix_spawn(&program, "/no/such/program", nullptr, nullptr, arguments.data(), environ);
    expect(error == ENOENT, "ENOENT");
    expect(::waitpid(-1, nullptr, 0) == -1 && errno == ECHILD, "no child is left");
    echo(kGiven);
  });
  expect_echo(call.fd, 100'000);
  EXPECT_EQ(call.end(), 0);
}

// -- file actions

/// How a program loses the number kGiven of the connection.
struct Loss {
  const char* name;
  void (*add_to)(Actions& actions);
};
constexpr Loss kLosses[] = {
    {"close", [](Actions& actions) { ::posix_spawn_file_actions_addclose(&actions, kGiven); }},
    {"open", [](Actions& actions) { ::posix_spawn_file_actions_addopen(&actions, kGiven, "/dev/null", O_RDWR, 0); }},
    {"closefrom", [](Actions& actions) { ::posix_spawn_file_actions_addclosefrom_np(&actions, 3); }},
    {"dup2",
     [](Actions& actions) {
       const int other = ::open("/dev/null", O_RDWR | O_CLOEXEC);
       ::posix_spawn_file_actions_adddup2(&actions, other, kGiven);
     }},
};

class ActionsThatReplace : public testing::TestWithParam<Loss> {};
INSTANTIATE_TEST_SUITE_P(Spawn, ActionsThatReplace, testing::ValuesIn(kLosses),
                         [](const auto& about) { return std::string(about.param.name); });

TEST_P(ActionsThatReplace, LeaveTheConnectionToTheParent) {
  const Call call([](int client) {
    keep_as_given(client);
    Actions actions;
    GetParam().add_to(actions);
    wait_for(spawn_shell("exec 2>/dev/null; echo mistaken >&9", &actions));
    echo(kGiven);
  });
  expect_echo(call.fd, 100'000);
  EXPECT_EQ(call.end(), 0);
}

TEST(SpawnActions, AnActionBeforeTheLossGivesTheProgramTheConnection) {
  const Call call([](int client) {
    keep_as_given(client);
    Actions actions;
    ::posix_spawn_file_actions_adddup2(&actions, kGiven, STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, kGiven, STDOUT_FILENO);
    ::posix_spawn_file_actions_addclosefrom_np(&actions, 3);
    ::_exit(wait_for(spawn_shell("exec cat", &actions)));
  });
  expect_echo(call.fd, 300'000);
  EXPECT_EQ(call.end(), 0);
}

TEST(SpawnActions, ADuplicateOfANumberThatIsAnotherFileByThenIsThatFile) {
  const Call call([](int client) {
    keep_as_given(client);
    Actions actions;
    ::posix_spawn_file_actions_addopen(&actions, kGiven, "/dev/null", O_RDWR, 0);
    ::posix_spawn_file_actions_adddup2(&actions, kGiven, STDOUT_FILENO);
    expect(wait_for(spawn_shell("echo mistaken", &actions)) == 0, "the program");
    echo(kGiven);
  });
  expect_echo(call.fd, 100'000);
  EXPECT_EQ(call.end(), 0);
}

/// posix_spawn_file_actions_adddup2(3): equal numbers end close-on-exec.
TEST(SpawnActions, ADuplicateOntoItselfIsInherited) {
  const Call call([](int client) {
    expect(::dup3(client, kGiven, O_CLOEXEC) == kGiven, "dup3");
    ::close(client);
    Actions actions;
    ::posix_spawn_file_actions_adddup2(&actions, kGiven, kGiven);
    ::_exit(wait_for(spawn_shell(kEcho, &actions)));
  });
  expect_echo(call.fd, 300'000);
  EXPECT_EQ(call.end(), 0);
}

TEST(SpawnActions, AreCarriedOutBesidesAConnectionThatTheyDoNotName) {
  const Call call([](int client) {
    keep_as_given(client);
    std::array<int, 2> pipe{};
    expect(::pipe2(pipe.data(), O_CLOEXEC) == 0, "pipe2");
    Actions actions;
    ::posix_spawn_file_actions_adddup2(&actions, pipe[1], STDOUT_FILENO);
    ::posix_spawn_file_actions_addopen(&actions, 8, "status", O_RDONLY, 0);  // of the directory before
    ::posix_spawn_file_actions_addchdir_np(&actions, "/usr");
    expect(::chdir("/proc/self") == 0, "chdir");
    const pid_t program = spawn_shell("pwd; head -c 5 <&8; exec cat <&9 >&9", &actions);
    ::close(pipe[1]);
    FILE* const output = ::fdopen(pipe[0], "r");
    std::array<char, 11> text{};
    expect(std::fread(text.data(), 1, 10, output) == 10, "the program's output");
    expect(std::string(text.data()) == "/usr\nName:", "the directory, and the file");
    ::_exit(wait_for(program));
  });
  expect_echo(call.fd, 300'000);
  EXPECT_EQ(call.end(), 0);
}

TEST(SpawnActions, ServeSeveralProgramsAndAreForgottenWithTheirObject) {
  const Call call([](int client) {
    keep_as_given(client);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addclose(&actions, kGiven);
    for (int i = 0; i < 2; ++i)
      expect(wait_for(spawn_shell("exec 2>/dev/null; echo mistaken >&9", &actions)) != 0, "closed");
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawn_file_actions_init(&actions);
    for (int i = 0; i < 2; ++i) expect(wait_for(spawn_shell("echo once >&9", &actions)) == 0, "inherited");
    ::posix_spawn_file_actions_destroy(&actions);
  });
  EXPECT_EQ(receive_all(call.fd), "once\nonce\n");
  EXPECT_EQ(call.end(), 0);
}

// -- system(3)

TEST(System, TheShellDoesNotIgnoreTheSignalsThatItsParentIgnoresMeanwhile) {
  const Call call([](int client) {
    keep_as_given(client);
    expect(exit_status(::system("kill -INT $PPID; kill -QUIT $PPID; echo alive >&9")) == 0, "the parent lives");
    const int status = ::system("kill -INT $$");
    expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT, "a shell that was interrupted");
    send_all(kGiven, "on");
    ::raise(SIGINT);
  });
  EXPECT_EQ(receive_all(call.fd), "alive\non");
  EXPECT_EQ(call.end(), 128 + SIGINT);
}

TEST(System, AThreadThatIsCancelledEndsItsShell) {
  Signal started;
  const Call call([&](int client) {
    keep_as_given(client);
    std::thread runs([] { [[maybe_unused]] const int never = ::system(kEcho); });
    started.wait();
    ::pthread_cancel(runs.native_handle());
    runs.join();
    expect(::waitpid(-1, nullptr, 0) == -1 && errno == ECHILD, "no child is left");
    send_all(kGiven, "mine");
  });
  send_all(call.fd, "echo");
  EXPECT_EQ(receive(call.fd, 4), "echo");
  started.give();
  EXPECT_EQ(receive_all(call.fd), "mine");
  EXPECT_EQ(call.end(), 0);
}

// -- popen(3)

TEST(Popen, ALineGoesFromTheProgramsConnectionToItsOutputAndBack) {
  const Call call([](int client) {
    keep_as_given(client);
    FILE* const from = ::popen("head -c 9 <&9", "r");
    std::array<char, 100> line{};
    expect(from != nullptr && std::fgets(line.data(), line.size(), from) != nullptr, "a line");
    expect(exit_status(::pclose(from)) == 0, "the program");
    FILE* const into = ::popen("cat >&9; exit 3", "w");
    expect(into != nullptr && std::fputs(line.data(), into) >= 0, "the line");
    expect(exit_status(::pclose(into)) == 3, "the program's status");
  });
  send_all(call.fd, "question\n");
  EXPECT_EQ(receive_all(call.fd), "question\n");
  EXPECT_EQ(call.end(), 0);
}

TEST(Popen, StreamsThatAreOpenAtOnceEndOneByOne) {
  const Call call([](int client) {
    keep_as_given(client);
    FILE* const first = ::popen("cat; echo first >&9", "w");
    FILE* const second = ::popen("cat; echo second >&9", "w");
    expect(first != nullptr && second != nullptr, "popen");
    expect(exit_status(::pclose(first)) == 0, "the first does not wait for the second");
    expect(exit_status(::pclose(second)) == 0, "the second");
    expect(::popen("true", "x") == nullptr && errno == EINVAL, "EINVAL");
  });
  EXPECT_EQ(receive_all(call.fd), "first\nsecond\n");
  EXPECT_EQ(call.end(), 0);
}

}  // namespace
}  // namespace ringsock::preloaded
