// Datagrams between UDP sockets of one host: what is received, from whom, and in which order.
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/preload/udp_world.h"

namespace ringsock::preload_tests {
namespace {

const std::string kLarge(20'000, 'L');

TEST(UdpTransfer, TellsWhereADatagramComesFrom) {
  const UdpPair pair;
  pair.alice.send_to(pair.bob, "hello");
  EXPECT_EQ(pair.bob.receive_from(), std::make_pair(std::string("hello"), pair.alice.port()));
  pair.bob.send_to(pair.alice, "hello yourself");
  EXPECT_EQ(pair.alice.receive_from(), std::make_pair(std::string("hello yourself"), pair.bob.port()));
}

TEST(UdpTransfer, KeepsEachDatagramWhole) {
  const UdpPair pair;
  for (const std::size_t bytes : {0U, 1U, 63U, 64U, 1400U, 4096U, 4097U, 60'000U, 65'507U}) {
    const std::string text(bytes, 'x');
    pair.alice.send_to(pair.bob, text);
    EXPECT_EQ(pair.bob.kernel_has_one(), !has_rings());
    pair.alice.send_to(pair.bob, "end");
    EXPECT_EQ(pair.bob.receive(), text);
    EXPECT_EQ(pair.bob.receive(), "end");
  }
}

TEST(UdpTransfer, ARingCarriesTheDatagram) {
  const UdpPair pair;
  pair.alice.send_to(pair.bob, "by ring");
  EXPECT_EQ(pair.bob.kernel_has_one(), !has_rings());
  EXPECT_EQ(pair.bob.receive(), "by ring");
}

TEST(UdpTransfer, KeepsTheOrderOfOneSender) {
  const UdpPair pair;
  for (int round = 0; round < 20; ++round) {
    pair.alice.send_to(pair.bob, "1");
    pair.alice.send_to(pair.bob, kLarge, kByKernel);
    pair.alice.send_to(pair.bob, "3");
    pair.alice.send_to(pair.bob, "4");
    pair.alice.send_to(pair.bob, kLarge, kByKernel);
    pair.alice.send_to(pair.bob, kLarge, kByKernel);
    pair.alice.send_to(pair.bob, "7");
    EXPECT_EQ(pair.bob.receive(), "1");
    EXPECT_EQ(pair.bob.receive(), kLarge);
    EXPECT_EQ(pair.bob.receive(), "3");
    EXPECT_EQ(pair.bob.receive(), "4");
    EXPECT_EQ(pair.bob.receive(), kLarge);
    EXPECT_EQ(pair.bob.receive(), kLarge);
    EXPECT_EQ(pair.bob.receive(), "7");
  }
  EXPECT_EQ(pair.bob.receive(MSG_DONTWAIT), kAgain);
}

TEST(UdpTransfer, KeepsTheOrderWhileASocketLearnsOfTheRing) {
  for (int round = 0; round < 20; ++round) {
    const Udp alice, bob;
    for (int i = 0; i < 40; ++i) {
      alice.send_to(bob, std::to_string(2 * i));
      alice.send_to(bob, std::to_string(2 * i + 1));
      ASSERT_EQ(bob.receive(), std::to_string(2 * i));
      ASSERT_EQ(bob.receive(), std::to_string(2 * i + 1));
    }
  }
}

// The receiver is slower than the sender, so that rings and buffers are full at times.
/// The kernel loses many, and does not tell of which sender.
TEST(UdpTransfer, SendersThatOverrunAReceiverKeepTheirOrder) {
  constexpr int kSenders = 4, kEach = 3000;
  const Udp bob;
  const int small = 4096;
  ASSERT_EQ(::setsockopt(bob, SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
  std::vector<std::thread> senders;
  senders.reserve(kSenders);
  std::atomic<int> sending = kSenders;
  std::atomic<int> known = 0;  // senders of which a datagram has come, before any finds the buffer full
  for (int s = 0; s < kSenders; ++s) {
    senders.emplace_back([&] {
      const Udp sender;
      std::mt19937 random(static_cast<unsigned>(sender.port()));
      for (int i = 0; i < kEach; ++i) {
        while (i == 1 && known < kSenders) std::this_thread::yield();
        std::string text(sizeof i + (i == 0 ? 0 : random() % 3'000), 'x');
        std::memcpy(text.data(), &i, sizeof i);
        sender.send_to(bob, text);
      }
      --sending;
    });
  }
  std::map<std::uint16_t, int> last;
  while (sending > 0 || bob.is_readable(50)) {
    if (!bob.is_readable(50)) continue;
    const auto [text, from] = bob.receive_from();
    int number = 0;
    ASSERT_GE(text.size(), sizeof number);
    std::memcpy(&number, text.data(), sizeof number);
    const auto place = last.try_emplace(from, -1).first;
    EXPECT_GT(number, place->second) << "of " << from;
    place->second = number;
    known = static_cast<int>(last.size());
  }
  for (std::thread& one : senders) one.join();
  EXPECT_EQ(last.size(), std::size_t{kSenders});
}

TEST(UdpTransfer, ASenderThatUsesTwoAddressesOfASocketKeepsItsOrder) {
  const Udp alice, bob(::socket(AF_INET, SOCK_DGRAM, 0));
  sockaddr_in any{};
  any.sin_family = AF_INET;
  ASSERT_EQ(::bind(bob, reinterpret_cast<const sockaddr*>(&any), sizeof any), 0);
  const sockaddr_in one = loopback(bob.port());
  sockaddr_in two = one;
  two.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
  warm_up(alice, bob, &one);
  for (int i = 0; i < 20; ++i) {  // the library looks for a ring meanwhile
    alice.send_to(two, "warm");
    ASSERT_EQ(bob.receive(), "warm");
    ::usleep(1000);
  }
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 4; ++i) alice.send_to((round + i) % 3 == 0 ? one : two, std::to_string(i));
    for (int i = 0; i < 4; ++i) ASSERT_EQ(bob.receive(), std::to_string(i)) << round;
  }
}

TEST(UdpTransfer, AFloodComesInOrderAndNothingTwice) {
  const UdpPair pair;
  constexpr std::uint32_t kMany = 100'000;
  std::thread sender([&] {
    std::mt19937 random(3);
    std::string text(6000, 'f');
    for (std::uint32_t i = 1; i <= kMany; ++i) {
      std::memcpy(text.data(), &i, sizeof i);
      const std::size_t bytes = random() % 100 == 0 ? 5000 : 8 + random() % 200;
      const int flags = random() % 100 == 0 ? kByKernel : 0;
      const sockaddr_in to = pair.bob.name();
      ASSERT_EQ(::sendto(pair.alice, text.data(), bytes, flags, reinterpret_cast<const sockaddr*>(&to), sizeof to),
                static_cast<ssize_t>(bytes));
    }
  });
  std::uint32_t last = 0, received = 0;
  bool is_in_order = true;
  while (last < kMany && pair.bob.is_readable(2000)) {
    const std::string text = pair.bob.receive(MSG_DONTWAIT);
    if (text == kAgain) continue;
    std::uint32_t number = 0;
    std::memcpy(&number, text.data(), std::min(text.size(), sizeof number));
    is_in_order = is_in_order && number > last;
    last = number;
    ++received;
  }
  sender.join();
  EXPECT_TRUE(is_in_order);
  EXPECT_GT(received, 100U);
}

TEST(UdpTransfer, CutsADatagramThatIsTooLongForTheBuffer) {
  const UdpPair pair;
  pair.alice.send_to(pair.bob, "a long one");
  EXPECT_EQ(pair.bob.receive(0, 6), "a long");
  pair.alice.send_to(pair.bob, "a long one");
  std::array<char, 4> room{};
  EXPECT_EQ(::recv(pair.bob, room.data(), room.size(), MSG_TRUNC), 10);
  pair.alice.send_to(pair.bob, "a long one");
  iovec part{room.data(), room.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  EXPECT_EQ(::recvmsg(pair.bob, &message, 0), 4);
  EXPECT_EQ(message.msg_flags, MSG_TRUNC);
  pair.alice.send_to(pair.bob, "next");
  EXPECT_EQ(pair.bob.receive(), "next");
}

TEST(UdpTransfer, CutsADatagramOfTheKernel) {
  for (const int flags : {0, int{MSG_DONTWAIT}}) {
    const Udp alice, bob;
    std::array<char, 4> room{};
    iovec part{room.data(), room.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alice.send_to(bob, "a long one");
    EXPECT_EQ(::recvmsg(bob, &message, flags), 4);
    EXPECT_EQ(message.msg_flags, MSG_TRUNC);
    alice.send_to(bob, "all");
    EXPECT_EQ(::recvmsg(bob, &message, flags), 3);
    EXPECT_EQ(message.msg_flags, 0);
    alice.send_to(bob, "a long one");
    EXPECT_EQ(::recv(bob, room.data(), room.size(), flags | MSG_TRUNC), 10);
    alice.send_to(bob, "a long one");
    EXPECT_EQ(::recv(bob, room.data(), 0, flags), 0);
  }
}

TEST(UdpTransfer, WhatWasPeekedAtIsReceived) {
  const UdpPair pair;
  const Udp carol;  // by the kernel
  carol.send_to(pair.bob, "from carol");
  EXPECT_EQ(pair.bob.receive(MSG_PEEK), "from carol");
  pair.alice.send_to(pair.bob, "from alice");
  EXPECT_EQ(pair.bob.receive(MSG_PEEK), "from carol");
  EXPECT_EQ(pair.bob.receive_from(), std::make_pair(std::string("from carol"), carol.port()));
  EXPECT_EQ(pair.bob.receive(MSG_PEEK), "from alice");
  carol.send_to(pair.bob, "carol again");
  EXPECT_EQ(pair.bob.receive(), "from alice");
  EXPECT_EQ(pair.bob.receive(), "carol again");
}

TEST(UdpTransfer, FionreadTellsOfTheDatagramThatComesNext) {
  const UdpPair pair;
  const Udp carol;
  int bytes = -1;
  ASSERT_EQ(::ioctl(pair.bob, FIONREAD, &bytes), 0);
  EXPECT_EQ(bytes, 0);
  carol.send_to(pair.bob, "four");
  ASSERT_EQ(::ioctl(pair.bob, FIONREAD, &bytes), 0);
  EXPECT_EQ(bytes, 4);
  pair.alice.send_to(pair.bob, "sixsix");
  ASSERT_EQ(::ioctl(pair.bob, FIONREAD, &bytes), 0);
  EXPECT_EQ(bytes, 4);
  EXPECT_EQ(pair.bob.receive(), "four");
  ASSERT_EQ(::ioctl(pair.bob, FIONREAD, &bytes), 0);
  EXPECT_EQ(bytes, 6);
  EXPECT_EQ(pair.bob.receive(), "sixsix");
}

TEST(UdpTransfer, ConnectedSocketsNeedNoAddress) {
  const Udp alice, bob;
  alice.connect(bob.name());
  bob.connect(alice.name());
  for (int i = 0; i < 50; ++i) {
    alice.send("ping " + std::to_string(i));
    ASSERT_EQ(bob.receive(), "ping " + std::to_string(i));
    ASSERT_EQ(::write(bob, "pong", 4), 4);
    std::array<char, 8> room{};
    ASSERT_EQ(::read(alice, room.data(), room.size()), 4);
    if (i == 8) ::usleep(5000);
  }
  bob.send("the last");
  EXPECT_EQ(alice.kernel_has_one(), !has_rings());
}

TEST(UdpTransfer, AConnectedSocketHearsItsPeerOnly) {
  const UdpPair pair;
  const Udp carol;
  warm_up(carol, pair.bob);
  carol.send_to(pair.bob, "before");
  pair.bob.connect(pair.alice.name());
  EXPECT_EQ(pair.bob.receive(), "before");
  const sockaddr_in bob = pair.bob.name();
  for (int i = 0; i < 20; ++i) {
    // The kernel answers that nobody has the port, which only a connected sender is told.
    [[maybe_unused]] const ssize_t sent =
        ::sendto(carol, "lost", 4, 0, reinterpret_cast<const sockaddr*>(&bob), sizeof bob);
    pair.alice.send_to(bob, "heard " + std::to_string(i));
    ASSERT_EQ(pair.bob.receive(), "heard " + std::to_string(i));
  }
  EXPECT_EQ(pair.bob.receive(MSG_DONTWAIT), kAgain);
}

TEST(UdpTransfer, ASocketThatIsDisconnectedHearsEverybody) {
  UdpPair pair;
  const Udp carol;
  const std::uint16_t port = pair.bob.port();
  pair.bob.close();
  pair.bob = Udp(Udp::Bound::yes, 0, port);  // a port that was asked for stays
  pair.bob.connect(pair.alice.name());
  const sockaddr nobody{.sa_family = AF_UNSPEC, .sa_data = {}};
  const sockaddr_in before = pair.bob.name();
  ASSERT_EQ(::connect(pair.bob, &nobody, sizeof nobody), 0);
  EXPECT_EQ(pair.bob.name().sin_port, before.sin_port);
  warm_up(carol, pair.bob);
  warm_up(pair.alice, pair.bob);
}

TEST(UdpTransfer, ASenderThatGetsAnotherPortKeepsItsOrder) {
  const UdpPair pair;
  for (int round = 0; round < 20; ++round) {
    const Udp carol(Udp::Bound::no);
    warm_up(carol, pair.bob);
    for (int i = 0; i < 10; ++i) carol.send_to(pair.bob, "before " + std::to_string(i));
    const std::uint16_t port = carol.port();
    carol.connect(pair.bob.name());
    const sockaddr nobody{.sa_family = AF_UNSPEC, .sa_data = {}};
    ASSERT_EQ(::connect(carol, &nobody, sizeof nobody), 0);
    carol.send_to(pair.bob, "after");
    EXPECT_NE(carol.port(), port);
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE(pair.bob.is_readable(5000));
      ASSERT_EQ(pair.bob.receive_from(), std::pair("before " + std::to_string(i), port));
    }
    EXPECT_EQ(pair.bob.receive(), "after");
  }
}

TEST(UdpTransfer, MessagesOfSeveralParts) {
  const UdpPair pair;
  std::string one = "12", two = "345";
  std::array<iovec, 3> parts{{{one.data(), 2}, {nullptr, 0}, {two.data(), 3}}};
  sockaddr_in to = pair.bob.name();
  msghdr message{};
  message.msg_name = &to;
  message.msg_namelen = sizeof to;
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  ASSERT_EQ(::sendmsg(pair.alice, &message, 0), 5);
  std::string first(1, ' '), rest(9, ' ');
  std::array<iovec, 2> rooms{{{first.data(), 1}, {rest.data(), 9}}};
  sockaddr_in from{};
  msghdr got{};
  got.msg_name = &from;
  got.msg_namelen = sizeof from;
  got.msg_iov = rooms.data();
  got.msg_iovlen = rooms.size();
  ASSERT_EQ(::recvmsg(pair.bob, &got, 0), 5);
  EXPECT_EQ(first + rest.substr(0, 4), "12345");
  EXPECT_EQ(from.sin_port, pair.alice.name().sin_port);
  EXPECT_EQ(got.msg_flags, 0);
  EXPECT_EQ(got.msg_controllen, 0U);
}

TEST(UdpTransfer, ManyMessagesInOneCall) {
  const UdpPair pair;
  constexpr std::size_t kMany = 16;
  pair.alice.connect(pair.bob.name());
  std::array<std::string, kMany> texts;
  std::array<iovec, kMany> parts{};
  std::array<mmsghdr, kMany> messages{};
  for (std::size_t i = 0; i < kMany; ++i) {
    texts[i] = i % 5 == 4 ? kLarge : "message " + std::to_string(i);
    parts[i] = {texts[i].data(), texts[i].size()};
    messages[i].msg_hdr.msg_iov = &parts[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  ASSERT_EQ(::sendmmsg(pair.alice, messages.data(), kMany, 0), static_cast<int>(kMany));
  std::array<std::string, kMany> rooms;
  for (std::size_t i = 0; i < kMany; ++i) {
    rooms[i].assign(30'000, ' ');
    parts[i] = {rooms[i].data(), rooms[i].size()};
  }
  ASSERT_EQ(::recvmmsg(pair.bob, messages.data(), kMany, MSG_WAITFORONE, nullptr), static_cast<int>(kMany));
  for (std::size_t i = 0; i < kMany; ++i) EXPECT_EQ(rooms[i].substr(0, messages[i].msg_len), texts[i]);
}

TEST(UdpTransfer, ControlDataGoesWithTheDatagramInItsPlace) {
  const UdpPair pair;
  pair.alice.send_to(pair.bob, "1");
  std::string text = "2";
  iovec part{text.data(), text.size()};
  sockaddr_in to = pair.bob.name();
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_name = &to;
  message.msg_namelen = sizeof to;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = IPPROTO_IP;
  header->cmsg_type = IP_TTL;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int ttl = 9;
  std::memcpy(CMSG_DATA(header), &ttl, sizeof ttl);
  ASSERT_EQ(::sendmsg(pair.alice, &message, 0), 1) << errno;
  pair.alice.send_to(pair.bob, "3");
  EXPECT_EQ(pair.bob.receive(), "1");
  EXPECT_EQ(pair.bob.receive(), "2");
  EXPECT_EQ(pair.bob.receive(), "3");
}

TEST(UdpTransfer, ManySendersReachOneReceiver) {
  constexpr int kSenders = 20, kEach = 8;  // as many as the buffer of the kernel holds
  const Udp bob;
  std::vector<Udp> senders(kSenders);
  for (const Udp& one : senders) warm_up(one, bob);
  for (int i = 0; i < kEach; ++i) {
    for (const Udp& one : senders) one.send_to(bob, std::to_string(i));
  }
  std::vector<int> next(65536);
  for (int i = 0; i < kSenders * kEach; ++i) {
    const auto [text, port] = bob.receive_from();
    ASSERT_EQ(text, std::to_string(next[port]++));
  }
  EXPECT_EQ(bob.receive(MSG_DONTWAIT), kAgain);
}

TEST(UdpTransfer, ThreadsThatShareASenderKeepTheirOrderWhileTheRingBegins) {
  constexpr int kThreads = 4, kDatagrams = 2000, kOnTheirWay = 16;
  const Udp alice, bob;
  std::array<std::atomic<int>, kThreads> came{};
  std::vector<std::thread> senders;
  senders.reserve(kThreads);
  for (int number = 0; number < kThreads; ++number) {
    senders.emplace_back([&, number] {
      for (int i = 0; i < kDatagrams; ++i) {
        alice.send_to(bob, std::string{static_cast<char>('0' + number)} + std::to_string(i));
        while (came[static_cast<std::size_t>(number)] + kOnTheirWay <= i) ::sched_yield();
      }
    });
  }
  for (int i = 0; i < kThreads * kDatagrams; ++i) {
    const std::string text = bob.receive();
    auto& next = came[static_cast<std::size_t>(text.at(0) - '0')];
    EXPECT_EQ(text.substr(1), std::to_string(next));
    ++next;
  }
  for (std::thread& sender : senders) sender.join();
  warm_up(alice, bob);
}

/// Each sender begins while the others' datagrams wait in the kernel's socket, and some of its own are the kernel's. No
/// more wait than that socket has room for, so none is lost.
TEST(UdpTransfer, ManyNewSendersKeepTheirOrderBesideEachOther) {
  constexpr int kSenders = 5;
  constexpr std::uint32_t kDatagrams = 4000;
  const Udp bob;
  const timeval limit{1, 0};
  ASSERT_EQ(::setsockopt(bob, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  constexpr int kMostWaiting = 15;
  std::atomic<int> waiting = 0;
  std::vector<std::thread> senders;
  senders.reserve(kSenders);
  for (int i = 0; i < kSenders; ++i) {
    senders.emplace_back([&] {
      const Udp self;
      for (std::uint32_t number = 0; number < kDatagrams; ++number) {
        std::string text(number % 29 == 7 ? 5000 : 8 + number % 300, 'x');
        std::memcpy(text.data(), &number, sizeof number);
        while (waiting.fetch_add(1) >= kMostWaiting) {
          --waiting;
          ::sched_yield();
        }
        self.send_to(bob, text, number % 31 == 11 ? kByKernel : 0);
      }
    });
  }
  std::map<std::uint16_t, std::uint32_t> next;
  int out_of_order = 0;
  for (auto [text, port] = bob.receive_from(); text != kAgain; std::tie(text, port) = bob.receive_from()) {
    --waiting;
    std::uint32_t number = 0;
    std::memcpy(&number, text.data(), sizeof number);
    if (number < next[port]) ++out_of_order;
    next[port] = number + 1;
    if (number % 256 == 0) ::usleep(300);
  }
  for (std::thread& sender : senders) sender.join();
  EXPECT_EQ(out_of_order, 0);
  EXPECT_EQ(next.size(), std::size_t{kSenders});
}

TEST(UdpTransfer, Ipv6SocketsSeeMappedAddresses) {
  const Udp alice;
  const Udp bob(::socket(AF_INET6, SOCK_DGRAM, 0));
  sockaddr_in6 name{};
  name.sin6_family = AF_INET6;
  ASSERT_EQ(::bind(bob, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  socklen_t length = sizeof name;
  ASSERT_EQ(::getsockname(bob, reinterpret_cast<sockaddr*>(&name), &length), 0);
  const sockaddr_in there = loopback(ntohs(name.sin6_port));
  warm_up(alice, bob, &there);
  alice.send_to(there, "mapped");
  EXPECT_EQ(bob.kernel_has_one(), !has_rings());
  std::array<char, 16> room{};
  sockaddr_in6 from{};
  length = sizeof from;
  ASSERT_EQ(::recvfrom(bob, room.data(), room.size(), 0, reinterpret_cast<sockaddr*>(&from), &length), 6);
  EXPECT_EQ(length, sizeof from);
  EXPECT_TRUE(IN6_IS_ADDR_V4MAPPED(&from.sin6_addr));
  EXPECT_EQ(from.sin6_port, alice.name().sin_port);
  // The answer to the name that was received.
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(::sendto(bob, "answer", 6, 0, reinterpret_cast<const sockaddr*>(&from), sizeof from), 6);
    ASSERT_EQ(alice.receive_from(), std::make_pair(std::string("answer"), ntohs(name.sin6_port)));
  }
}

TEST(UdpTransfer, AnUnboundSocketGetsItsAnswers) {
  const Udp alice(Udp::Bound::no), bob;
  for (int i = 0; i < 50; ++i) {
    alice.send_to(bob, "question");
    const auto [text, port] = bob.receive_from();
    ASSERT_EQ(text, "question");
    ASSERT_EQ(port, alice.port());
    bob.send_to(loopback(port), "answer");
    ASSERT_EQ(alice.receive(), "answer");
    if (i == 8) ::usleep(5000);
  }
}

TEST(UdpTransfer, ASocketMaySendToItself) {
  const Udp alice;
  warm_up(alice, alice);
  alice.send_to(alice, "note");
  EXPECT_EQ(alice.receive_from(), std::make_pair(std::string("note"), alice.port()));
}

TEST(UdpTransfer, BroadcastsReachAllSockets) {
  const UdpPair pair;
  const int on = 1;
  ASSERT_EQ(::setsockopt(pair.alice, SOL_SOCKET, SO_BROADCAST, &on, sizeof on), 0);
  const Udp one(::socket(AF_INET, SOCK_DGRAM, 0)), two(::socket(AF_INET, SOCK_DGRAM, 0));
  sockaddr_in any{};
  any.sin_family = AF_INET;
  for (const Udp* end : {&one, &two}) {
    ASSERT_EQ(::setsockopt(*end, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    ASSERT_EQ(::bind(*end, reinterpret_cast<const sockaddr*>(&any), sizeof any), 0);
    any.sin_port = one.name().sin_port;
  }
  sockaddr_in all = loopback(one.port());
  all.sin_addr.s_addr = htonl(0x7fffffff);
  for (int i = 0; i < 20; ++i) {
    pair.alice.send_to(all, "all");
    ASSERT_EQ(one.receive(), "all");
    ASSERT_EQ(two.receive(), "all");
  }
}

TEST(UdpTransfer, ThereAreNoUrgentDatagrams) {
  const UdpPair pair;
  pair.alice.send_to(pair.bob, "ring");
  EXPECT_EQ(pair.bob.receive(MSG_OOB | MSG_DONTWAIT), "ring");
}

}  // namespace
}  // namespace ringsock::preload_tests
