// SO_MAX_PACING_RATE on UDP sockets over rings. Runs beside the echo service (two_hosts.sh), with libvma. Where no
// further datagram may leave during a test, one may in eight seconds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mellanox/vma_extra.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/bad_memory.h"
#include "tests/vma/far_socket.h"
#include "tests/vma/shell.h"
#include "tests/vma/udp_world.h"

namespace ringsock::vma_tests {
namespace {

using Clock = std::chrono::steady_clock;
using ::testing::HasSubstr;

constexpr std::size_t kHeaders = 14 + 20 + 8;
constexpr std::size_t kFrame = 1000;
const std::string kDatagram(kFrame - kHeaders, 'x');

template <class Value>
int set_rate(int fd, const Value& value) {
  return ::setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &value, sizeof value);
}
template <class Value>
Value rate_of(int fd) {
  Value value{};
  socklen_t length = sizeof value;
  EXPECT_EQ(::getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &value, &length), 0) << std::strerror(errno);
  EXPECT_EQ(length, sizeof value);
  return value;
}
std::uint64_t kernels_rate_of(int fd) {
  std::uint64_t value = 0;
  socklen_t length = sizeof value;
  EXPECT_EQ(raw_syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_MAX_PACING_RATE, &value, &length), 0);
  return value;
}
template <class Call>
int error_of(Call call) {
  errno = 0;
  return call() == -1 ? errno : 0;
}

/// A socket that rings send for, to one of the other host.
class Pacing : public ::testing::Test {
 protected:
  Pacing() {
    socket_.limit_waits();
    const Address here("10.9.0.1", 0);
    EXPECT_EQ(::bind(socket_, here.get(), here.length()), 0) << std::strerror(errno);
    until_rings_send();
  }
  /// The neighbour is known afterwards.
  void until_rings_send() {
    for (long sent = 1; sent > 0 && !HasFatalFailure();) {
      const long before = kernels_sent_datagrams(AF_INET);
      ASSERT_EQ(socket_.send_to(far_.name(), "hello"), 5) << std::strerror(errno);
      EXPECT_EQ(far_.receive(), "hello");
      sent = kernels_sent_datagrams(AF_INET) - before;
    }
  }
  int send(int flags = 0, const std::string& data = kDatagram) {
    return error_of(
        [&] { return ::sendto(socket_, data.data(), data.size(), flags, far_.name().get(), far_.name().length()); });
  }
  /// Sends until no datagram more may leave, and returns how many were sent.
  int send_burst() {
    int sent = 0;
    while (send(MSG_DONTWAIT) == 0) ++sent;
    EXPECT_EQ(errno, EAGAIN);
    return sent;
  }
  void limit(std::uint32_t kbits, std::uint32_t burst) {
    ASSERT_EQ(set_rate(socket_, vma_rate_limit_t{kbits, burst, 0}), 0) << std::strerror(errno);
  }
  void end_limit() { ASSERT_EQ(set_rate(socket_, std::uint32_t{UINT32_MAX}), 0); }
  /// A burst of `datagrams`, and then one every eight seconds.
  void allow_only(unsigned datagrams) { limit(1, static_cast<std::uint32_t>(datagrams * kFrame)); }
  [[nodiscard]] bool is_writable(int milliseconds = 0) const {
    pollfd one{socket_, POLLOUT, 0};
    return ::poll(&one, 1, milliseconds) == 1 && (one.revents & POLLOUT) != 0;
  }
  [[nodiscard]] int heard(int most) const {
    int count = 0;
    while (count < most && far_.receive() == kDatagram) ++count;
    return count;
  }

  Socket socket_{AF_INET};
  FarSocket far_{"10.9.0.2"};
};

// -- the option

