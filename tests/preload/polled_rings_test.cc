// The choice of rings in programs that poll memory rings (VMA_SOCKETXTREME=1): by VMA_RING_ALLOCATION_LOGIC_RX, here a
// ring for each thread, and by SO_VMA_RING_ALLOC_LOGIC.
#include <gtest/gtest.h>
#include <mellanox/vma_extra.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <latch>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/preload/preloaded.h"
#include "tests/support/ring_program.h"

namespace ringsock::preloaded {
namespace {

using support::api;
using support::ring_of;
using support::RingProgram;

[[gnu::constructor]] void wish() {
  ::setenv("VMA_SOCKETXTREME", "1", 1);
  ::setenv("VMA_RING_ALLOCATION_LOGIC_RX", "20", 1);
}

int new_socket() { return ::socket(AF_INET, SOCK_STREAM, 0); }

int set_logic(int fd, ring_logic_t logic, std::uint32_t user_id = 0) {
  vma_ring_alloc_logic_attr wish{};
  wish.comp_mask = VMA_RING_ALLOC_MASK_RING_INGRESS | VMA_RING_ALLOC_MASK_RING_USER_ID;
  wish.ring_alloc_logic = logic;
  wish.user_id = user_id;
  wish.ingress = 1;
  return error_of(::setsockopt(fd, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &wish, sizeof wish));
}

Listener listen_on(int fd) {
  sockaddr_in name = loopback(0);
  socklen_t length = sizeof name;
  expect(::bind(fd, reinterpret_cast<const sockaddr*>(&name), length) == 0, "bind");
  expect(::listen(fd, 100) == 0, "listen");
  expect(::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0, "getsockname");
  return {fd, ntohs(name.sin_port)};
}

Listener listen_by(ring_logic_t logic, std::uint32_t user_id = 0) {
  const int fd = new_socket();
  EXPECT_EQ(set_logic(fd, logic, user_id), 0);
  return listen_on(fd);
}

int connect_by(std::uint16_t port, ring_logic_t logic, std::uint32_t user_id = 0) {
  const int fd = new_socket();
  EXPECT_EQ(set_logic(fd, logic, user_id), 0);
  const sockaddr_in there = loopback(port);
  expect(::connect(fd, reinterpret_cast<const sockaddr*>(&there), sizeof there) == 0, "connect");
  return fd;
}

int poll_once(int ring) {
  vma_completion_t one{};
  return error_of(api().socketxtreme_poll(ring, &one, 1, 0));
}

void close_all(const std::vector<int>& fds) {
  for (const int fd : fds) ::close(fd);
}

template <class Body>
void in_another_thread(Body body) {
  std::thread(body).join();
}

// -- a ring for each thread

TEST(RingOfThread, EachThreadHasItsListenerItsRingAndItsConnections) {
  constexpr int kThreads = 3, kConnections = 4;
  std::array<std::atomic<int>, kThreads> rings{};
  std::latch have_rings(kThreads);
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const Listener listener = listen_anywhere();
      const int ring = ring_of(listener.fd);
      rings[static_cast<std::size_t>(t)] = ring;
      have_rings.arrive_and_wait();  // the number of a ring that has ended is used again
      RingProgram program(ring);
      std::vector<int> clients, servers;
      for (int i = 0; i < kConnections; ++i) {
        in_another_thread([&] { clients.push_back(connect_to(listener.port)); });
        servers.push_back(program.accept().fd);
        EXPECT_EQ(ring_of(servers.back()), ring) << "the listener's";
        EXPECT_EQ(api().get_socket_rings_num(servers.back()), 1);
        EXPECT_NE(ring_of(clients.back()), ring);
      }
      for (unsigned round = 0; round < 50; ++round) {
        for (std::size_t i = 0; i < kConnections; ++i) {
          auto& told = program[servers[i]];
          told.bytes.clear();
          const std::string text = pattern(5000, round);
          send_all(clients[i], text);
          ASSERT_TRUE(program.until([&] { return told.bytes.size() >= text.size(); }));
          ASSERT_TRUE(told.bytes == text);
          send_all(servers[i], text);
          ASSERT_TRUE(receive(clients[i], text.size()) == text);
        }
      }
      EXPECT_EQ(program.told.size(), servers.size()) << "and nobody else's";
      close_all(clients), close_all(servers), close_all({listener.fd});
    });
  }
  for (std::thread& one : threads) one.join();
  EXPECT_NE(rings[0], rings[1]);
  EXPECT_NE(rings[1], rings[2]);
}

