#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/net_tstamp.h>
#include <netinet/udp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "tests/support/closing_children.h"
#include "tests/support/thread_status.h"
#include "tests/vma/udp_fixture.h"

namespace ringsock::vma_tests {
namespace {

using std::chrono::milliseconds;

INSTANTIATE_TEST_SUITE_P(Over, Udp, both_versions(), name_of_version);

TEST_P(Udp, DatagramsOfAllSizesComeBackWhole) {
  bind_anywhere(socket_);
  for (const std::size_t size : {0U, 1U, 64U, 1000U, 1452U, 1453U, 1472U, 1473U, 4000U, 30000U, 65000U}) {
    std::string data(size, '\0');
    for (std::size_t i = 0; i < size; ++i) data[i] = static_cast<char>(i * 7 + size);
    ASSERT_EQ(socket_.send_to(echo_, data), static_cast<ssize_t>(size)) << std::strerror(errno);
    Address from;
    errno = 0;
    const std::string answer = socket_.receive(&from);
    EXPECT_EQ(errno, 0) << size;
    EXPECT_EQ(answer, data) << size;
    EXPECT_EQ(from.host(), GetParam().there);
    EXPECT_EQ(from.port(), kEchoPort);
  }
}

TEST_P(Udp, TheKernelSeesNothingOfWhatRingsCarry) {
  if (!preloaded()) GTEST_SKIP() << "without libvma the kernel carries all";
  bind_anywhere(socket_);
  get_acquainted(socket_);
  const long before = kernels_datagrams(GetParam().family);
  ASSERT_GE(before, 0);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(socket_.send_to(echo_, "ping"), 4);
    ASSERT_EQ(socket_.receive(), "ping");
  }
  EXPECT_LT(kernels_datagrams(GetParam().family) - before, 5);
}

TEST_P(Udp, AConnectedSocketHearsOfItsPeerOnly) {
  ASSERT_EQ(::connect(socket_, echo_.get(), echo_.length()), 0);
  ASSERT_EQ(::send(socket_, "hello", 5, 0), 5);
  EXPECT_EQ(socket_.receive(), "hello");
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(::send(socket_, "again", 5, 0), 5);
    EXPECT_EQ(socket_.receive(), "again");
  }
  Socket stranger(GetParam().family);
  ASSERT_EQ(stranger.send_to(Address(GetParam().here, socket_.name().port()), "me, too"), 7);
  EXPECT_EQ(socket_.receive(nullptr, MSG_DONTWAIT), "");
  EXPECT_EQ(errno, EAGAIN);
}

TEST_P(Udp, APortWhereNobodyListensRefuses) {
  const Address nobody(GetParam().there, 7001);
  ASSERT_EQ(::connect(socket_, nobody.get(), nobody.length()), 0);
  socket_.limit_waits(500);
  // Hosts limit how many errors they send (RFC 4443, 2.4): who is not answered asks again.
  const auto is_refused = [&] {
    for (int i = 0; i < 20; ++i) {
      (void)::send(socket_, "anybody?", 8, 0);
      char room[16];
      EXPECT_EQ(::recv(socket_, room, sizeof room, 0), -1);
      if (errno != EAGAIN) return errno == ECONNREFUSED;
    }
    return false;
  };
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(is_refused()) << i << ": " << std::strerror(errno);
}

TEST_P(Udp, OneSocketServesTheOtherHostAndThisOne) {
  bind_anywhere(socket_);
  get_acquainted(socket_);
  const std::uint16_t port = socket_.name().port();
  Socket local(GetParam().family);
  for (int i = 0; i < 20; ++i) {
    const std::string far = "far " + std::to_string(i), near = "near " + std::to_string(i);
    ASSERT_EQ(socket_.send_to(echo_, far), static_cast<ssize_t>(far.size()));
    ASSERT_EQ(local.send_to(Address(i % 2 ? GetParam().loopback : GetParam().here, port), near),
              static_cast<ssize_t>(near.size()));
    std::string first = socket_.receive(), second = socket_.receive();
    if (first[0] == 'n') std::swap(first, second);
    EXPECT_EQ(first, far);
    EXPECT_EQ(second, near);
  }
}

