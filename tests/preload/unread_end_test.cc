// A process ends without having closed its connection. TCP resets it if bytes wait unread, and ends it in order
// otherwise.
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>

#include "tests/preload/tcp_world.h"
#include "tests/support/sanitizers.h"
#include "tests/support/thread_status.h"

namespace ringsock::preload_tests {
namespace {

void execute_something(int fd) {
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  ::execl("/bin/true", "true", nullptr);
}

struct HowItEnds {
  const char* name;
  void (*end)(int fd);
};
const HowItEnds kEnds[] = {
    {"ByExit", [](int) { std::exit(0); }},
    {"ByUnderscoreExit", [](int) { ::_exit(0); }},
    {"ByQuickExit", [](int) { std::quick_exit(0); }},
    {"BySystemCall", [](int) { ::syscall(SYS_exit_group, 0); }},
    {"ByExec", execute_something},
    {"ByClose",
     [](int fd) {
       ::close(fd);
       ::_exit(0);
     }},
    {"ByBeingKilled", [](int) { ::kill(::getpid(), SIGKILL); }},
};

/// A process that accepts one client, does `work` with it, and ends.
class Server {
 public:
  Server(const HowItEnds& how, const std::function<void(int fd)>& work) {
    const Fd listener = listening();
    pid_ = ::fork();
    if (pid_ == 0) {
      const int fd = ::accept(listener, nullptr, nullptr);
      work(fd);
      how.end(fd);
      ::_exit(1);
    }
    client = connected_to(listener);
    EXPECT_EQ(is_on_ring(client), preloaded());
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() { await(); }
  void await() {
    if (pid_ > 0) ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

  Fd client;

 private:
  pid_t pid_ = -1;
};

/// Waits until so many bytes can be read.
void wait_for(int fd, int bytes) {
  for (int there = 0; there < bytes; ::ioctl(fd, FIONREAD, &there)) {
    poll_once(fd, POLLIN, 1);
  }
}

void answer(int fd) { ::send(fd, "answer", 6, 0); }

int error_of_recv(int fd) {
  char byte = 0;
  const ssize_t got = ::recv(fd, &byte, 1, MSG_DONTWAIT);
  return got < 0 ? errno : got == 0 ? 0 : -1;
}
int error_of_recv_blocking(int fd) {
  char byte = 0;
  const ssize_t got = ::recv(fd, &byte, 1, 0);
  return got < 0 ? errno : got == 0 ? 0 : -1;
}
int error_of_send(int fd) { return ::send(fd, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? errno : 0; }

class ProcessThatEnds : public testing::TestWithParam<HowItEnds> {
  void SetUp() override {
    if (!support::kForksWhileThreadsAllocate) GTEST_SKIP() << "exit(3) of a child looks for leaks";
  }
};
INSTANTIATE_TEST_SUITE_P(Here, ProcessThatEnds, testing::ValuesIn(kEnds),
                         [](const auto& way) { return std::string(way.param.name); });

TEST_P(ProcessThatEnds, ResetsAConnectionWithUnreadBytes) {
  Server server(GetParam(), [](int fd) {
    wait_for(fd, 7);
    answer(fd);
  });
  ASSERT_EQ(::send(server.client, "request", 7, 0), 7);
  server.await();
  EXPECT_EQ(poll_once(server.client, POLLIN | POLLOUT | POLLRDHUP, 5000),
            POLLIN | POLLOUT | POLLRDHUP | POLLERR | POLLHUP);
  EXPECT_EQ(read_all(server.client, 6), "answer");
  EXPECT_EQ(error_of_recv(server.client), ECONNRESET);
  EXPECT_EQ(error_of_recv(server.client), 0);
  EXPECT_EQ(error_of_send(server.client), EPIPE);
}

TEST_P(ProcessThatEnds, TellsASenderOfTheReset) {
  Server server(GetParam(), [](int fd) { wait_for(fd, 7); });
  ASSERT_EQ(::send(server.client, "request", 7, 0), 7);
  server.await();
  poll_once(server.client, POLLIN, 5000);
  EXPECT_EQ(error_of_send(server.client), ECONNRESET);
  EXPECT_EQ(error_of_send(server.client), EPIPE);
  EXPECT_EQ(error_of_recv(server.client), 0);
}

/// Returns whether the peer of a process that ends like this can tell at once. A process that is killed cannot prepare
/// that, unless it sleeps on the connection.
bool is_end_told_at_once(const HowItEnds& how) { return !preloaded() || std::string(how.name) != "ByBeingKilled"; }

TEST_P(ProcessThatEnds, TellsTheFirstSenderOfTheReset) {
  if (!is_end_told_at_once(GetParam())) GTEST_SKIP() << "one of the next eight sends tells";
  Server server(GetParam(), [](int fd) { wait_for(fd, 7); });
  ASSERT_EQ(::send(server.client, "request", 7, 0), 7);
  server.await();
  if (!preloaded()) poll_once(server.client, POLLIN, 5000);  // a ring's socket has not looked
  EXPECT_EQ(error_of_send(server.client), ECONNRESET);
  EXPECT_EQ(error_of_send(server.client), EPIPE);
  EXPECT_EQ(error_of_recv(server.client), 0);
}

TEST_P(ProcessThatEnds, TakesOneMoreSendOnceItHasReadEverything) {
  if (!is_end_told_at_once(GetParam())) GTEST_SKIP() << "one of the next eight sends tells";
  Server server(GetParam(), [](int fd) { read_all(fd, 7); });
  ASSERT_EQ(::send(server.client, "request", 7, 0), 7);
  server.await();
  if (!preloaded()) poll_once(server.client, POLLIN, 5000);
  EXPECT_EQ(error_of_send(server.client), 0);
  if (!preloaded()) poll_once(server.client, POLLHUP, 5000);  // until the reset has come back
  EXPECT_EQ(error_of_send(server.client), EPIPE);
  EXPECT_EQ(error_of_recv(server.client), 0);
}

TEST_P(ProcessThatEnds, WakesAReaderByTheReset) {
  Server server(GetParam(), [](int fd) { wait_for(fd, 7); });
  ASSERT_EQ(::send(server.client, "request", 7, 0), 7);
  char byte = 0;
  EXPECT_EQ(::recv(server.client, &byte, 1, 0), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

TEST_P(ProcessThatEnds, ResetsAConnectionThatItHasReadInPart) {
  Server server(GetParam(), [](int fd) {
    wait_for(fd, 7);
    read_all(fd, 6);
  });
  ASSERT_EQ(::send(server.client, "request", 7, 0), 7);
  server.await();
  EXPECT_EQ(poll_once(server.client, POLLIN, 5000), POLLIN | POLLERR | POLLHUP);
  EXPECT_EQ(error_of_recv(server.client), ECONNRESET);
}

TEST_P(ProcessThatEnds, ResetsAConnectionWithMoreThanARingOfUnreadBytes) {
  Server server(GetParam(), [](int fd) {
    wait_for(fd, 1);
    read_all(fd, 1);
    ::send(fd, "1", 1, 0);
    char go = 0;
    while (::recv(fd, &go, 1, MSG_PEEK) == 1 && go != 'g') read_all(fd, 1);
  });
  // Half a megabyte, all but the last byte of which is read.
  const std::string much(500'000, 'm');
  std::size_t sent = 0;
  while (sent < much.size()) {
    const ssize_t gone = ::send(server.client, much.data() + sent, much.size() - sent, 0);
    ASSERT_GT(gone, 0);
    sent += static_cast<std::size_t>(gone);
  }
  ASSERT_EQ(::send(server.client, "g", 1, 0), 1);
  server.await();
  EXPECT_EQ(poll_once(server.client, POLLIN, 5000), POLLIN | POLLERR | POLLHUP);
  EXPECT_EQ(read_all(server.client, 1), "1");
  EXPECT_EQ(error_of_recv(server.client), ECONNRESET);
}

TEST_P(ProcessThatEnds, EndsInOrderOnceItHasReadEverything) {
  Server server(GetParam(), [](int fd) {
    read_all(fd, 7);
    answer(fd);
  });
  ASSERT_EQ(::send(server.client, "request", 7, 0), 7);
  server.await();
  EXPECT_EQ(poll_once(server.client, POLLIN | POLLOUT | POLLRDHUP, 5000), POLLIN | POLLOUT | POLLRDHUP);
  EXPECT_EQ(read_all(server.client, 6), "answer");
  EXPECT_EQ(error_of_recv(server.client), 0);
  EXPECT_EQ(error_of_send(server.client), 0);
  EXPECT_EQ(error_of_send(server.client), EPIPE);
}

TEST_P(ProcessThatEnds, EndsInOrderOnceItHasReadMoreThanARing) {
  const std::string much(500'000, 'm');
  Server server(GetParam(), [&](int fd) {
    read_all(fd, much.size());
    answer(fd);
  });
  std::size_t sent = 0;
  while (sent < much.size()) {
    const ssize_t gone = ::send(server.client, much.data() + sent, much.size() - sent, 0);
    ASSERT_GT(gone, 0);
    sent += static_cast<std::size_t>(gone);
  }
  server.await();
  EXPECT_EQ(read_all(server.client, 6), "answer");
  EXPECT_EQ(error_of_recv(server.client), 0);
}

TEST_P(ProcessThatEnds, DoesNotCountWhatWasSentAfterwards) {
  if (GetParam().name == std::string("ByBeingKilled")) GTEST_SKIP() << "COMPLIANCE.md: nobody knows when it was";
  Server server(GetParam(), [](int fd) {
    read_all(fd, 7);
    answer(fd);
  });
  ASSERT_EQ(::send(server.client, "request", 7, 0), 7);
  server.await();
  EXPECT_EQ(::send(server.client, "late", 4, MSG_NOSIGNAL), 4);
  EXPECT_EQ(read_all(server.client, 6), "answer");
  EXPECT_EQ(error_of_recv(server.client), 0);
}

TEST_P(ProcessThatEnds, DoesNotCountWhatWasSentAfterItsEndInItsSleep) {
  Server server(kEnds[0], [](int fd) {
    read_all(fd, 7);
    answer(fd);
    const pid_t self = ::getpid();
    if (::fork() == 0) {  // has no copy of the connection
      ::close(fd);
      support::falls_asleep(self);
      ::kill(self, SIGKILL);
      ::_exit(0);
    }
    read_all(fd, 1);
  });
  ASSERT_EQ(::send(server.client, "request", 7, 0), 7);
  server.await();
  EXPECT_EQ(::send(server.client, "late", 4, MSG_NOSIGNAL), 4);
  EXPECT_EQ(read_all(server.client, 6), "answer");
  EXPECT_EQ(error_of_recv(server.client), 0);
}

TEST_P(ProcessThatEnds, DoesNotResetWhatAnotherProcessGoesOnWith) {
  Server server(GetParam(), [](int fd) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    wait_for(fd, 7);
    if (::fork() != 0) return;
    ::close(ends[1]);
    char none = 0;
    ASSERT_EQ(::read(ends[0], &none, 1), 0);  // the end of the other process
    const bool is_right = read_all(fd, 7) == "request";
    if (is_right) answer(fd);
    ::_exit(0);
  });
  ASSERT_EQ(::send(server.client, "request", 7, 0), 7);
  server.await();
  EXPECT_EQ(read_all(server.client, 6), "answer");
  char none = 0;
  EXPECT_EQ(::recv(server.client, &none, 1, 0), 0);
}

TEST_P(ProcessThatEnds, ResetsWhatItsParentHasGivenUp) {
  Server server(GetParam(), [](int fd) {
    wait_for(fd, 7);
    if (::fork() == 0) {
      wait_for(fd, 7);
      return;
    }
    ::close(fd);
    ::wait(nullptr);
    ::_exit(0);
  });
  ASSERT_EQ(::send(server.client, "request", 7, 0), 7);
  char none = 0;
  EXPECT_EQ(::recv(server.client, &none, 1, 0), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

TEST_P(ProcessThatEnds, EndsInOrderWhatItsParentHasGivenUp) {
  Server server(GetParam(), [](int fd) {
    if (::fork() == 0) {
      read_all(fd, 7);
      answer(fd);
      return;
    }
    ::close(fd);
    ::wait(nullptr);
    ::_exit(0);
  });
  ASSERT_EQ(::send(server.client, "request", 7, 0), 7);
  EXPECT_EQ(read_all(server.client, 6), "answer");
  char none = 0;
  EXPECT_EQ(::recv(server.client, &none, 1, 0), 0);
}

TEST_P(ProcessThatEnds, ResetsNothingAfterBothSidesHaveEndedTheirStreams) {
  Server server(GetParam(), [](int fd) {
    wait_for(fd, 7);
    pollfd entry{fd, POLLRDHUP, 0};
    ::poll(&entry, 1, 5000);
    answer(fd);
    ::shutdown(fd, SHUT_WR);
  });
  ASSERT_EQ(::send(server.client, "request", 7, 0), 7);
  ASSERT_EQ(::shutdown(server.client, SHUT_WR), 0);
  EXPECT_EQ(read_all(server.client, 6), "answer");
  EXPECT_EQ(error_of_recv_blocking(server.client), 0);
  server.await();
  EXPECT_EQ(poll_once(server.client, POLLIN | POLLRDHUP, 0), POLLIN | POLLRDHUP | POLLHUP);
  int error = -1;
  socklen_t length = sizeof error;
  EXPECT_EQ(::getsockopt(server.client, SOL_SOCKET, SO_ERROR, &error, &length), 0);
  EXPECT_EQ(error, 0);
}

TEST_P(ProcessThatEnds, ShowsTheResetInTheFirstReportOfAnEpollSetThatWaitsForRoom) {
  for (const std::uint32_t how : {std::uint32_t{0}, std::uint32_t{EPOLLET}, std::uint32_t{EPOLLONESHOT}}) {
    Server server(GetParam(), [](int fd) { wait_for(fd, 7); });
    ASSERT_EQ(::send(server.client, "request", 7, 0), 7);
    server.await();
    const Fd set(::epoll_create1(0));
    epoll_event event{};
    event.events = EPOLLOUT | how;
    ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, server.client, &event), 0);
    ASSERT_EQ(::epoll_wait(set, &event, 1, 5000), 1);
    EXPECT_EQ(event.events, std::uint32_t{EPOLLOUT | EPOLLERR | EPOLLHUP}) << how;
  }
}

/// A process that listens, and ends once its client is connected. It accepts nobody.
class ServerThatAcceptsNobody {
 public:
  explicit ServerThatAcceptsNobody(const HowItEnds& how) {
    EXPECT_EQ(::pipe(port_), 0);
    EXPECT_EQ(::pipe(may_end_), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(may_end_[1]);
      const Fd listener = listening();
      const std::uint16_t port = name_of(listener).port();
      char none = 0;
      if (::write(port_[1], &port, sizeof port) != sizeof port || ::read(may_end_[0], &none, 1) < 0) ::_exit(1);
      how.end(listener);
      ::_exit(1);
    }
    std::uint16_t port = 0;
    EXPECT_EQ(::read(port_[0], &port, sizeof port), ssize_t{sizeof port});
    client = Fd(::socket(AF_INET, SOCK_STREAM, 0));  // which the server does not have
    Address server = Address::loopback(AF_INET, port);
    EXPECT_EQ(::connect(client, server.get(), server.length), 0);
    EXPECT_EQ(is_on_ring(client), preloaded());
  }
  ServerThatAcceptsNobody(const ServerThatAcceptsNobody&) = delete;
  ServerThatAcceptsNobody& operator=(const ServerThatAcceptsNobody&) = delete;
  ~ServerThatAcceptsNobody() {
    for (const int fd : {port_[0], port_[1], may_end_[0]}) ::close(fd);
  }
  void end() {
    ::close(may_end_[1]);
    ::waitpid(pid_, nullptr, 0);
  }

  Fd client;

 private:
  int port_[2];
  int may_end_[2];
  pid_t pid_ = -1;
};

TEST_P(ProcessThatEnds, ResetsAClientThatItHasNotAccepted) {
  ServerThatAcceptsNobody server(GetParam());
  server.end();
  EXPECT_EQ(poll_once(server.client, POLLIN | POLLOUT | POLLRDHUP, 5000),
            POLLIN | POLLOUT | POLLRDHUP | POLLERR | POLLHUP);
  EXPECT_EQ(error_of_recv(server.client), ECONNRESET);
  EXPECT_EQ(error_of_recv(server.client), 0);
  EXPECT_EQ(error_of_send(server.client), EPIPE);
}

TEST_P(ProcessThatEnds, ResetsAClientThatItHasNotAcceptedAndThatHasEndedItsStream) {
  ServerThatAcceptsNobody server(GetParam());
  ASSERT_EQ(::shutdown(server.client, SHUT_WR), 0);
  server.end();
  EXPECT_EQ(poll_once(server.client, POLLIN, 5000), POLLIN | POLLERR | POLLHUP);
  EXPECT_EQ(socket_error(server.client), ECONNRESET);
  EXPECT_EQ(error_of_recv(server.client), 0);
}

TEST_P(ProcessThatEnds, ResetsAfterTheEndOfItsStream) {
  Server server(GetParam(), [](int fd) {
    wait_for(fd, 7);
    ::shutdown(fd, SHUT_WR);
  });
  ASSERT_EQ(::send(server.client, "request", 7, 0), 7);
  server.await();
  EXPECT_EQ(poll_once(server.client, POLLIN, 5000) & POLLIN, POLLIN);
  EXPECT_EQ(error_of_recv(server.client), 0);
  EXPECT_EQ(error_of_send(server.client), EPIPE);
}

}  // namespace
}  // namespace ringsock::preload_tests
