// A socket that fork(2) gives to a child before it is connected or listens. What one process makes of it, all have, as
// with the kernel's sockets: with LD_PRELOAD=libm.so.6 these stories are told of those, except where a ring is
// expected.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/preload/calls.h"
#include "tests/preload/preloaded.h"
#include "tests/support/thread_status.h"

namespace ringsock::preloaded {
namespace {

int bind_to(int fd, std::uint16_t port) {
  const sockaddr_in address = loopback(port);
  return ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
}
int connect_by(int fd, std::uint16_t port) {
  const sockaddr_in address = loopback(port);
  return ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
}
std::uint16_t port_of(int fd) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  expect(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0, "getsockname");
  return ntohs(address.sin_port);
}
std::uint16_t peer_port_of(int fd) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  expect(::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0, "getpeername");
  return ntohs(address.sin_port);
}

int tcp_socket(int flags = 0) { return ::socket(AF_INET, SOCK_STREAM | flags, 0); }
/// A socket with a port that does not listen yet.
Listener bound_anywhere(int flags = 0) {
  const int fd = tcp_socket(flags);
  expect(bind_to(fd, 0) == 0, "bind");
  return {fd, port_of(fd)};
}
void listen_on(int fd) { expect(::listen(fd, 16) == 0, "listen"); }

/// A process that connects, asks and gets its question back.
pid_t client_of(std::uint16_t port) {
  return spawn([port] {
    const int fd = connect_to(port);
    send_all(fd, "ping");
    ::shutdown(fd, SHUT_WR);
    expect(receive_all(fd) == "ping", "the answer");
  });
}
/// Accepts one client and serves it.
void serve_one(int listener) {
  const int client = ::accept(listener, nullptr, nullptr);
  expect(client >= 0, "a client");
  echo(client);
  ::close(client);
}

/// A process that listens, on a ring too, and sends back what its only client sends.
class EchoServer {
 public:
  EchoServer() {
    const Listener listener = listen_anywhere();
    port = listener.port;
    server_ = spawn([&] { serve_one(listener.fd); });
    ::close(listener.fd);
  }
  EchoServer(const EchoServer&) = delete;
  EchoServer& operator=(const EchoServer&) = delete;
  int end() { return wait_for(server_); }
  std::uint16_t port = 0;

 private:
  pid_t server_ = 0;
};

short events_of(int fd, short events, int timeout_ms = 0) {
  pollfd entry{fd, events, 0};
  expect(::poll(&entry, 1, timeout_ms) >= 0, "poll");
  return entry.revents;
}

// -- one listens ---------------------------------------------------------------------------------

TEST(Undecided, AParentAcceptsWhereItsChildHasCalledListen) {
  const Listener bound = bound_anywhere();
  EXPECT_EQ(wait_for(spawn([&] { listen_on(bound.fd); })), 0);
  const pid_t client = client_of(bound.port);
  serve_one(bound.fd);
  EXPECT_EQ(wait_for(client), 0);
}

TEST(Undecided, AChildAcceptsWhereItsParentHasCalledListen) {
  const Listener bound = bound_anywhere();
  Signal listens;
  const pid_t server = spawn([&] {
    listens.wait();
    serve_one(bound.fd);
  });
  listen_on(bound.fd);
  listens.give();
  EXPECT_EQ(wait_for(client_of(bound.port)), 0);
  EXPECT_EQ(wait_for(server), 0);
}

TEST(Undecided, WorkersBlockInAcceptThoughOneOfThemHasCalledListen) {
  const Listener bound = bound_anywhere();
  std::array<Signal, 4> listens;
  std::vector<pid_t> workers;
  for (std::size_t i = 0; i < listens.size(); ++i) {
    workers.push_back(spawn([&, i] {
      if (i == 0) {
        listen_on(bound.fd);
        for (Signal& others : listens) others.give();
      }
      listens.at(i).wait();
      for (;;) {
        const int client = ::accept(bound.fd, nullptr, nullptr);
        expect(client >= 0, "accept(2) blocks until there is a client");
        const bool quits = receive(client, 4) == "quit";
        if (!quits) send_all(client, "pong");
        ::close(client);
        if (quits) return;
      }
    }));
  }
  for (const pid_t worker : workers) EXPECT_TRUE(support::falls_asleep(worker));
  for (int i = 0; i < 50; ++i) {
    const int fd = connect_to(bound.port);
    send_all(fd, "ping");
    EXPECT_EQ(receive_all(fd), "pong");
    ::close(fd);
  }
  for (std::size_t i = 0; i < workers.size(); ++i) send_all(connect_to(bound.port), "quit");
  for (const pid_t worker : workers) EXPECT_EQ(wait_for(worker), 0);
}

