// Packets in buffers of the rings, as programs get them by VMA's Extra API: the receive callback and zero copy. Runs
// beside the echo service (two_hosts.sh), with libvma; packets_vma.sh sets the variables.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mellanox/vma_extra.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csetjmp>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/vma/packets_world.h"

namespace ringsock::vma_tests {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kZeroCopy = MSG_VMA_ZCOPY, kForce = MSG_VMA_ZCOPY_FORCE;

std::string text_of(const iovec& part) { return {static_cast<const char*>(part.iov_base), part.iov_len}; }

// -- the callback

/// What a callback does with each datagram, and what it has seen.
struct Watcher {
  std::function<vma_recv_callback_retval_t(int, const std::string&, vma_info_t&)> decide;
  Texts seen;

  explicit Watcher(vma_recv_callback_retval_t always)
      : decide([=](int, const std::string&, vma_info_t&) { return always; }) {}
  explicit Watcher(decltype(decide) function) : decide(std::move(function)) {}

  static vma_recv_callback_retval_t call(int fd, std::size_t parts, iovec part[], vma_info_t* info, void* context) {
    auto& self = *static_cast<Watcher*>(context);
    EXPECT_EQ(parts, 1U);
    const std::string text = text_of(part[0]);
    self.seen.push_back(text);
    return self.decide(fd, text, *info);
  }
  void watch(int fd) { ASSERT_EQ(api().register_recv_callback(fd, call, this), 0) << std::strerror(errno); }
};

class Callback : public Packets {
 protected:
  ~Callback() override { api().register_recv_callback(socket_, nullptr, nullptr); }
  Callback() = default;
};

TEST_F(Callback, WhatItDropsNobodyReceivesAndWhatItLetsThroughIsReceived) {
  Watcher watcher(
      [](int, const std::string& text, vma_info_t&) { return text == "good" ? VMA_PACKET_RECV : VMA_PACKET_DROP; });
  watcher.watch(socket_);
  for (const char* text : {"bad", "worse", "good"}) send(text);
  EXPECT_EQ(socket_.receive(), "good");
  EXPECT_THAT(watcher.seen, ElementsAre("bad", "worse", "good"));
  EXPECT_THAT(all_of(socket_), IsEmpty());
}

TEST_F(Callback, ItIsToldWhoHasSentWhatToWhom) {
  std::optional<vma_info_t> told;
  sockaddr_in source{}, destination{};
  Watcher watcher([&](int fd, const std::string&, vma_info_t& info) {
    EXPECT_EQ(fd, static_cast<int>(socket_));
    told = info;
    source = *info.src;
    destination = *info.dst;
    return VMA_PACKET_RECV;
  });
  watcher.watch(socket_);
  send("five!");
  EXPECT_EQ(socket_.receive(), "five!");
  ASSERT_TRUE(told);
  EXPECT_EQ(told->struct_sz, 80U);
  EXPECT_NE(told->packet_id, nullptr);
  EXPECT_EQ(told->payload_sz, 5U);
  EXPECT_EQ(told->socket_ready_queue_pkt_count, 0U);
  EXPECT_EQ(told->socket_ready_queue_byte_count, 0U);
  EXPECT_EQ(told->hw_timestamp.tv_sec, 0);
  EXPECT_EQ(told->sw_timestamp.tv_sec, 0) << "nobody has asked for times";
  EXPECT_EQ(source.sin_family, AF_INET);
  EXPECT_EQ(ntohs(source.sin_port), far_.name().port());
  EXPECT_EQ(source.sin_addr.s_addr, inet_addr("10.9.0.2"));
  EXPECT_EQ(ntohs(destination.sin_port), socket_.name().port());
  EXPECT_EQ(destination.sin_addr.s_addr, inet_addr("10.9.0.1"));
}

TEST_F(Callback, ItIsToldTheTimeOfASocketThatWantsTimes) {
  socket_.set(SOL_SOCKET, SO_TIMESTAMPNS, 1);
  timespec time{};
  Watcher watcher([&](int, const std::string&, vma_info_t& info) {
    time = info.sw_timestamp;
    return VMA_PACKET_RECV;
  });
  watcher.watch(socket_);
  const time_t before = ::time(nullptr);
  send("now");
  EXPECT_EQ(socket_.receive(), "now");
  EXPECT_GE(time.tv_sec, before - 1);
}

TEST_F(Callback, WhileDatagramsWaitFurtherOnesAreQueuedBehindThemUnseen) {
  Watcher watcher(VMA_PACKET_RECV);
  watcher.watch(socket_);
  const Messenger order(Address("10.9.0.2", kEchoPort));
  for (const char* text : {"1", "2", "3"}) order.send(text, "10.9.0.1", socket_.name().port());
  Texts received;
  for (int i = 0; i < 3; ++i) received.push_back(socket_.receive());
  EXPECT_THAT(received, ElementsAre("1", "2", "3"));
  EXPECT_THAT(watcher.seen, ElementsAre("1"));
}

TEST_F(Callback, EveryCallThatWaitsRunsIt) {
  Watcher watcher(
      [](int, const std::string& text, vma_info_t&) { return text == "stop" ? VMA_PACKET_RECV : VMA_PACKET_DROP; });
  watcher.watch(socket_);
  const int set = ::epoll_create1(0);
  epoll_event wish{EPOLLIN, {.fd = socket_}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, socket_, &wish), 0);
  std::array<char, 16> room{};
  iovec part{room.data(), room.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  mmsghdr many{.msg_hdr = message, .msg_len = 0};
  pollfd one{socket_, POLLIN, 0};
  epoll_event event{};
  const auto selects = [&] {
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(socket_, &readable);
    return ::select(socket_ + 1, &readable, nullptr, nullptr, nullptr) == 1;
  };
  const std::vector<std::pair<const char*, std::function<bool()>>> calls{
      {"read", [&] { return ::read(socket_, room.data(), room.size()) == 4; }},
      {"readv", [&] { return ::readv(socket_, &part, 1) == 4; }},
      {"recv", [&] { return ::recv(socket_, room.data(), room.size(), 0) == 4; }},
      {"recvmsg", [&] { return ::recvmsg(socket_, &message, 0) == 4; }},
      {"recvmmsg", [&] { return ::recvmmsg(socket_, &many, 1, 0, nullptr) == 1; }},
      {"poll", [&] { return ::poll(&one, 1, -1) == 1 && socket_.receive() == "stop"; }},
      {"select", [&] { return selects() && socket_.receive() == "stop"; }},
      {"epoll", [&] { return ::epoll_wait(set, &event, 1, -1) == 1 && socket_.receive() == "stop"; }}};
  for (const auto& [name, call] : calls) {
    watcher.seen.clear();
    std::thread sender([&] {
      for (const char* text : {"one", "two", "stop"}) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        send(text);
      }
    });
    EXPECT_TRUE(call()) << name << ": " << std::strerror(errno);
    sender.join();
    EXPECT_THAT(watcher.seen, ElementsAre("one", "two", "stop")) << name;
  }
  ::close(set);
}