TEST_P(Udp, PeekLeavesAndTruncTellsTheLength) {
  bind_anywhere(socket_);
  get_acquainted(socket_);
  ASSERT_EQ(socket_.send_to(echo_, "0123456789"), 10);
  char room[4];
  EXPECT_EQ(::recv(socket_, room, sizeof room, MSG_PEEK), 4);
  EXPECT_EQ(::recv(socket_, room, sizeof room, MSG_PEEK | MSG_TRUNC), 10);
  int waiting = 0;
  ASSERT_EQ(::ioctl(socket_, FIONREAD, &waiting), 0);
  EXPECT_EQ(waiting, 10);
  iovec part{room, sizeof room};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  EXPECT_EQ(::recvmsg(socket_, &message, 0), 4);
  EXPECT_EQ(message.msg_flags & MSG_TRUNC, MSG_TRUNC);
  EXPECT_EQ(std::string(room, 4), "0123");
  EXPECT_EQ(socket_.receive(nullptr, MSG_DONTWAIT), "");
  EXPECT_EQ(errno, EAGAIN) << "the rest of a datagram is gone";
}

TEST_P(Udp, ManyAtOnce) {
  bind_anywhere(socket_);
  get_acquainted(socket_);
  constexpr unsigned kCount = 8;
  std::string texts[kCount];
  iovec parts[kCount];
  mmsghdr messages[kCount]{};
  for (unsigned i = 0; i < kCount; ++i) {
    texts[i] = "number " + std::to_string(i);
    parts[i] = {texts[i].data(), texts[i].size()};
    messages[i].msg_hdr.msg_iov = &parts[i];
    messages[i].msg_hdr.msg_iovlen = 1;
    messages[i].msg_hdr.msg_name = echo_.get();
    messages[i].msg_hdr.msg_namelen = echo_.length();
  }
  ASSERT_EQ(::sendmmsg(socket_, messages, kCount, 0), static_cast<int>(kCount));
  char rooms[kCount][32];
  unsigned got = 0;
  while (got < kCount) {
    mmsghdr answers[kCount]{};
    for (unsigned i = 0; i < kCount; ++i) {
      parts[i] = {rooms[i], sizeof rooms[i]};
      answers[i].msg_hdr.msg_iov = &parts[i];
      answers[i].msg_hdr.msg_iovlen = 1;
    }
    const int some = ::recvmmsg(socket_, answers, kCount, MSG_WAITFORONE, nullptr);
    ASSERT_GT(some, 0) << std::strerror(errno);
    for (int i = 0; i < some; ++i) {
      EXPECT_EQ(std::string(rooms[i], answers[i].msg_len), "number " + std::to_string(got++));
    }
  }
}

