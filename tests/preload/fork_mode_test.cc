// Fork mode (RDMAV_FORK_SAFE): connections that are the kernel's until they are first used, on the embedded device that
// pretends to be one whose connections do not survive fork(2).
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/preload/calls.h"
#include "tests/preload/preloaded.h"
#include "tests/support/raw_syscall.h"

namespace ringsock::preloaded {
namespace {

[[maybe_unused]] const int kPretends = ::setenv("RINGSOCK_TEST_SOFT_LIKE", "unforkable", 1);
[[maybe_unused]] const int kForkMode = ::setenv("RDMAV_FORK_SAFE", "1", 1);

/// A peer that is not in fork mode: by system calls, which no library sees.
int plain_connect(std::uint16_t port) {
  const int fd = static_cast<int>(raw_syscall(SYS_socket, AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  EXPECT_EQ(raw_syscall(SYS_connect, fd, &address, sizeof address), 0);
  return fd;
}
void plain_send(int fd, const std::string& text) {
  EXPECT_EQ(raw_syscall(SYS_write, fd, text.data(), text.size()), static_cast<long>(text.size()));
}
std::string plain_receive(int fd, std::size_t most) {
  std::string text(most, '\0');
  const long got = raw_syscall(SYS_read, fd, text.data(), most);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}
/// A listener that is not in fork mode, and its port.
Listener plain_listener() {
  const int fd = static_cast<int>(raw_syscall(SYS_socket, AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(raw_syscall(SYS_listen, fd, 4), 0);
  sockaddr_in address{};
  socklen_t length = sizeof address;
  EXPECT_EQ(raw_syscall(SYS_getsockname, fd, &address, &length), 0);
  return {fd, ntohs(address.sin_port)};
}
int plain_accept(int listener) { return static_cast<int>(raw_syscall(SYS_accept, listener, nullptr, nullptr)); }

TEST(ForkMode, AServerThatForksForEachClientServesThemOnRings) {
  const Listener listener = listen_anywhere();
  const pid_t server = spawn([&] {
    for (int i = 0; i < 3; ++i) {
      const int client = ::accept(listener.fd, nullptr, nullptr);
      expect(!is_off_kernel(client), "it begins by the kernel");
      spawn([&] {
        ::close(listener.fd);
        echo(client);
        expect(is_off_kernel(client), "it has moved");
      });
      ::close(client);
    }
    int status = 0;
    while (::wait(&status) > 0) expect(status == 0, "a child");
  });
  ::close(listener.fd);
  for (unsigned i = 0; i < 3; ++i) {
    const int fd = connect_to(listener.port);
    EXPECT_FALSE(is_off_kernel(fd));
    expect_echo(fd, 1 << 18, i);
    EXPECT_TRUE(is_off_kernel(fd));
    ::close(fd);
  }
  EXPECT_EQ(wait_for(server), 0);
}

TEST(ForkMode, TheServerMaySpeakFirst) {
  const Listener listener = listen_anywhere();
  const pid_t server = spawn([&] {
    const int client = ::accept(listener.fd, nullptr, nullptr);
    send_all(client, "welcome");
    expect(receive_all(client).empty(), "the end");
  });
  const int fd = connect_to(listener.port);
  EXPECT_EQ(receive(fd, 7), "welcome");
  EXPECT_TRUE(is_off_kernel(fd));
  ::close(fd);
  ::close(listener.fd);
  EXPECT_EQ(wait_for(server), 0);
}

/// Waits for `events` of `fd`, which must come.
void wait_until(int fd, short events) {
  pollfd entry{fd, events, 0};
  expect(::poll(&entry, 1, 10'000) == 1 && (entry.revents & events) != 0, "readiness");
}

TEST(ForkMode, ServersAndClientsThatPollFirstMoveAndNeverWaitInACall) {
  const Listener listener = listen_anywhere();
  const pid_t server = spawn([&] {
    wait_until(listener.fd, POLLIN);
    const int client = ::accept4(listener.fd, nullptr, nullptr, SOCK_NONBLOCK);
    wait_until(client, POLLIN);
    char text[8] = {};
    expect(::recv(client, text, sizeof text, 0) == 5, "five bytes");
    wait_until(client, POLLOUT);
    expect(::send(client, text, 5, 0) == 5, "sent back");
    wait_until(client, POLLIN);
    expect(::recv(client, text, sizeof text, 0) == 0, "the end");
  });
  const int fd = connect_to(listener.port);
  ::fcntl(fd, F_SETFL, O_NONBLOCK);
  wait_until(fd, POLLOUT);
  // The first one only begins to move the connection.
  while (::send(fd, "hello", 5, 0) != 5) {
    ASSERT_EQ(errno, EAGAIN);
    wait_until(fd, POLLOUT);
  }
  wait_until(fd, POLLIN);
  char text[8] = {};
  EXPECT_EQ(::recv(fd, text, sizeof text, 0), 5);
  EXPECT_TRUE(is_off_kernel(fd));
  ::close(fd);
  ::close(listener.fd);
  EXPECT_EQ(wait_for(server), 0);
}

/// A server that polls, and its clients, one after the other.
void talk_often(int rounds) {
  const Listener listener = listen_anywhere();
  const pid_t server = spawn([&] {
    for (int round = 0; round < rounds; ++round) {
      const int client = ::accept(listener.fd, nullptr, nullptr);
      wait_until(client, POLLIN);
      expect(receive(client, 5) == "hello", "hello");
      send_all(client, "hello");
      ::close(client);
    }
  });
  for (int round = 0; round < rounds; ++round) {
    const int fd = connect_to(listener.port);
    ::fcntl(fd, F_SETFL, O_NONBLOCK);
    while (::send(fd, "hello", 5, 0) != 5) wait_until(fd, POLLOUT);
    wait_until(fd, POLLIN);
    ::close(fd);
  }
  ::close(listener.fd);
  expect(wait_for(server) == 0, "the server");
}

// They wait for one another, and each step of theirs may end at any moment, also just before they fall asleep.
TEST(ForkMode, ManyServersThatPollTakeTurns) {
  std::vector<pid_t> pairs;
  for (int i = 0; i < 4; ++i) pairs.push_back(spawn([] { talk_often(100); }));
  for (const pid_t pair : pairs) EXPECT_EQ(wait_for(pair), 0);
}

TEST(ForkMode, AnEpollServerMovesItsConnections) {
  const Listener listener = listen_anywhere();
  const pid_t server = spawn([&] {
    const int client = ::accept(listener.fd, nullptr, nullptr);
    const int set = ::epoll_create1(0);
    epoll_event interest{EPOLLIN, {.fd = client}};
    expect(::epoll_ctl(set, EPOLL_CTL_ADD, client, &interest) == 0, "epoll_ctl");
    epoll_event event{};
    expect(::epoll_wait(set, &event, 1, 10'000) == 1, "an event");
    expect(receive(client, 5) == "hello", "hello");
    expect(::epoll_wait(set, &event, 1, 10'000) == 1, "the end is an event, too");
    expect(receive_all(client).empty(), "the end");
  });
  const int fd = connect_to(listener.port);
  send_all(fd, "hello");
  ::shutdown(fd, SHUT_WR);
  EXPECT_EQ(receive_all(fd), "");
  ::close(fd);
  ::close(listener.fd);
  EXPECT_EQ(wait_for(server), 0);
}

TEST(ForkMode, AClientThatIsNotInForkModeIsServedByTheKernel) {
  const Listener listener = listen_anywhere();
  const int plain = plain_connect(listener.port);
  const int client = ::accept(listener.fd, nullptr, nullptr);
  plain_send(plain, "hello");
  EXPECT_EQ(receive(client, 5), "hello");
  EXPECT_FALSE(is_off_kernel(client));
  send_all(client, "answer");
  EXPECT_EQ(plain_receive(plain, 64), "answer");
  wait_until(client, POLLOUT);
  raw_syscall(SYS_close, plain);
  EXPECT_EQ(receive_all(client), "");
  ::close(client);
  ::close(listener.fd);
}

TEST(ForkMode, AServerThatIsNotInForkModeIsTalkedToByTheKernel) {
  const Listener plain = plain_listener();
  const int fd = connect_to(plain.port);
  const int peer = plain_accept(plain.fd);
  plain_send(peer, "welcome");
  wait_until(fd, POLLIN);
  EXPECT_EQ(receive(fd, 7), "welcome");
  send_all(fd, "thanks");
  EXPECT_EQ(plain_receive(peer, 64), "thanks");
  ::close(fd);
  EXPECT_EQ(plain_receive(peer, 1), "");
  raw_syscall(SYS_close, peer);
  raw_syscall(SYS_close, plain.fd);
}

TEST(ForkMode, AServerThatIsNotInForkModeAndWaitsForItsClientHearsOfIt) {
  const Listener plain = plain_listener();
  const int fd = connect_to(plain.port);
  const int peer = plain_accept(plain.fd);
  send_all(fd, "request");
  EXPECT_EQ(plain_receive(peer, 64), "request");
  ::close(fd);
  raw_syscall(SYS_close, peer);
  raw_syscall(SYS_close, plain.fd);
}

TEST(ForkMode, WhoCannotBeReachedByRingLeavesNoZerosInTheStream) {
  const Listener plain = plain_listener();
  const int fd = connect_to(plain.port);
  const int peer = plain_accept(plain.fd);
  plain_send(peer, std::string(4, '\0'));
  plain_send(peer, "data");
  EXPECT_EQ(receive(fd, 4), "data");
  send_all(fd, "thanks");
  EXPECT_EQ(plain_receive(peer, 64), "thanks");
  ::close(fd);
  raw_syscall(SYS_close, peer);
  raw_syscall(SYS_close, plain.fd);
}

TEST(ForkMode, TheEndOfAConnectionThatNobodyUsedIsSeen) {
  const Listener listener = listen_anywhere();
  const int fd = connect_to(listener.port);
  const int client = ::accept(listener.fd, nullptr, nullptr);
  ::close(fd);
  EXPECT_EQ(receive_all(client), "");
  ::close(client);
  const int other = connect_to(listener.port);
  ::close(::accept(listener.fd, nullptr, nullptr));
  EXPECT_EQ(receive_all(other), "");
  ::close(other);
  ::close(listener.fd);
}

TEST(ForkMode, OptionsThatWereSetBeforeAreThereAfterwards) {
  const Listener listener = listen_anywhere();
  const pid_t server = spawn([&] { echo(::accept(listener.fd, nullptr, nullptr)); });
  const int fd = connect_to(listener.port);
  const int one = 1;
  ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one), 0);
  const timeval limit{0, 50'000};
  ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  send_all(fd, "hello");
  EXPECT_EQ(receive(fd, 5), "hello");
  ASSERT_TRUE(is_off_kernel(fd));
  int keeps = 0;
  socklen_t length = sizeof keeps;
  EXPECT_EQ(::getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &keeps, &length), 0);
  EXPECT_EQ(keeps, 1);
  char byte = 0;
  EXPECT_EQ(error_of(::recv(fd, &byte, 1, 0)), EAGAIN);
  ::close(fd);
  ::close(listener.fd);
  EXPECT_EQ(wait_for(server), 0);
}

TEST(ForkMode, ADuplicateGoesWithTheConnection) {
  const Listener listener = listen_anywhere();
  const pid_t server = spawn([&] { echo(::accept(listener.fd, nullptr, nullptr)); });
  const int fd = connect_to(listener.port);
  const int copy = ::dup(fd);
  send_all(fd, "hello");
  EXPECT_EQ(receive(copy, 5), "hello");
  EXPECT_TRUE(is_off_kernel(copy));
  ::close(fd);
  send_all(copy, "again");
  EXPECT_EQ(receive(copy, 5), "again");
  ::close(copy);
  ::close(listener.fd);
  EXPECT_EQ(wait_for(server), 0);
}

/// A server that has told its client to come by ring, and waits for it, is in the section.
TEST(ForkMode, AProcessThatDiesInTheSectionHoldsNobodyUp) {
  const Listener listener = listen_anywhere();
  const int silent = plain_connect(listener.port);
  const pid_t first = spawn([&] {
    char byte = 0;
    ::recv(::accept(listener.fd, nullptr, nullptr), &byte, 1, 0);  // waits for ever
  });
  EXPECT_EQ(plain_receive(silent, 4), std::string(4, '\0'));
  ::kill(first, SIGKILL);
  EXPECT_EQ(wait_for(first), 128 + SIGKILL);
  const pid_t server = spawn([&] { echo(::accept(listener.fd, nullptr, nullptr)); });
  const int fd = connect_to(listener.port);
  const auto begin = std::chrono::steady_clock::now();
  send_all(fd, "hello");
  EXPECT_EQ(receive(fd, 5), "hello");
  EXPECT_TRUE(is_off_kernel(fd));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4)) << "less than patience with the living";
  ::close(fd);
  ::close(listener.fd);
  raw_syscall(SYS_close, silent);
  EXPECT_EQ(wait_for(server), 0);
}

/// rdma-core's library has a semaphore in /dev/shm under this name: whoever makes it first may cut it off, or keep it.
TEST(ForkMode, NobodyCanStopAServerByAName) {
  if (::access("/dev/shm/sem.rsocket_fork", F_OK) == 0) GTEST_SKIP() << "rdma-core's is in use";
  const int file = ::open("/dev/shm/sem.rsocket_fork", O_RDWR | O_CREAT | O_EXCL, 0666);
  ASSERT_GE(file, 0);
  ASSERT_EQ(::ftruncate(file, sizeof(sem_t)), 0);  // a semaphore at 0, cut off when it has been mapped
  const Listener listener = listen_anywhere();
  const pid_t server = spawn([&] {
    for (int i = 0; i < 2; ++i) {
      const int client = ::accept(listener.fd, nullptr, nullptr);
      echo(client);
      ::close(client);
      expect(::truncate("/dev/shm/sem.rsocket_fork", 0) == 0, "cut off");
    }
  });
  for (int i = 0; i < 2; ++i) {
    const int fd = connect_to(listener.port);
    const auto begin = std::chrono::steady_clock::now();
    send_all(fd, "hello");
    EXPECT_EQ(receive(fd, 5), "hello");
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4));
    ::close(fd);
  }
  EXPECT_EQ(wait_for(server), 0);
  ::close(listener.fd);
  ::close(file);
  ::unlink("/dev/shm/sem.rsocket_fork");
}

}  // namespace
}  // namespace ringsock::preloaded
