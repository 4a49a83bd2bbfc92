// Listeners that do not answer: stopped, busy, overrun. A client is connected as soon as by the kernel, give or take
// what a ring may take; and nobody hears of a client twice.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "tests/preload/tcp_world.h"
#include "tests/support/signals.h"

namespace ringsock::preload_tests {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Far more than a ring's patience, far less than the time that a ring without a way beside it takes.
constexpr milliseconds kSoon{5000};

/// A server in a process of its own.
class Server {
 public:
  /// @param stopped  the process stops itself once it listens
  Server(int backlog, bool stopped, const std::function<int(int listener)>& serve) {
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0) ::abort();
    pid_ = ::fork();
    if (pid_ == 0) ::_exit(run(ends[1], backlog, stopped, serve));
    ::close(ends[1]);
    EXPECT_EQ(::read(ends[0], &address_, sizeof address_), static_cast<ssize_t>(sizeof address_));
    ::close(ends[0]);
    int status = 0;
    if (stopped) {
      EXPECT_EQ(::waitpid(pid_, &status, WUNTRACED), pid_);
      EXPECT_TRUE(WIFSTOPPED(status)) << "status " << status;
    }
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  [[nodiscard]] Address address() const { return address_; }
  void go_on() const { ::kill(pid_, SIGCONT); }
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  static int run(int tell, int backlog, bool stopped, const std::function<int(int)>& serve) {
    const Fd listener(::socket(AF_INET, SOCK_STREAM, 0));
    Address any = Address::loopback(AF_INET, 0);
    if (::bind(listener, any.get(), any.length) != 0 || ::listen(listener, backlog) != 0) return 101;
    const Address here = name_of(listener);
    if (::write(tell, &here, sizeof here) != static_cast<ssize_t>(sizeof here)) return 102;
    if (stopped) ::raise(SIGSTOP);
    return serve(listener);
  }

  pid_t pid_ = -1;
  Address address_;
};

/// Serves clients until one says 'q': each gets back the byte that it sends. How many came without a word.
int serve_until_quit(int listener) {
  int silent = 0;
  for (;;) {
    const Fd client(::accept(listener, nullptr, nullptr));
    if (client < 0) return 100;
    char byte = 0;
    if (::read(client, &byte, 1) != 1) {
      ++silent;
      continue;
    }
    if (::write(client, &byte, 1) != 1) return 99;
    if (byte == 'q') return silent;
  }
}

void ask(int fd, char byte) {
  ASSERT_EQ(::write(fd, &byte, 1), 1) << std::strerror(errno);
  EXPECT_EQ(read_all(fd, 1), std::string(1, byte));
}

Fd connecting_to(Address there) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  if (::connect(fd, there.get(), there.length) != 0) {
    EXPECT_EQ(errno, EINPROGRESS);
  }
  return fd;
}

void make_blocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK); }

/// The server goes on and serves this client, and nobody who is not there.
void expect_served(Server& server, Fd& client) {
  EXPECT_FALSE(is_on_ring(client));
  server.go_on();
  ask(client, 'q');
  EXPECT_EQ(server.wait(), 0) << "a client was accepted who had given up";
}

TEST(Patience, AnEpollSetHearsOfConnectsThatTheKernelCompletesLate) {
  constexpr std::size_t kClients = 24;  // most find the kernel's backlog full, and are answered when there is room
  Server server(5, true, [](int listener) -> int {
    for (;;) ::accept(listener, nullptr, nullptr);
  });
  const Fd set(::epoll_create1(EPOLL_CLOEXEC));
  std::vector<Fd> clients;
  for (std::size_t i = 0; i < kClients; ++i) {
    clients.push_back(connecting_to(server.address()));
    epoll_event event{};
    event.events = EPOLLOUT;
    event.data.u64 = i;
    ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, clients.back(), &event), 0);
  }
  std::set<std::uint64_t> connected;
  const auto collect = [&](milliseconds patience) {
    std::array<epoll_event, kClients> events{};
    const int count =
        ::epoll_wait(set, events.data(), static_cast<int>(events.size()), static_cast<int>(patience.count()));
    for (int i = 0; i < count; ++i) {
      const std::uint64_t client = events[static_cast<std::size_t>(i)].data.u64;
      connected.insert(client);
      ::epoll_ctl(set, EPOLL_CTL_DEL, clients[client], nullptr);
    }
    return count;
  };
  while (collect(milliseconds(300)) > 0) {
  }
  EXPECT_LT(connected.size(), kClients) << "there is no room for all";
  server.go_on();
  while (connected.size() < kClients && collect(milliseconds(10000)) > 0) {
  }
  EXPECT_EQ(connected.size(), kClients);
}