TEST(Undecided, APollAndAnEpollSetTellOfTheClientsOfAListenerThatAnotherProcessHasMade) {
  const Listener bound = bound_anywhere(SOCK_NONBLOCK);
  const int set = ::epoll_create1(0);
  epoll_event event{.events = EPOLLIN, .data = {}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, bound.fd, &event), 0);
  EXPECT_EQ(events_of(bound.fd, POLLIN), POLLHUP);
  EXPECT_EQ(wait_for(spawn([&] { listen_on(bound.fd); })), 0);
  EXPECT_EQ(events_of(bound.fd, POLLIN), 0);
  EXPECT_EQ(::epoll_wait(set, &event, 1, 0), 0);
  EXPECT_EQ(error_of(::accept(bound.fd, nullptr, nullptr)), EAGAIN);
  const pid_t client = client_of(bound.port);
  EXPECT_EQ(events_of(bound.fd, POLLIN, 10'000), POLLIN);
  ASSERT_EQ(::epoll_wait(set, &event, 1, 10'000), 1);
  EXPECT_EQ(event.events, std::uint32_t{EPOLLIN});
  serve_one(bound.fd);
  EXPECT_EQ(wait_for(client), 0);
}

TEST(Undecided, BothProcessesCallListenAndBothAccept) {
  const Listener bound = bound_anywhere();
  Signal listens;
  const pid_t child = spawn([&] {
    expect(::listen(bound.fd, 5) == 0, "listen");
    listens.give();
    serve_one(bound.fd);
  });
  listens.wait();
  EXPECT_EQ(::listen(bound.fd, 50), 0);
  EXPECT_EQ(wait_for(client_of(bound.port)), 0);
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(::listen(bound.fd, 500), 0);
  const pid_t client = client_of(bound.port);
  serve_one(bound.fd);
  EXPECT_EQ(wait_for(client), 0);
}

TEST(Undecided, AListenerStaysOnRingsOnceNoOtherProcessHasIt) {
  const Listener bound = bound_anywhere();
  EXPECT_EQ(wait_for(spawn([] {})), 0);
  listen_on(bound.fd);
  const pid_t client = client_of(bound.port);
  const int accepted = ::accept(bound.fd, nullptr, nullptr);
  EXPECT_TRUE(is_on_ring(accepted));
  echo(accepted);
  ::close(accepted);
  EXPECT_EQ(wait_for(client), 0);
}

TEST(Undecided, ADaemonThatListensOnceItsParentHasEndedIsOnRings) {
  int result[2];
  ASSERT_EQ(::pipe(result), 0);
  const pid_t starter = spawn([&] {
    const Listener bound = bound_anywhere();
    int life[2];
    expect(::pipe(life) == 0, "pipe");
    spawn([&] {
      ::close(life[1]);
      char none = 0;
      expect(::read(life[0], &none, 1) == 0, "the parent has ended");
      listen_on(bound.fd);
      const pid_t client = client_of(bound.port);
      const int accepted = ::accept(bound.fd, nullptr, nullptr);
      expect(is_on_ring(accepted), "the client came by a ring");
      echo(accepted);
      ::close(accepted);
      expect(wait_for(client) == 0, "the client got its answer");
      expect(::write(result[1], "+", 1) == 1, "result");
    });
  });
  ::close(result[1]);
  EXPECT_EQ(wait_for(starter), 0);
  char success = '-';
  EXPECT_EQ(::read(result[0], &success, 1), 1);
  EXPECT_EQ(success, '+');
  ::close(result[0]);
}

// -- rings of a family ----------------------------------------------------------------------------

/// Returns whether the descriptor is on a ring, or the stories are told of the kernel's sockets.
bool is_on_ring_if_any(int fd) {
  const char* const libraries = std::getenv("LD_PRELOAD");
  const bool is_kernels_story = libraries != nullptr && std::strstr(libraries, "rspreload") == nullptr;
  return is_kernels_story || is_on_ring(fd);
}
/// Accepts one client, which has come by a ring, and serves it.
void serve_one_on_ring(int listener) {
  const int client = ::accept(listener, nullptr, nullptr);
  expect(client >= 0, "a client");
  expect(is_on_ring_if_any(client), "the client came by a ring");
  echo(client);
  ::close(client);
}
/// A child that calls listen(2), gives the signal, and then does `body`.
pid_t listening_child(int fd, Signal& listens, const std::function<void()>& body) {
  return spawn([&] {
    listen_on(fd);
    listens.give();
    body();
  });
}

TEST(Undecided, AChildThatListensServesClientsOnRingsWhileItsParentLives) {
  const Listener bound = bound_anywhere();
  Signal listens;
  const pid_t server = listening_child(bound.fd, listens, [&] {
    serve_one_on_ring(bound.fd);
    serve_one_on_ring(bound.fd);
  });
  listens.wait();
  EXPECT_EQ(wait_for(client_of(bound.port)), 0);
  const int fd = connect_to(bound.port);
  EXPECT_TRUE(is_on_ring_if_any(fd));
  ask(fd, "the parent itself");
  ::close(fd);
  EXPECT_EQ(wait_for(server), 0);
  ::close(bound.fd);
}

TEST(Undecided, ANewChildListensOnRingsOnceTheFormerOneHasEnded) {
  const Listener bound = bound_anywhere();
  for (int generation = 0; generation < 3; ++generation) {
    Signal listens;
    const pid_t server = listening_child(bound.fd, listens, [&] {
      for (;;) serve_one_on_ring(bound.fd);
    });
    listens.wait();
    EXPECT_EQ(wait_for(client_of(bound.port)), 0);
    EXPECT_EQ(wait_for(client_of(bound.port)), 0);
    ::kill(server, SIGKILL);
    EXPECT_EQ(wait_for(server), 128 + SIGKILL);
  }
  ::close(bound.fd);
}

TEST(Undecided, AClientThatComesBetweenTwoChildrenIsServedByTheSecond) {
  const Listener bound = bound_anywhere();
  EXPECT_EQ(wait_for(spawn([&] { listen_on(bound.fd); })), 0);
  const pid_t client = client_of(bound.port);
  EXPECT_TRUE(support::falls_asleep(client));
  Signal listens;
  const pid_t server = listening_child(bound.fd, listens, [&] { serve_one(bound.fd); });
  EXPECT_EQ(wait_for(client), 0);
  EXPECT_EQ(wait_for(server), 0);
  ::close(bound.fd);
}

TEST(Undecided, WorkersOfAChildThatListensShareItsClientsOnRings) {
  const Listener bound = bound_anywhere();
  Signal listens;
  const pid_t server = listening_child(bound.fd, listens, [&] {
    std::vector<pid_t> workers;
    for (int i = 0; i < 3; ++i) {
      workers.push_back(spawn([&] {
        for (int client = 0; client < 5; ++client) serve_one_on_ring(bound.fd);
      }));
    }
    for (const pid_t worker : workers) expect(wait_for(worker) == 0, "a worker");
  });
  listens.wait();
  for (int i = 0; i < 15; ++i) EXPECT_EQ(wait_for(client_of(bound.port)), 0);
  EXPECT_EQ(wait_for(server), 0);
  ::close(bound.fd);
}

TEST(Undecided, AParentThatBeginsToAcceptGetsTheClientsThatItsListeningChildLeaves) {
  const Listener bound = bound_anywhere();
  Signal listens;
  const pid_t child = listening_child(bound.fd, listens, [] { ::pause(); });
  listens.wait();
  std::vector<pid_t> clients;
  for (int i = 0; i < 5; ++i) {
    clients.push_back(client_of(bound.port));
    EXPECT_TRUE(support::falls_asleep(clients.back()));
  }
  for (std::size_t i = 0; i < clients.size(); ++i) serve_one(bound.fd);
  for (const pid_t client : clients) EXPECT_EQ(wait_for(client), 0);
  // And those that come later.
  const pid_t late = client_of(bound.port);
  serve_one(bound.fd);
  EXPECT_EQ(wait_for(late), 0);
  ::kill(child, SIGKILL);
  EXPECT_EQ(wait_for(child), 128 + SIGKILL);
  ::close(bound.fd);
}

TEST(Undecided, ParentAndListeningChildBothBlockInAccept) {
  const Listener bound = bound_anywhere();
  Signal listens;
  const pid_t child = listening_child(bound.fd, listens, [&] {
    for (;;) serve_one(bound.fd);
  });
  listens.wait();
  EXPECT_TRUE(support::falls_asleep(child));
  EXPECT_EQ(wait_for(client_of(bound.port)), 0);
  const pid_t sibling = spawn([&] {
    for (;;) serve_one(bound.fd);
  });
  EXPECT_TRUE(support::falls_asleep(sibling));
  std::vector<pid_t> clients;
  for (int i = 0; i < 20; ++i) clients.push_back(client_of(bound.port));
  for (const pid_t client : clients) EXPECT_EQ(wait_for(client), 0);
  // Each of them serves alone, too.
  ::kill(child, SIGKILL);
  EXPECT_EQ(wait_for(child), 128 + SIGKILL);
  EXPECT_EQ(wait_for(client_of(bound.port)), 0);
  ::kill(sibling, SIGKILL);
  EXPECT_EQ(wait_for(sibling), 128 + SIGKILL);
  ::close(bound.fd);
}

TEST(Undecided, AProgramThatIsExecutedAcceptsBesideAChildThatListensAndSleeps) {
  const Listener bound = bound_anywhere();
  Signal listens;
  const pid_t child = listening_child(bound.fd, listens, [] { ::pause(); });
  listens.wait();
  const pid_t program = spawn([&] {
    ::dup2(bound.fd, 0);
    const char* const script =
        "import socket\nclient = socket.socket(fileno=0).accept()[0]\nclient.sendall(client.recv(4))";
    ::setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // Python has its own
    ::execlp("python3", "python3", "-c", script, nullptr);
  });
  EXPECT_EQ(wait_for(client_of(bound.port)), 0);
  EXPECT_EQ(wait_for(program), 0);
  ::kill(child, SIGKILL);
  EXPECT_EQ(wait_for(child), 128 + SIGKILL);
  ::close(bound.fd);
}

/// A supervisor that listens for a program which it executes, and never accepts itself.
TEST(Undecided, AProgramServesTheListenerOfAParentThatNeverAccepts) {
  const Listener listener = listen_anywhere();
  const pid_t program = spawn([&] {
    const std::string script = "import socket\nclient = socket.socket(fileno=" + std::to_string(listener.fd) +
                               ").accept()[0]\nclient.sendall(client.recv(4))";
    ::setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // Python has its own
    ::execlp("python3", "python3", "-c", script.c_str(), nullptr);
  });
  EXPECT_TRUE(support::falls_asleep(program));
  const pid_t client = spawn([&] {
    ::close(listener.fd);
    const int fd = connect_to(listener.port);
    const timeval patience{60, 0};  // Python with a sanitizer needs many seconds to start on a slow machine
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ask(fd, "ping");
  });
  const int served = wait_for(client);
  EXPECT_EQ(served, 0);
  if (served != 0) ::kill(program, SIGKILL);
  EXPECT_EQ(wait_for(program), 0);
  ::close(listener.fd);
}

// -- one shuts the listener of all down -----------------------------------------------------------

TEST(Undecided, AShutdownByOneProcessEndsTheListenerOfAll) {
  const Listener listener = listen_anywhere();
  Signal shut;
  const pid_t child = spawn([&] {
    shut.wait();
    expect(error_of(::accept(listener.fd, nullptr, nullptr)) == EINVAL, "accept after the shutdown");
    expect((events_of(listener.fd, POLLIN) & POLLHUP) != 0, "poll after the shutdown");
  });
  const pid_t sleeper =
      spawn([&] { expect(error_of(::accept(listener.fd, nullptr, nullptr)) == EINVAL, "accept during the shutdown"); });
  EXPECT_TRUE(support::falls_asleep(sleeper));
  EXPECT_EQ(wait_for(spawn([&] { expect(::shutdown(listener.fd, SHUT_RD) == 0, "shutdown"); })), 0);
  shut.give();
  EXPECT_EQ(wait_for(sleeper), 0);
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(error_of(::accept(listener.fd, nullptr, nullptr)), EINVAL);
  const int late = tcp_socket();
  EXPECT_EQ(error_of(connect_by(late, listener.port)), ECONNREFUSED);
  ::close(late);
}

TEST(Undecided, AListenerThatOneProcessHasShutDownListensAgainForAll) {
  const Listener listener = listen_anywhere();
  Signal shut, listens;
  const pid_t child = spawn([&] {
    expect(::shutdown(listener.fd, SHUT_RDWR) == 0, "shutdown");
    shut.give();
    listens.wait();
    serve_one(listener.fd);
  });
  shut.wait();
  EXPECT_EQ(::listen(listener.fd, 16), 0);
  const std::uint16_t port = port_of(listener.fd);  // another one
  listens.give();
  EXPECT_EQ(wait_for(client_of(port)), 0);
  EXPECT_EQ(wait_for(child), 0);
  const pid_t client = client_of(port);
  serve_one(listener.fd);
  EXPECT_EQ(wait_for(client), 0);
}

// -- one connects ----------------------------------------------------------------------------------

TEST(Undecided, AParentUsesTheConnectionThatItsChildHasMade) {
  EchoServer server;
  const int fd = tcp_socket();
  EXPECT_EQ(wait_for(spawn([&] {
              expect(connect_by(fd, server.port) == 0, "connect");
              ask(fd, "by the child");
            })),
            0);
  EXPECT_EQ(events_of(fd, POLLIN | POLLOUT), POLLOUT);
  EXPECT_EQ(peer_port_of(fd), server.port);
  ask(fd, "by the parent");
  int unread = -1;
  EXPECT_EQ(::ioctl(fd, FIONREAD, &unread), 0);
  EXPECT_EQ(unread, 0);
  EXPECT_EQ(error_of(connect_by(fd, server.port)), EISCONN);
  ::shutdown(fd, SHUT_WR);
  EXPECT_EQ(receive_all(fd), "");
  ::close(fd);
  EXPECT_EQ(server.end(), 0);
}

TEST(Undecided, AChildUsesTheConnectionThatItsParentHasMade) {
  EchoServer server;
  const int fd = tcp_socket();
  Signal connected;
  const pid_t child = spawn([&] {
    connected.wait();
    ask(fd, "by the child");
  });
  ASSERT_EQ(connect_by(fd, server.port), 0);
  connected.give();
  EXPECT_EQ(wait_for(child), 0);
  ask(fd, "by the parent");
  ::close(fd);
  EXPECT_EQ(server.end(), 0);
}

TEST(Undecided, EveryCallThatMovesBytesFindsTheConnection) {
  using Call = bool (*)(int fd);
  constexpr std::array<Call, 6> kCalls{
      [](int fd) { return ::write(fd, "x", 1) == 1; },
      [](int fd) { return ::send(fd, "x", 1, MSG_NOSIGNAL) == 1; },
      [](int fd) {
        iovec part{const_cast<char*>("x"), 1};
        return ::writev(fd, &part, 1) == 1;
      },
      [](int fd) {
        char byte = 0;
        return ::read(fd, &byte, 1) == 1 && byte == 'h';
      },
      [](int fd) {
        char byte = 0;
        return ::recv(fd, &byte, 1, MSG_PEEK | MSG_WAITALL) == 1 && byte == 'h';
      },
      [](int fd) {
        char byte = 0;
        iovec part{&byte, 1};
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        return ::recvmsg(fd, &message, 0) == 1 && byte == 'h';
      },
  };
  for (const Call call : kCalls) {
    const Listener listener = listen_anywhere();
    const int fd = tcp_socket();
    EXPECT_EQ(wait_for(spawn([&] { expect(connect_by(fd, listener.port) == 0, "connect"); })), 0);
    const int client = ::accept(listener.fd, nullptr, nullptr);
    send_all(client, "hello");
    EXPECT_TRUE(call(fd));
    for (const int one : {client, fd, listener.fd}) ::close(one);
  }
}

TEST(Undecided, AParentPollsTheConnectThatItsChildHasBegun) {
  EchoServer server;
  const int fd = tcp_socket(SOCK_NONBLOCK);
  const int set = ::epoll_create1(0);
  epoll_event event{.events = EPOLLOUT, .data = {}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
  EXPECT_EQ(wait_for(spawn([&] {
              const int done = connect_by(fd, server.port);
              expect(done == 0 || errno == EINPROGRESS, "connect");
            })),
            0);
  EXPECT_EQ(events_of(fd, POLLOUT, 10'000), POLLOUT);
  ASSERT_EQ(::epoll_wait(set, &event, 1, 10'000), 1);
  EXPECT_EQ(event.events, std::uint32_t{EPOLLOUT});
  send_all(fd, "ping");
  EXPECT_EQ(events_of(fd, POLLIN, 10'000), POLLIN);
  EXPECT_EQ(receive(fd, 4), "ping");
  ::close(fd);
  EXPECT_EQ(server.end(), 0);
}

TEST(Undecided, AConnectThatIsRefusedInAChildMayBeTriedAgainByItsParent) {
  const Listener nobody = bound_anywhere();
  EchoServer server;
  const int fd = tcp_socket();
  EXPECT_EQ(wait_for(spawn([&] { expect(error_of(connect_by(fd, nobody.port)) == ECONNREFUSED, "refused"); })), 0);
  EXPECT_EQ(error_of(::send(fd, "x", 1, MSG_NOSIGNAL)), EPIPE);
  EXPECT_EQ(connect_by(fd, server.port), 0);
  ask(fd, "by the parent");
  ::close(fd);
  EXPECT_EQ(server.end(), 0);
}

TEST(Undecided, ASocketThatNobodyHasConnectedIsNotConnected) {
  const int fd = tcp_socket();
  Signal done;
  const pid_t child = spawn([&] { done.wait(); });
  char byte = 0;
  EXPECT_EQ(events_of(fd, POLLIN | POLLOUT), POLLOUT | POLLHUP);
  EXPECT_EQ(error_of(::accept(fd, nullptr, nullptr)), EINVAL);
  EXPECT_EQ(error_of(::recv(fd, &byte, 1, 0)), ENOTCONN);
  EXPECT_EQ(error_of(::send(fd, "x", 1, MSG_NOSIGNAL)), EPIPE);
  done.give();
  EXPECT_EQ(wait_for(child), 0);
  ::close(fd);
}

TEST(Undecided, AConnectionStaysOnARingOnceNoOtherProcessHasTheSocket) {
  EchoServer server;
  const int fd = tcp_socket();
  Signal closed;
  const pid_t child = spawn([&] {
    ::close(fd);
    closed.give();
    ::pause();
  });
  closed.wait();
  EXPECT_EQ(connect_by(fd, server.port), 0);
  EXPECT_TRUE(is_on_ring(fd));
  ask(fd, "by the parent");
  ::kill(child, SIGKILL);
  EXPECT_EQ(wait_for(child), 128 + SIGKILL);
  // And a fork that comes later shares the connection as any other.
  EXPECT_EQ(wait_for(spawn([&] { ask(fd, "by a child"); })), 0);
  ask(fd, "by the parent again");
  EXPECT_TRUE(is_on_ring(fd));
  ::close(fd);
  EXPECT_EQ(server.end(), 0);
}

TEST(Undecided, AProgramThatHasNotInheritedTheSocketLeavesTheConnectionOnARing) {
  EchoServer server;
  const int fd = tcp_socket(SOCK_CLOEXEC);
  EXPECT_EQ(wait_for(spawn([] { ::execlp("true", "true", nullptr); })), 0);
  EXPECT_EQ(connect_by(fd, server.port), 0);
  EXPECT_TRUE(is_on_ring(fd));
  ask(fd, "by the parent");
  ::close(fd);
  EXPECT_EQ(server.end(), 0);
}

// -- one names it, or sets an option --------------------------------------------------------------

TEST(Undecided, AParentSeesThePortAndTheOptionsThatItsChildHasSet) {
  EchoServer server;
  const int fd = tcp_socket();
  EXPECT_EQ(wait_for(spawn([&] {
              expect(bind_to(fd, 0) == 0, "bind");
              const int on = 1;
              expect(::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0, "TCP_NODELAY");
              const timeval limit{0, 10'000};
              expect(::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0, "SO_RCVTIMEO");
            })),
            0);
  EXPECT_NE(port_of(fd), 0);
  EXPECT_EQ(error_of(bind_to(fd, 0)), EINVAL);
  int no_delay = 0;
  socklen_t length = sizeof no_delay;
  EXPECT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &no_delay, &length), 0);
  EXPECT_EQ(no_delay, 1);
  ASSERT_EQ(connect_by(fd, server.port), 0);
  no_delay = 0;
  EXPECT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &no_delay, &length), 0);
  EXPECT_EQ(no_delay, 1);
  char byte = 0;
  EXPECT_EQ(error_of(::recv(fd, &byte, 1, 0)), EAGAIN);
  ::close(fd);
  EXPECT_EQ(server.end(), 0);
}

}  // namespace
}  // namespace ringsock::preloaded