// Debian's libuv asks the kernel by number: poll said POLLIN, recvmmsg EAGAIN, for ever.
TEST_P(Udp, SystemCallsByNumberMoveDatagramsOfRings) {
  bind_anywhere(socket_);
  get_acquainted(socket_);
  if (preloaded()) until_rings_send(socket_);
  const long before = kernels_datagrams(GetParam().family);
  std::string text = "by number";
  std::array<char, 32> room{};
  iovec out{text.data(), text.size()}, in{room.data(), room.size()};
  mmsghdr many[2]{};
  many[0].msg_hdr.msg_name = echo_.get();
  many[0].msg_hdr.msg_namelen = echo_.length();
  many[0].msg_hdr.msg_iov = &out;
  many[0].msg_hdr.msg_iovlen = 1;
  const msghdr to_echo = many[0].msg_hdr;
  const auto await = [&] {
    pollfd one{socket_, POLLIN, 0};
    const timespec limit{5, 0};
    EXPECT_EQ(::syscall(SYS_ppoll, &one, 1, &limit, nullptr, 0), 1);
    room = {};
  };
  const auto received = [&] { return std::string(room.data()); };

  EXPECT_EQ(::syscall(SYS_sendmmsg, static_cast<int>(socket_), many, 1, 0), 1);
  await();
  many[0].msg_hdr = many[1].msg_hdr = {};
  many[0].msg_hdr.msg_iov = many[1].msg_hdr.msg_iov = &in;
  many[0].msg_hdr.msg_iovlen = many[1].msg_hdr.msg_iovlen = 1;
  EXPECT_EQ(::syscall(SYS_recvmmsg, static_cast<int>(socket_), many, 2, MSG_DONTWAIT, nullptr), 1);
  EXPECT_EQ(received(), text);
  EXPECT_EQ(::syscall(SYS_sendmsg, static_cast<int>(socket_), &to_echo, 0), 9);
  await();
  EXPECT_EQ(::syscall(SYS_recvmsg, static_cast<int>(socket_), &many[0].msg_hdr, MSG_DONTWAIT), 9);
  EXPECT_EQ(received(), text);
  EXPECT_EQ(::syscall(SYS_sendto, static_cast<int>(socket_), text.data(), text.size(), 0, echo_.get(), echo_.length()),
            9);
  await();
  EXPECT_EQ(
      ::syscall(SYS_recvfrom, static_cast<int>(socket_), room.data(), room.size(), MSG_DONTWAIT, nullptr, nullptr), 9);
  EXPECT_EQ(received(), text);
  EXPECT_EQ(::syscall(SYS_connect, static_cast<int>(socket_), echo_.get(), echo_.length()), 0);
  EXPECT_EQ(::syscall(SYS_write, static_cast<int>(socket_), text.data(), text.size()), 9);
  await();
  EXPECT_EQ(::syscall(SYS_read, static_cast<int>(socket_), room.data(), room.size()), 9);
  EXPECT_EQ(received(), text);
  EXPECT_EQ(::syscall(SYS_recvmmsg, static_cast<int>(socket_), many, 2, MSG_DONTWAIT, nullptr), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_TRUE(!preloaded() || kernels_datagrams(GetParam().family) == before);
}

TEST_P(Udp, ControlDataTellsWhatTheHeadersSaid) {
  bind_anywhere(socket_);
  const bool is_v4 = GetParam().family == AF_INET;
  if (is_v4) {
    socket_.set(IPPROTO_IP, IP_PKTINFO, 1);
    socket_.set(IPPROTO_IP, IP_RECVTTL, 1);
    socket_.set(IPPROTO_IP, IP_RECVTOS, 1);
  } else {
    socket_.set(IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
    socket_.set(IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1);
    socket_.set(IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
  }
  socket_.set(SOL_SOCKET, SO_TIMESTAMPNS, 1);
  get_acquainted(socket_);
  timespec before{};
  ::clock_gettime(CLOCK_REALTIME, &before);
  ASSERT_EQ(socket_.send_to(echo_, "what time is it?"), 16);
  char room[64];
  alignas(cmsghdr) char control[512];
  iovec part{room, sizeof room};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ASSERT_EQ(::recvmsg(socket_, &message, 0), 16);
  timespec after{};
  ::clock_gettime(CLOCK_REALTIME, &after);
  EXPECT_EQ(message.msg_flags & MSG_CTRUNC, 0);
  const auto time = control_value<timespec>(message, SOL_SOCKET, SO_TIMESTAMPNS);
  EXPECT_GE(time.tv_sec, before.tv_sec);
  EXPECT_LE(time.tv_sec, after.tv_sec);
  if (is_v4) {
    const auto info = control_value<in_pktinfo>(message, IPPROTO_IP, IP_PKTINFO);
    EXPECT_EQ(info.ipi_addr.s_addr, ::inet_addr(GetParam().here));
    EXPECT_NE(info.ipi_ifindex, 0);
    EXPECT_EQ(control_value<int>(message, IPPROTO_IP, IP_TTL), 64);
    EXPECT_EQ(control_value<std::uint8_t>(message, IPPROTO_IP, IP_TOS), 0);
  } else {
    EXPECT_EQ(control_value<int>(message, IPPROTO_IPV6, IPV6_HOPLIMIT), 64);
    EXPECT_EQ(control_value<int>(message, IPPROTO_IPV6, IPV6_TCLASS), 0);
    EXPECT_NE(control_value<in6_pktinfo>(message, IPPROTO_IPV6, IPV6_PKTINFO).ipi6_ifindex, 0U);
  }
}

// -- waiting

/// Has an answer come to `socket` once `thread` sleeps: every call that waits must wake a thread that has stopped
/// polling.
void answer_sleeper(pid_t thread, const Socket& socket, const Address& echo) {
  EXPECT_TRUE(support::falls_asleep(thread));
  ASSERT_EQ(socket.send_to(echo, "late"), 4);
}

TEST_P(Udp, ASleeperInReceiveIsWoken) {
  bind_anywhere(socket_);
  get_acquainted(socket_);
  std::thread later([&, self = ::gettid()] { answer_sleeper(self, socket_, echo_); });
  EXPECT_EQ(socket_.receive(), "late");
  later.join();
}

TEST_P(Udp, ASleeperInPollIsWoken) {
  bind_anywhere(socket_);
  get_acquainted(socket_);
  std::thread later([&, self = ::gettid()] { answer_sleeper(self, socket_, echo_); });
  pollfd entry{socket_, POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, -1), 1);
  EXPECT_EQ(entry.revents & POLLIN, POLLIN);
  EXPECT_EQ(socket_.receive(nullptr, MSG_DONTWAIT), "late");
  EXPECT_EQ(::poll(&entry, 1, 0), 0) << "nothing is left";
  later.join();
}

TEST_P(Udp, ASleeperInSelectIsWoken) {
  bind_anywhere(socket_);
  get_acquainted(socket_);
  std::thread later([&, self = ::gettid()] { answer_sleeper(self, socket_, echo_); });
  fd_set readable;
  FD_ZERO(&readable);
  FD_SET(socket_, &readable);
  timeval limit{5, 0};
  EXPECT_EQ(::select(socket_ + 1, &readable, nullptr, nullptr, &limit), 1);
  EXPECT_EQ(socket_.receive(nullptr, MSG_DONTWAIT), "late");
  later.join();
}

TEST_P(Udp, WhoSleepsInAnEpollSetHearsOfRingsThatASocketGetsMeanwhile) {
  Socket other(GetParam().family);
  other.limit_waits();
  get_acquainted(other);  // the neighbour is known
  const int set = ::epoll_create1(0);
  epoll_event event{.events = EPOLLIN, .data = {.fd = socket_}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, socket_, &event), 0) << std::strerror(errno);
  // Its first datagram binds it, and from then on rings may receive for it.
  for (int round = 0; round < 5; ++round) {
    std::thread later([&, self = ::gettid()] { answer_sleeper(self, socket_, echo_); });
    epoll_event events[4];
    EXPECT_EQ(::epoll_wait(set, events, 4, -1), 1) << round;
    later.join();
    EXPECT_EQ(socket_.receive(nullptr, MSG_DONTWAIT), "late") << round;
  }
  ::close(set);
}

TEST_P(Udp, AnEpollSetTellsWhichOfTwoSocketsOnOneRing) {
  bind_anywhere(socket_);
  get_acquainted(socket_);
  Socket other(GetParam().family);
  other.limit_waits();
  bind_anywhere(other);
  get_acquainted(other);
  const int set = ::epoll_create1(0);
  for (const Socket* one : {&socket_, &other}) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = *one}};
    ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, *one, &event), 0) << std::strerror(errno);
  }
  for (int round = 0; round < 4; ++round) {
    const Socket& sender = round % 2 ? other : socket_;
    std::thread later([&, self = ::gettid()] { answer_sleeper(self, sender, echo_); });
    epoll_event events[4];
    ASSERT_EQ(::epoll_wait(set, events, 4, -1), 1) << round;
    EXPECT_EQ(events[0].data.fd, sender) << round;
    EXPECT_EQ(sender.receive(nullptr, MSG_DONTWAIT), "late");
    EXPECT_EQ(::epoll_wait(set, events, 4, 0), 0);
    later.join();
  }
  ::close(set);
}