TEST_F(Callback, ACallThatMayNotWaitRunsItToo) {
  Watcher watcher(
      [](int, const std::string& text, vma_info_t&) { return text == "stop" ? VMA_PACKET_RECV : VMA_PACKET_DROP; });
  watcher.watch(socket_);
  for (const char* text : {"one", "two", "stop"}) send(text);
  std::string received;
  until([&] { return !(received = socket_.receive(nullptr, MSG_DONTWAIT)).empty(); });
  EXPECT_EQ(received, "stop");
  EXPECT_THAT(watcher.seen, ElementsAre("one", "two", "stop"));
  send("stop");
  int unread = 0;
  until([&] { return ::ioctl(socket_, FIONREAD, &unread) == 0 && unread == 4; });
}

TEST_F(Callback, WhatItDropsDoesNotProlongAWaitWithALimit) {
  Watcher watcher(VMA_PACKET_DROP);
  watcher.watch(socket_);
  const int set = ::epoll_create1(0);
  epoll_event wish{EPOLLIN, {.fd = socket_}}, event{};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, socket_, &wish), 0);
  pollfd one{socket_, POLLIN, 0};
  std::atomic<bool> is_over{false};
  std::thread sender([&] {
    while (!is_over) {
      send("again");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  EXPECT_EQ(::epoll_wait(set, &event, 1, 200), 0);
  EXPECT_EQ(::poll(&one, 1, 200), 0);
  socket_.limit_waits(200);
  EXPECT_EQ(error_of([&] { return ::recv(socket_, &event, 1, 0); }), EAGAIN);
  is_over = true;
  sender.join();
  EXPECT_FALSE(watcher.seen.empty());
  ::close(set);
}

TEST_F(Callback, ItMayUseItsSocketAndOthers) {
  const Socket other(AF_INET);
  bind_here(other);
  other.limit_waits();
  Watcher watcher([&](int fd, const std::string& text, vma_info_t& info) {
    if (text != "question") return VMA_PACKET_DROP;
    EXPECT_EQ(::sendto(fd, "answer", 6, 0, reinterpret_cast<sockaddr*>(info.src), sizeof *info.src), 6);
    send_to(other, "for the other");
    EXPECT_EQ(other.receive(), "for the other");
    EXPECT_EQ(api().get_socket_rings_num(fd), 1);
    const Socket another(AF_INET);
    bind_here(another);
    int size = 0;
    socklen_t length = sizeof size;
    EXPECT_EQ(::getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, &length), 0);
    char byte = 0;
    EXPECT_EQ(error_of([&] { return ::recv(fd, &byte, 1, MSG_DONTWAIT); }), EAGAIN);
    return VMA_PACKET_RECV;
  });
  watcher.watch(socket_);
  send("question");
  EXPECT_EQ(socket_.receive(), "question");
  EXPECT_EQ(far_.receive(), "answer");
}

TEST_F(Callback, InsideItAReceiveGoesOnWithTheNextDatagram) {
  Watcher watcher(VMA_PACKET_DROP);
  std::string inner;
  watcher.decide = [&](int fd, const std::string& text, vma_info_t&) {
    if (text != "outer") return VMA_PACKET_RECV;
    std::array<char, 16> room{};
    const ssize_t got = ::recv(fd, room.data(), room.size(), 0);
    inner.assign(room.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    return VMA_PACKET_RECV;
  };
  watcher.watch(socket_);
  send("outer");
  send("inner");
  EXPECT_EQ(socket_.receive(), "outer");
  EXPECT_EQ(inner, "inner");
}

TEST_F(Callback, ItMayCloseItsSocket) {
  Socket closing(AF_INET);
  bind_here(closing);
  Watcher watcher([](int fd, const std::string&, vma_info_t&) {
    EXPECT_EQ(::close(fd), 0);
    return VMA_PACKET_HOLD;
  });
  watcher.watch(closing);
  send_to(closing, "the end");
  std::array<char, 16> room{};
  EXPECT_EQ(error_of([&] { return ::recv(closing, room.data(), room.size(), 0); }), EBADF);
  EXPECT_EQ(error_of([&] { return ::close(closing); }), EBADF);
  EXPECT_EQ(watcher.seen.size(), 1U);
  Socket gone(AF_INET);  // under the same number
  std::swap(closing, gone);
}

TEST_F(Callback, ItMayThrow) {
  Watcher watcher([](int, const std::string& text, vma_info_t&) -> vma_recv_callback_retval_t {
    if (text == "bad") throw std::runtime_error("a bad datagram");
    return VMA_PACKET_RECV;
  });
  watcher.watch(socket_);
  const int set = ::epoll_create1(0);
  epoll_event wish{EPOLLIN, {.fd = socket_}}, event{};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, socket_, &wish), 0);
  for (int i = 0; i < 3; ++i) {
    send("bad");
    EXPECT_THROW(socket_.receive(), std::runtime_error);
    send("bad");
    EXPECT_THROW(::epoll_wait(set, &event, 1, -1), std::runtime_error);
    send("good");
    EXPECT_EQ(socket_.receive(), "good");
  }
  ::close(set);
}

