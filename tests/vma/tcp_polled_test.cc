// SocketXtreme for TCP (VMA_TCP=on, VMA_SOCKETXTREME=1): a program polls a ring for listeners and connections, with the
// kernel as the peer on the other host.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <mellanox/vma_extra.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include <atomic>
#include <cstring>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "tests/vma/polled_world.h"

namespace ringsock::vma_tests {
namespace {

constexpr const char* kHere = "10.9.0.1";
constexpr const char* kThere = "10.9.0.2";
constexpr std::uint64_t kNew = VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED;

/// A pattern without short periods.
std::string pattern(std::size_t bytes, std::uint32_t seed = 7) {
  std::string out(bytes, '\0');
  for (char& one : out) one = static_cast<char>((seed = seed * 1'664'525 + 1'013'904'223) >> 24);
  return out;
}

int free_as_zero_copy(int fd, void* id) {
  vma_packet_t packet{};
  packet.packet_id = id;
  return api().free_packets(fd, &packet, 1);
}

/// A server that polls its listener's ring, and one client on the other host.
class TcpPolled : public testing::Test {
 protected:
  TcpPolled() {
    const auto accepted = program_.accept();
    here_ = Stream(accepted.fd, Calls::librarys);
  }
  [[nodiscard]] int here() const { return here_.fd(); }
  RingProgram::Told& told() { return program_[here()]; }
  Stream connect_there() {
    return over_there([&] { return connected_to(listener_.name(), Calls::kernels); });
  }
  /// Leaves the ring, as setsockopt(2) with an option that only the kernel has does.
  void go_to_kernel() const {
    const int clamp = 60'000;
    ASSERT_EQ(::setsockopt(here(), IPPROTO_TCP, TCP_WINDOW_CLAMP, &clamp, sizeof clamp), 0);
    ASSERT_FALSE(here_.is_on_ring());
  }
  void reset_by_peer() {
    const linger now{1, 0};
    ASSERT_EQ(raw_syscall(SYS_setsockopt, there_.fd(), SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
    there_.close();
  }
  /// The peer sends while the program polls, until neither its queue nor our buffer has room. Returns how many bytes.
  std::size_t fill() {
    const std::string piece(16'384, 'x');
    std::size_t sent = 0;
    for (int full = 0; full < 20;) {
      const long count = there_.send_some(piece.data(), piece.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      full = count > 0 ? 0 : full + 1;
      if (count > 0) sent += static_cast<std::size_t>(count);
      count > 0 ? static_cast<void>(program_.poll()) : program_.poll_for(std::chrono::milliseconds(5));
    }
    return sent;
  }

  Listener listener_{kHere, Calls::librarys};
  RingProgram program_{ring_of(listener_.fd())};
  Stream there_ = connect_there();
  Stream here_;
};

// -- connections that come

TEST_F(TcpPolled, ANewConnectionIsAcceptedAndToldWithItsListenerAndItsPeer) {
  ASSERT_EQ(program_.accepted.size(), 1U);
  const auto [fd, listener, from] = program_.accepted[0];
  EXPECT_EQ(listener, listener_.fd());
  Address peer;
  ASSERT_EQ(raw_syscall(SYS_getsockname, there_.fd(), peer.get(), &peer.length()), 0);
  EXPECT_EQ(from.sin_family, AF_INET);
  EXPECT_EQ(from.sin_addr.s_addr, inet_addr(kThere));
  EXPECT_EQ(ntohs(from.sin_port), peer.port());
  EXPECT_EQ(told().events, std::vector<std::uint64_t>{kNew}) << "nothing else, by the descriptor as user_data";
  EXPECT_TRUE(here_.is_on_ring());
  EXPECT_EQ(ring_of(fd), ring_of(listener_.fd()));
}

TEST_F(TcpPolled, BytesComeAsAPacketAndAnswersGoByTheRing) {
  ASSERT_EQ(there_.send("question"), 8U);
  ASSERT_TRUE(program_.until([&] { return told().bytes.size() >= 8; }));
  EXPECT_EQ(told().bytes, "question");
  EXPECT_EQ(program_.last.user_data, static_cast<std::uint64_t>(here()));
  EXPECT_EQ(program_.last.src.sin_addr.s_addr, inet_addr(kThere));
  ASSERT_EQ(here_.send("answer"), 6U);
  EXPECT_EQ(there_.receive(6), "answer");
  EXPECT_TRUE(here_.is_on_ring());
}

TEST_F(TcpPolled, WhatCameBeforeTheConnectionWasAcceptedIsTold) {
  const Stream second = connect_there();
  ASSERT_EQ(second.send("early"), 5U);
  ::usleep(20'000);
  const Stream accepted(program_.accept().fd, Calls::librarys);
  ASSERT_TRUE(program_.until([&] { return program_[accepted.fd()].bytes == "early"; }));
}

TEST_F(TcpPolled, ALongStreamArrivesAsItWas) {
  const std::string sent = pattern(20'000'000);
  std::thread sends([&] { EXPECT_EQ(there_.send(sent), sent.size()); });
  EXPECT_TRUE(program_.until([&] { return told().bytes.size() >= sent.size(); }));
  sends.join();
  EXPECT_TRUE(told().bytes == sent);
  EXPECT_TRUE(here_.is_on_ring());
}

TEST_F(TcpPolled, APacketOfALongQueueHasAListOfBuffers) {
  const std::string sent = pattern(300'000);
  std::thread sends([&] { EXPECT_EQ(there_.send(sent), sent.size()); });
  int unread = 0;
  while (unread < 100'000) ASSERT_EQ(::ioctl(here(), FIONREAD, &unread), 0);
  EXPECT_TRUE(program_.until([&] { return told().bytes.size() >= sent.size(); }));
  sends.join();
  EXPECT_TRUE(told().bytes == sent);
  EXPECT_GT(program_.most_buffers, 1U);
}

TEST_F(TcpPolled, OneCompletionAtATimeTellsTheSame) {
  RingProgram slow(ring_of(here()), 1);
  const std::string sent = pattern(2'000'000);
  std::thread sends([&] {
    EXPECT_EQ(there_.send(sent), sent.size());
    there_.shut_down(SHUT_WR);
  });
  EXPECT_TRUE(slow.until([&] { return (slow[here()].all() & EPOLLRDHUP) != 0; }));
  sends.join();
  EXPECT_TRUE(slow[here()].bytes == sent);
}

TEST_F(TcpPolled, ManyConnectionsOfOneRingAreToldApart) {
  constexpr int kConnections = 60;
  std::vector<Stream> clients, servers;
  std::vector<std::string> sent;
  for (int i = 0; i < kConnections; ++i) clients.push_back(connect_there());
  while (servers.size() < kConnections) servers.emplace_back(program_.accept().fd, Calls::librarys);
  std::map<std::uint16_t, int> server_of;
  for (std::size_t i = 1; i < program_.accepted.size(); ++i)
    server_of[program_.accepted[i].from.sin_port] = program_.accepted[i].fd;
  for (int i = 0; i < kConnections; ++i) {
    sent.push_back(pattern(20'000, static_cast<std::uint32_t>(i)));
    ASSERT_EQ(clients[static_cast<std::size_t>(i)].send(sent.back()), sent.back().size());
  }
  for (int i = 0; i < kConnections; ++i) {
    const auto index = static_cast<std::size_t>(i);
    Address name;
    ASSERT_EQ(raw_syscall(SYS_getsockname, clients[index].fd(), name.get(), &name.length()), 0);
    auto& told = program_[server_of.at(htons(name.port()))];
    ASSERT_TRUE(program_.until([&] { return told.bytes.size() >= sent[index].size(); })) << i;
    EXPECT_TRUE(told.bytes == sent[index]) << i;
  }
}

TEST_F(TcpPolled, AProgramThatCallsAcceptHasTheListenerToItself) {
  const Stream second = connect_there();
  const Stream accepted = listener_.accept();
  EXPECT_EQ(ring_of(listener_.fd()), -1) << "the listener is the kernel's";
  ASSERT_EQ(second.send("mine"), 4U);
  EXPECT_EQ(accepted.receive(4), "mine");
  program_.poll_for(std::chrono::milliseconds(50));
  EXPECT_EQ(program_.accepted.size(), 1U) << "only the first one";
}

TEST_F(TcpPolled, AServerThatWaitsForItsListenerByEpollWorksAsEver) {
  const Listener own(kHere, Calls::librarys);
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event wish{.events = EPOLLIN, .data = {}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, own.fd(), &wish), 0);
  for (int i = 0; i < 3; ++i) {
    const Stream client = over_there([&] { return connected_to(own.name(), Calls::kernels); });
    epoll_event news{};
    ASSERT_EQ(::epoll_wait(set, &news, 1, 10'000), 1);
    EXPECT_EQ(news.events, std::uint32_t{EPOLLIN});
    const Stream server = own.accept();
    ASSERT_EQ(client.send("as ever"), 7U);
    EXPECT_EQ(server.receive(7), "as ever");
    EXPECT_EQ(::epoll_wait(set, &news, 1, 0), 0);
  }
  ::close(set);
}

TEST_F(TcpPolled, AConnectionThatNoRingLeadsToIsToldToBeTheKernels) {
  const Stream local = connected_to(listener_.name(), Calls::kernels);
  const Stream accepted(program_.accept().fd, Calls::librarys);
  EXPECT_EQ(program_[accepted.fd()].all(), kNew | EPOLLIN);
  EXPECT_EQ(ring_of(accepted.fd()), -1);
  ASSERT_EQ(local.send("by the kernel"), 13U);
  EXPECT_EQ(accepted.receive(13), "by the kernel");
}

TEST_F(TcpPolled, AConnectionThatEndedBeforeItWasAcceptedIsToldToHaveEnded) {
  Stream client = connect_there();
  ASSERT_EQ(client.send("last words"), 10U);
  client.close();
  ::usleep(50'000);
  const Stream accepted(program_.accept().fd, Calls::librarys);
  EXPECT_EQ(program_[accepted.fd()].all(), kNew | EPOLLIN | EPOLLRDHUP);
  EXPECT_EQ(accepted.receive(100), "last words") << "by the kernel";
}

TEST_F(TcpPolled, AListenerAtAllAddressesHasARing) {
  const Listener all("0.0.0.0", Calls::librarys);
  ASSERT_EQ(ring_of(all.fd()), ring_of(listener_.fd()));
  const Stream client = over_there([&] { return connected_to(Address(kHere, all.name().port()), Calls::kernels); });
  const auto accepted = program_.accept();
  const Stream server(accepted.fd, Calls::librarys);
  EXPECT_EQ(accepted.listener, all.fd());
}

TEST_F(TcpPolled, AListenerOnLoopbackIsTheKernels) {
  const Listener loopback("127.0.0.1", Calls::librarys);
  EXPECT_EQ(api().get_socket_rings_num(loopback.fd()), 0);
}

TEST_F(TcpPolled, ABoundSocketHasNoRingBeforeItListens) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const Address name(kHere, 0);
  ASSERT_EQ(::bind(fd, name.get(), name.length()), 0);
  EXPECT_EQ(api().get_socket_rings_num(fd), 0);
  ASSERT_EQ(::listen(fd, 5), 0);
  EXPECT_EQ(api().get_socket_rings_num(fd), 1);
  EXPECT_EQ(::close(fd), 0);
}

TEST_F(TcpPolled, ASocketThatIsBoundToAnInterfaceHasItsRingAtOnceAndKeepsIt) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const Stream listener(fd, Calls::librarys);
  ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "eth0", 4), 0) << std::strerror(errno);
  const int ring = ring_of(fd);
  ASSERT_EQ(ring, ring_of(here()));
  Address name("0.0.0.0", 0);
  ASSERT_EQ(::bind(fd, name.get(), name.length()), 0);
  ASSERT_EQ(::listen(fd, 5), 0);
  ASSERT_EQ(ring_of(fd), ring);
  ASSERT_EQ(::getsockname(fd, name.get(), &name.length()), 0);
  const Stream client = over_there([&] { return connected_to(Address(kHere, name.port()), Calls::kernels); });
  const Stream server(program_.accept().fd, Calls::librarys);
  EXPECT_TRUE(server.is_on_ring());
  ASSERT_EQ(client.send("here"), 4U);
  EXPECT_TRUE(program_.until([&] { return program_[server.fd()].bytes == "here"; }));
  ASSERT_EQ(server.send("there"), 5U);
  EXPECT_EQ(client.receive(5), "there");
  const int clamp = 60'000;
  ASSERT_EQ(::setsockopt(server.fd(), IPPROTO_TCP, TCP_WINDOW_CLAMP, &clamp, sizeof clamp), 0);
  ASSERT_FALSE(server.is_on_ring());
  ASSERT_EQ(client.send("back"), 4U);
  EXPECT_EQ(server.receive(4), "back") << "by the kernel";
}

TEST_F(TcpPolled, AClosedListenerAcceptsNothing) {
  { const Listener other(kHere, Calls::librarys); }
  ASSERT_EQ(there_.send("on"), 2U);
  EXPECT_TRUE(program_.until([&] { return told().bytes == "on"; }));
}

// -- connections that the program makes

TEST_F(TcpPolled, AConnectionThatIsMadeIsWritableOnce) {
  const Listener far = over_there([] { return Listener(kThere, Calls::kernels); });
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  const Stream here(fd, Calls::librarys);
  ASSERT_EQ(::connect(fd, far.name().get(), far.name().length()), -1);
  ASSERT_EQ(errno, EINPROGRESS);
  ASSERT_EQ(ring_of(fd), ring_of(listener_.fd())) << "right after connect()";
  ASSERT_TRUE(program_.until([&] { return !program_[fd].events.empty(); }));
  EXPECT_EQ(program_[fd].events, std::vector<std::uint64_t>{EPOLLOUT});
  EXPECT_TRUE(here.is_on_ring());
  const Stream there = over_there([&] { return far.accept(); });
  ASSERT_EQ(here.send("hello"), 5U);
  EXPECT_EQ(there.receive(5), "hello");
  ASSERT_EQ(there.send("you"), 3U);
  ASSERT_TRUE(program_.until([&] { return program_[fd].bytes == "you"; }));
  EXPECT_EQ(program_[fd].events.size(), 1U);
}

TEST_F(TcpPolled, AConnectionThatIsRefusedIsAnErrorOnce) {
  const Address nobody = over_there([] { return Listener(kThere, Calls::kernels).name(); });
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  const Stream here(fd, Calls::librarys);
  ASSERT_EQ(::connect(fd, nobody.get(), nobody.length()), -1);
  ASSERT_TRUE(program_.until([&] { return !program_[fd].events.empty(); }));
  EXPECT_EQ(program_[fd].all() & (EPOLLERR | EPOLLHUP), std::uint64_t{EPOLLERR | EPOLLHUP});
  int error = 0;
  socklen_t length = sizeof error;
  ASSERT_EQ(::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length), 0);
  EXPECT_EQ(error, ECONNREFUSED);
  program_.poll_for(std::chrono::milliseconds(20));
  EXPECT_EQ(program_[fd].events.size(), 1U);
}

TEST_F(TcpPolled, RoomForMoreIsToldOnceAfterASendThatFoundNone) {
  const std::string much(1'000'000, 'x');
  std::size_t sent = 0;
  for (long count = 0; (count = here_.send_some(much.data(), much.size(), MSG_DONTWAIT)) > 0;)
    sent += static_cast<std::size_t>(count);
  program_.poll_for(std::chrono::milliseconds(20));
  EXPECT_EQ(told().events.size(), 1U) << "accepted, and no room yet";
  std::thread reads([&] { EXPECT_EQ(there_.receive(sent).size(), sent); });
  EXPECT_TRUE(program_.until([&] { return told().events.size() >= 2; }));
  EXPECT_EQ(told().events.back(), std::uint64_t{EPOLLOUT});
  reads.join();
  program_.poll_for(std::chrono::milliseconds(20));
  EXPECT_EQ(told().events.size(), 2U);
}

// -- the end

TEST_F(TcpPolled, TheEndOfTheStreamIsToldBehindItsBytesOnce) {
  ASSERT_EQ(there_.send("last"), 4U);
  there_.shut_down(SHUT_WR);
  ASSERT_TRUE(program_.until([&] { return told().events.size() >= 2; }));
  EXPECT_EQ(told().bytes, "last");
  EXPECT_EQ(told().events.back(), std::uint64_t{EPOLLIN | EPOLLRDHUP});
  ASSERT_EQ(here_.send("still"), 5U) << "our direction is open";
  EXPECT_EQ(there_.receive(5), "still");
  program_.poll_for(std::chrono::milliseconds(20));
  EXPECT_EQ(told().events.size(), 2U);
}

TEST_F(TcpPolled, AResetIsAnErrorAndAHangUp) {
  ASSERT_NO_FATAL_FAILURE(reset_by_peer());
  ASSERT_TRUE(program_.until([&] { return told().events.size() >= 2; }));
  EXPECT_EQ(told().events.back(), std::uint64_t{EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR});
  int error = 0;
  socklen_t length = sizeof error;
  ASSERT_EQ(::getsockopt(here(), SOL_SOCKET, SO_ERROR, &error, &length), 0);
  EXPECT_EQ(error, ECONNRESET);
}

TEST_F(TcpPolled, AClosedSocketIsNotTold) {
  ASSERT_EQ(there_.send("unread"), 6U);
  ::usleep(50'000);
  const int fd = here();
  here_.close();
  program_.poll_for(std::chrono::milliseconds(50));
  EXPECT_EQ(program_[fd].bytes, "");
}

// -- user data

TEST_F(TcpPolled, UserDataNamesTheSocketAndIsNotInherited) {
  void* data = reinterpret_cast<void*>(std::uintptr_t{0xABC00000001});
  ASSERT_EQ(::setsockopt(listener_.fd(), SOL_SOCKET, SO_VMA_USER_DATA, &data, sizeof data), 0) << std::strerror(errno);
  const Stream client = connect_there();
  const Stream server(program_.accept().fd, Calls::librarys);
  void* known = nullptr;
  socklen_t length = sizeof known;
  ASSERT_EQ(::getsockopt(server.fd(), SOL_SOCKET, SO_VMA_USER_DATA, &known, &length), 0);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(known), static_cast<std::uintptr_t>(server.fd()));
  ASSERT_EQ(::setsockopt(server.fd(), SOL_SOCKET, SO_VMA_USER_DATA, &data, sizeof data), 0);
  ASSERT_EQ(client.send("mine"), 4U);
  ASSERT_TRUE(program_.until([&] { return program_.told[0xABC00000001].bytes == "mine"; }));
  EXPECT_EQ(error_of([&] { return ::setsockopt(server.fd(), SOL_SOCKET, SO_VMA_USER_DATA, &data, 4); }), EINVAL);
}

// -- packets that the program holds

TEST_F(TcpPolled, HeldPacketsKeepTheWindowShutUntilTheyAreFreed) {
  const int bytes = 100'000;
  ASSERT_EQ(::setsockopt(here(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes), 0);
  program_.hold();
  ASSERT_GT(fill(), 0U);
  program_.poll_for(std::chrono::milliseconds(100));
  const std::size_t held = told().bytes.size();
  EXPECT_LE(told().bytes.size(), std::size_t{2} * bytes) << "the peer has more; the kernel doubles SO_RCVBUF";
  program_.free_held();
  EXPECT_TRUE(program_.until([&] { return told().bytes.size() > held; }));
}

TEST_F(TcpPolled, EveryByteThatWasHeldOpensTheWindowAgain) {
  const int bytes = 200'000;
  ASSERT_EQ(::setsockopt(here(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes), 0);
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

TEST_F(TcpPolled, TheWindowOpensAlsoWhenTheNumberOfTheSocketIsAnotherOne) {
  const int bytes = 100'000;
  ASSERT_EQ(::setsockopt(here(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes), 0);
  program_.hold();
  const std::size_t sent = fill();
  const std::size_t held = told().bytes.size();
  ASSERT_LT(held, sent);
  const Stream copy(::dup(here()), Calls::librarys);
  here_.close();
  program_.free_held();
  EXPECT_TRUE(program_.until([&] { return program_[copy.fd()].bytes.size() >= sent - held; }));
}

TEST_F(TcpPolled, ABufferIsFreeWithItsLastReference) {
  program_.hold();
  ASSERT_EQ(there_.send("shared"), 6U);
  ASSERT_TRUE(program_.until([&] { return !program_.held.empty(); }));
  vma_packet_desc_t packet = program_.held[0];
  program_.held.clear();
  vma_buff_t* const buffer = packet.buff_lst;
  EXPECT_EQ(api().socketxtreme_ref_vma_buff(buffer), 2);
  EXPECT_EQ(api().socketxtreme_free_vma_packets(&packet, 1), 0);
  EXPECT_EQ(bytes_of(packet), "shared");
  EXPECT_EQ(api().socketxtreme_free_vma_buff(buffer), 0);
  EXPECT_EQ(error_of([&] { return api().socketxtreme_free_vma_buff(buffer); }), EINVAL);
  EXPECT_EQ(error_of([&] { return api().socketxtreme_free_vma_packets(&packet, 1); }), EINVAL) << "twice";
}

TEST_F(TcpPolled, PacketsOutliveTheirSocketAndItsReset) {
  program_.hold();
  ASSERT_EQ(there_.send("held"), 4U);
  ASSERT_TRUE(program_.until([&] { return told().bytes == "held"; }));
  here_.close();
  ASSERT_EQ(program_.held.size(), 1U);
  EXPECT_EQ(bytes_of(program_.held[0]), "held");
  program_.free_held();
}

TEST_F(TcpPolled, PacketsMayBeFreedByAnotherThread) {
  const std::string sent = pattern(10'000'000);
  std::thread sends([&] { EXPECT_EQ(there_.send(sent), sent.size()); });
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

TEST_F(TcpPolled, BadArgumentsAreRefused) {
  vma_completion_t one{};
  const int ring = ring_of(here());
  EXPECT_EQ(error_of([&] { return api().socketxtreme_poll(ring, nullptr, 1, 0); }), EINVAL);
  EXPECT_EQ(error_of([&] { return api().socketxtreme_poll(ring, &one, 0, 0); }), EINVAL);
  for (const int fd : {-1, 1'000'000, here(), listener_.fd()})
    EXPECT_EQ(error_of([&] { return api().socketxtreme_poll(fd, &one, 1, 0); }), EBADFD);
  program_.hold();
  ASSERT_EQ(there_.send("whole"), 5U);
  ASSERT_TRUE(program_.until([&] { return program_.held.size() == 1; }));
  vma_packet_desc_t inside = program_.held[0];
  inside.buff_lst = reinterpret_cast<vma_buff_t*>(reinterpret_cast<char*>(inside.buff_lst) + 8);
  EXPECT_EQ(error_of([&] { return api().socketxtreme_free_vma_packets(&inside, 1); }), EINVAL);
  EXPECT_EQ(error_of([&] { return free_as_zero_copy(here(), program_.held[0].buff_lst); }), ENOENT)
      << "another kind of packet";
  vma_packet_desc_t none{};
  EXPECT_EQ(api().socketxtreme_free_vma_packets(&none, 1), 0) << "no buffers";
  EXPECT_EQ(api().socketxtreme_free_vma_packets(&none, 0), 0);
  EXPECT_EQ(bytes_of(program_.held[0]), "whole");
}

TEST_F(TcpPolled, AListThatTheProgramHasWrittenToIsFreedAllTheSame) {
  const std::string sent = pattern(500'000);
  program_.hold();
  std::thread sends([&] { EXPECT_EQ(there_.send(sent), sent.size()); });
  EXPECT_TRUE(program_.until([&] { return told().bytes.size() >= 100'000; }));
  for (vma_packet_desc_t& one : program_.held) one.buff_lst->next = reinterpret_cast<vma_buff_t*>(8);
  program_.free_held();
  EXPECT_TRUE(program_.until([&] { return told().bytes.size() >= sent.size(); }));
  sends.join();
}

// -- other calls meanwhile, and the way to the kernel

TEST_F(TcpPolled, BytesThatAReceiveHasTakenAreNotTold) {
  ASSERT_EQ(there_.send("by recv()"), 9U);
  EXPECT_EQ(here_.receive(9), "by recv()");
  ASSERT_EQ(there_.send("by the ring"), 11U);
  ASSERT_TRUE(program_.until([&] { return !told().bytes.empty(); }));
  EXPECT_EQ(told().bytes, "by the ring");
}

TEST_F(TcpPolled, AConnectionThatGoesToTheKernelIsToldOnce) {
  ASSERT_NO_FATAL_FAILURE(go_to_kernel());
  ASSERT_TRUE(program_.until([&] { return told().events.size() >= 2; }));
  EXPECT_EQ(told().events.back(), std::uint64_t{EPOLLIN});
  EXPECT_EQ(api().get_socket_rings_num(here()), 0);
  ASSERT_EQ(there_.send("by the kernel"), 13U);
  EXPECT_EQ(here_.receive(13), "by the kernel");
  program_.poll_for(std::chrono::milliseconds(20));
  EXPECT_EQ(told().events.size(), 2U);
}

TEST_F(TcpPolled, WhatIsClosedMeanwhileIsNotToldToBeTheKernels) {
  ASSERT_NO_FATAL_FAILURE(go_to_kernel());
  const int fd = here();
  here_.close();
  const Stream client = connect_there();
  const Stream server(program_.accept().fd, Calls::librarys);
  ASSERT_EQ(server.fd(), fd) << "the number is used again";
  program_.poll_for(std::chrono::milliseconds(20));
  EXPECT_EQ(program_[fd].events, (std::vector<std::uint64_t>{kNew, kNew})) << "the first and the second one's";
}

TEST_F(TcpPolled, PacketsAreFreedBehindTheWayToTheKernel) {
  program_.hold();
  ASSERT_EQ(there_.send("held"), 4U);
  ASSERT_TRUE(program_.until([&] { return told().bytes == "held"; }));
  ASSERT_NO_FATAL_FAILURE(go_to_kernel());
  EXPECT_EQ(bytes_of(program_.held.at(0)), "held");
  program_.free_held();
}

TEST_F(TcpPolled, AForkLeavesConnectionsToTheKernelAndTheListenerToTheRing) {
  program_.hold();
  ASSERT_EQ(there_.send("held"), 4U);
  ASSERT_TRUE(program_.until([&] { return told().bytes == "held"; }));
  const int ring = ring_of(listener_.fd());
  const pid_t child = ::fork();
  if (child == 0) {
    vma_completion_t one{};
    const bool has_none = error_of([&] { return api().socketxtreme_poll(ring, &one, 1, 0); }) == EBADFD;
    const bool is_no_ring = api().get_socket_rings_num(listener_.fd()) == 0;
    const bool is_same = bytes_of(program_.held[0]) == "held";
    const bool is_freed = api().socketxtreme_free_vma_packets(&program_.held[0], 1) == 0;
    ::close(listener_.fd());
    ::_exit(has_none && is_no_ring && is_same && is_freed ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_TRUE(program_.until([&] { return told().events.size() >= 2; }));
  EXPECT_EQ(told().events.back(), std::uint64_t{EPOLLIN});
  program_.free_held();
  ASSERT_EQ(there_.send("on"), 2U);
  EXPECT_EQ(here_.receive(2), "on");
  const Stream second = connect_there();
  const Stream accepted(program_.accept().fd, Calls::librarys);
  EXPECT_TRUE(accepted.is_on_ring());
}

TEST_F(TcpPolled, AForkedChildMayAcceptFromTheListener) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(listener_.accept().fd() >= 0 ? 0 : 1);
  const Stream second = connect_there();
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// -- sleeping on the ring's descriptor

TEST_F(TcpPolled, ASleeperOnTheRingHearsOfConnectionsAndBytes) {
  const int ring = ring_of(listener_.fd());
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
    ::usleep(100'000);
    there_.send("wake up");
  });
  sleep_until([&] { return told().bytes == "wake up"; });
  sends.join();
  Stream second;
  std::thread connects([&] {
    ::usleep(100'000);
    second = connect_there();
  });
  sleep_until([&] { return program_.accepted.size() == 2; });
  connects.join();
  const Stream accepted(program_.accepted.at(1).fd, Calls::librarys);
  program_.poll_for(std::chrono::milliseconds(20));
  epoll_event none{};
  EXPECT_EQ(::epoll_wait(set, &none, 1, 0), 0) << "the program knows everything";
  ::close(set);
}

// -- beside datagrams

TEST_F(TcpPolled, DatagramsAndStreamsShareARing) {
  const Socket datagrams(AF_INET);
  const Address here_name(kHere, 0);
  ASSERT_EQ(::bind(datagrams, here_name.get(), here_name.length()), 0);
  ASSERT_EQ(ring_of(datagrams), ring_of(here()));
  const FarSocket far(kThere);
  const std::string sent = pattern(3'000'000);
  std::thread streams([&] { EXPECT_EQ(there_.send(sent), sent.size()); });
  std::string expected;
  for (int i = 0; i < 200; ++i) {
    expected += std::to_string(i);
    ASSERT_GT(far.send(datagrams.name(), std::to_string(i)), 0);
    ASSERT_TRUE(program_.until([&] { return program_[datagrams].bytes.size() >= expected.size(); }));
  }
  EXPECT_TRUE(program_.until([&] { return told().bytes.size() >= sent.size(); }));
  streams.join();
  EXPECT_EQ(program_[datagrams].bytes, expected);
  EXPECT_TRUE(told().bytes == sent);
}

// -- several rings

TEST_F(TcpPolled, ASocketsOwnLogicGivesItsConnectionsAnotherRing) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const Stream listener(fd, Calls::librarys);
  vma_ring_alloc_logic_attr logic{};
  logic.comp_mask = VMA_RING_ALLOC_MASK_RING_USER_ID | VMA_RING_ALLOC_MASK_RING_INGRESS;
  logic.ring_alloc_logic = RING_LOGIC_PER_USER_ID;
  logic.user_id = 77;
  logic.ingress = 1;
  EXPECT_EQ(error_of([&] { return ::setsockopt(fd, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &logic, 4); }), EINVAL);
  ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &logic, sizeof logic), 0);
  Address name(kHere, 0);
  ASSERT_EQ(::bind(fd, name.get(), name.length()), 0);
  ASSERT_EQ(::listen(fd, 5), 0);
  ASSERT_EQ(::getsockname(fd, name.get(), &name.length()), 0);
  ASSERT_NE(ring_of(fd), ring_of(here()));
  RingProgram other(ring_of(fd));
  const Stream client = over_there([&] { return connected_to(name, Calls::kernels); });
  const Stream server(other.accept().fd, Calls::librarys);
  EXPECT_EQ(ring_of(server.fd()), ring_of(fd)) << "the listener's choice";
  ASSERT_EQ(client.send("one"), 3U);
  ASSERT_EQ(there_.send("two"), 3U);
  EXPECT_TRUE(other.until([&] { return other[server.fd()].bytes == "one"; }));
  EXPECT_TRUE(program_.until([&] { return told().bytes == "two"; }));
}

TEST_F(TcpPolled, BothEndsMayBePolled) {
  const Listener far = over_there([] { return Listener(kThere, Calls::librarys); });
  RingProgram theirs(ring_of(far.fd()));
  const Stream here = connected_to(far.name(), Calls::librarys);
  const Stream there(theirs.accept().fd, Calls::librarys);
  ASSERT_NE(ring_of(here.fd()), ring_of(there.fd()));
  for (int round = 0; round < 100; ++round) {
    const std::string text = pattern(3000, static_cast<std::uint32_t>(round));
    theirs[there.fd()].bytes.clear();
    program_[here.fd()].bytes.clear();
    ASSERT_EQ(here.send(text), text.size());
    ASSERT_TRUE(theirs.until([&] { return theirs[there.fd()].bytes.size() >= text.size(); }));
    ASSERT_TRUE(theirs[there.fd()].bytes == text);
    ASSERT_EQ(there.send(text), text.size());
    ASSERT_TRUE(program_.until([&] { return program_[here.fd()].bytes.size() >= text.size(); }));
    ASSERT_TRUE(program_[here.fd()].bytes == text);
  }
}

TEST_F(TcpPolled, AConnectionByIPv6HasNoSource) {
  const Listener listener("fd09::1", Calls::librarys);
  const Stream client = over_there([&] { return connected_to(listener.name(), Calls::kernels); });
  const auto accepted = program_.accept();
  const Stream server(accepted.fd, Calls::librarys);
  EXPECT_EQ(accepted.listener, listener.fd());
  EXPECT_EQ(accepted.from.sin_family, 0);
  EXPECT_TRUE(server.is_on_ring());
  ASSERT_EQ(client.send("six"), 3U);
  EXPECT_TRUE(program_.until([&] { return program_[server.fd()].bytes == "six"; }));
}

// -- several threads

TEST_F(TcpPolled, ManyShortConnectionsComeAndGo) {
  constexpr int kThreads = 4, kEach = 60;
  std::vector<std::thread> clients;
  for (int t = 0; t < kThreads; ++t) {
    clients.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const Stream client = connect_there();
        ASSERT_EQ(client.send("question"), 8U);
        if (t == 0) continue;  // does not wait for the answer
        EXPECT_EQ(client.receive(6), "answer");
        client.shut_down(SHUT_WR);
        EXPECT_EQ(client.receive(1), "") << "the server has closed, too";
      }
    });
  }
  int ended = 0;
  std::size_t known = program_.accepted.size();
  std::vector<int> open;
  EXPECT_TRUE(program_.until([&] {
    for (; known < program_.accepted.size(); ++known) open.push_back(program_.accepted[known].fd);
    std::erase_if(open, [&](int fd) {
      auto& told = program_[fd];
      if (told.bytes == "question") ::send(fd, "answer", 6, MSG_NOSIGNAL), told.bytes.clear();
      if ((told.all() & (EPOLLRDHUP | EPOLLHUP)) == 0) return false;
      told = {};
      ::close(fd);
      ++ended;
      return true;
    });
    return ended == kThreads * kEach;
  })) << ended;
  for (std::thread& one : clients) one.join();
}

TEST_F(TcpPolled, SocketsMayBeClosedWhileAnotherThreadPolls) {
  std::atomic<bool> is_over{false};
  std::thread polls([&] {
    std::array<vma_completion_t, 4> some;
    while (!is_over) {
      const int count = api().socketxtreme_poll(ring_of(here()), some.data(), some.size(), 0);
      for (int i = 0; i < count; ++i) {
        auto& one = some[static_cast<std::size_t>(i)];
        if ((one.events & VMA_SOCKETXTREME_PACKET) != 0) api().socketxtreme_free_vma_packets(&one.packet, 1);
      }
    }
  });
  const Listener far = over_there([] { return Listener(kThere, Calls::kernels); });
  const std::string text = pattern(20'000);
  for (int i = 0; i < 200; ++i) {
    Stream mine = connected_to(far.name(), Calls::librarys);
    const Stream theirs = over_there([&] { return far.accept(); });
    ASSERT_EQ(theirs.send(text), text.size());
    if (i % 3 == 0) {
      ASSERT_EQ(mine.send("x"), 1U);
    }
    mine.close();
  }
  is_over = true;
  polls.join();
}

TEST_F(TcpPolled, TwoThreadsMayPollOneRing) {
  const std::string sent = pattern(10'000'000);
  std::atomic<std::size_t> bytes{0};
  const int ring = ring_of(here());
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
  EXPECT_EQ(there_.send(sent), sent.size());
  first.join();
  second.join();
  EXPECT_EQ(bytes, sent.size());
}

// -- a ring for each thread (VMA_RING_ALLOCATION_LOGIC_RX=20)

TEST(TcpPolledRings, EachThreadHasItsListenerItsRingAndItsConnections) {
  constexpr int kThreads = 3, kConnections = 4;
  std::array<std::atomic<int>, kThreads> rings{};
  std::latch have_rings(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const Listener listener(kHere, Calls::librarys);
      const int ring = ring_of(listener.fd());
      rings[static_cast<std::size_t>(t)] = ring;
      have_rings.arrive_and_wait();  // the number of a ring that has ended is used again
      RingProgram program(ring);
      std::vector<Stream> clients, servers;
      for (int i = 0; i < kConnections; ++i) {
        clients.push_back(over_there([&] { return connected_to(listener.name(), Calls::kernels); }));
        servers.emplace_back(program.accept().fd, Calls::librarys);
        EXPECT_EQ(ring_of(servers.back().fd()), ring) << "the listener's choice";
      }
      for (int round = 0; round < 50; ++round) {
        for (std::size_t i = 0; i < kConnections; ++i) {
          auto& told = program[servers[i].fd()];
          told.bytes.clear();
          const std::string text = pattern(5000, static_cast<std::uint32_t>(round));
          ASSERT_EQ(clients[i].send(text), text.size());
          ASSERT_TRUE(program.until([&] { return told.bytes.size() >= text.size(); }));
          ASSERT_TRUE(told.bytes == text);
          ASSERT_EQ(servers[i].send(text), text.size());
          ASSERT_TRUE(clients[i].receive(text.size()) == text);
        }
      }
    });
  }
  for (std::thread& one : threads) one.join();
  EXPECT_NE(rings[0], rings[1]);
  EXPECT_NE(rings[1], rings[2]);
}

}  // namespace
}  // namespace ringsock::vma_tests