/// A thread that receives the numbers from 0 on by a socket of its own.
class Receiver {
 public:
  Receiver(const Socket& socket, int count)
      : socket_(socket), thread_([this, count] {
          id_ = ::gettid();
          for (int i = 0; i < count; ++i) EXPECT_EQ(socket_.receive(), std::to_string(i)) << std::strerror(errno);
        }) {}
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;
  ~Receiver() { thread_.join(); }
  /// Waits until the thread sleeps in its call. False once it has received all.
  [[nodiscard]] bool sleeps() const {
    while (id_ == 0) std::this_thread::yield();
    return support::falls_asleep(id_);
  }
  [[nodiscard]] const Socket& socket() const { return socket_; }

 private:
  const Socket& socket_;
  std::atomic<pid_t> id_{0};
  std::thread thread_;
};

TEST_P(Udp, TwoThreadsOnOneRingSleepEachForItsOwn) {
  Socket other(GetParam().family);
  other.limit_waits();
  for (const Socket* one : {&socket_, &other}) {
    bind_anywhere(*one);
    get_acquainted(*one);
  }
  constexpr int kCount = 10;
  const Receiver first(socket_, kCount), second(other, kCount);
  for (int i = 0; i < kCount; ++i) {
    for (const Receiver* one : {&first, &second}) {
      const bool first_sleeps = first.sleeps(), second_sleeps = second.sleeps();
      EXPECT_TRUE(one == &first ? first_sleeps : second_sleeps);
      ASSERT_EQ(one->socket().send_to(echo_, std::to_string(i)), 1);
    }
  }
}