TEST_F(Callback, ItMayLeaveByLongjmp) {
  static std::jmp_buf start;
  Watcher watcher([](int, const std::string& text, vma_info_t&) -> vma_recv_callback_retval_t {
    if (text == "bad") std::longjmp(start, 1);
    return VMA_PACKET_RECV;
  });
  const auto jump = [](int, std::size_t, iovec part[], vma_info_t*, void*) -> vma_recv_callback_retval_t {
    if (std::memcmp(part->iov_base, "bad", 3) == 0) std::longjmp(start, 1);
    return VMA_PACKET_RECV;
  };
  ASSERT_EQ(api().register_recv_callback(socket_, jump, nullptr), 0);
  static std::array<char, 16> room;
  send("bad");
  if (setjmp(start) == 0) {
    ::recv(socket_, room.data(), room.size(), 0);
    ADD_FAILURE() << "the callback was to jump";
  }
  send("good");
  EXPECT_EQ(socket_.receive(), "good");
}

TEST_F(Callback, ItMayEndItself) {
  Watcher watcher([](int fd, const std::string&, vma_info_t&) {
    EXPECT_EQ(api().register_recv_callback(fd, nullptr, nullptr), 0);
    return VMA_PACKET_RECV;
  });
  watcher.watch(socket_);
  send("first");
  send("second");
  EXPECT_EQ(socket_.receive(), "first");
  EXPECT_EQ(socket_.receive(), "second");
  EXPECT_THAT(watcher.seen, ElementsAre("first"));
}

