// SocketXtreme in programs under librspreload (VMA_SOCKETXTREME=1): a program polls the ring of its process for
// listeners and connections on memory rings.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <mellanox/vma_extra.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/preload/preloaded.h"
#include "tests/support/raw_syscall.h"
#include "tests/support/ring_program.h"

namespace ringsock::preloaded {
namespace {

using std::chrono::milliseconds;
using support::api;
using support::bytes_of;
using support::free_one;
using support::ring_of;
using support::RingProgram;

constexpr std::uint64_t kNew = VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED;

[[gnu::constructor]] void wish() { ::setenv("VMA_SOCKETXTREME", "1", 1); }

std::uint16_t port_of(int fd) {
  sockaddr_in name{};
  socklen_t length = sizeof name;
  expect(::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0, "getsockname");
  return ntohs(name.sin_port);
}

/// Another process that waits until it is given the port of a listener, and then runs `body` with a connection to it.
/// It was forked before the program had sockets.
class Peer {
 public:
  explicit Peer(const std::function<void(int fd)>& body) {
    expect(::pipe(ends_) == 0, "pipe");
    child_ = spawn([&] {
      std::uint16_t port = 0;
      expect(::read(ends_[0], &port, sizeof port) == sizeof port, "the port");
      const int fd = connect_to(port);
      body(fd);
      ::close(fd);
    });
  }
  void begin(std::uint16_t port) const { expect(::write(ends_[1], &port, sizeof port) == sizeof port, "the port"); }
  int wait() const { return wait_for(child_); }
  ~Peer() { ::close(ends_[0]), ::close(ends_[1]); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

 private:
  int ends_[2]{};
  pid_t child_ = -1;
};

/// A server that polls, and one client, which is in the same process and polled, too, unless it receives itself.
class Polled : public testing::Test {
 protected:
  Polled() { here_ = program_.accept().fd; }
  ~Polled() override {
    program_.free_held();
    for (const int fd : {there_, here_, listener_.fd}) ::close(fd);
  }
  RingProgram::Told& told() { return program_[here_]; }
  /// Leaves the ring, as setsockopt(2) with an option that only the kernel has does.
  [[nodiscard]] int go_to_kernel() const {
    const int on = 1;
    return error_of(::setsockopt(here_, SOL_SOCKET, SO_TIMESTAMPING, &on, sizeof on));
  }
  void reset_by_peer() {
    const linger now{1, 0};
    ASSERT_EQ(::setsockopt(there_, SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
    ::close(std::exchange(there_, -1));
  }
  /// The peer sends while the program polls, until neither has room. Returns how many bytes.
  std::size_t fill() {
    const std::string piece(16'384, 'x');
    std::size_t sent = 0;
    for (int full = 0; full < 20;) {
      const ssize_t count = ::send(there_, piece.data(), piece.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      full = count > 0 ? 0 : full + 1;
      if (count > 0) sent += static_cast<std::size_t>(count);
      count > 0 ? static_cast<void>(program_.poll()) : program_.poll_for(milliseconds(5));
    }
    return sent;
  }

  Listener listener_ = listen_anywhere();
  RingProgram program_{ring_of(listener_.fd)};
  int there_ = connect_to(listener_.port);
  int here_ = -1;
};

// -- the table

TEST(Table, ItTellsThatRingsCanBePolled) {
  constexpr std::uint64_t kEvents = VMA_EXTRA_API_SOCKETXTREME_POLL | VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_PACKETS |
                                    VMA_EXTRA_API_SOCKETXTREME_REF_VMA_BUFF | VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_BUFF |
                                    VMA_EXTRA_API_GET_SOCKET_RINGS_NUM | VMA_EXTRA_API_GET_SOCKET_RINGS_FDS;
  EXPECT_EQ(api().vma_extra_supported_mask & kEvents, kEvents);
}

// -- connections that come

TEST_F(Polled, ANewConnectionIsAcceptedAndToldWithItsListenerAndItsPeer) {
  ASSERT_EQ(program_.accepted.size(), 1U);
  const auto [fd, listener, from] = program_.accepted[0];
  EXPECT_EQ(listener, listener_.fd);
  EXPECT_EQ(from.sin_family, AF_INET);
  EXPECT_EQ(from.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
  EXPECT_EQ(ntohs(from.sin_port), port_of(there_));
  EXPECT_EQ(told().events, std::vector<std::uint64_t>{kNew}) << "nothing else, by the descriptor as user_data";
  EXPECT_TRUE(is_on_ring(here_));
  EXPECT_EQ(ring_of(fd), ring_of(listener_.fd));
}

TEST_F(Polled, BytesComeAsAPacketAndAnswersGoByTheRing) {
  send_all(there_, "question");
  ASSERT_TRUE(program_.until([&] { return told().bytes.size() >= 8; }));
  EXPECT_EQ(told().bytes, "question");
  EXPECT_EQ(program_.last.user_data, static_cast<std::uint64_t>(here_));
  EXPECT_EQ(ntohs(program_.last.src.sin_port), port_of(there_));
  send_all(here_, "answer");
  EXPECT_EQ(receive(there_, 6), "answer");
}

TEST_F(Polled, WhatCameBeforeTheConnectionWasAcceptedIsTold) {
  const int second = connect_to(listener_.port);
  send_all(second, "early");
  const int accepted = program_.accept().fd;
  ASSERT_TRUE(program_.until([&] { return program_[accepted].bytes == "early"; }));
  for (const int fd : {second, accepted}) ::close(fd);
}

TEST_F(Polled, ALongStreamArrivesAsItWas) {
  const std::string sent = pattern(20'000'000, 1);
  std::thread sends([&] { send_all(there_, sent); });
  EXPECT_TRUE(program_.until([&] { return told().bytes.size() >= sent.size(); }));
  sends.join();
  EXPECT_TRUE(told().bytes == sent);
}

TEST_F(Polled, APacketOfALongQueueHasAListOfBuffers) {
  std::string sent;
  for (int i = 0; i < 200; ++i) {
    const std::string piece = pattern(700, static_cast<unsigned>(i));
    send_all(there_, piece);
    sent += piece;
  }
  EXPECT_TRUE(program_.until([&] { return told().bytes.size() >= sent.size(); }));
  EXPECT_TRUE(told().bytes == sent);
  EXPECT_LT(program_.packets, 20U);
}

TEST_F(Polled, OneCompletionAtATimeTellsTheSame) {
  RingProgram slow(ring_of(here_), 1);
  const std::string sent = pattern(2'000'000, 2);
  std::thread sends([&] {
    send_all(there_, sent);
    ::shutdown(there_, SHUT_WR);
  });
  EXPECT_TRUE(slow.until([&] { return (slow[here_].all() & EPOLLRDHUP) != 0; }));
  sends.join();
  EXPECT_TRUE(slow[here_].bytes == sent);
}

TEST_F(Polled, ManyConnectionsAreToldApart) {
  constexpr int kConnections = 100;
  std::vector<int> clients, servers;
  for (int i = 0; i < kConnections; ++i) {
    clients.push_back(connect_to(listener_.port));
    servers.push_back(program_.accept().fd);
  }
  for (int round = 0; round < 20; ++round) {
    for (std::size_t i = 0; i < kConnections; ++i) {
      program_[servers[i]].bytes.clear();
      send_all(clients[i], pattern(300 + i, static_cast<unsigned>(i)));
    }
    for (std::size_t i = 0; i < kConnections; ++i) {
      const std::string expected = pattern(300 + i, static_cast<unsigned>(i));
      ASSERT_TRUE(program_.until([&] { return program_[servers[i]].bytes.size() >= expected.size(); })) << i;
      ASSERT_TRUE(program_[servers[i]].bytes == expected) << i;
    }
  }
  for (const int fd : clients) ::close(fd);
  for (const int fd : servers) {
    EXPECT_TRUE(program_.until([&] { return (program_[fd].all() & EPOLLRDHUP) != 0; }));
    ::close(fd);
  }
}

TEST_F(Polled, AConnectionThatTheKernelMakesIsToldToBeTheKernels) {
  const int local = static_cast<int>(raw_syscall(SYS_socket, AF_INET, SOCK_STREAM, 0));
  const sockaddr_in there = loopback(listener_.port);
  ASSERT_EQ(raw_syscall(SYS_connect, local, &there, sizeof there), 0);
  const int accepted = program_.accept().fd;
  EXPECT_EQ(program_[accepted].all(), kNew | EPOLLIN);
  EXPECT_EQ(ring_of(accepted), -1);
  ASSERT_EQ(raw_syscall(SYS_sendto, local, "by the kernel", 13, 0, nullptr, 0), 13);
  EXPECT_EQ(receive(accepted, 13), "by the kernel");
  raw_syscall(SYS_close, local);
  ::close(accepted);
}

TEST_F(Polled, AConnectionThatEndedBeforeItWasAcceptedIsToldToHaveEnded) {
  const int client = connect_to(listener_.port);
  send_all(client, "last words");
  ::close(client);
  const int accepted = program_.accept().fd;
  ASSERT_TRUE(program_.until([&] { return (program_[accepted].all() & EPOLLRDHUP) != 0; }));
  EXPECT_EQ(program_[accepted].bytes, "last words");
  ::close(accepted);
}

TEST_F(Polled, ASocketHasItsRingOnceItListensOrConnects) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(api().get_socket_rings_num(fd), 0);
  const sockaddr_in name = loopback(0);
  ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  EXPECT_EQ(api().get_socket_rings_num(fd), 0);
  ASSERT_EQ(::listen(fd, 5), 0);
  EXPECT_EQ(api().get_socket_rings_num(fd), 1);
  EXPECT_EQ(ring_of(fd), ring_of(there_));
  ::close(fd);
  const int udp = ::socket(AF_INET, SOCK_DGRAM, 0);
  EXPECT_EQ(api().get_socket_rings_num(udp), 0);
  ::close(udp);
}

TEST(Ring, SocketsFromBeforeTheProgramAskedForItAreItsOwn) {
  const pid_t child = spawn([] {
    const Ends ends;
    send_all(ends.peers, "early");
    const Listener listener = listen_anywhere();
    RingProgram program(ring_of(ends.ours));
    expect(program.until([&] { return program[ends.ours].bytes == "early"; }), "what had come");
    const int client = connect_to(listener.port);
    expect(program.accept().listener == listener.fd, "the listener");
    ::close(client);
  });
  EXPECT_EQ(wait_for(child), 0);
}

TEST_F(Polled, AClosedListenerAcceptsNothing) {
  ::close(listen_anywhere().fd);
  send_all(there_, "on");
  EXPECT_TRUE(program_.until([&] { return told().bytes == "on"; }));
}

TEST_F(Polled, AServerThatAcceptsItselfWorksAsEver) {
  const int client = connect_to(listener_.port);
  const int server = ::accept(listener_.fd, nullptr, nullptr);
  ASSERT_GE(server, 0);
  send_all(client, "as ever");
  EXPECT_EQ(receive(server, 7), "as ever");
  send_all(client, "by the ring");
  EXPECT_TRUE(program_.until([&] { return program_[server].bytes == "by the ring"; }));
  for (const int fd : {client, server}) ::close(fd);
}

// -- connections that the program makes

TEST_F(Polled, AConnectionThatIsMadeIsWritableOnce) {
  const int client = start_connecting(listener_.port);
  ASSERT_EQ(ring_of(client), ring_of(listener_.fd)) << "right after connect()";
  const int server = program_.accept().fd;
  ASSERT_TRUE(program_.until([&] { return !program_[client].events.empty(); }));
  EXPECT_EQ(program_[client].events, std::vector<std::uint64_t>{EPOLLOUT});
  EXPECT_TRUE(is_on_ring(client));
  send_all(client, "hello");
  EXPECT_TRUE(program_.until([&] { return program_[server].bytes == "hello"; }));
  send_all(server, "you");
  EXPECT_TRUE(program_.until([&] { return program_[client].bytes == "you"; }));
  EXPECT_EQ(program_[client].events.size(), 1U);
  for (const int fd : {client, server}) ::close(fd);
}

TEST_F(Polled, AConnectionToNobodyIsTheKernelsToRefuse) {
  const Listener gone = listen_anywhere();
  ::close(gone.fd);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  const sockaddr_in nobody = loopback(gone.port);
  EXPECT_LT(::connect(fd, reinterpret_cast<const sockaddr*>(&nobody), sizeof nobody), 0);
  EXPECT_EQ(api().get_socket_rings_num(fd), 0) << "the program has to ask the kernel";
  ::close(fd);
}

TEST(Room, RoomForMoreIsToldOnceAfterASendThatFoundNone) {
  Signal may_read;
  std::size_t sent = 0;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Peer peer([&](int fd) {
    may_read.wait();
    std::size_t bytes = 0;
    expect(::read(ends[0], &bytes, sizeof bytes) == sizeof bytes, "how many");
    expect(receive(fd, bytes).size() == bytes, "all bytes");
    expect(receive_all(fd).empty(), "the end");
  });
  const Listener listener = listen_anywhere();
  RingProgram program(ring_of(listener.fd));
  peer.begin(listener.port);
  const int here = program.accept().fd;
  const std::string much(1'000'000, 'x');
  for (ssize_t count = 0; (count = ::send(here, much.data(), much.size(), MSG_DONTWAIT)) > 0;)
    sent += static_cast<std::size_t>(count);
  program.poll_for(milliseconds(20));
  EXPECT_EQ(program[here].events.size(), 1U) << "accepted, and no room yet";
  ASSERT_EQ(::write(ends[1], &sent, sizeof sent), static_cast<ssize_t>(sizeof sent));
  may_read.give();
  EXPECT_TRUE(program.until([&] { return program[here].events.size() >= 2; }));
  EXPECT_EQ(program[here].events.back(), std::uint64_t{EPOLLOUT});
  program.poll_for(milliseconds(20));
  EXPECT_EQ(program[here].events.size(), 2U);
  for (const int fd : {here, listener.fd, ends[0], ends[1]}) ::close(fd);
  EXPECT_EQ(peer.wait(), 0);
}

// -- the end

TEST_F(Polled, TheEndOfTheStreamIsToldBehindItsBytesOnce) {
  send_all(there_, "last");
  ::shutdown(there_, SHUT_WR);
  ASSERT_TRUE(program_.until([&] { return told().events.size() >= 2; }));
  EXPECT_EQ(told().bytes, "last");
  EXPECT_EQ(told().events.back(), std::uint64_t{EPOLLIN | EPOLLRDHUP});
  send_all(here_, "still");
  EXPECT_EQ(receive(there_, 5), "still") << "our direction is open";
  program_.poll_for(milliseconds(20));
  EXPECT_EQ(told().events.size(), 2U);
}

TEST_F(Polled, AResetIsAnErrorAndAHangUp) {
  ASSERT_NO_FATAL_FAILURE(reset_by_peer());
  ASSERT_TRUE(program_.until([&] { return (told().all() & EPOLLHUP) != 0; }));
  EXPECT_EQ(told().all() & ~kNew, std::uint64_t{EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR});
  int error = 0;
  socklen_t length = sizeof error;
  ASSERT_EQ(::getsockopt(here_, SOL_SOCKET, SO_ERROR, &error, &length), 0);
  EXPECT_EQ(error, ECONNRESET);
}

TEST(Ends, AProcessThatIsKilledEndsItsConnection) {
  const Peer peer([](int fd) {
    send_all(fd, "last");
    ::raise(SIGKILL);
  });
  const Listener listener = listen_anywhere();
  RingProgram program(ring_of(listener.fd));
  peer.begin(listener.port);
  const int here = program.accept().fd;
  EXPECT_TRUE(program.until([&] { return (program[here].all() & EPOLLRDHUP) != 0; }));
  EXPECT_EQ(program[here].bytes, "last");
  for (const int fd : {here, listener.fd}) ::close(fd);
  EXPECT_EQ(peer.wait(), 128 + SIGKILL);
}

TEST_F(Polled, AClosedSocketIsNotTold) {
  send_all(there_, "unread");
  const int fd = std::exchange(here_, -1);
  ::close(fd);
  program_.poll_for(milliseconds(20));
  EXPECT_EQ(program_[fd].bytes, "");
}

// -- user data

TEST_F(Polled, UserDataNamesTheSocketAndIsNotInherited) {
  void* data = reinterpret_cast<void*>(std::uintptr_t{0xABC00000001});
  ASSERT_EQ(::setsockopt(listener_.fd, SOL_SOCKET, SO_VMA_USER_DATA, &data, sizeof data), 0) << std::strerror(errno);
  const int client = connect_to(listener_.port);
  const int server = program_.accept().fd;
  void* known = nullptr;
  socklen_t length = sizeof known;
  ASSERT_EQ(::getsockopt(server, SOL_SOCKET, SO_VMA_USER_DATA, &known, &length), 0);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(known), static_cast<std::uintptr_t>(server));
  ASSERT_EQ(::getsockopt(listener_.fd, SOL_SOCKET, SO_VMA_USER_DATA, &known, &length), 0);
  EXPECT_EQ(known, data);
  ASSERT_EQ(::setsockopt(server, SOL_SOCKET, SO_VMA_USER_DATA, &data, sizeof data), 0);
  send_all(client, "mine");
  ASSERT_TRUE(program_.until([&] { return program_.told[0xABC00000001].bytes == "mine"; }));
  EXPECT_EQ(error_of(::setsockopt(server, SOL_SOCKET, SO_VMA_USER_DATA, &data, 4)), EINVAL);
  length = 4;
  EXPECT_EQ(error_of(::getsockopt(server, SOL_SOCKET, SO_VMA_USER_DATA, &known, &length)), EINVAL);
  for (const int fd : {client, server}) ::close(fd);
}

TEST_F(Polled, UserDataMayBeSetOnANewSocket) {
  const int client = ::socket(AF_INET, SOCK_STREAM, 0);
  void* data = reinterpret_cast<void*>(std::uintptr_t{0xDEF00000002});
  ASSERT_EQ(::setsockopt(client, SOL_SOCKET, SO_VMA_USER_DATA, &data, sizeof data), 0) << std::strerror(errno);
  const sockaddr_in there = loopback(listener_.port);
  ASSERT_EQ(::connect(client, reinterpret_cast<const sockaddr*>(&there), sizeof there), 0);
  const int server = program_.accept().fd;
  send_all(server, "named");
  EXPECT_TRUE(program_.until([&] { return program_.told[0xDEF00000002].bytes == "named"; }));
  for (const int fd : {client, server}) ::close(fd);
}

// -- packets that the program holds

TEST_F(Polled, HeldPacketsKeepTheSenderWaitingUntilTheyAreFreed) {
  program_.hold();
  const std::size_t sent = fill();
  program_.poll_for(milliseconds(20));
  const std::size_t held = told().bytes.size();
  EXPECT_LT(held, sent) << "the peer has more";
  EXPECT_LT(sent, std::size_t{16} << 20);
  program_.free_held();
  EXPECT_TRUE(program_.until([&] { return told().bytes.size() == sent; }));
}

TEST_F(Polled, EveryByteThatWasHeldOpensTheWindowAgain) {
  std::size_t sent = 0, first = 0;
  for (int round = 0; round < 6; ++round) {
    program_.hold();
    const std::size_t filled = fill();
    sent += filled;
    if (round == 1) first = filled;
    EXPECT_GE(filled, first / 2) << "in round " << round;
    program_.free_held();
    ASSERT_TRUE(program_.until([&] { return told().bytes.size() >= sent; })) << "in round " << round;
  }
}

TEST_F(Polled, TheWindowOpensAlsoWhenTheNumberOfTheSocketIsAnotherOne) {
  program_.hold();
  const std::size_t sent = fill();
  const std::size_t held = told().bytes.size();
  ASSERT_LT(held, sent);
  const int copy = ::dup(here_);
  ::close(std::exchange(here_, -1));
  program_.free_held();
  EXPECT_TRUE(program_.until([&] { return program_[copy].bytes.size() >= sent - held; }));
  ::close(copy);
}

TEST_F(Polled, ABufferIsFreeWithItsLastReference) {
  program_.hold();
  send_all(there_, "shared");
  ASSERT_TRUE(program_.until([&] { return !program_.held.empty(); }));
  vma_packet_desc_t packet = program_.held[0];
  program_.held.clear();
  vma_buff_t* const buffer = packet.buff_lst;
  EXPECT_EQ(api().socketxtreme_ref_vma_buff(buffer), 2);
  EXPECT_EQ(api().socketxtreme_free_vma_packets(&packet, 1), 0);
  EXPECT_EQ(bytes_of(packet), "shared");
  EXPECT_EQ(api().socketxtreme_free_vma_buff(buffer), 0);
  EXPECT_EQ(error_of(api().socketxtreme_free_vma_buff(buffer)), EINVAL);
  EXPECT_EQ(error_of(api().socketxtreme_free_vma_packets(&packet, 1)), EINVAL) << "twice";
}

TEST_F(Polled, PacketsOutliveTheirSocketAndItsReset) {
  program_.hold();
  send_all(there_, "held");
  ASSERT_TRUE(program_.until([&] { return told().bytes == "held"; }));
  ::close(std::exchange(here_, -1));
  ::close(std::exchange(there_, -1));
  ASSERT_EQ(program_.held.size(), 1U);
  EXPECT_EQ(bytes_of(program_.held[0]), "held");
  program_.free_held();
}

TEST_F(Polled, PacketsMayBeFreedByAnotherThread) {
  const std::string sent = pattern(10'000'000, 3);
  std::thread sends([&] { send_all(there_, sent); });
  std::string got;
  while (got.size() < sent.size()) {
    program_.hold();
    program_.until([&] { return !program_.held.empty() || told().bytes.size() >= sent.size(); });
    got = told().bytes;
    std::thread([&] { program_.free_held(); }).join();
  }
  sends.join();
  EXPECT_TRUE(got == sent);
}

TEST_F(Polled, BadArgumentsAreRefused) {
  vma_completion_t one{};
  const int ring = ring_of(here_);
  EXPECT_EQ(error_of(api().socketxtreme_poll(ring, nullptr, 1, 0)), EINVAL);
  EXPECT_EQ(error_of(api().socketxtreme_poll(ring, &one, 0, 0)), EINVAL);
  EXPECT_EQ(error_of(api().socketxtreme_poll(ring, reinterpret_cast<vma_completion_t*>(8), 1, 0)), EFAULT);
  for (const int fd : {-1, 1'000'000, here_, listener_.fd})
    EXPECT_EQ(error_of(api().socketxtreme_poll(fd, &one, 1, 0)), EBADFD);
  int rings[2] = {-7, -7};
  EXPECT_EQ(error_of(api().get_socket_rings_fds(here_, nullptr, 1)), EINVAL);
  EXPECT_EQ(error_of(api().get_socket_rings_fds(here_, rings, 0)), EINVAL);
  EXPECT_EQ(error_of(api().get_socket_rings_fds(here_, reinterpret_cast<int*>(8), 1)), EFAULT);
  EXPECT_EQ(api().get_socket_rings_fds(-1, rings, 2), 0);
  EXPECT_EQ(api().get_socket_rings_fds(here_, rings, 2), 1);
  EXPECT_EQ(rings[1], -7);
  program_.hold();
  send_all(there_, "whole");
  ASSERT_TRUE(program_.until([&] { return program_.held.size() == 1; }));
  vma_packet_desc_t inside = program_.held[0];
  inside.buff_lst = reinterpret_cast<vma_buff_t*>(reinterpret_cast<char*>(inside.buff_lst) + 8);
  EXPECT_EQ(error_of(api().socketxtreme_free_vma_packets(&inside, 1)), EINVAL);
  EXPECT_EQ(error_of(free_one(here_, program_.held[0].buff_lst)), ENOENT) << "another kind of packet";
  EXPECT_EQ(error_of(api().socketxtreme_free_vma_packets(nullptr, 1)), EINVAL);
  EXPECT_EQ(error_of(api().socketxtreme_free_vma_packets(reinterpret_cast<vma_packet_desc_t*>(8), 1)), EFAULT);
  EXPECT_EQ(error_of(api().socketxtreme_ref_vma_buff(nullptr)), EINVAL);
  EXPECT_EQ(error_of(api().socketxtreme_free_vma_buff(reinterpret_cast<vma_buff_t*>(&one))), EINVAL);
  vma_packet_desc_t none{};
  EXPECT_EQ(api().socketxtreme_free_vma_packets(&none, 1), 0) << "no buffers";
  EXPECT_EQ(bytes_of(program_.held[0]), "whole");
}

TEST_F(Polled, AListThatTheProgramHasWrittenToIsFreedAllTheSame) {
  const std::string sent = pattern(500'000, 4);
  program_.hold();
  std::thread sends([&] { send_all(there_, sent); });
  EXPECT_TRUE(program_.until([&] { return told().bytes.size() >= 60'000; }));
  for (vma_packet_desc_t& one : program_.held) one.buff_lst->next = reinterpret_cast<vma_buff_t*>(8);
  program_.free_held();
  EXPECT_TRUE(program_.until([&] { return told().bytes.size() >= sent.size(); }));
  sends.join();
}

// -- the ring's descriptor

TEST_F(Polled, ADescriptorThatWasClosedIsMadeAnew) {
  const int before = ring_of(here_);
  ASSERT_EQ(::close(before), 0);
  vma_completion_t one{};
  EXPECT_EQ(error_of(api().socketxtreme_poll(before, &one, 1, 0)), EBADFD);
  RingProgram anew(ring_of(here_));
  send_all(there_, "on");
  EXPECT_TRUE(anew.until([&] { return anew[here_].bytes == "on"; }));
}

TEST_F(Polled, ItIsNoSocketAndNoEpollSet) {
  const int ring = ring_of(here_);
  char one = 0;
  EXPECT_NE(error_of(::recv(ring, &one, 1, MSG_DONTWAIT)), 0);
  EXPECT_NE(error_of(::send(ring, &one, 1, MSG_NOSIGNAL)), 0);
  epoll_event event{.events = EPOLLIN, .data = {}};
  EXPECT_EQ(error_of(::epoll_ctl(ring, EPOLL_CTL_ADD, here_, &event)), EINVAL);
  EXPECT_EQ(error_of(::epoll_wait(ring, &event, 1, 0)), EINVAL);
  EXPECT_EQ(api().get_socket_rings_num(ring), 0);
}

TEST_F(Polled, ASleeperOnTheRingHearsOfConnectionsAndBytes) {
  const int ring = ring_of(listener_.fd);
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event wish{.events = EPOLLIN, .data = {}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, ring, &wish), 0);
  const auto sleep_until = [&](const std::function<bool()>& done) {
    for (int left = 1000; left > 0 && !done(); --left) {
      epoll_event news{};
      ASSERT_EQ(::epoll_wait(set, &news, 1, 10'000), 1);
      program_.poll();
    }
    EXPECT_TRUE(done());
  };
  std::thread sends([&] {
    ::usleep(50'000);
    send_all(there_, "wake up");
  });
  sleep_until([&] { return told().bytes == "wake up"; });
  sends.join();
  int second = -1;
  std::thread connects([&] {
    ::usleep(50'000);
    second = connect_to(listener_.port);
  });
  sleep_until([&] { return program_.accepted.size() == 2; });
  connects.join();
  program_.poll_for(milliseconds(20));
  epoll_event none{};
  EXPECT_EQ(::epoll_wait(set, &none, 1, 0), 0) << "the program knows everything";
  for (const int fd : {set, second, program_.accepted.at(1).fd}) ::close(fd);
}

TEST_F(Polled, PollAndSelectWaitForTheRing) {
  const int ring = ring_of(here_);
  program_.poll_for(milliseconds(5));
  pollfd wait{.fd = ring, .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&wait, 1, 0), 0);
  for (int round = 0; round < 100; ++round) {
    std::thread sends([&] { send_all(there_, "x"); });
    ASSERT_EQ(::poll(&wait, 1, 10'000), 1);
    ASSERT_TRUE(program_.until([&] { return told().bytes.size() == static_cast<std::size_t>(2 * round + 1); }));
    sends.join();
    send_all(there_, "y");
    fd_set reads;
    FD_ZERO(&reads);
    FD_SET(ring, &reads);
    timeval limit{10, 0};
    ASSERT_EQ(::select(ring + 1, &reads, nullptr, nullptr, &limit), 1);
    ASSERT_TRUE(program_.until([&] { return told().bytes.size() == static_cast<std::size_t>(2 * round + 2); }));
  }
}

// -- other calls meanwhile, and the way to the kernel

TEST_F(Polled, BytesThatAReceiveHasTakenAreNotTold) {
  send_all(there_, "by recv()");
  EXPECT_EQ(receive(here_, 9), "by recv()");
  send_all(there_, "by the ring");
  ASSERT_TRUE(program_.until([&] { return !told().bytes.empty(); }));
  EXPECT_EQ(told().bytes, "by the ring");
}

TEST_F(Polled, AConnectionThatGoesToTheKernelIsToldOnce) {
  ASSERT_EQ(go_to_kernel(), 0);
  ASSERT_TRUE(program_.until([&] { return told().events.size() >= 2; }));
  EXPECT_EQ(told().events.back(), std::uint64_t{EPOLLIN});
  EXPECT_EQ(api().get_socket_rings_num(here_), 0);
  send_all(there_, "by the kernel");
  EXPECT_EQ(receive(here_, 13), "by the kernel");
  program_.poll_for(milliseconds(20));
  EXPECT_EQ(told().events.size(), 2U);
}

TEST_F(Polled, AConnectionOfWhichTheProgramHoldsPacketsStaysOnItsRing) {
  program_.hold();
  send_all(there_, "held");
  ASSERT_TRUE(program_.until([&] { return told().bytes == "held"; }));
  EXPECT_EQ(go_to_kernel(), EOPNOTSUPP);
  program_.free_held();
  EXPECT_EQ(go_to_kernel(), 0);
}

TEST_F(Polled, AForkedChildHasARingOfItsOwn) {
  program_.hold();
  send_all(there_, "held");
  ASSERT_TRUE(program_.until([&] { return told().bytes == "held"; }));
  const int ring = ring_of(listener_.fd);
  const pid_t child = spawn([&] {
    vma_completion_t one{};
    expect(error_of(api().socketxtreme_poll(ring, &one, 1, 0)) == EBADFD, "the parent's ring");
    pollfd wait{.fd = ring, .events = POLLIN, .revents = 0};
    expect(::poll(&wait, 1, 0) == 1 && (wait.revents & POLLHUP) != 0, "it has ended");
    expect(bytes_of(program_.held[0]) == "held", "the packet");
    expect(api().socketxtreme_free_vma_packets(&program_.held[0], 1) == 0, "a free of the child");
    const Ends ends;
    RingProgram own(ring_of(ends.ours));
    send_all(ends.peers, "own");
    expect(own.until([&] { return own[ends.ours].bytes == "own"; }), "a connection of the child");
  });
  EXPECT_EQ(wait_for(child), 0);
  program_.free_held();
  send_all(there_, "on");
  EXPECT_TRUE(program_.until([&] { return told().bytes == "heldon"; }));
  const int second = connect_to(listener_.port);
  const int accepted = program_.accept().fd;
  EXPECT_TRUE(is_on_ring(accepted));
  for (const int fd : {second, accepted}) ::close(fd);
}

TEST_F(Polled, BothEndsMayBePolled) {
  for (unsigned round = 0; round < 200; ++round) {
    const std::string text = pattern(3000, round);
    program_[there_].bytes.clear();
    told().bytes.clear();
    send_all(here_, text);
    ASSERT_TRUE(program_.until([&] { return program_[there_].bytes.size() >= text.size(); }));
    ASSERT_TRUE(program_[there_].bytes == text);
    send_all(there_, text);
    ASSERT_TRUE(program_.until([&] { return told().bytes.size() >= text.size(); }));
    ASSERT_TRUE(told().bytes == text);
  }
}

TEST_F(Polled, AConnectionByIPv6HasNoSource) {
  const int listener = ::socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 name{};
  name.sin6_family = AF_INET6;
  name.sin6_addr = in6addr_loopback;
  socklen_t length = sizeof name;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&name), length) != 0) GTEST_SKIP() << "no IPv6";
  ASSERT_EQ(::listen(listener, 5), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&name), &length), 0);
  const int client = ::socket(AF_INET6, SOCK_STREAM, 0);
  ASSERT_EQ(::connect(client, reinterpret_cast<sockaddr*>(&name), length), 0);
  const auto accepted = program_.accept();
  EXPECT_EQ(accepted.listener, listener);
  EXPECT_EQ(accepted.from.sin_family, 0);
  send_all(client, "six");
  EXPECT_TRUE(program_.until([&] { return program_[accepted.fd].bytes == "six"; }));
  for (const int fd : {listener, client, accepted.fd}) ::close(fd);
}

// -- several threads

TEST(Threads, ManyShortConnectionsComeAndGo) {
  constexpr int kClients = 3, kEach = 60;
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  std::vector<pid_t> children;
  for (int c = 0; c < kClients; ++c) {
    children.push_back(spawn([&, c] {
      std::uint16_t port = 0;
      expect(::read(ends[0], &port, sizeof port) == sizeof port, "the port");
      for (int i = 0; i < kEach; ++i) {
        const int client = connect_to(port);
        send_all(client, "question");
        if (c != 0) {  // otherwise it does not wait for the answer
          expect(receive(client, 6) == "answer", "the answer");
          ::shutdown(client, SHUT_WR);
          expect(receive_all(client).empty(), "the server has closed, too");
        }
        ::close(client);
      }
    }));
  }
  const Listener listener = listen_anywhere();
  RingProgram program(ring_of(listener.fd));
  for (int c = 0; c < kClients; ++c)
    ASSERT_EQ(::write(ends[1], &listener.port, sizeof listener.port), static_cast<ssize_t>(sizeof listener.port));
  int ended = 0;
  std::size_t known = 0;
  std::vector<int> open;
  EXPECT_TRUE(program.until([&] {
    for (; known < program.accepted.size(); ++known) open.push_back(program.accepted[known].fd);
    std::erase_if(open, [&](int fd) {
      auto& told = program[fd];
      if (told.bytes == "question") ::send(fd, "answer", 6, MSG_NOSIGNAL), told.bytes.clear();
      if ((told.all() & (EPOLLRDHUP | EPOLLHUP)) == 0) return false;
      told = {};
      ::close(fd);
      ++ended;
      return true;
    });
    return ended == kClients * kEach;
  })) << ended;
  for (const pid_t one : children) EXPECT_EQ(wait_for(one), 0);
  for (const int fd : {listener.fd, ends[0], ends[1]}) ::close(fd);
}

TEST_F(Polled, SocketsMayBeClosedWhileAnotherThreadPolls) {
  std::atomic<bool> is_over{false};
  std::thread polls([&] {
    std::array<vma_completion_t, 4> some;
    while (!is_over) {
      const int count = api().socketxtreme_poll(ring_of(here_), some.data(), some.size(), 0);
      for (int i = 0; i < count; ++i) {
        auto& one = some[static_cast<std::size_t>(i)];
        if ((one.events & VMA_SOCKETXTREME_PACKET) != 0) api().socketxtreme_free_vma_packets(&one.packet, 1);
        if ((one.events & kNew) != 0) ::close(static_cast<int>(one.user_data));
      }
    }
  });
  const std::string text = pattern(20'000, 5);
  for (int i = 0; i < 200; ++i) {
    const int mine = connect_to(listener_.port);
    ::send(mine, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    ::close(mine);
  }
  is_over = true;
  polls.join();
}

TEST_F(Polled, TwoThreadsMayPollOneRing) {
  const std::string sent = pattern(10'000'000, 6);
  std::atomic<std::size_t> bytes{0};
  const int ring = ring_of(here_);
  const auto poll = [&] {
    std::array<vma_completion_t, 4> some;
    while (bytes < sent.size()) {
      const int count = api().socketxtreme_poll(ring, some.data(), some.size(), 0);
      ASSERT_GE(count, 0);
      for (int i = 0; i < count; ++i) {
        auto& one = some[static_cast<std::size_t>(i)];
        bytes += one.packet.total_len;
        EXPECT_EQ(api().socketxtreme_free_vma_packets(&one.packet, 1), 0);
      }
    }
  };
  std::thread first(poll), second(poll);
  send_all(there_, sent);
  first.join();
  second.join();
  EXPECT_EQ(bytes, sent.size());
}

}  // namespace
}  // namespace ringsock::preloaded