TEST_P(Udp, AKernelDatagramWakesASleeperToo) {
  bind_anywhere(socket_);
  get_acquainted(socket_);
  const Address me(GetParam().loopback, socket_.name().port());
  std::thread later([&, self = ::gettid()] { answer_sleeper(self, Socket(GetParam().family), me); });
  EXPECT_EQ(socket_.receive(), "late");
  later.join();
}

/// How a program changes a socket so that rings can no longer serve it, or not those it had.
struct Change {
  const char* what;
  std::function<void(int fd, const Address& echo)> make;
};
const std::array kChanges{
    Change{"connect(2) to somebody else",
           [](int fd, const Address& echo) {
             const Address other(echo.host().c_str(), 9);
             EXPECT_EQ(::connect(fd, other.get(), other.length()), 0);
           }},
    Change{"shutdown(2)",
           [](int fd, const Address& echo) {
             EXPECT_EQ(::connect(fd, echo.get(), echo.length()), 0);
             EXPECT_EQ(::shutdown(fd, SHUT_RD), 0);
           }},
    Change{"a filter",
           [](int fd, const Address&) {
             sock_filter all = {.code = BPF_RET | BPF_K, .jt = 0, .jf = 0, .k = 0xffffffff};
             const sock_fprog program{.len = 1, .filter = &all};
             EXPECT_EQ(::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
           }},
    Change{"time stamps of the card",
           [](int fd, const Address&) {
             const int wanted = SOF_TIMESTAMPING_RX_HARDWARE | SOF_TIMESTAMPING_RAW_HARDWARE;
             EXPECT_EQ(::setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &wanted, sizeof wanted), 0);
           }},
};

