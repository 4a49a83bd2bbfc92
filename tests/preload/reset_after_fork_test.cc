// A reset that comes after a fork(2): the process that uses the connection first hears of it at its first call, as from
// the kernel, whatever has become of the child.
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/wait.h>

#include <functional>

#include "tests/preload/tcp_world.h"
#include "tests/support/passed_descriptor.h"

namespace ringsock::preload_tests {
namespace {

/// A child that closes `gives_up` and keeps everything else until the end of the test.
class IdleChild {
 public:
  explicit IdleChild(int gives_up) {
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends_), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(gives_up);
      char byte = 0;
      ::close(ends_[0]);
      static_cast<void>(::send(ends_[1], "!", 1, 0));
      static_cast<void>(::recv(ends_[1], &byte, 1, 0));
      ::_exit(0);
    }
    ::close(ends_[1]);
    EXPECT_EQ(read_all(ends_[0], 1), "!");
  }
  IdleChild(const IdleChild&) = delete;
  IdleChild& operator=(const IdleChild&) = delete;
  ~IdleChild() {
    ::close(ends_[0]);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  int ends_[2];
  pid_t pid_ = -1;
};

void fork_and_await() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

void spawn_on_another_connection() {
  const auto [carol, dave] = connected_pair();
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, carol, 0);
  pid_t child = -1;
  char name[] = "true";
  char* const arguments[] = {name, nullptr};
  EXPECT_EQ(::posix_spawn(&child, "/bin/true", &actions, nullptr, arguments, nullptr), 0);
  ::posix_spawn_file_actions_destroy(&actions);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

void send_another_connection_away() {
  const auto [carol, dave] = connected_pair();
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  EXPECT_TRUE(support::send_descriptor(ends[0], carol));
  ::close(ends[0]);
  ::close(ends[1]);
}

constexpr int kReset = POLLIN | POLLOUT | POLLRDHUP | POLLERR | POLLHUP;

int by_poll(int fd) { return poll_once(fd, POLLIN | POLLOUT | POLLRDHUP); }

int by_epoll(int fd) {
  const Fd set(::epoll_create1(0));
  epoll_event event{EPOLLIN | EPOLLOUT | EPOLLRDHUP, {.fd = fd}};
  EXPECT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
  EXPECT_EQ(::epoll_wait(set, &event, 1, 0), 1);
  return static_cast<int>(event.events);
}

int by_select(int fd) {
  fd_set readable;
  FD_ZERO(&readable);
  FD_SET(fd, &readable);
  timeval at_once{};
  return ::select(fd + 1, &readable, nullptr, nullptr, &at_once);
}

int by_send(int fd) { return error_of(::send(fd, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL)); }
int by_read(int fd) {
  char byte = 0;
  return error_of(::recv(fd, &byte, 1, MSG_DONTWAIT));
}

int by_peer_name(int fd) {
  Address peer;
  peer.length = sizeof peer.storage;
  return error_of(::getpeername(fd, peer.get(), &peer.length));
}
int tcp_state(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  EXPECT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
  return info.tcpi_state;
}

/// A first call, and what it tells of a reset.
struct FirstCall {
  const char* name;
  int (*make)(int fd);
  int answer;
};
constexpr FirstCall kFirstCalls[] = {{"poll", by_poll, kReset},
                                     {"epoll_wait", by_epoll, kReset},
                                     {"select", by_select, 1},
                                     {"send", by_send, ECONNRESET},
                                     {"recv", by_read, ECONNRESET},
                                     {"SO_ERROR", socket_error, ECONNRESET},
                                     {"getpeername", by_peer_name, ENOTCONN},
                                     {"TCP_INFO", tcp_state, TCP_CLOSE}};

/// Bob leaves a byte unread, so his close is a reset.
Pair pair_before_reset() {
  Pair out = connected_pair();
  EXPECT_EQ(::send(out.alice, "1", 1, 0), 1);
  EXPECT_NE(poll_once(out.bob, POLLIN, 1000) & POLLIN, 0);
  return out;
}

void expect_first_call_tells(const std::function<void()>& forks) {
  for (const FirstCall& call : kFirstCalls) {
    auto [alice, bob] = pair_before_reset();
    forks();
    bob.reset();
    EXPECT_EQ(call.make(alice), call.answer) << call.name;
  }
}

TEST(ResetAfterFork, IsToldByTheFirstCallWhenTheChildHasEnded) { expect_first_call_tells(fork_and_await); }

TEST(ResetAfterFork, IsToldByTheFirstCallAfterAProgramWasSpawnedOnAnotherConnection) {
  expect_first_call_tells(spawn_on_another_connection);
}

TEST(ResetAfterFork, IsToldByTheFirstCallAfterAnotherConnectionWasSentAway) {
  expect_first_call_tells(send_another_connection_away);
}

TEST(ResetAfterFork, IsToldByTheFirstCallWhileTheChildHasTheConnectionToo) {
  for (const FirstCall& call : kFirstCalls) {
    auto [alice, bob] = pair_before_reset();
    const IdleChild child(bob);
    bob.reset();
    EXPECT_EQ(call.make(alice), call.answer) << call.name;
  }
}

TEST(EndAfterFork, IsSeenByTcpInfoWhichLeavesTheConnectionToTheChild) {
  auto [alice, bob] = connected_pair();
  int asked[2];
  EXPECT_EQ(::pipe(asked), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    bob.reset();
    char byte = 0;
    const bool parent_has_asked = ::read(asked[0], &byte, 1) == 1;
    const bool got_all = read_all(alice, 10) == "last";
    ::_exit(parent_has_asked && got_all && is_on_ring(alice) == preloaded() ? 0 : 1);
  }
  EXPECT_EQ(::send(bob, "last", 4, 0), 4);
  EXPECT_EQ(tcp_state(alice), TCP_ESTABLISHED);
  EXPECT_EQ(::shutdown(bob, SHUT_WR), 0);
  EXPECT_EQ(tcp_state(alice), TCP_CLOSE_WAIT);
  EXPECT_EQ(::write(asked[1], "!", 1), 1);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::close(asked[0]);
  ::close(asked[1]);
}

}  // namespace
}  // namespace ringsock::preload_tests
