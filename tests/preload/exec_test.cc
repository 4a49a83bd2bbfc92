// Connections that go on in another program: kept over exec(2), given to a spawned one, sent to another process.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <functional>
#include <thread>

#include "tests/preload/calls.h"
#include "tests/preload/preloaded.h"
#include "tests/support/passed_descriptor.h"
#include "tests/support/thread_status.h"

extern char** environ;

namespace ringsock::preloaded {
namespace {

void become_standard_streams(int fd) {
  ::dup2(fd, STDIN_FILENO);
  ::dup2(fd, STDOUT_FILENO);
  ::close(fd);
}

TEST(Exec, AnInetdStyleServerRunsAProgramOnTheConnection) {
  const Call call([](int client) {
    become_standard_streams(client);
    ::execlp("cat", "cat", nullptr);
  });
  expect_echo(call.fd, 1 << 20);
  EXPECT_EQ(call.end(), 0);
}

TEST(Exec, AProgramWithoutTheLibraryFindsAnOrdinarySocket) {
  const Call call([](int client) {
    become_standard_streams(client);
    char* const nothing[] = {nullptr};
    ::execle("/bin/cat", "cat", nullptr, nothing);
  });
  expect_echo(call.fd, 200'000);
  EXPECT_EQ(call.end(), 0);
}

TEST(Exec, AServerThatForksFirstMayCloseItsCopyLater) {
  Signal close_now;
  const Call call([&](int client) {
    const pid_t child = spawn([&] {
      ::dup2(client, 9);
      ::execlp("sh", "sh", "-c", "cat <&9 >&9", nullptr);
    });
    close_now.wait();
    ::close(client);
    ::_exit(wait_for(child));
  });
  send_all(call.fd, "early");
  close_now.give();
  EXPECT_EQ(receive(call.fd, 5), "early");
  expect_echo(call.fd, 100'000);
  EXPECT_EQ(call.end(), 0);
}

TEST(Exec, AProgramMayBeTheFirstToUseADescriptorThatItsParentKeeps) {
  const Call call([&](int client) {
    const pid_t child = spawn([&] {
      ::dup2(client, 9);
      ::execlp("sh", "sh", "-c", "echo hello >&9; cat <&9 >&9", nullptr);
    });
    ::_exit(wait_for(child));
  });
  EXPECT_EQ(receive(call.fd, 6), "hello\n");
  expect_echo(call.fd, 100'000);
  EXPECT_EQ(call.end(), 0);
}

/// The program gets the number as it is, and only reads.
TEST(Exec, AProgramReadsWhatItsParentLeavesUnread) {
  const Call call([&](int client) {
    std::array<int, 2> output{};
    expect(::socketpair(AF_UNIX, SOCK_STREAM, 0, output.data()) == 0, "socketpair");
    const std::string command = "cat <&" + std::to_string(client);
    const pid_t child = spawn([&] {
      ::dup2(output[1], STDOUT_FILENO);
      ::execlp("sh", "sh", "-c", command.c_str(), nullptr);
    });
    ::close(output[1]);
    expect(receive_all(output[0]) == "for the program", "what the program has read");
    expect(wait_for(child) == 0, "the program's end");
    send_all(client, "the parent goes on");
  });
  send_all(call.fd, "for the program");
  ::shutdown(call.fd, SHUT_WR);
  EXPECT_EQ(receive_all(call.fd), "the parent goes on");
  EXPECT_EQ(call.end(), 0);
}

/// git push: one process reads what comes, another one writes what goes.
TEST(Exec, TheParentMayReadWhileItsChildBecomesTheProgramThatWrites) {
  for (int round = 0; round < 60; ++round) {
    const Call call([](int client) {
      std::array<char, 2> text{};
      if (::recv(client, text.data(), text.size(), MSG_WAITALL) == 2) send_all(client, "answer");
    });
    // The parent begins at any moment between the fork and the program's first step.
    const auto some_time = [round](int salt) { ::usleep(static_cast<useconds_t>((round + salt) * 7919 % 10'000)); };
    const pid_t program = spawn([&] {
      some_time(1);
      ::dup2(call.fd, STDOUT_FILENO);
      some_time(2);
      ::execlp("printf", "printf", "hi", nullptr);
    });
    some_time(3);
    if (round % 2 == 0) some_time(4);
    EXPECT_EQ(receive_all(call.fd), "answer") << "round " << round;
    EXPECT_EQ(wait_for(program), 0);
    EXPECT_EQ(call.end(), 0);
  }
}

TEST(Exec, ALeakedDescriptorTakesNothingFromItsOwner) {
  const Call call([&](int client) {
    ::fcntl(client, F_SETFD, 0);
    const pid_t child = spawn([] { ::execlp("sleep", "sleep", "1000", nullptr); });
    echo(client);
    ::close(client);
    ::kill(child, SIGKILL);
    ::_exit(wait_for(child) == 128 + SIGKILL ? 0 : 1);
  });
  expect_echo(call.fd, 300'000);
  EXPECT_EQ(call.end(), 0);
}

TEST(Exec, WhatAProgramWritesIsNotLostWhereItsParentHasUsedTheConnectionMeanwhile) {
  const Call call([](int client) {
    int go[2];
    int executed[2];
    if (::pipe(go) != 0 || ::pipe2(executed, O_CLOEXEC) != 0) ::_exit(2);
    const std::string command = "read go <&9; echo from the program >&" + std::to_string(client);
    const pid_t program = spawn([&] {
      ::dup2(go[0], 9);
      ::execlp("sh", "sh", "-c", command.c_str(), nullptr);
    });
    ::close(executed[1]);
    char byte = 0;
    if (::read(executed[0], &byte, 1) != 0) ::_exit(3);
    send_all(client, "from its parent\n");
    if (::write(go[1], "go\n", 3) != 3 || wait_for(program) != 0) ::_exit(4);
    if (receive(client, 8) != "question") ::_exit(5);
    send_all(client, "answer\n");
  });
  std::string text = receive(call.fd, 33);
  EXPECT_NE(text.find("from its parent\n"), std::string::npos) << text;
  EXPECT_NE(text.find("from the program\n"), std::string::npos) << text;
  send_all(call.fd, "question");
  EXPECT_EQ(receive_all(call.fd), "answer\n");
  EXPECT_EQ(call.end(), 0);
}

/// The next program accepts one client on descriptor 9 and echoes the first that it says.
constexpr const char* kAcceptAndEcho =
    "open(my $l, '+<&=' . $ARGV[0]) or die $!; accept(my $c, $l) or die $!; sysread($c, my $b, 100); syswrite($c, $b);";

/// Executes Perl without the library.
void become_perl(const char* script, const std::string& argument) {
  char no_leaks[] = "ASAN_OPTIONS=detect_leaks=0";  // Perl has its own
  char* const environment[] = {no_leaks, nullptr};
  ::execle("/usr/bin/perl", "perl", "-e", script, argument.c_str(), nullptr, environment);
}

/// The program accepts a client and echoes what it says, and is killed. Closes our copy of the listener.
void expect_to_accept_and_echo(pid_t program, const Listener& listener) {
  const int fd = connect_to(listener.port);
  const timeval patience{10, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  send_all(fd, "hello");
  EXPECT_EQ(receive_all(fd), "hello");
  for (const int one : {fd, listener.fd}) ::close(one);
  ::kill(program, SIGKILL);
  wait_for(program);
}

void wait_for_client(int listener) {
  pollfd entry{listener, POLLIN, 0};
  ::poll(&entry, 1, 10000);
}

TEST(Exec, TheProgramThatGetsAListenerAcceptsTheClientThatWasWaiting) {
  int ports[2];
  ASSERT_EQ(::pipe(ports), 0);
  const pid_t server = spawn([&] {
    const Listener listener = listen_anywhere();
    ::dup2(listener.fd, 9);
    ::close(listener.fd);
    if (::write(ports[1], &listener.port, sizeof listener.port) != sizeof listener.port) ::_exit(1);
    wait_for_client(9);
    become_perl(kAcceptAndEcho, "9");
  });
  std::uint16_t port = 0;
  ASSERT_EQ(::read(ports[0], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  const int fd = connect_to(port);
  EXPECT_TRUE(is_on_ring(fd));
  send_all(fd, "the first client");
  EXPECT_EQ(receive_all(fd), "the first client");
  for (const int one : {fd, ports[0], ports[1]}) ::close(one);
  EXPECT_EQ(wait_for(server), 0);
}

/// inetd, dovecot: the master listens, and programs that it executes accept.
TEST(Exec, AProgramThatAMasterExecutesAcceptsTheClientThatWasWaitingAndThoseThatCome) {
  const Listener listener = listen_anywhere();
  const auto start_program = [&] {
    return spawn([&] {
      ::dup2(listener.fd, 9);
      ::close(listener.fd);
      become_perl(kAcceptAndEcho, "9");
    });
  };
  for (const char* const text : {"the first client", "the second client"}) {
    const int fd = connect_to(listener.port);
    send_all(fd, text);
    wait_for_client(listener.fd);
    const pid_t program = start_program();
    EXPECT_EQ(receive_all(fd), text);
    ::close(fd);
    EXPECT_EQ(wait_for(program), 0);
  }
  // The master itself goes on with the kernel's clients.
  const int fd = connect_to(listener.port);
  EXPECT_FALSE(is_on_ring(fd));
  const int accepted = ::accept(listener.fd, nullptr, nullptr);
  ASSERT_GE(accepted, 0);
  pollfd nobody{listener.fd, POLLIN, 0};
  EXPECT_EQ(::poll(&nobody, 1, 20), 0);
  for (const int one : {fd, accepted, listener.fd}) ::close(one);
}

constexpr const char* kSayHello =
    "use IO::Socket::INET; my $s = IO::Socket::INET->new('127.0.0.1:' . $ARGV[0]) or die $!;"
    "syswrite($s, 'hello'); sysread($s, my $b, 100); exit($b ne 'hello');";

/// A program that knows the number of a listener finds it as its parent has made it.
TEST(Exec, AListenerBlocksInAProgramWhoseParentKeepsIt) {
  const Listener listener = listen_anywhere();
  const pid_t program = spawn([&] { become_perl(kAcceptAndEcho, std::to_string(listener.fd)); });
  ASSERT_TRUE(support::falls_asleep(program));  // in accept(2)
  const pid_t its_client = spawn([&] { become_perl(kSayHello, std::to_string(listener.port)); });
  EXPECT_EQ(wait_for(its_client), 0);
  EXPECT_EQ(wait_for(program), 0);
  std::thread our_client([&] { EXPECT_TRUE(is_on_ring(connect_to(listener.port))); });
  const int accepted = ::accept(listener.fd, nullptr, nullptr);
  EXPECT_TRUE(is_on_ring(accepted));
  our_client.join();
  for (const int one : {accepted, listener.fd}) ::close(one);
}

/// Python's multiprocessing with the method "spawn", or subprocess with pass_fds.
TEST(Exec, AProgramAcceptsWhereAllOtherDescriptorsWereClosedBefore) {
  const Listener listener = listen_anywhere();
  ::fcntl(listener.fd, F_SETFD, FD_CLOEXEC);
  Signal prepared;
  const std::string number = std::to_string(listener.fd);
  const pid_t program = spawn([&] {
    ::fcntl(listener.fd, F_SETFD, 0);
    prepared.give();
    ::close_range(static_cast<unsigned>(listener.fd) + 1, ~0U, 0);
    become_perl(kAcceptAndEcho, number);
  });
  prepared.wait();
  expect_to_accept_and_echo(program, listener);
}

TEST(Exec, ADescriptorThatAChildKeepsForItsProgramIsThePrograms) {
  const Call call([&](int client) {
    ::fcntl(client, F_SETFD, FD_CLOEXEC);
    const std::string number = std::to_string(client);
    const pid_t child = spawn([&] {  // as Python's subprocess does with pass_fds
      ::fcntl(client, F_SETFD, 0);
      ::execlp("sh", "sh", "-c", ("cat <&" + number + " >&" + number).c_str(), nullptr);
    });
    ::_exit(wait_for(child));  // its copy is open all the time
  });
  expect_echo(call.fd, 100'000);
  EXPECT_EQ(call.end(), 0);
}

TEST(Exec, AConnectThatIsUnderWayGoesOnInTheProgram) {
  const Listener listener = listen_anywhere();
  const pid_t client = spawn([&] {
    ::close(listener.fd);
    ::dup2(start_connecting(listener.port), STDOUT_FILENO);
    ::execlp("sh", "sh", "-c", "sleep 0.2; echo hello", nullptr);
  });
  const int fd = ::accept(listener.fd, nullptr, nullptr);
  EXPECT_EQ(receive_all(fd), "hello\n");
  ::close(fd);
  ::close(listener.fd);
  EXPECT_EQ(wait_for(client), 0);
}

/// The server accepts before the process forks, or is stopped, so that nobody answers on a ring.
void expect_program_and_parent_to_use(std::uint16_t port, const std::function<void()>& answered) {
  const int fd = start_connecting(port);
  answered();
  const std::string hello = "echo hello >&" + std::to_string(fd);
  const pid_t program = spawn([&] {
    ::fcntl(fd, F_SETFD, 0);
    ::execlp("sh", "sh", "-c", hello.c_str(), nullptr);
  });
  EXPECT_EQ(wait_for(program), 0);
  expect_connected(fd);
  send_all(fd, "parent");
  ::close(fd);
}

TEST(Exec, AConnectUnderWayAtForkIsConnectedInTheProgramAndInTheParent) {
  Signal accepted;
  const Listener listener = listen_anywhere();
  const pid_t server = spawn([&] {
    const int client = ::accept(listener.fd, nullptr, nullptr);
    ::close(listener.fd);
    expect(is_on_ring(client), "the client came by a ring");
    accepted.give();
    expect(receive_all(client) == "hello\nparent", "both");
  });
  ::close(listener.fd);
  expect_program_and_parent_to_use(listener.port, [&] { accepted.wait(); });
  EXPECT_EQ(wait_for(server), 0);
}

TEST(Exec, AConnectUnderWayAtForkIsMadeByTheKernelWhereNobodyAnswers) {
  StoppedServer server([](int client) { expect(receive_all(client) == "hello\nparent", "both"); });
  expect_program_and_parent_to_use(server.port(), [] {});
  EXPECT_EQ(server.go_on_and_wait(), 0);
}

TEST(Exec, BytesThatTheServerHasNotReadAreThereForTheProgram) {
  const Call call([](int client) {
    if (receive(client, 4) != "line") ::_exit(1);
    become_standard_streams(client);
    ::execlp("cat", "cat", nullptr);
  });
  send_all(call.fd, "line and the rest");
  EXPECT_EQ(receive(call.fd, 13), " and the rest");
  EXPECT_EQ(call.end(), 0);
}

TEST(Exec, AProgramGetsTheConnectionOfAProcessWithoutFreeDescriptors) {
  const Call call([](int client) {
    const std::string cat = "cat <&" + std::to_string(client) + " >&" + std::to_string(client);
    use_all_descriptors(true);
    ::execlp("sh", "sh", "-c", cat.c_str(), nullptr);
  });
  expect_echo(call.fd, 100'000);
  EXPECT_EQ(call.end(), 0);
}

TEST(Exec, FailsWhereTheProgramWouldMissAConnection) {
  const Call call([](int client) {
    use_all_descriptors(false);
    expect(error_of(::execlp("true", "true", nullptr)) == EMFILE, "EMFILE");
    echo(client);
  });
  expect_echo(call.fd, 100'000);
  EXPECT_EQ(call.end(), 0);
}

TEST(Exec, ACloseOnExecConnectionEnds) {
  const Call call([&](int client) {
    ::fcntl(client, F_SETFD, FD_CLOEXEC);
    ::execlp("sleep", "sleep", "1000", nullptr);
  });
  EXPECT_EQ(receive_all(call.fd), "");
  ::kill(call.peer, SIGKILL);
  EXPECT_EQ(call.end(), 128 + SIGKILL);
}

TEST(Exec, TheEndOfTheProgramIsTheEndOfTheConnection) {
  const Call call([&](int client) {
    become_standard_streams(client);
    ::execlp("sh", "sh", "-c", "echo up; exec sleep 1000", nullptr);
  });
  EXPECT_EQ(receive(call.fd, 3), "up\n");
  ::kill(call.peer, SIGKILL);
  EXPECT_EQ(wait_for(call.peer), 128 + SIGKILL);
  EXPECT_EQ(receive_all(call.fd), "");
  ::close(call.fd);
}

TEST(Exec, AfterAFailureTheProcessGoesOnWithTheConnection) {
  const Call call([](int client) {
    ::execl("/no/such/program", "x", nullptr);
    if (errno != ENOENT || !is_on_ring(client)) ::_exit(2);
    ::execlp("no-such-program-anywhere", "x", nullptr);
    if (errno != ENOENT) ::_exit(3);
    echo(client);
  });
  expect_echo(call.fd, 100'000);
  EXPECT_EQ(call.end(), 0);
}

TEST(Exec, ThePeersAddressStaysAndNoChildIsSeen) {
  const Call call([](int client) {
    sockaddr_storage before{};
    socklen_t length = sizeof before;
    ::getpeername(client, reinterpret_cast<sockaddr*>(&before), &length);
    std::array<int, 2> report{};
    if (::pipe(report.data()) != 0) ::_exit(1);
    // A program that cannot be executed although it may be: the connection has been handed over then.
    char* const arguments[] = {const_cast<char*>("x"), nullptr};
    ::execv("/proc/self/exe/", arguments);
    ::execvp("/dev", arguments);
    sockaddr_storage after{};
    socklen_t after_length = sizeof after;
    if (::getpeername(client, reinterpret_cast<sockaddr*>(&after), &after_length) != 0) ::_exit(2);
    if (length != after_length || after.ss_family != before.ss_family) ::_exit(3);
    if (::waitpid(-1, nullptr, 0) != -1 || errno != ECHILD) ::_exit(4);
    echo(client);
  });
  expect_echo(call.fd, 100'000);
  EXPECT_EQ(call.end(), 0);
}

TEST(Spawn, APosixSpawnedProgramGetsTheConnectionAsItsStreams) {
  const Call call([](int client) {
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, client, STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, client, STDOUT_FILENO);
    std::array<char*, 2> arguments{const_cast<char*>("cat"), nullptr};
    pid_t child = 0;
    if (::posix_spawnp(&child, "cat", &actions, nullptr, arguments.data(), environ) != 0) ::_exit(1);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(client);
    ::_exit(wait_for(child));
  });
  expect_echo(call.fd, 300'000);
  EXPECT_EQ(call.end(), 0);
}

TEST(Spawn, APosixSpawnedProgramAcceptsAtTheListenerThatItGets) {
  const Listener listener = listen_anywhere();
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, listener.fd, 9);
  std::array<char*, 5> arguments{const_cast<char*>("perl"), const_cast<char*>("-e"), const_cast<char*>(kAcceptAndEcho),
                                 const_cast<char*>("9"), nullptr};
  pid_t child = 0;
  ASSERT_EQ(::posix_spawnp(&child, "perl", &actions, nullptr, arguments.data(), environ), 0);
  ::posix_spawn_file_actions_destroy(&actions);
  expect_to_accept_and_echo(child, listener);
}

// -- SCM_RIGHTS

/// Two ends over which descriptors go.
std::array<int, 2> new_channel() {
  std::array<int, 2> ends{};
  expect(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0, "socketpair");
  return ends;
}

void send_descriptor(int over, int fd) { expect(support::send_descriptor(over, fd), "a descriptor goes"); }

int receive_descriptor(int over) {
  const int fd = support::receive_descriptor(over);
  expect(fd >= 0, "a descriptor comes");
  return fd;
}

/// A process passes its connection to itself, so that it is a kernel socket and a relay, and closes it with bytes of
/// the peer unread.
void close_passed_on_with_bytes_unread(bool lingers) {
  const Call call([](int client) {
    expect(receive(client, 2) == "go", "go");
    send_all(client, "unread");
    char byte = 0;
    const bool is_reset = ::recv(client, &byte, 1, 0) < 0 && errno == ECONNRESET;
    expect(is_reset, "a reset");
  });
  const std::array<int, 2> channel = new_channel();
  send_descriptor(channel[0], call.fd);
  ::close(call.fd);
  const int again = receive_descriptor(channel[1]);
  send_all(again, "go");
  pollfd entry{again, POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, -1), 1);
  const linger at_once{1, 0};
  if (lingers) {
    EXPECT_EQ(::setsockopt(again, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  }
  ::close(again);
  EXPECT_EQ(wait_for(call.peer), 0);
  for (const int end : channel) ::close(end);
}

TEST(PassedOn, BytesThatAreNotReadAreAResetForThePeer) { close_passed_on_with_bytes_unread(false); }
TEST(PassedOn, TheResetOfSoLingerReachesThePeer) { close_passed_on_with_bytes_unread(true); }

/// A process that echoes on the connection that it is given.
class Worker {
 public:
  Worker() : channel_(new_channel()) {
    pid_ = spawn([this] {
      ::close(channel_[1]);
      echo(receive_descriptor(channel_[0]));
    });
    ::close(channel_[0]);
  }
  void take(int connection) const { send_descriptor(channel_[1], connection); }
  /// Called when a server process has been made that calls take().
  void leave_to_server() const { ::close(channel_[1]); }
  /// Returns as wait_for().
  [[nodiscard]] int end() const { return wait_for(pid_); }

 private:
  const std::array<int, 2> channel_;
  pid_t pid_ = -1;
};

TEST(PassedOn, AConnectionGoesToAnotherProcess) {
  const Worker worker;
  const Call call([&](int client) {
    if (receive(client, 5) != "hello") ::_exit(1);
    worker.take(client);
    ::close(client);
  });
  worker.leave_to_server();
  send_all(call.fd, "hello");
  expect_echo(call.fd, 100'000);
  EXPECT_EQ(call.end(), 0);
  EXPECT_EQ(worker.end(), 0);
}

TEST(PassedOn, AConnectionOfAProcessWithoutFreeDescriptorsGoesToAnotherProcess) {
  const Worker worker;
  const Call call([&](int client) {
    use_all_descriptors(true);
    worker.take(client);
    ::close(client);
  });
  worker.leave_to_server();
  expect_echo(call.fd, 100'000);
  EXPECT_EQ(call.end(), 0);
  EXPECT_EQ(worker.end(), 0);
}

TEST(PassedOn, AConnectThatIsUnderWayGoesOnInTheOtherProcess) {
  const Listener listener = listen_anywhere();
  const pid_t worker = spawn([&] {
    const std::array<int, 2> channel = new_channel();
    const int connecting = start_connecting(listener.port);
    ::close(listener.fd);
    send_descriptor(channel[0], connecting);
    ::close(connecting);
    const int fd = receive_descriptor(channel[1]);
    expect_connected(fd);
    send_all(fd, "hello");
  });
  const int fd = ::accept(listener.fd, nullptr, nullptr);
  EXPECT_EQ(receive_all(fd), "hello");
  ::close(fd);
  ::close(listener.fd);
  EXPECT_EQ(wait_for(worker), 0);
}

TEST(PassedOn, WhoGivesAConnectionAwayMayKeepIt) {
  const Call call([&](int client) {
    const std::array<int, 2> channel = new_channel();
    send_all(client, "one ");
    send_descriptor(channel[0], client);
    const int other = receive_descriptor(channel[1]);
    send_all(client, "two ");
    send_all(other, "three ");
    if (receive(client, 4) != "from") ::_exit(2);
    if (receive(other, 4) != " you") ::_exit(3);
    send_all(client, "four");
  });
  send_all(call.fd, "from you");
  EXPECT_EQ(receive_all(call.fd), "one two three four");
  EXPECT_EQ(call.end(), 0);
}

TEST(PassedOn, ACopyInAThirdProcessHoldsUpNobody) {
  const std::array<int, 2> channel = new_channel();
  Signal served;
  const Call call([&](int client) {
    const pid_t worker = spawn([&] {  // has a copy of its own, as well, and never looks at it
      echo(receive_descriptor(channel[0]));
    });
    const pid_t bystander = spawn([&] { served.wait(); });
    send_descriptor(channel[1], client);
    ::close(client);
    ::_exit(wait_for(worker) + wait_for(bystander));
  });
  const std::string text = pattern(50'000, 3);
  send_all(call.fd, text);
  EXPECT_TRUE(receive(call.fd, text.size()) == text);
  served.give();
  for (const int one : channel) ::close(one);
  EXPECT_EQ(call.end(), 0);
}

// As the primary process of node's cluster. Each connection costs a relay.
TEST(Passing, EndsTheRingsOfAListenerWhoseConnectionsAreAllPassedOn) {
  const Listener listener = listen_anywhere();
  std::array<int, 2> channel{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, channel.data()), 0);
  const pid_t worker = spawn([&] {
    ::close(channel[0]);
    for (int client = -1; (client = support::receive_descriptor(channel[1])) >= 0; ::close(client)) {
      expect(receive(client, 4) == "ping", "the client's word");
      send_all(client, "pong");
    }
  });
  const pid_t server = spawn([&] {
    ::close(channel[1]);
    for (int served = 0; served < 30; ++served) {
      const int client = ::accept(listener.fd, nullptr, nullptr);
      expect(support::send_descriptor(channel[0], client), "it is passed on");
      ::close(client);
    }
    // Those that come over from the ring do so all at once; without room they would come a second later.
    tcp_info info{};
    socklen_t length = sizeof info;
    ::getsockopt(listener.fd, IPPROTO_TCP, TCP_INFO, &info, &length);
    expect(info.tcpi_sacked >= 500, "the kernel's listener has room for them");
  });
  ::close(channel[0]);
  ::close(channel[1]);
  int by_ring = 0;
  for (int i = 0; i < 30; ++i) {
    const int fd = connect_to(listener.port);
    by_ring += is_on_ring(fd) ? 1 : 0;
    send_all(fd, "ping");
    EXPECT_EQ(receive_all(fd), "pong");
    ::close(fd);
  }
  EXPECT_GE(by_ring, 1);
  EXPECT_LE(by_ring, 10) << "the first eight, and what was under way";
  EXPECT_EQ(wait_for(server), 0);
  EXPECT_EQ(wait_for(worker), 0);
}

// As inetd. The hand-overs are those of its children, which have closed the listener.
TEST(Exec, EndsTheRingsOfAListenerWhoseConnectionsAreAllGivenToPrograms) {
  const Listener listener = listen_anywhere();
  const pid_t server = spawn([&] {
    for (int served = 0; served < 30; ++served) {
      const int client = ::accept(listener.fd, nullptr, nullptr);
      const pid_t program = spawn([&] {
        ::close(listener.fd);
        ::dup2(client, STDIN_FILENO);
        ::dup2(client, STDOUT_FILENO);
        ::close(client);
        ::execl("/bin/cat", "cat", nullptr);
      });
      ::close(client);
      expect(wait_for(program) == 0, "the program ends");
    }
  });
  int by_ring = 0;
  for (int i = 0; i < 30; ++i) {
    const int fd = connect_to(listener.port);
    by_ring += is_on_ring(fd) ? 1 : 0;
    send_all(fd, "ping");
    ::shutdown(fd, SHUT_WR);
    EXPECT_EQ(receive_all(fd), "ping");
    ::close(fd);
  }
  EXPECT_GE(by_ring, 1);
  EXPECT_LE(by_ring, 10) << "the first eight, and what was under way";
  EXPECT_EQ(wait_for(server), 0);
}

}  // namespace
}  // namespace ringsock::preloaded