TEST_P(Udp, WhatWaitsWhenASocketLeavesItsRingsIsReceivedFirst) {
  const Messenger messenger(echo_);
  for (const Change& change : kChanges) {
    SCOPED_TRACE(change.what);
    Socket socket(GetParam().family);
    bind_anywhere(socket);
    get_acquainted(socket);
    for (const char* text : {"one", "two", "three"}) messenger.send(text, GetParam().here, socket.name().port());
    change.make(socket, echo_);
    for (const char* text : {"one", "two", "three"}) EXPECT_EQ(socket.receive(nullptr, MSG_DONTWAIT), text);
  }
}

TEST_P(Udp, ShutdownWakesWhoReceivesWhetherConnectedOrNot) {
  for (const bool connected : {false, true}) {
    Socket socket(GetParam().family);
    bind_anywhere(socket);
    get_acquainted(socket);
    if (connected) {
      ASSERT_EQ(::connect(socket, echo_.get(), echo_.length()), 0);
    }
    std::thread later([&, self = ::gettid()] {
      EXPECT_TRUE(support::falls_asleep(self));
      EXPECT_EQ(::shutdown(socket, SHUT_RD), connected ? 0 : -1);
    });
    char byte = 0;
    EXPECT_EQ(::recv(socket, &byte, 1, 0), 0);
    later.join();
    EXPECT_EQ(::recv(socket, &byte, 1, MSG_DONTWAIT), -1);
    EXPECT_EQ(errno, EAGAIN);
    EXPECT_EQ(::recv(socket, &byte, 1, 0), 0) << "there is nothing to wait for";
  }
}

TEST(UdpProcessDeathTest, TheFirstSocketLeavesErrnoAlone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto first_socket = [] {
    errno = 0;
    ::socket(AF_INET, SOCK_DGRAM, 0);
    ::_exit(errno);
  };
  EXPECT_EXIT(first_socket(), testing::ExitedWithCode(0), "");
}

TEST_P(Udp, ANonBlockingSocketAnswersAtOnce) {
  Socket socket(GetParam().family, SOCK_NONBLOCK);
  bind_anywhere(socket);
  EXPECT_EQ(socket.receive(), "");
  EXPECT_EQ(errno, EAGAIN);
}

// The time is what is tested: the call does not end before it, however long the host lets it wait behind it.
TEST_P(Udp, AReceiveTimeOutEnds) {
  bind_anywhere(socket_);
  socket_.limit_waits(200);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(socket_.receive(), "");
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(190));
}

// -- processes

TEST_P(Udp, AForkedChildGoesOnWithItsOwnSockets) {
  bind_anywhere(socket_);
  get_acquainted(socket_);
  const pid_t child = ::fork();
  if (child == 0) {
    Socket own(GetParam().family);
    own.limit_waits();
    bool fine = true;
    for (int i = 0; i < 5; ++i) fine = fine && own.send_to(echo_, "child") == 5 && own.receive() == "child";
    ::_exit(fine ? 0 : 1);
  }
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(socket_.send_to(echo_, "parent"), 6);
    EXPECT_EQ(socket_.receive(), "parent") << std::strerror(errno);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

/// The lock of a socket that is made during fork(2) may be another thread's, which the child does not have.
TEST(UdpProcesses, AChildClosesWhatAnotherThreadWasMaking) {
  constexpr int kForks = 150;
  std::atomic<bool> is_over{false};
  std::thread maker([&] {
    while (!is_over.load()) {
      const Socket made(AF_INET);
      const Address here("10.9.0.1", 0);
      EXPECT_EQ(::bind(made, here.get(), here.length()), 0);
    }
  });
  support::let_children_close(kForks);
  is_over.store(true);
  maker.join();
}

}  // namespace
}  // namespace ringsock::vma_tests