TEST_F(Pacing, EachFormIsGivenBackInEachForm) {
  ASSERT_EQ(set_rate(socket_, std::uint32_t{1'000'000}), 0);
  EXPECT_EQ(rate_of<std::uint32_t>(socket_), 1'000'000U);
  EXPECT_EQ(rate_of<std::uint64_t>(socket_), 1'000'000U);
  EXPECT_EQ(rate_of<vma_rate_limit_t>(socket_).rate, 8'000U) << "kbit/s";

  ASSERT_EQ(set_rate(socket_, std::uint64_t{10'000'000'000}), 0);
  EXPECT_EQ(rate_of<std::uint32_t>(socket_), UINT32_MAX) << "as Linux";
  EXPECT_EQ(rate_of<std::uint64_t>(socket_), 10'000'000'000U);
  EXPECT_EQ(rate_of<vma_rate_limit_t>(socket_).rate, 80'000'000U);

  ASSERT_EQ(set_rate(socket_, vma_rate_limit_t{800, 5000, 1200}), 0);
  EXPECT_EQ(rate_of<std::uint32_t>(socket_), 100'000U) << "bytes per second";
  EXPECT_EQ(rate_of<std::uint64_t>(socket_), 100'000U);
  const auto back = rate_of<vma_rate_limit_t>(socket_);
  EXPECT_EQ(back.rate, 800U);
  EXPECT_EQ(back.max_burst_sz, 5000U);
  EXPECT_EQ(back.typical_pkt_sz, 1200U);
}

TEST_F(Pacing, WithoutARateThereIsNoLimit) {
  EXPECT_EQ(rate_of<std::uint32_t>(socket_), UINT32_MAX);
  EXPECT_EQ(rate_of<std::uint64_t>(socket_), UINT64_MAX);
  EXPECT_EQ(rate_of<vma_rate_limit_t>(socket_).rate, 0U);
  allow_only(1);
  EXPECT_EQ(send_burst(), 1);
  ASSERT_EQ(set_rate(socket_, std::uint32_t{UINT32_MAX}), 0);
  EXPECT_EQ(send(MSG_DONTWAIT), 0);
  allow_only(1);
  EXPECT_EQ(send_burst(), 1);
  ASSERT_EQ(set_rate(socket_, vma_rate_limit_t{0, 0, 0}), 0);
  EXPECT_EQ(send(MSG_DONTWAIT), 0);
  EXPECT_EQ(kernels_rate_of(socket_), UINT64_MAX) << "for the kernel 0 is very slow";
}

TEST_F(Pacing, TheKernelsSocketHasTheRateInTheKernelsUnit) {
  limit(800, 5000);
  EXPECT_EQ(kernels_rate_of(socket_), 100'000U);
  ASSERT_EQ(set_rate(socket_, std::uint64_t{10'000'000'000}), 0);
  EXPECT_EQ(kernels_rate_of(socket_), 10'000'000'000U);
  ASSERT_EQ(set_rate(socket_, std::uint32_t{4096}), 0);
  EXPECT_EQ(kernels_rate_of(socket_), 4096U);
}

TEST_F(Pacing, SocketsThatAreTheKernelsUnderstandVmasForm) {
  const int tcp = ::socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(set_rate(tcp, vma_rate_limit_t{800, 5000, 0}), 0);
  EXPECT_EQ(kernels_rate_of(tcp), 100'000U);
  EXPECT_EQ(rate_of<vma_rate_limit_t>(tcp).rate, 800U);
  ASSERT_EQ(set_rate(tcp, std::uint32_t{4096}), 0);
  EXPECT_EQ(rate_of<std::uint32_t>(tcp), 4096U);
  EXPECT_EQ(rate_of<std::uint64_t>(tcp), 4096U);
  ::close(tcp);
}

TEST_F(Pacing, BadValuesChangeNothing) {
  ASSERT_EQ(set_rate(socket_, std::uint32_t{4096}), 0);
  const std::array<char, 12> some{1};
  for (const socklen_t length : {0U, 1U, 3U})
    EXPECT_EQ(error_of([&] { return ::setsockopt(socket_, SOL_SOCKET, SO_MAX_PACING_RATE, some.data(), length); }),
              EINVAL);
  EXPECT_EQ(error_of([&] { return set_rate(socket_, vma_rate_limit_t{0, 5000, 0}); }), EINVAL) << "a burst of nothing";
  EXPECT_EQ(error_of([&] { return set_rate(socket_, vma_rate_limit_t{0, 0, 1200}); }), EINVAL);
  const BadMemory bad;
  for (const socklen_t length : {4U, 8U, 12U}) {
    for (char* const place : bad.unreadable()) {
      EXPECT_EFAULT(::setsockopt(socket_, SOL_SOCKET, SO_MAX_PACING_RATE, place, length));
    }
    for (char* const place : bad.unwritable()) {
      socklen_t room = length;
      EXPECT_EFAULT(::getsockopt(socket_, SOL_SOCKET, SO_MAX_PACING_RATE, place, &room));
    }
    EXPECT_EFAULT(::setsockopt(socket_, SOL_SOCKET, SO_MAX_PACING_RATE, bad.last(length - 1), length));
  }
  EXPECT_EQ(rate_of<std::uint32_t>(socket_), 4096U);
}

// -- without waiting

TEST_F(Pacing, ABurstIsAsLongAsConfigured) {
  limit(1, 5 * kFrame);
  EXPECT_EQ(send_burst(), 5);
  EXPECT_EQ(heard(5), 5);
  EXPECT_EQ(far_.receive(MSG_DONTWAIT), "(nothing)");
  limit(1, 5 * kFrame + kFrame / 4);
  EXPECT_EQ(send_burst(), 5) << "a sixth one would be longer";
}

TEST_F(Pacing, ADatagramThatMustWaitIsRefusedAndTheSocketIsNotWritable) {
  allow_only(2);
  EXPECT_TRUE(is_writable());
  EXPECT_EQ(send_burst(), 2);
  EXPECT_FALSE(is_writable());
  EXPECT_FALSE(is_writable(50));
  EXPECT_EQ(send(MSG_DONTWAIT), EAGAIN);
  end_limit();
  EXPECT_TRUE(is_writable());
  EXPECT_EQ(send(MSG_DONTWAIT), 0);
  EXPECT_EQ(heard(3), 3);
}

TEST_F(Pacing, ASocketIsNotWritableBeforeASendIsRefused) {
  allow_only(1);
  EXPECT_EQ(send(MSG_DONTWAIT), 0);
  EXPECT_FALSE(is_writable()) << "the next one would be refused";
}

TEST_F(Pacing, AnErrorIsToldAndReturnedWhileADatagramMustWait) {
  const Address nobody("10.9.0.2", 9);
  ASSERT_EQ(::connect(socket_, nobody.get(), nobody.length()), 0);
  const auto try_to_send = [&] {
    return error_of([&] { return ::send(socket_, kDatagram.data(), kDatagram.size(), MSG_DONTWAIT); });
  };
  allow_only(1);
  ASSERT_EQ(try_to_send(), 0);
  pollfd one{socket_, POLLOUT, 0};
  ASSERT_EQ(::poll(&one, 1, 10'000), 1);
  EXPECT_EQ(one.revents, POLLERR);
  EXPECT_EQ(::poll(&one, 1, 0), 1) << "also without a wait";
  EXPECT_EQ(try_to_send(), ECONNREFUSED);
  EXPECT_EQ(try_to_send(), EAGAIN) << "once";
  EXPECT_EQ(::poll(&one, 1, 0), 0);
}

TEST_F(Pacing, ASocketThatMustWaitCanStillReceive) {
  allow_only(1);
  EXPECT_EQ(send_burst(), 1);
  ASSERT_EQ(far_.send(socket_.name(), "answer"), 6);
  pollfd one{socket_, POLLIN | POLLOUT, 0};
  ASSERT_EQ(::poll(&one, 1, 30'000), 1);
  EXPECT_EQ(one.revents, POLLIN);
  EXPECT_EQ(socket_.receive(), "answer");
}

TEST_F(Pacing, SeveralMessagesAreSentAsFarAsTheBurstGoes) {
  allow_only(3);
  std::string data = kDatagram;
  iovec part{data.data(), data.size()};
  std::array<mmsghdr, 5> messages{};
  Address to = far_.name();
  for (mmsghdr& one : messages) {
    one.msg_hdr.msg_name = to.get();
    one.msg_hdr.msg_namelen = to.length();
    one.msg_hdr.msg_iov = &part;
    one.msg_hdr.msg_iovlen = 1;
  }
  EXPECT_EQ(::sendmmsg(socket_, messages.data(), messages.size(), MSG_DONTWAIT), 3);
  EXPECT_EQ(error_of([&] { return ::sendmmsg(socket_, messages.data(), messages.size(), MSG_DONTWAIT); }), EAGAIN);
  EXPECT_EQ(heard(3), 3);
}

TEST_F(Pacing, SegmentsCountWithTheHeadersOfEach) {
  socket_.set(IPPROTO_UDP, UDP_SEGMENT, 100);
  const std::string ten(1000, 's');
  limit(1, 10 * (100 + kHeaders));
  EXPECT_EQ(send(MSG_DONTWAIT, ten), 0);
  EXPECT_EQ(send(MSG_DONTWAIT, ""), EAGAIN) << "nothing is left, not even for one without payload";
  limit(1, 10 * (100 + kHeaders) + kHeaders);
  EXPECT_EQ(send(MSG_DONTWAIT, ten), 0);
  EXPECT_EQ(send(MSG_DONTWAIT, ""), 0);
}

TEST_F(Pacing, ADummySendNeitherWaitsNorCounts) {
  allow_only(1);
  EXPECT_EQ(send(VMA_SND_FLAGS_DUMMY | MSG_DONTWAIT), 0);
  EXPECT_EQ(send_burst(), 1);
  EXPECT_EQ(send(VMA_SND_FLAGS_DUMMY | MSG_DONTWAIT), 0);
  EXPECT_EQ(heard(1), 1);
}

TEST_F(Pacing, WhatTheKernelRefusesCostsNothing) {
  allow_only(1);
  const std::string too_long(66'000, 'l');
  EXPECT_EQ(send(MSG_DONTWAIT, too_long), EMSGSIZE);
  EXPECT_EQ(send_burst(), 1);
}

TEST_F(Pacing, DatagramsToThisHostItselfHaveThePaceToo) {
  Socket other(AF_INET);
  const Address here("10.9.0.1", 0);
  ASSERT_EQ(::bind(other, here.get(), here.length()), 0);
  allow_only(2);
  const auto to_other = [&] {
    return ::sendto(socket_, kDatagram.data(), kDatagram.size(), MSG_DONTWAIT, other.name().get(),
                    other.name().length());
  };
  EXPECT_EQ(to_other(), static_cast<ssize_t>(kDatagram.size()));
  EXPECT_EQ(to_other(), static_cast<ssize_t>(kDatagram.size()));
  EXPECT_EQ(error_of(to_other), EAGAIN);
}

TEST_F(Pacing, ASocketThatIsTheKernelsHasTheKernelsPace) {
  allow_only(1);
  EXPECT_EQ(send_burst(), 1);
  socket_.set(SOL_SOCKET, SO_NO_CHECK, 0);  // the kernel sends from now on
  EXPECT_TRUE(is_writable());
  EXPECT_EQ(send(MSG_DONTWAIT), 0) << "eth0 has no fq";
  EXPECT_EQ(kernels_rate_of(socket_), 125U);
}

// -- waiting

TEST_F(Pacing, ABlockingSendWaitsForItsTurn) {
  limit(1'600, 1000);  // 200 datagrams per second
  const auto begun = Clock::now();
  for (int i = 0; i < 21; ++i) ASSERT_EQ(send(), 0);
  // The first one leaves at once. One more may be early by half of its time (token_bucket.h).
  EXPECT_GE(Clock::now() - begun, std::chrono::microseconds(20 * 5000 - 2500));
  EXPECT_EQ(heard(21), 21);
}

TEST_F(Pacing, ABlockingSendEndsWithItsTimeLimit) {
  allow_only(1);
  const timeval limit{0, 20'000};
  ASSERT_EQ(::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  EXPECT_EQ(send(), 0);
  EXPECT_EQ(send(), EAGAIN);
  EXPECT_EQ(heard(1), 1);
  EXPECT_EQ(far_.receive(MSG_DONTWAIT), "(nothing)");
}

TEST_F(Pacing, ABlockingSendGoesOnWhenTheLimitEnds) {
  allow_only(1);
  EXPECT_EQ(send(), 0);
  std::thread waits([&] { EXPECT_EQ(send(), 0); });
  EXPECT_EQ(heard(1), 1);
  end_limit();
  waits.join();
  EXPECT_EQ(heard(1), 1);
}

TEST_F(Pacing, PollWaitsUntilADatagramMayLeave) {
  limit(800, 1000);
  for (int i = 0; i < 10; ++i) {
    while (send(MSG_DONTWAIT) == 0) {
    }
    ASSERT_TRUE(is_writable(30'000));
    EXPECT_EQ(send(MSG_DONTWAIT), 0) << "poll(2) has said so";
  }
}

TEST_F(Pacing, PollInAnotherThreadIsWokenWhenTheLimitEnds) {
  allow_only(1);
  EXPECT_EQ(send(), 0);
  std::thread waits([&] { EXPECT_TRUE(is_writable(-1)); });
  end_limit();
  waits.join();
}

TEST_F(Pacing, EdgeTriggeredEpollTellsThatADatagramMayLeave) {
  const int set = ::epoll_create1(0);
  epoll_event event{.events = EPOLLOUT | EPOLLET, .data = {}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, socket_, &event), 0);
  ASSERT_EQ(::epoll_wait(set, &event, 1, 30'000), 1);
  limit(800, 1000);
  for (int i = 0; i < 10; ++i) {
    while (send(MSG_DONTWAIT) == 0) {
    }
    ASSERT_EQ(::epoll_wait(set, &event, 1, 30'000), 1);
    EXPECT_EQ(event.events, static_cast<std::uint32_t>(EPOLLOUT));
    EXPECT_EQ(send(MSG_DONTWAIT), 0);
  }
  ::close(set);
}

TEST_F(Pacing, EpollWaitsForThePacesOfSeveralSockets) {
  std::vector<Socket> sockets;
  const int set = ::epoll_create1(0);
  for (int i = 0; i < 4; ++i) {
    sockets.emplace_back(AF_INET);
    ASSERT_EQ(::connect(sockets.back(), far_.name().get(), far_.name().length()), 0);
    ASSERT_EQ(set_rate(sockets.back(), vma_rate_limit_t{800U * (1U + static_cast<unsigned>(i)), 1000, 0}), 0);
    epoll_event event{.events = EPOLLOUT, .data = {.fd = sockets.back()}};
    ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, sockets.back(), &event), 0);
  }
  for (int left = 100; left > 0; --left) {
    epoll_event event{};
    ASSERT_EQ(::epoll_wait(set, &event, 1, 30'000), 1);
    EXPECT_EQ(::send(event.data.fd, kDatagram.data(), kDatagram.size(), MSG_DONTWAIT),
              static_cast<ssize_t>(kDatagram.size()))
        << std::strerror(errno);
  }
  ::close(set);
}

TEST_F(Pacing, AReaderSleepsWhileASenderHasToWait) {
  allow_only(1);
  EXPECT_EQ(send_burst(), 1);
  std::thread reads([&] { EXPECT_EQ(socket_.receive(), "answer"); });
  std::thread writes([&] { EXPECT_EQ(send(), 0); });
  ASSERT_EQ(far_.send(socket_.name(), "answer"), 6);
  reads.join();
  end_limit();
  writes.join();
  EXPECT_EQ(heard(2), 2);
}

TEST_F(Pacing, ThreadsTogetherKeepTheRate) {
  constexpr double kRate = 1e6, kBurst = 5000;
  limit(8'000, 5000);
  std::atomic<int> sent{0};
  const auto begun = Clock::now();
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (int left = 50; left > 0; --left) sent += send() == 0 ? 1 : 0;
    });
  }
  for (std::thread& one : threads) one.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - begun).count();
  EXPECT_EQ(sent, 150);
  EXPECT_LE(150.0 * kFrame, kBurst + kFrame / 2.0 + kRate * seconds);
  EXPECT_EQ(heard(150), 150);
}

TEST_F(Pacing, AForkedChildKeepsTheOption) {
  limit(800, 5000);
  if (const pid_t child = ::fork(); child == 0) {
    const bool right = kernels_rate_of(socket_) == 100'000 && rate_of<vma_rate_limit_t>(socket_).max_burst_sz == 5000 &&
                       send(MSG_DONTWAIT) == 0;
    ::_exit(right ? 0 : 1);
  } else {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(heard(1), 1);
}

// -- statistics

std::string vma_stats_of(int fd) {
  const WithoutLibrary here;
  const std::string command =
      "tools/vma_stats -p " + std::to_string(::getpid()) + " -v 3 -c 1 -s " + std::to_string(fd) + " 2>&1";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::string out;
  std::array<char, 4096> part;
  while (const std::size_t got = std::fread(part.data(), 1, part.size(), pipe.get())) out.append(part.data(), got);
  return out;
}

TEST_F(Pacing, StatisticsTellWhatWasPaced) {
  EXPECT_THAT(vma_stats_of(socket_), ::testing::Not(HasSubstr("Tx Paced")));
  allow_only(3);
  EXPECT_EQ(send_burst(), 3);
  EXPECT_FALSE(is_writable());
  EXPECT_THAT(vma_stats_of(socket_), HasSubstr("Tx Paced: 3 / 1 [packets/waits], at most 1 kbit/s\n"));
}

}  // namespace
}  // namespace ringsock::vma_tests