TEST_F(Callback, OneThreadAtATimeRunsIt) {
  std::atomic<int> inside{0};
  std::atomic<int> seen{0};
  struct Counters {
    std::atomic<int>&inside, &seen;
  } counters{inside, seen};
  const auto count = [](int, std::size_t, iovec[], vma_info_t*, void* context) {
    auto& [in, all] = *static_cast<Counters*>(context);
    EXPECT_EQ(++in, 1);
    std::this_thread::yield();
    ++all;
    --in;
    return VMA_PACKET_DROP;
  };
  ASSERT_EQ(api().register_recv_callback(socket_, count, &counters), 0);
  constexpr int kDatagrams = 500, kThreads = 3;
  std::atomic<bool> is_over{false};
  std::vector<std::thread> readers;
  for (int i = 0; i < kThreads; ++i) {
    readers.emplace_back([&] {
      pollfd one{socket_, POLLIN, 0};
      while (!is_over) ::poll(&one, 1, 1);
    });
  }
  for (int i = 0; i < kDatagrams; ++i) {
    send("count");
    if (i % 50 == 49) until([&] { return seen == i + 1; });
  }
  is_over = true;
  for (std::thread& one : readers) one.join();
  EXPECT_EQ(seen, kDatagrams);
}

TEST_F(Callback, HundredsOfGroups) {
  constexpr int kGroups = 250;
  Watcher watcher(VMA_PACKET_DROP);
  Socket member(AF_INET);
  member.limit_waits();
  const Address any("0.0.0.0", 0);
  ASSERT_EQ(::bind(member, any.get(), any.length()), 0);
  const auto group = [](int number) {
    return "239.10." + std::to_string(number / 200) + "." + std::to_string(1 + number % 200);
  };
  const auto eth0 = static_cast<int>(::if_nametoindex("eth0"));
  std::ofstream("/proc/sys/net/ipv4/igmp_max_memberships") << kGroups + 20;
  for (int i = 0; i < kGroups; ++i) {
    ip_mreqn wish{};
    ::inet_pton(AF_INET, group(i).c_str(), &wish.imr_multiaddr);
    wish.imr_ifindex = eth0;
    ASSERT_EQ(::setsockopt(member, IPPROTO_IP, IP_ADD_MEMBERSHIP, &wish, sizeof wish), 0) << std::strerror(errno);
  }
  watcher.watch(member);
  far_.send_groups_by_eth0();
  pollfd one{member, POLLIN, 0};
  for (int i = 0; i < kGroups; ++i) {
    ASSERT_GT(far_.send(Address(group(i).c_str(), member.name().port()), group(i)), 0);
    until([&] { return ::poll(&one, 1, 0) == 0 && watcher.seen.size() == static_cast<std::size_t>(i) + 1; });
    ASSERT_FALSE(HasFatalFailure()) << "group " << i << ", seen " << watcher.seen.size();
    EXPECT_EQ(watcher.seen.back(), group(i));
  }
}

// -- holding

/// A callback that holds everything.
struct Holder : Watcher {
  Holder()
      : Watcher([this](int, const std::string&, vma_info_t& info) {
          held.push_back(info.packet_id);
          return VMA_PACKET_HOLD;
        }) {}
  std::vector<void*> held;
};