/// In whatever order they are accepted.
void expect_all_served(Server& server, std::vector<Fd>& clients) {
  for (Fd& client : clients) ASSERT_EQ(::write(client, "x", 1), 1);
  for (Fd& client : clients) EXPECT_EQ(read_all(client, 1), "x");
  Address there = server.address();
  const Fd last(::socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(::connect(last, there.get(), there.length), 0);
  ask(last, 'q');
  EXPECT_EQ(server.wait(), 0) << "a client was accepted who had given up";
}

TEST(Patience, AStoppedServerIsConnectedToAtOnce) {
  Server server(8, true, serve_until_quit);
  Address there = server.address();
  Fd client(::socket(AF_INET, SOCK_STREAM, 0));
  const auto start = Clock::now();
  ASSERT_EQ(::connect(client, there.get(), there.length), 0) << std::strerror(errno);
  EXPECT_LT(Clock::now() - start, kSoon);
  EXPECT_EQ(peer_of(client).port(), there.port());
  expect_served(server, client);
}

/// The client looks at its socket for the first time when the ring's patience is over.
TEST(Patience, WhoLooksLateAtAConnectFindsTheKernels) {
  const auto nothing_sent = [](int fd) {
    char byte = 0;
    EXPECT_EQ(::recv(fd, &byte, 1, 0), -1);
    EXPECT_EQ(errno, EAGAIN);
  };
  const auto no_error = [](int fd) {
    int error = -1;
    socklen_t length = sizeof error;
    EXPECT_EQ(::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length), 0);
    EXPECT_EQ(error, 0);
  };
  const auto sends = [](int fd) { EXPECT_EQ(::send(fd, "", 0, 0), 0) << std::strerror(errno); };
  const auto has_peer = [](int fd) { EXPECT_NE(peer_of(fd).port(), 0); };
  for (const std::function<void(int)>& look :
       {std::function<void(int)>(nothing_sent), {no_error}, {sends}, {has_peer}}) {
    Server server(8, true, serve_until_quit);
    Fd client = connecting_to(server.address());
    ::usleep(600'000);
    look(client);
    EXPECT_EQ(poll_once(client, POLLOUT, 1000), POLLOUT);
    make_blocking(client);
    expect_served(server, client);
  }
}

TEST(Patience, OnlyTheFirstClientOfAStoppedServerWaits) {
  Server server(64, true, serve_until_quit);
  Address there = server.address();
  std::vector<Fd> clients(40);
  const auto start = Clock::now();
  for (Fd& client : clients) {
    client = Fd(::socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(::connect(client, there.get(), there.length), 0) << std::strerror(errno);
  }
  EXPECT_LT(Clock::now() - start, milliseconds(40 * 100 / 2));
  server.go_on();
  expect_all_served(server, clients);
}

TEST(Patience, PollTellsOfTheConnectionToAStoppedServer) {
  Server server(8, true, serve_until_quit);
  Fd client = connecting_to(server.address());
  EXPECT_NE(poll_once(client, POLLOUT, static_cast<int>(kSoon.count())) & POLLOUT, 0);
  EXPECT_EQ(socket_error(client), 0);
  make_blocking(client);
  expect_served(server, client);
}

TEST(Patience, SelectTellsOfTheConnectionToAStoppedServer) {
  Server server(8, true, serve_until_quit);
  Fd client = connecting_to(server.address());
  fd_set writable;
  FD_ZERO(&writable);
  FD_SET(client, &writable);
  timeval limit{kSoon.count() / 1000, 0};
  EXPECT_EQ(::select(client + 1, nullptr, &writable, nullptr, &limit), 1);
  EXPECT_EQ(socket_error(client), 0);
  make_blocking(client);
  expect_served(server, client);
}

TEST(Patience, EpollTellsOfTheConnectionToAStoppedServer) {
  for (const std::uint32_t edge : {0u, static_cast<std::uint32_t>(EPOLLET)}) {
    Server server(8, true, serve_until_quit);
    Fd client = connecting_to(server.address());
    const Fd set(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLOUT | edge;
    ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, client, &event), 0);
    ASSERT_EQ(::epoll_wait(set, &event, 1, static_cast<int>(kSoon.count())), 1);
    EXPECT_NE(event.events & EPOLLOUT, 0u);
    EXPECT_EQ(socket_error(client), 0);
    make_blocking(client);
    expect_served(server, client);
  }
}

TEST(Patience, ASendTimeoutIsNotWaitedForLongerThanTheKernelWould) {
  Server server(8, true, serve_until_quit);
  Address there = server.address();
  Fd client(::socket(AF_INET, SOCK_STREAM, 0));
  const timeval limit{60, 0};
  ASSERT_EQ(::setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  const auto start = Clock::now();
  ASSERT_EQ(::connect(client, there.get(), there.length), 0);
  EXPECT_LT(Clock::now() - start, kSoon);
  expect_served(server, client);
}

TEST(Patience, ASocketClosedWhileItConnectsLeavesNobody) {
  Server server(8, true, serve_until_quit);
  Address there = server.address();
  if (preloaded()) {
    const Fd given_up = connecting_to(there);  // the kernel's would be a client who came and went
    EXPECT_EQ(poll_once(given_up, POLLOUT, 0), 0);
  }
  Fd client(::socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(::connect(client, there.get(), there.length), 0);
  expect_served(server, client);
}

TEST(Patience, SeveralThreadsConnectToAStoppedServer) {
  Server server(64, true, serve_until_quit);
  Address there = server.address();
  std::vector<Fd> clients(8);
  std::vector<std::thread> threads;
  threads.reserve(clients.size());
  const auto start = Clock::now();
  for (Fd& client : clients) {
    threads.emplace_back([&client, there]() mutable {
      client = Fd(::socket(AF_INET, SOCK_STREAM, 0));
      EXPECT_EQ(::connect(client, there.get(), there.length), 0) << std::strerror(errno);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_LT(Clock::now() - start, kSoon);
  server.go_on();
  expect_all_served(server, clients);
}

TEST(Patience, NoSignalInterruptsAConnect) {
  if (!preloaded()) GTEST_SKIP() << "where the kernel's own connect(2) has to wait, a signal interrupts it";
  for (const bool has_timeout : {false, true}) {
    Server server(8, true, serve_until_quit);
    Address there = server.address();
    Fd client(::socket(AF_INET, SOCK_STREAM, 0));
    const timeval timeout{has_timeout ? 10 : 0, 0};
    EXPECT_EQ(::setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout), 0);
    const support::Disposition handled(SIGUSR1);
    const auto start = Clock::now();
    EXPECT_EQ(support::with_one_signal([&] { return error_of(::connect(client, there.get(), there.length)); }), 0);
    EXPECT_LT(Clock::now() - start, kSoon);
    EXPECT_EQ(socket_error(client), 0);
    expect_served(server, client);
  }
}

TEST(Patience, ANegativeBacklogIsTheLargest) {
  const Fd listener(::socket(AF_INET, SOCK_STREAM, 0));
  Address any = Address::loopback(AF_INET, 0);
  ASSERT_EQ(::bind(listener, any.get(), any.length), 0);
  ASSERT_EQ(::listen(listener, -1), 0);
  std::vector<Fd> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(connected_to(listener));
    EXPECT_EQ(is_on_ring(clients.back()), preloaded());
  }
}

}  // namespace
}  // namespace ringsock::preload_tests