TEST(RingOfThread, AConnectionIsOnTheRingOfTheThreadThatConnects) {
  const Listener listener = listen_anywhere();
  RingProgram here(ring_of(listener.fd));
  std::array<int, 2> rings{}, clients{};
  std::latch have_rings(2);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      clients[t] = connect_to(listener.port);
      rings[t] = ring_of(clients[t]);
      have_rings.arrive_and_wait();
      RingProgram program(rings[t]);
      ASSERT_TRUE(program.until([&] { return program[clients[t]].bytes == "to " + std::to_string(clients[t]); }));
      EXPECT_EQ(program.told.size(), 1U) << "and nobody else's";
    });
  }
  have_rings.wait();
  std::vector<int> servers;
  servers.reserve(2);
  for (int i = 0; i < 2; ++i) servers.push_back(here.accept().fd);
  for (const int server : servers) {
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    ASSERT_EQ(::getpeername(server, reinterpret_cast<sockaddr*>(&peer), &length), 0);
    for (const int client : clients) {
      sockaddr_in name{};
      ASSERT_EQ(::getsockname(client, reinterpret_cast<sockaddr*>(&name), &length), 0);
      if (name.sin_port == peer.sin_port) send_all(server, "to " + std::to_string(client));
    }
  }
  for (std::thread& one : threads) one.join();
  EXPECT_NE(rings[0], rings[1]);
  EXPECT_NE(rings[0], ring_of(listener.fd));
  for (const int client : clients) EXPECT_EQ(ring_of(client), client == clients[0] ? rings[0] : rings[1]) << "for good";
  close_all(servers), close_all({clients[0], clients[1], listener.fd});
}

TEST(RingOfThread, AConnectionThatAnotherThreadAcceptsIsOnTheRingOfThatThread) {
  const Listener listener = listen_anywhere();
  const int client = connect_to(listener.port);
  EXPECT_EQ(ring_of(client), ring_of(listener.fd)) << "both by this thread";
  in_another_thread([&] {
    const int server = ::accept(listener.fd, nullptr, nullptr);
    const int ring = ring_of(server);
    EXPECT_NE(ring, ring_of(listener.fd));
    RingProgram program(ring);
    send_all(client, "here");
    EXPECT_TRUE(program.until([&] { return program[server].bytes == "here"; }));
    ::close(server);
  });
  close_all({client, listener.fd});
}