class Holding : public Callback {
 protected:
  /// Has the callback see what has come.
  void look() {
    pollfd one{socket_, POLLIN, 0};
    EXPECT_EQ(::poll(&one, 1, 0), 0);
  }
  void hold(std::size_t count) {
    for (std::size_t i = 0; i < count && !HasFatalFailure(); ++i) {
      const std::size_t before = holder_.seen.size();
      send("number " + std::to_string(before));
      until([&] {
        look();
        return holder_.seen.size() > before;
      });
    }
  }
  Holder holder_;
};

TEST_F(Holding, APacketStaysAsItIsUntilItIsFreedOnce) {
  std::vector<iovec> parts;
  holder_.decide = [&, hold = holder_.decide](int fd, const std::string& text, vma_info_t& info) {
    return hold(fd, text, info);
  };
  holder_.watch(socket_);
  hold(100);
  ASSERT_EQ(holder_.held.size(), 100U);
  EXPECT_EQ(std::set<void*>(holder_.held.begin(), holder_.held.end()).size(), 100U);
  for (void* const id : holder_.held) EXPECT_EQ(free_one(socket_, id), 0) << std::strerror(errno);
  for (void* const id : holder_.held) EXPECT_EQ(error_of([&] { return free_one(socket_, id); }), ENOENT);
}

TEST_F(Holding, SeveralPacketsAreFreedByOneCall) {
  holder_.watch(socket_);
  hold(3);
  ASSERT_EQ(holder_.held.size(), 3U);
  std::array<vma_packet_t, 3> packets{};
  for (std::size_t i = 0; i < packets.size(); ++i) packets[i].packet_id = holder_.held[i];
  EXPECT_EQ(api().free_packets(socket_, packets.data(), packets.size()), 0);
  EXPECT_EQ(error_of([&] { return api().free_packets(socket_, packets.data(), packets.size()); }), ENOENT);
}

