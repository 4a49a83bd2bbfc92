// TCP connections that rings carry (VMA_TCP=on), between two hosts.
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <functional>

#include "tests/support/sanitizers.h"
#include "tests/vma/tcp_bytes.h"
#include "tests/vma/tcp_world.h"

namespace ringsock::vma_tests {
namespace {

constexpr const char* kHere = "10.9.0.1";
constexpr const char* kThere = "10.9.0.2";
/// A sanitizer makes each byte some ten times slower.
constexpr bool kIsSlow = support::kHasAddressSanitizer || support::kHasThreadSanitizer;
constexpr std::size_t kMuch = (kIsSlow ? 10 : 100) * kMegabyte;

struct Way {
  const char* name;
  bool connects;
  Calls theirs;
  const char* here = kHere;
  const char* there = kThere;
};

class TcpStory : public testing::TestWithParam<Way> {
 protected:
  static Pair connection() {
    const Way& way = GetParam();
    return way.connects ? connect_from_here(way.there, way.theirs) : accept_here(way.here, way.theirs);
  }
};

INSTANTIATE_TEST_SUITE_P(All, TcpStory,
                         testing::Values(Way{"ConnectsToKernel", true, Calls::kernels},
                                         Way{"AcceptsFromKernel", false, Calls::kernels},
                                         Way{"ConnectsToRing", true, Calls::librarys},
                                         Way{"AcceptsFromRing", false, Calls::librarys},
                                         Way{"ConnectsByIpv6", true, Calls::kernels, "fd09::1", "fd09::2"},
                                         Way{"AcceptsMapped", false, Calls::kernels, "::ffff:10.9.0.1", nullptr},
                                         Way{"AcceptsByIpv6", false, Calls::librarys, "fd09::1", "fd09::2"}),
                         [](const auto& way) { return std::string(way.param.name); });

TEST_P(TcpStory, ARingCarriesWordsBothWays) {
  const Pair pair = connection();
  EXPECT_TRUE(pair.here.is_on_ring());
  EXPECT_EQ(pair.there.is_on_ring(), GetParam().theirs == Calls::librarys);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(pair.here.send("question"), 8U);
    ASSERT_EQ(pair.there.receive(8), "question");
    ASSERT_EQ(pair.there.send("answer"), 6U);
    ASSERT_EQ(pair.here.receive(6), "answer");
  }
  EXPECT_TRUE(pair.here.is_on_ring());
}

TEST_P(TcpStory, AHundredMegabytesEachWayArriveAsTheyWere) {
  const Pair pair = connection();
  exchange(pair.here, pair.there, kMuch);
  EXPECT_TRUE(pair.here.is_on_ring());
}

TEST_P(TcpStory, WhatIsInTheQueuesSurvivesTheWayBackToTheKernel) {
  const Pair pair = connection();
  Pattern to_there(3), to_here(4);
  // Nobody reads: both queues fill.
  ASSERT_EQ(pair.here.send(to_there.next(60'000)), 60'000U);
  ASSERT_EQ(pair.there.send(to_here.next(60'000)), 60'000U);
  // The kernel has an option that rings do not: the connection goes back.
  const int clamp = 60'000;
  ASSERT_EQ(::setsockopt(pair.here.fd(), IPPROTO_TCP, TCP_WINDOW_CLAMP, &clamp, sizeof clamp), 0)
      << std::strerror(errno);
  EXPECT_FALSE(pair.here.is_on_ring());
  EXPECT_TRUE(pair.there.receive(60'000) == Pattern(3).next(60'000));
  EXPECT_TRUE(pair.here.receive(60'000) == Pattern(4).next(60'000));
  exchange(pair.here, pair.there, 2 * kMegabyte);
}

TEST_P(TcpStory, TheWayBackUnderLoadLosesNothing) {
  const Pair pair = connection();
  constexpr std::size_t kBytes = kMuch / 10 * 3;
  std::thread goes_back([&] {
    ::usleep(5'000);
    const int clamp = 6'000'000;
    EXPECT_EQ(::setsockopt(pair.here.fd(), IPPROTO_TCP, TCP_WINDOW_CLAMP, &clamp, sizeof clamp), 0);
  });
  exchange(pair.here, pair.there, kBytes);
  goes_back.join();
  EXPECT_FALSE(pair.here.is_on_ring());
}

TEST_P(TcpStory, ACloseIsTheKernels) {
  Pair pair = connection();
  ASSERT_EQ(pair.here.send("last words"), 10U);
  pair.here.close();
  EXPECT_EQ(pair.there.receive(100), "last words");
  EXPECT_EQ(pair.there.error_of_receive(), 0);
}

TEST_P(TcpStory, AHalfCloseIsSeenByBoth) {
  const Pair pair = connection();
  ASSERT_EQ(pair.here.send("all"), 3U);
  pair.here.shut_down(SHUT_WR);
  EXPECT_EQ(pair.there.receive(10), "all");
  ASSERT_EQ(pair.there.send("an answer"), 9U);
  EXPECT_EQ(pair.here.receive(9), "an answer");
  pair.there.shut_down(SHUT_WR);
  EXPECT_EQ(pair.here.error_of_receive(), 0);
}

TEST_P(TcpStory, AnAnswerFollowsThePeersHalfClose) {
  Pair pair = connection();
  ASSERT_EQ(pair.there.send("all"), 3U);
  pair.there.shut_down(SHUT_WR);
  EXPECT_EQ(pair.here.receive(10), "all");
  EXPECT_EQ(pair.here.error_of_receive(), 0);
  ASSERT_EQ(pair.here.send(std::string(100'000, 'a')), 100'000U);
  std::thread closes([&] { pair.here.close(); });
  EXPECT_EQ(pair.there.receive(200'000).size(), 100'000U);
  EXPECT_EQ(pair.there.error_of_receive(), 0);
  closes.join();
}

TEST_P(TcpStory, TheEndOfThePeersStreamGoesBackToTheKernelToo) {
  const Pair pair = connection();
  ASSERT_EQ(pair.there.send("all"), 3U);
  pair.there.shut_down(SHUT_WR);
  pollfd end{pair.here.fd(), POLLRDHUP, 0};
  ASSERT_EQ(::poll(&end, 1, 10'000), 1);
  const int clamp = 60'000;
  ASSERT_EQ(::setsockopt(pair.here.fd(), IPPROTO_TCP, TCP_WINDOW_CLAMP, &clamp, sizeof clamp), 0);
  EXPECT_FALSE(pair.here.is_on_ring());
  EXPECT_EQ(pair.here.receive(10), "all");
  EXPECT_EQ(pair.here.error_of_receive(), 0);
  ASSERT_EQ(pair.here.send("answer"), 6U);
  EXPECT_EQ(pair.there.receive(6), "answer");
}

TEST_P(TcpStory, APeersResetIsAnError) {
  Pair pair = connection();
  const linger at_once{1, 0};
  ASSERT_EQ(raw_syscall(SYS_setsockopt, pair.there.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  pair.there.close();
  pollfd reset{pair.here.fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&reset, 1, 10'000), 1);
  EXPECT_NE(reset.revents & POLLERR, 0);
  EXPECT_EQ(pair.here.error_of_receive(), ECONNRESET);
  EXPECT_EQ(pair.here.error_of_receive(), 0);
  char one = 0;
  EXPECT_EQ(pair.here.send_some(&one, 1), -1);
  EXPECT_EQ(errno, EPIPE);
}

TEST_P(TcpStory, APeerThatDoesNotReadStopsTheSender) {
  const Pair pair = connection();
  ASSERT_EQ(::fcntl(pair.here.fd(), F_SETFL, O_NONBLOCK), 0);
  const std::string piece = Pattern(7).next(64'000);
  std::size_t sent = 0;
  // Both queues fill: the peer's window closes, then our queue.
  for (int full = 0; full < 50;) {
    const long now = pair.here.send_some(piece.data() + sent % piece.size(), piece.size() - sent % piece.size());
    if (now > 0) {
      sent += static_cast<std::size_t>(now);
    } else {
      ASSERT_EQ(errno, EAGAIN);
      ++full;
      ::usleep(2'000);
    }
  }
  std::string got;
  while (got.size() < sent) {
    got += pair.there.receive(std::min<std::size_t>(64'000, sent - got.size()));
    ASSERT_FALSE(got.empty());
  }
  for (std::size_t at = 0; at < sent; at += piece.size())
    ASSERT_TRUE(got.substr(at, piece.size()) == piece.substr(0, std::min(piece.size(), sent - at))) << at;
  // Room again.
  pollfd room{pair.here.fd(), POLLOUT, 0};
  EXPECT_EQ(::poll(&room, 1, 10'000), 1);
}

TEST_P(TcpStory, PollSelectAndEpollTellOfBytesAndRoom) {
  const Pair pair = connection();
  const int fd = pair.here.fd();
  pollfd entry{fd, POLLIN | POLLOUT, 0};
  ASSERT_EQ(::poll(&entry, 1, 10'000), 1);
  EXPECT_EQ(entry.revents, POLLOUT);
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{EPOLLIN, {.fd = fd}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
  EXPECT_EQ(::epoll_wait(set, &event, 1, 0), 0);
  // Sleepers are woken.
  std::thread sends([&] {
    ::usleep(20'000);
    EXPECT_EQ(pair.there.send("x"), 1U);
  });
  ASSERT_EQ(::epoll_wait(set, &event, 1, 10'000), 1);
  EXPECT_EQ(event.events, static_cast<std::uint32_t>(EPOLLIN));
  sends.join();
  fd_set readable;
  FD_ZERO(&readable);
  FD_SET(fd, &readable);
  timeval limit{10, 0};
  EXPECT_EQ(::select(fd + 1, &readable, nullptr, nullptr, &limit), 1);
  EXPECT_EQ(pair.here.receive(1), "x");
  EXPECT_EQ(::epoll_wait(set, &event, 1, 0), 0);
  // The set follows the connection to the kernel.
  const int clamp = 60'000;
  ASSERT_EQ(::setsockopt(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, &clamp, sizeof clamp), 0);
  ASSERT_FALSE(pair.here.is_on_ring());
  ASSERT_EQ(pair.there.send("y"), 1U);
  ASSERT_EQ(::epoll_wait(set, &event, 1, 10'000), 1);
  EXPECT_EQ(pair.here.receive(1), "y");
  ::close(set);
}

TEST_P(TcpStory, AllFormsOfSendAndReceiveWork) {
  const Pair pair = connection();
  const int fd = pair.here.fd();
  std::array<char, 4> first{'a', 'b', 'c', 'd'}, second{'e', 'f', 'g', 'h'};
  const std::array<iovec, 2> parts{iovec{first.data(), 4}, iovec{second.data(), 4}};
  EXPECT_EQ(::writev(fd, parts.data(), 2), 8);
  EXPECT_EQ(::write(fd, "ij", 2), 2);
  EXPECT_EQ(pair.there.receive(10), "abcdefghij");
  ASSERT_EQ(pair.there.send("0123456789"), 10U);
  pollfd entry{fd, POLLIN, 0};
  ASSERT_EQ(::poll(&entry, 1, 10'000), 1);
  std::array<char, 16> room{};
  EXPECT_EQ(::recv(fd, room.data(), 4, MSG_PEEK), 4);
  EXPECT_EQ(std::string(room.data(), 4), "0123");
  int unread = 0;
  EXPECT_EQ(::ioctl(fd, FIONREAD, &unread), 0);
  EXPECT_EQ(unread, 10);
  EXPECT_EQ(::readv(fd, parts.data(), 2), 8);
  EXPECT_EQ(std::string(second.data(), 4), "4567");
  std::thread rest([&] {
    ::usleep(10'000);
    EXPECT_EQ(pair.there.send("XYZ"), 3U);
  });
  EXPECT_EQ(::recv(fd, room.data(), 5, MSG_WAITALL), 5);
  EXPECT_EQ(std::string(room.data(), 5), "89XYZ");
  rest.join();
  EXPECT_EQ(::recv(fd, room.data(), 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  int unsent = -1;
  EXPECT_EQ(::ioctl(fd, SIOCOUTQ, &unsent), 0);
  EXPECT_EQ(unsent, 0);
  EXPECT_TRUE(pair.here.is_on_ring());
}

TEST_P(TcpStory, OptionsAreAnsweredAndTakeEffect) {
  const Pair pair = connection();
  const int fd = pair.here.fd();
  const int on = 1;
  EXPECT_EQ(::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), 0);
  EXPECT_EQ(::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on), 0);
  EXPECT_EQ(::setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on), 0);
  ASSERT_EQ(pair.here.send("held back"), 9U);
  const int off = 0;
  EXPECT_EQ(::setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof off), 0);
  EXPECT_EQ(pair.there.receive(9), "held back");
  tcp_info info{};
  socklen_t length = sizeof info;
  ASSERT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
  EXPECT_EQ(info.tcpi_state, TCP_ESTABLISHED);
  EXPECT_GT(info.tcpi_snd_mss, 1000U);
  int error = -1;
  length = sizeof error;
  ASSERT_EQ(::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length), 0);
  EXPECT_EQ(error, 0);
  EXPECT_TRUE(pair.here.is_on_ring());
}

TEST_P(TcpStory, OptionsOfTheIpHeaderAct) {
  const Pair pair = connection();
  const bool is_ipv6 = std::string_view(GetParam().here) == "fd09::1";
  const int most = 255, least = 200;
  ASSERT_EQ(is_ipv6 ? ::setsockopt(pair.here.fd(), IPPROTO_IPV6, IPV6_UNICAST_HOPS, &most, sizeof most)
                    : ::setsockopt(pair.here.fd(), IPPROTO_IP, IP_TTL, &most, sizeof most),
            0);
  EXPECT_TRUE(pair.here.is_on_ring());
  // The peer's kernel drops what comes from further away, as the usual 64 looks.
  ASSERT_EQ(is_ipv6 ? ::setsockopt(pair.there.fd(), IPPROTO_IPV6, IPV6_MINHOPCOUNT, &least, sizeof least)
                    : ::setsockopt(pair.there.fd(), IPPROTO_IP, IP_MINTTL, &least, sizeof least),
            0);
  ASSERT_EQ(pair.here.send("from afar"), 9U);
  EXPECT_EQ(pair.there.receive(9), "from afar");
  ASSERT_EQ(pair.there.send("back"), 4U);
  EXPECT_EQ(pair.here.receive(4), "back");
}

TEST_P(TcpStory, AForkedChildGoesOnByTheKernel) {
  Pair pair = connection();
  ASSERT_EQ(pair.there.send("question"), 8U);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool is_right = pair.here.receive(8) == "question" && pair.here.send("from the child") == 14;
    ::_exit(is_right ? 0 : 1);
  }
  EXPECT_FALSE(pair.here.is_on_ring());
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(pair.there.receive(14), "from the child");
  ASSERT_EQ(pair.here.send("parent"), 6U);
  EXPECT_EQ(pair.there.receive(6), "parent");
}

/// The sender's call is the kernel's from then on, and goes on there.
TEST_P(TcpStory, AForkWhileASendWaitsForRoomDoesNotStopIt) {
  const Pair pair = connection();
  Pattern pattern(3);
  const std::string all = pattern.next(20 * kMegabyte);
  std::thread sends([&] { EXPECT_EQ(pair.here.send_some(all.data(), all.size()), static_cast<long>(all.size())); });
  ::usleep(100'000);  // the window is shut by then
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  expect_pattern(pair.there, 3, all.size());
  sends.join();
}

/// Nothing tells the kernel of the mark: it is lost, but the stream is whole.
TEST_P(TcpStory, AnUrgentByteThatNobodyReadsKeepsTheConnectionFromNothing) {
  const Pair pair = connection();
  ASSERT_EQ(pair.there.send("before"), 6U);
  ASSERT_EQ(pair.there.send_some("!", 1, MSG_OOB), 1);
  pollfd urgent{pair.here.fd(), POLLPRI, 0};
  ASSERT_EQ(::poll(&urgent, 1, 10'000), 1);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(pair.here.receive(6) == "before" ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(pair.there.send("behind"), 6U);
  EXPECT_EQ(pair.here.receive(6), "behind");
  pair.here.shut_down(SHUT_WR);
  EXPECT_EQ(pair.there.error_of_receive(), 0);
}

// -- signals

volatile std::sig_atomic_t urgent_signals = 0;

/// Counts SIGURG as long as it exists.
class UrgentSignals {
 public:
  UrgentSignals() {
    urgent_signals = 0;
    struct sigaction counts {};
    counts.sa_handler = [](int) { urgent_signals = urgent_signals + 1; };
    EXPECT_EQ(::sigaction(SIGURG, &counts, &before_), 0);
  }
  UrgentSignals(const UrgentSignals&) = delete;
  UrgentSignals& operator=(const UrgentSignals&) = delete;
  ~UrgentSignals() { ::sigaction(SIGURG, &before_, nullptr); }
  /// Waits up to ten seconds for the first one.
  [[nodiscard]] static bool come() {
    for (int i = 0; i < 1'000 && urgent_signals == 0; ++i) ::usleep(10'000);
    return urgent_signals != 0;
  }

 private:
  struct sigaction before_ {};
};

/// Expects that the owner that `set_owner` sets is told of an urgent byte, and that the stream goes on.
void expect_owner_is_told(const Pair& pair, const std::function<int(int fd)>& set_owner) {
  const UrgentSignals signals;
  ASSERT_EQ(pair.there.send("before"), 6U);
  EXPECT_EQ(pair.here.receive(6), "before");
  ASSERT_TRUE(pair.here.is_on_ring());
  ASSERT_EQ(set_owner(pair.here.fd()), 0);
  ASSERT_EQ(pair.there.send_some("!", 1, MSG_OOB), 1);
  EXPECT_TRUE(UrgentSignals::come());
  char urgent = 0;
  EXPECT_EQ(pair.here.receive_some(&urgent, 1, MSG_OOB), 1);
  EXPECT_EQ(urgent, '!');
  ASSERT_EQ(pair.there.send("behind"), 6U);
  EXPECT_EQ(pair.here.receive(6), "behind");
}

TEST_P(TcpStory, TheOwnerIsToldOfUrgentDataBySigurg) {
  expect_owner_is_told(connection(), [](int fd) { return ::fcntl(fd, F_SETOWN, ::getpid()); });
}

TEST_P(TcpStory, SoIsAnOwnerOfTheExtendedCall) {
  expect_owner_is_told(connection(), [](int fd) {
    const f_owner_ex owner{F_OWNER_PID, ::getpid()};
    return ::fcntl(fd, F_SETOWN_EX, &owner);
  });
}

TEST_P(TcpStory, SoIsAnOwnerOfIoctl) {
  expect_owner_is_told(connection(), [](int fd) {
    const int owner = ::getpid();
    return ::ioctl(fd, FIOSETOWN, &owner);
  });
}

TEST(TcpTakeOver, LeavesASocketWithAnOwnerToTheKernel) {
  const Listener listener = over_there([] { return Listener(kThere, Calls::kernels); });
  Stream here(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), Calls::librarys);
  // By a way that libvma does not see, as if the socket had been another's before.
  ASSERT_EQ(raw_syscall(SYS_fcntl, here.fd(), F_SETOWN, ::getpid()), 0);
  ASSERT_EQ(::connect(here.fd(), listener.name().get(), listener.name().length()), 0);
  EXPECT_FALSE(here.is_on_ring());
}

// -- processes, with the kernel on the other host

/// Ten questions and answers: the connection lasts.
void ask(const Stream& stream) {
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(stream.send("?"), 1U);
    ASSERT_EQ(stream.receive(1), "!");
  }
}
void answer(const Stream& stream) {
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(stream.receive(1), "?");
    ASSERT_EQ(stream.send("!"), 1U);
  }
}

/// Runs `body` with its end of a new connection in a child that has forked before it connected. Another connection has
/// lasted before.
pid_t in_a_process(const Listener& listener, const std::function<void(Stream&)>& body) {
  const Listener others = over_there([] { return Listener(kThere, Calls::kernels); });
  const pid_t child = ::fork();
  if (child != 0) {
    answer(others.accept());
    return child;
  }
  ask(connected_to(others.name(), Calls::librarys));
  Stream stream = connected_to(listener.name(), Calls::librarys);
  if (!stream.is_on_ring()) ::_exit(9);
  body(stream);
  return -1;
}

/// A child that serves one client makes no ring for it.
TEST(TcpShortLivesOfChildren, AreExpectedOfTheFirstConnection) {
  const Listener listener = over_there([] { return Listener(kThere, Calls::kernels); });
  const pid_t child = ::fork();
  if (child == 0) {
    const Stream stream = connected_to(listener.name(), Calls::librarys);
    const bool was_on_ring = stream.is_on_ring();
    ask(stream);
    ::_exit(was_on_ring ? 1 : stream.is_on_ring() ? 0 : 2);
  }
  const Stream there = listener.accept();
  answer(there);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(TcpProcess, TheConnectionOfAKilledProcessIsReset) {
  const Listener listener = over_there([] { return Listener(kThere, Calls::kernels); });
  const pid_t child = in_a_process(listener, [](Stream& stream) {
    EXPECT_EQ(stream.send("ready"), 5U);
    for (;;) ::pause();
  });
  const Stream there = listener.accept();
  ASSERT_EQ(there.receive(5), "ready");
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  // The kernel of the process's host knows no such connection.
  ASSERT_EQ(there.send("anybody?"), 8U);
  EXPECT_EQ(there.error_of_receive(), ECONNRESET);
}

TEST(TcpProcess, AProcessThatEndsLeavesItsBytesToTheKernel) {
  const Listener listener = over_there([] { return Listener(kThere, Calls::kernels); });
  static constexpr std::size_t kBytes = 300'000;
  const pid_t child = in_a_process(listener, [](Stream& stream) {
    const int room = 1 << 20;
    EXPECT_EQ(::setsockopt(stream.fd(), SOL_SOCKET, SO_SNDBUF, &room, sizeof room), 0);
    EXPECT_EQ(stream.send(Pattern(5).next(kBytes)), kBytes);
    ::_exit(0);  // while most of it is not acknowledged, because nobody reads
  });
  const Stream there = listener.accept();
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(there.receive(kBytes) == Pattern(5).next(kBytes));
  EXPECT_EQ(there.error_of_receive(), 0);
}

TEST(TcpProcess, AProgramThatIsExecutedHasTheConnection) {
  const Listener listener = over_there([] { return Listener(kThere, Calls::kernels); });
  const pid_t child = in_a_process(listener, [](Stream& stream) {
    ::dup2(stream.fd(), STDOUT_FILENO);
    ::unsetenv("LD_PRELOAD");
    ::execl("/bin/echo", "echo", "hello", nullptr);
  });
  const Stream there = listener.accept();
  EXPECT_EQ(there.receive(6), "hello\n");
  EXPECT_EQ(there.error_of_receive(), 0);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

// -- many

TEST(TcpTakeOver, LosesNothingOfAPeerThatSendsAsFastAsItCan) {
  const Listener listener(kHere, Calls::librarys);
  for (unsigned round = 0; round < 100 && !testing::Test::HasFailure(); ++round) {
    const Stream there = over_there([&] { return connected_to(listener.name(), Calls::kernels); });
    std::thread sends([&] { send_pattern(there, round, 300'000); });
    const Stream here = listener.accept();
    EXPECT_TRUE(here.is_on_ring());
    expect_pattern(here, round, 300'000);
    sends.join();
  }
}

TEST(TcpTakeOver, AFilterThatThePlaceholderHasIsNotTheApplications) {
  const Pair pair = accept_here(kHere, Calls::kernels);
  std::array<std::uint64_t, 4> filter{};
  socklen_t instructions = filter.size();
  EXPECT_EQ(::getsockopt(pair.here.fd(), SOL_SOCKET, SO_GET_FILTER, filter.data(), &instructions), 0);
  EXPECT_EQ(instructions, 0U);
  EXPECT_TRUE(pair.here.is_on_ring());
}

TEST(TcpMany, TwoHundredConnectionsAtATimeAreServedByOneLoop) {
  const Listener listener(kHere, Calls::librarys);
  constexpr int kConnections = 200;
  std::vector<Stream> here, there;
  for (int i = 0; i < kConnections; ++i) {
    there.push_back(over_there([&] { return connected_to(listener.name(), Calls::kernels); }));
    here.push_back(listener.accept());
    ASSERT_TRUE(here.back().is_on_ring()) << i;
  }
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  for (int i = 0; i < kConnections; ++i) {
    epoll_event event{EPOLLIN, {.u32 = static_cast<std::uint32_t>(i)}};
    ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, here[static_cast<std::size_t>(i)].fd(), &event), 0);
  }
  constexpr int kRounds = 20;
  std::thread clients([&] {
    for (int round = 0; round < kRounds; ++round) {
      for (const Stream& one : there) EXPECT_EQ(one.send("ping"), 4U);
      for (const Stream& one : there) EXPECT_EQ(one.receive(4), "ping");
    }
  });
  for (int served = 0; served < kConnections * kRounds;) {
    std::array<epoll_event, 64> events;
    const int count = ::epoll_wait(set, events.data(), events.size(), 10'000);
    ASSERT_GT(count, 0);
    for (int i = 0; i < count; ++i) {
      const Stream& one = here[events[static_cast<std::size_t>(i)].data.u32];
      ASSERT_EQ(one.receive(4), "ping");
      ASSERT_EQ(one.send("ping"), 4U);
      ++served;
    }
  }
  clients.join();
  ::close(set);
}

TEST_P(TcpStory, AReceiveWithoutRoomWaitsForBytesAndLeavesThem) {
  const Pair pair = connection();
  const auto without_room = [&] { return pair.here.receive_some(nullptr, 0, MSG_DONTWAIT); };
  EXPECT_EQ(without_room(), -1);
  EXPECT_EQ(errno, EAGAIN);
  ASSERT_EQ(pair.there.send("bytes"), 5U);
  EXPECT_EQ(pair.here.receive_some(nullptr, 0), 0);
  EXPECT_EQ(without_room(), 0);
  EXPECT_EQ(pair.here.receive(5), "bytes");
  EXPECT_EQ(without_room(), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_TRUE(pair.here.is_on_ring());
}

TEST_P(TcpStory, ASpliceOfANonBlockingConnectionMovesAllThatThePipeHas) {
  const Pair pair = connection();
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  const std::string bytes = Pattern(6).next(40'000);
  ASSERT_EQ(::write(pipe[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  ASSERT_EQ(::fcntl(pair.here.fd(), F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(::splice(pipe[0], nullptr, pair.here.fd(), nullptr, bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  EXPECT_TRUE(pair.there.receive(bytes.size()) == bytes);
  EXPECT_TRUE(pair.here.is_on_ring());
  for (const int end : pipe) ::close(end);
}

TEST_P(TcpStory, AWaitThatEndsIsNoErrorOfTheConnection) {
  const Pair pair = connection();
  ASSERT_EQ(pair.there.send("part"), 4U);
  const timeval soon{0, 50'000};
  ASSERT_EQ(::setsockopt(pair.here.fd(), SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon), 0);
  std::array<char, 100> room;
  EXPECT_EQ(::recv(pair.here.fd(), room.data(), room.size(), MSG_WAITALL), 4);
  pollfd entry{pair.here.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 0) << entry.revents;
  int error = -1;
  socklen_t length = sizeof error;
  ASSERT_EQ(::getsockopt(pair.here.fd(), SOL_SOCKET, SO_ERROR, &error, &length), 0);
  EXPECT_EQ(error, 0);
}

TEST(TcpConnect, OfANonBlockingSocketIsTakenOverWhenItsEndIsAskedFor) {
  const Listener listener = over_there([] { return Listener(kThere, Calls::kernels); });
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  Stream here(fd, Calls::librarys);
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{EPOLLIN | EPOLLOUT | EPOLLET, {.fd = fd}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
  ASSERT_EQ(::connect(fd, listener.name().get(), listener.name().length()), -1);
  ASSERT_EQ(errno, EINPROGRESS);
  do {
    ASSERT_EQ(::epoll_wait(set, &event, 1, 10'000), 1);
  } while ((event.events & EPOLLHUP) != 0);
  EXPECT_NE(event.events & EPOLLOUT, 0U);
  int error = -1;
  socklen_t length = sizeof error;
  ASSERT_EQ(::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length), 0);
  EXPECT_EQ(error, 0);
  EXPECT_TRUE(here.is_on_ring());
  EXPECT_EQ(::connect(fd, listener.name().get(), listener.name().length()), 0) << "it tells once that it is done";
  EXPECT_EQ(::connect(fd, listener.name().get(), listener.name().length()), -1);
  EXPECT_EQ(errno, EISCONN);
  const Stream there = listener.accept();
  ASSERT_EQ(here.send("x"), 1U);
  ASSERT_EQ(there.receive(1), "x");
  ASSERT_EQ(there.send("y"), 1U);
  do {
    ASSERT_EQ(::epoll_wait(set, &event, 1, 10'000), 1);
  } while ((event.events & EPOLLIN) == 0);
  EXPECT_EQ(here.receive(1), "y");
  ::close(set);
}

TEST(TcpConnect, OfANonBlockingSocketIsTakenOverWhenBytesMove) {
  const Listener listener = over_there([] { return Listener(kThere, Calls::kernels); });
  for (const bool is_sending : {true, false}) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    Stream here(fd, Calls::librarys);
    ASSERT_EQ(::connect(fd, listener.name().get(), listener.name().length()), -1);
    ASSERT_EQ(errno, EINPROGRESS);
    pollfd entry{fd, POLLOUT, 0};
    ASSERT_EQ(::poll(&entry, 1, 10'000), 1);
    const Stream there = listener.accept();
    char byte = 'x';
    if (is_sending) {
      ASSERT_EQ(::send(fd, &byte, 1, 0), 1);
      ASSERT_EQ(there.receive(1), "x");
    } else {
      ASSERT_EQ(::recv(fd, &byte, 1, 0), -1);
      ASSERT_EQ(errno, EAGAIN);
    }
    EXPECT_TRUE(here.is_on_ring());
    ASSERT_EQ(there.send("answer"), 6U);
    entry.events = POLLIN;
    ASSERT_EQ(::poll(&entry, 1, 10'000), 1);
    EXPECT_EQ(here.receive(6), "answer");
  }
}

TEST(TcpConnect, ToAListenerThatWaitsForBytesIsServed) {
  for (int i = 0; i < 40; ++i) {
    // A new one each time: where connections have been short, the kernel would keep the next one.
    const Listener listener = over_there([] { return Listener(kThere, Calls::kernels); });
    // Such a listener forgets the handshake's last segment, and is strict about timestamps (RFC 7323, 5.3).
    const int patience = 30;
    ASSERT_EQ(raw_syscall(SYS_setsockopt, listener.fd(), IPPROTO_TCP, TCP_DEFER_ACCEPT, &patience, sizeof patience), 0);
    const timeval limit{10, 0};
    ASSERT_EQ(raw_syscall(SYS_setsockopt, listener.fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    const Stream here = connected_to(listener.name(), Calls::librarys);
    ASSERT_TRUE(here.is_on_ring());
    ASSERT_EQ(here.send("request"), 7U);
    ASSERT_EQ(listener.accept().receive(7), "request") << "connection " << i;
    tcp_info info{};
    socklen_t length = sizeof info;
    ASSERT_EQ(::getsockopt(here.fd(), IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    EXPECT_EQ(info.tcpi_total_retrans, 0U);
  }
}

TEST(TcpConnect, BytesBeforeItsEndWait) {
  // Nobody answers there: the kernel's socket is still connecting.
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const Address nobody("10.9.0.77", 9);
  ASSERT_EQ(::connect(fd, nobody.get(), nobody.length()), -1);
  ASSERT_EQ(errno, EINPROGRESS);
  char byte = 'x';
  EXPECT_EQ(::send(fd, &byte, 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(::recv(fd, &byte, 1, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  ::close(fd);
}

TEST(TcpListener, FollowsAnotherOneAtItsPortWhoseConnectionsWereOnRings) {
  std::uint16_t port = 0;
  {
    const Listener listener(kHere, Calls::librarys);
    port = listener.name().port();
    Stream there = over_there([&] { return connected_to(listener.name(), Calls::kernels); });
    Stream here = listener.accept();
    ASSERT_TRUE(here.is_on_ring());
    here.close();  // first: the connection's TIME-WAIT is on this host
    EXPECT_EQ(there.error_of_receive(), 0);
  }
  const Listener next(kHere, Calls::librarys, port);
  const Stream there = over_there([&] { return connected_to(next.name(), Calls::kernels); });
  EXPECT_TRUE(next.accept().is_on_ring());
}

TEST(TcpConnect, ToAPortWithoutListenerIsRefused) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const Address nobody(kThere, 9);
  EXPECT_EQ(::connect(fd, nobody.get(), nobody.length()), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
  ::close(fd);
}

}  // namespace
}  // namespace ringsock::vma_tests