TEST(RingOfThread, ItEndsWithItsLastSocketThoughTheThreadGoesOn) {
  const Listener listener = listen_anywhere();
  in_another_thread([&] {
    const int client = connect_to(listener.port);
    const int ring = ring_of(client);
    EXPECT_EQ(poll_once(ring), 0);
    pollfd wait{.fd = ring, .events = POLLIN, .revents = 0};
    std::thread closes([client] { ::close(client); });
    while (wait.revents != POLLHUP && wait.revents != (POLLHUP | POLLERR)) ASSERT_GE(::poll(&wait, 1, 10'000), 0);
    closes.join();
    EXPECT_EQ(poll_once(ring), EBADFD);
    const int next = connect_to(listener.port);
    EXPECT_EQ(poll_once(ring_of(next)), 0);
    ::close(next);
  });
  ::close(listener.fd);
}

// -- SO_VMA_RING_ALLOC_LOGIC

TEST(RingOption, ANumberJoinsSocketsOfAllThreads) {
  const Listener listener = listen_by(RING_LOGIC_PER_USER_ID, 7);
  RingProgram seven(ring_of(listener.fd));
  int client = -1, stranger = -1;
  in_another_thread([&] { client = connect_by(listener.port, RING_LOGIC_PER_USER_ID, 7); });
  in_another_thread([&] { stranger = connect_by(listener.port, RING_LOGIC_PER_USER_ID, 8); });
  EXPECT_EQ(ring_of(client), ring_of(listener.fd));
  EXPECT_NE(ring_of(stranger), ring_of(listener.fd));
  const int first = seven.accept().fd, second = seven.accept().fd;
  for (const int server : {first, second}) {
    EXPECT_EQ(ring_of(server), ring_of(listener.fd));
    send_all(server, "hello");
  }
  ASSERT_TRUE(seven.until([&] { return seven[client].bytes == "hello"; }));
  RingProgram eight(ring_of(stranger));
  EXPECT_TRUE(eight.until([&] { return eight[stranger].bytes == "hello"; }));
  EXPECT_EQ(seven[stranger].bytes, "");
  EXPECT_EQ(eight.told.size(), 1U);
  close_all({first, second, client, stranger, listener.fd});
}

TEST(RingOption, AnAcceptedConnectionInheritsTheNumberOfItsListener) {
  const Listener listener = listen_by(RING_LOGIC_PER_USER_ID, 9);
  const int client = connect_to(listener.port);
  const int server = ::accept(listener.fd, nullptr, nullptr);
  EXPECT_EQ(ring_of(server), ring_of(listener.fd));
  EXPECT_NE(ring_of(client), ring_of(listener.fd));
  close_all({server, client, listener.fd});
}

TEST(RingOption, ARingForEachInterfaceIsSharedByTheWholeProcess) {
  const Listener listener = listen_by(RING_LOGIC_PER_INTERFACE);
  int client = -1;
  in_another_thread([&] { client = connect_by(listener.port, RING_LOGIC_PER_INTERFACE); });
  EXPECT_EQ(ring_of(client), ring_of(listener.fd));
  close_all({client, listener.fd});
  EXPECT_EQ(poll_once(ring_of(listener.fd)), EBADFD) << "a closed socket has no ring";
}

TEST(RingOption, ARingForEachAddressIsThatOfTheLocalAddress) {
  const Listener listener = listen_by(RING_LOGIC_PER_IP);  // at 127.0.0.1
  const int near = connect_by(listener.port, RING_LOGIC_PER_IP);
  const int far = new_socket();
  ASSERT_EQ(set_logic(far, RING_LOGIC_PER_IP), 0);
  sockaddr_in name = loopback(0);
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
  ASSERT_EQ(::bind(far, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  const sockaddr_in there = loopback(listener.port);
  ASSERT_EQ(::connect(far, reinterpret_cast<const sockaddr*>(&there), sizeof there), 0);
  EXPECT_EQ(ring_of(near), ring_of(listener.fd));
  EXPECT_NE(ring_of(far), ring_of(listener.fd));
  close_all({near, far, listener.fd});
}

TEST(RingOption, ManySocketsWithRingsOfTheirOwnTakeNoMoreDescriptorsThanAreOpenAtOnce) {
  const auto count = [] {
    using Entries = std::filesystem::directory_iterator;
    return std::distance(Entries("/proc/self/fd"), Entries());
  };
  const Listener listener = listen_by(RING_LOGIC_PER_SOCKET);
  RingProgram program(ring_of(listener.fd));
  std::ptrdiff_t after_first = 0;
  for (int i = 0; i < 100; ++i) {
    const int client = connect_by(listener.port, RING_LOGIC_PER_SOCKET);
    const int server = program.accept().fd;
    ASSERT_EQ(ring_of(server), ring_of(listener.fd)) << "the listener's";
    RingProgram own(ring_of(client));
    send_all(server, "hello");
    ASSERT_TRUE(own.until([&] { return own[client].bytes == "hello"; }));
    ASSERT_EQ(own.told.size(), 1U);
    close_all({client, server});
    program[server] = {};
    if (i == 9) after_first = count();
  }
  EXPECT_LE(count(), after_first + 1);
  ::close(listener.fd);
}

TEST(RingOption, AConnectionThatGoesToTheKernelIsToldByItsOwnRing) {
  const Listener listener = listen_by(RING_LOGIC_PER_INTERFACE);
  const int client = connect_by(listener.port, RING_LOGIC_PER_SOCKET);
  const int server = ::accept(listener.fd, nullptr, nullptr);
  RingProgram own(ring_of(client));
  const int on = 1;
  ASSERT_EQ(::setsockopt(client, SOL_SOCKET, SO_TIMESTAMPING, &on, sizeof on), 0);
  ASSERT_TRUE(own.until([&] { return !own[client].events.empty() && own[client].events.back() == EPOLLIN; }));
  EXPECT_EQ(api().get_socket_rings_num(client), 0);
  send_all(server, "by the kernel");
  EXPECT_EQ(receive(client, 13), "by the kernel");
  close_all({client, server, listener.fd});
}

TEST(RingOption, AChoiceAfterTheConnectionHasItsRingChangesNothing) {
  const Listener listener = listen_anywhere();
  const int client = connect_to(listener.port);
  const int ring = ring_of(client);
  ASSERT_EQ(set_logic(client, RING_LOGIC_PER_SOCKET), 0);
  EXPECT_EQ(ring_of(client), ring);
  close_all({client, listener.fd});
}

TEST(RingOption, WrongValuesAreRefusedAndItIsNotRead) {
  const int fd = new_socket();
  vma_ring_alloc_logic_attr wish{};
  const auto set = [&](socklen_t length) {
    return error_of(::setsockopt(fd, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &wish, length));
  };
  wish.comp_mask = VMA_RING_ALLOC_MASK_RING_INGRESS;
  wish.ingress = 1;
  wish.ring_alloc_logic = RING_LOGIC_PER_THREAD;
  EXPECT_EQ(set(sizeof wish), 0);
  EXPECT_EQ(set(sizeof wish - 1), EINVAL);
  wish.ring_alloc_logic = RING_LOGIC_LAST;
  EXPECT_EQ(set(sizeof wish), EINVAL);
  wish.ring_alloc_logic = RING_LOGIC_PER_THREAD;
  wish.comp_mask = 1U << 4;
  EXPECT_EQ(set(sizeof wish), EINVAL);
  wish.comp_mask = VMA_RING_ALLOC_MASK_RING_PROFILE_KEY;
  wish.ring_profile_key = 77;
  EXPECT_EQ(set(sizeof wish), EINVAL) << "memory rings have no profiles";
  socklen_t length = sizeof wish;
  EXPECT_EQ(error_of(::getsockopt(fd, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &wish, &length)), ENOPROTOOPT);
  ::close(fd);
}

// -- processes, and threads that meet

TEST(Rings, AForkedChildHasRingsOfItsOwn) {
  const Listener listener = listen_by(RING_LOGIC_PER_USER_ID, 11);
  const int ring = ring_of(listener.fd);
  RingProgram program(ring);
  const int before = connect_to(listener.port);
  const int accepted = program.accept().fd;
  const pid_t child = spawn([&] {
    expect(poll_once(ring) == EBADFD, "the parent's ring");
    const Listener own = listen_by(RING_LOGIC_PER_USER_ID, 11);
    RingProgram program(ring_of(own.fd));
    const int client = connect_to(own.port);
    send_all(client, "own");
    const int server = program.accept().fd;
    expect(program.until([&] { return program[server].bytes == "own"; }), "a connection of the child");
    close_all({client, server, own.fd});
  });
  EXPECT_EQ(wait_for(child), 0);
  const int client = connect_to(listener.port);
  const int server = program.accept().fd;
  EXPECT_EQ(ring_of(server), ring);
  send_all(before, "still here");
  EXPECT_TRUE(program.until([&] { return program[accepted].bytes == "still here"; }));
  close_all({before, accepted, client, server, listener.fd});
}

TEST(Rings, RingsMayComeAndGoInSeveralThreads) {
  const Listener listener = listen_by(RING_LOGIC_PER_INTERFACE);
  std::atomic<bool> is_over{false};
  std::thread accepts([&] {
    RingProgram program(ring_of(listener.fd));
    while (!is_over) {
      program.poll();
      for (auto& [fd, listens, from] : std::exchange(program.accepted, {})) {
        send_all(fd, "hello");
        ::shutdown(fd, SHUT_WR);
      }
      std::erase_if(program.told, [](const auto& one) {
        const bool has_ended = (one.second.all() & (EPOLLRDHUP | EPOLLHUP)) != 0;
        if (has_ended) ::close(static_cast<int>(one.first));
        return has_ended;
      });
    }
  });
  std::vector<std::thread> threads;
  threads.reserve(3);
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        const int client = i % 3 == 0 ? connect_to(listener.port)
                           : i % 3 == 1
                               ? connect_by(listener.port, RING_LOGIC_PER_SOCKET)
                               : connect_by(listener.port, RING_LOGIC_PER_USER_ID, 20 + static_cast<unsigned>(t));
        RingProgram program(ring_of(client));
        ASSERT_TRUE(program.until([&] { return (program[client].all() & EPOLLRDHUP) != 0; })) << i;
        ASSERT_EQ(program[client].bytes, "hello");
        ASSERT_EQ(program.told.size(), 1U);
        ::close(client);
      }
    });
  }
  for (std::thread& one : threads) one.join();
  is_over = true;
  accepts.join();
  ::close(listener.fd);
}

}  // namespace
}  // namespace ringsock::preloaded