TEST_F(Holding, PacketsOfOthersAndGarbageAreRefused) {
  holder_.watch(socket_);
  hold(1);
  ASSERT_EQ(holder_.held.size(), 1U);
  void* const id = holder_.held[0];
  const Socket other(AF_INET);
  bind_here(other);
  int local = 0;
  EXPECT_EQ(error_of([&] { return free_one(other, id); }), ENOENT);
  for (void* const bad :
       {static_cast<void*>(nullptr), static_cast<void*>(&local), static_cast<void*>(static_cast<char*>(id) + 8),
        static_cast<void*>(static_cast<char*>(id) + (1 << 20)), reinterpret_cast<void*>(1),
        reinterpret_cast<void*>(~std::uintptr_t{0})})
    EXPECT_EQ(error_of([&] { return free_one(socket_, bad); }), ENOENT) << bad;
  vma_packet_t one{};
  one.packet_id = id;
  one.sz_iov = ~std::size_t{0};
  vma_packet_t* const list = &one;  // clang: no lambda captures an object that ends in a flexible array
  EXPECT_EQ(error_of([&] { return api().free_packets(socket_, nullptr, 1); }), EINVAL);
  ::usleep(20'000);  // memory is looked at while that takes little of the time: core/base/user_memory.h
  EXPECT_EQ(error_of([&] { return api().free_packets(socket_, reinterpret_cast<vma_packet_t*>(0x1234567890000), 1); }),
            EFAULT);
  EXPECT_EQ(api().free_packets(socket_, nullptr, 0), 0);
  EXPECT_THAT(error_of([&] { return api().free_packets(socket_, list, 1'000'000); }), AnyOf(EFAULT, ENOENT));
  EXPECT_EQ(error_of([&] { return free_one(socket_, id); }), ENOENT) << "it was the first of the list";
  EXPECT_EQ(error_of([&] { return free_one(-1, id); }), EINVAL);
}

TEST_F(Holding, UntilAllBuffersAreHeldThenDropsAreCountedAndTheRingGoesOn) {
  holder_.watch(socket_);
  const Socket other(AF_INET);
  bind_here(other);
  other.limit_waits();
  socket_.set(SOL_SOCKET, SO_RXQ_OVFL, 1);
  // VMA_RX_BUFS is 1000 here.
  for (int round = 0; round < 2; ++round) {
    holder_.seen.clear();
    for (int i = 0; i < 2000; ++i) {
      send("all");
      look();
    }
    EXPECT_GE(holder_.seen.size(), 600U);
    EXPECT_LE(holder_.seen.size(), 1400U);
    send_to(other, "still here");
    EXPECT_EQ(other.receive(), "still here") << "a datagram that a call waits for needs no buffer";
    for (void* const id : holder_.held) EXPECT_EQ(free_one(socket_, id), 0);
    holder_.held.clear();
  }
}

TEST_F(Holding, TheBuffersOfAClosedSocketAreFreeAgain) {
  constexpr std::size_t kMany = 500;
  for (int round = 0; round < 6; ++round) {
    Socket holding(AF_INET);
    bind_here(holding);
    std::swap(socket_, holding);
    holder_.seen.clear();
    holder_.held.clear();
    holder_.watch(socket_);
    hold(kMany);
    ASSERT_EQ(holder_.held.size(), kMany) << "round " << round;
    std::swap(socket_, holding);
    const int number = holding;
    holding = Socket(AF_INET);
    EXPECT_NE(error_of([&] { return free_one(number, holder_.held[0]); }), 0);
  }
}

TEST_F(Holding, AForkedChildMayFreeItsCopiesWhichChangesNothing) {
  holder_.watch(socket_);
  hold(2);
  ASSERT_EQ(holder_.held.size(), 2U);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool is_freed = free_one(socket_, holder_.held[0]) == 0;
    const bool is_twice = error_of([&] { return free_one(socket_, holder_.held[0]); }) == ENOENT;
    ::close(socket_);
    ::_exit(is_freed && is_twice && error_of([&] { return free_one(socket_, holder_.held[1]); }) == EINVAL ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  for (void* const id : holder_.held) EXPECT_EQ(free_one(socket_, id), 0);
}

// -- zero copy

class ZeroCopy : public Packets {
 protected:
  int receive(int flags = 0) { return receive_from(socket_, flags); }
  int receive_from(int fd, int flags = 0, std::size_t room = sizeof(room_)) {
    flags_ = flags;
    from_ = Address();
    return api().recvfrom_zcopy(fd, room_.data(), room, &flags_, from_.get(), &from_.length());
  }
  vma_packets_t& list() { return *reinterpret_cast<vma_packets_t*>(room_.data()); }
  vma_packet_t& packet() { return list().pkts[0]; }
  std::string text() {
    EXPECT_EQ(flags_ & MSG_VMA_ZCOPY, MSG_VMA_ZCOPY);
    EXPECT_EQ(list().n_packet_num, 1U);
    EXPECT_EQ(packet().sz_iov, 1U);
    return text_of(packet().iov[0]);
  }
  int free() { return api().free_packets(socket_, list().pkts, list().n_packet_num); }

  alignas(8) std::array<char, 65536> room_{};
  int flags_ = 0;
  Address from_;
};

TEST_F(ZeroCopy, ADatagramIsReadWhereItLiesAndIsFreed) {
  send("hello");
  EXPECT_EQ(receive(), 5);
  EXPECT_EQ(text(), "hello");
  EXPECT_EQ(from_.host(), "10.9.0.2");
  EXPECT_EQ(from_.port(), far_.name().port());
  EXPECT_EQ(free(), 0);
  EXPECT_EQ(error_of([&] { return free(); }), ENOENT);
}

TEST_F(ZeroCopy, EachCallReturnsOneDatagram) {
  Texts received;
  for (const char* data : {"one", "two", "three"}) send(data);
  for (int i = 0; i < 3; ++i) {
    ASSERT_GT(receive(), 0);
    received.push_back(text());
    EXPECT_EQ(free(), 0);
  }
  EXPECT_THAT(received, ElementsAre("one", "two", "three"));
  EXPECT_EQ(error_of([&] { return receive(MSG_DONTWAIT); }), EAGAIN);
  EXPECT_EQ(flags_, MSG_DONTWAIT);
}

TEST_F(ZeroCopy, TheListNeedsRoomAndOneWithoutPartsTellsTheLength) {
  send("hello");
  pollfd one{socket_, POLLIN, 0};
  ASSERT_EQ(::poll(&one, 1, 30'000), 1);
  EXPECT_EQ(error_of([&] { return receive_from(socket_, 0, 23); }), ENOBUFS);
  EXPECT_EQ(receive_from(socket_, MSG_PEEK, 24), 5);
  EXPECT_EQ(flags_, kZeroCopy | MSG_TRUNC);
  EXPECT_EQ(packet().sz_iov, 0U);
  EXPECT_EQ(free(), 0);
  EXPECT_EQ(receive_from(socket_, 0, 40), 5);
  EXPECT_EQ(text(), "hello");
  EXPECT_EQ(free(), 0);
}

TEST_F(ZeroCopy, FragmentsComeAsOnePart) {
  const std::string large(20'000, 'x');
  send(large);
  EXPECT_EQ(receive(), 20'000);
  EXPECT_EQ(text(), large);
  EXPECT_EQ(free(), 0);
}

TEST_F(ZeroCopy, ADatagramOfTheKernelIsCopiedUnlessForbidden) {
  const Socket local(AF_INET);
  bind_here(local);
  ASSERT_EQ(local.send_to(socket_.name(), "from this host"), 14);
  EXPECT_EQ(error_of([&] {
              int got = -1;
              until([&] { return (got = receive(MSG_DONTWAIT | kForce)) >= 0 || errno == EIO; });
              return got;
            }),
            EIO);
  EXPECT_EQ(receive(MSG_VMA_ZCOPY), 14);
  EXPECT_EQ(flags_ & (MSG_VMA_ZCOPY | MSG_VMA_ZCOPY_FORCE), 0);
  EXPECT_EQ(std::string_view(room_.data(), 14), "from this host");
  EXPECT_EQ(from_.port(), local.name().port());
  send("by the ring");
  EXPECT_EQ(receive(MSG_VMA_ZCOPY_FORCE), 11);
  EXPECT_EQ(text(), "by the ring");
  EXPECT_EQ(free(), 0);
}

TEST_F(ZeroCopy, AWaitEndsWithTheDatagramOrTheTimeLimit) {
  std::thread sender([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    send("late");
  });
  EXPECT_EQ(receive(), 4);
  sender.join();
  EXPECT_EQ(free(), 0);
  socket_.limit_waits(50);
  EXPECT_EQ(error_of([&] { return receive(); }), EAGAIN);
  EXPECT_EQ(error_of([&] { return receive_from(-1); }), EBADF);
}

TEST_F(ZeroCopy, WhatIsHeldStaysAndTheOrderOfFreeingIsFree) {
  std::vector<vma_packet_t*> held;
  std::vector<std::array<char, 64>> rooms(50);
  for (auto& room : rooms) {
    send("packet " + std::to_string(held.size()));
    int flags = 0;
    ASSERT_GT(api().recvfrom_zcopy(socket_, room.data(), room.size(), &flags, nullptr, nullptr), 0);
    held.push_back(reinterpret_cast<vma_packets_t*>(room.data())->pkts);
  }
  for (std::size_t i = held.size(); i > 0; --i) {
    EXPECT_EQ(text_of(held[i - 1]->iov[0]), "packet " + std::to_string(i - 1));
    EXPECT_EQ(api().free_packets(socket_, held[i - 1], 1), 0);
  }
}

TEST_F(ZeroCopy, BesideACallback) {
  Watcher watcher(
      [](int, const std::string& text, vma_info_t&) { return text == "good" ? VMA_PACKET_RECV : VMA_PACKET_DROP; });
  watcher.watch(socket_);
  send("bad");
  send("good");
  EXPECT_EQ(receive(), 4);
  EXPECT_EQ(text(), "good");
  EXPECT_EQ(free(), 0);
  EXPECT_THAT(watcher.seen, ElementsAre("bad", "good"));
}

TEST_F(ZeroCopy, BadMemoryIsRefused) {
  send("hello");
  void* const garbage = reinterpret_cast<void*>(0x1234567890000);
  int flags = 0;
  EXPECT_EQ(error_of([&] { return api().recvfrom_zcopy(socket_, garbage, 100, &flags, nullptr, nullptr); }), EFAULT);
  EXPECT_EQ(error_of([&] {
              return api().recvfrom_zcopy(socket_, room_.data(), 100, &flags, static_cast<sockaddr*>(garbage),
                                          &from_.length());
            }),
            EFAULT);
  EXPECT_EQ(error_of([&] { return api().recvfrom_zcopy(socket_, room_.data(), 100, &flags, from_.get(), nullptr); }),
            EFAULT);
  EXPECT_EQ(receive(), 5);
  EXPECT_EQ(free(), 0);
}

}  // namespace
}  // namespace ringsock::vma_tests
