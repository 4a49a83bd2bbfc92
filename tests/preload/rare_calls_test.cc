// What rare calls on sockets in rare states answer.
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#include <array>
#include <csignal>

#include "tests/preload/tcp_world.h"

namespace ringsock::preload_tests {
namespace {

/// Waits until the kernel's socket knows what its peer has done. A socket on a ring could, but has not looked.
void let_kernel_know(int fd) {
  if (!preloaded()) poll_once(fd, POLLIN | POLLRDHUP, 5000);
}

constexpr int kNoShutdown = -1;
/// Alice, whom Bob has reset, which nobody has looked for.
/// @param shut  the direction that Alice had ended before
Fd reset_end(const std::string& sent_before = {}, int shut = kNoShutdown) {
  Pair pair = connected_pair();
  if (shut != kNoShutdown) {
    EXPECT_EQ(::shutdown(pair.alice, shut), 0);
  }
  EXPECT_EQ(::send(pair.bob, sent_before.data(), sent_before.size(), 0), static_cast<ssize_t>(sent_before.size()));
  const linger at_once{1, 0};
  EXPECT_EQ(::setsockopt(pair.bob, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  pair.bob.reset();
  let_kernel_know(pair.alice);
  return std::move(pair.alice);
}

const sockaddr kNowhere{.sa_family = AF_UNSPEC, .sa_data = {}};

// -- receives of no bytes

TEST(RareCalls, AReceiveOfNoBytesSucceedsWhenItsTimeIsOver) {
  auto [alice, bob] = connected_pair();
  const timeval limit{0, 20000};
  ASSERT_EQ(::setsockopt(alice, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  char byte = 0;
  EXPECT_EQ(error_of(::recv(alice, &byte, 1, 0)), EAGAIN);
  EXPECT_EQ(error_of(::recv(alice, &byte, 0, 0)), 0);
  EXPECT_EQ(error_of(::recv(alice, &byte, 0, MSG_PEEK)), 0);
  msghdr nothing{};
  EXPECT_EQ(error_of(::recvmsg(alice, &nothing, 0)), 0);
  EXPECT_EQ(error_of(::recv(alice, &byte, 0, MSG_DONTWAIT)), EAGAIN);
}

TEST(RareCalls, AReceiveBehindOneThatLeftBytesTakesWhatHasComeMeanwhile) {
  auto [alice, bob] = connected_pair();
  const Fd set(::epoll_create1(0));
  epoll_event event{EPOLLIN, {}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, bob, &event), 0);
  std::string bytes(4000, 'x');
  ASSERT_EQ(::send(alice, bytes.data(), 100, 0), 100);
  ASSERT_EQ(::epoll_wait(set, &event, 1, 5000), 1);
  ASSERT_EQ(::recv(bob, bytes.data(), 7, 0), 7);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(::send(alice, bytes.data(), 1000, 0), 1000);
  EXPECT_EQ(::recv(bob, bytes.data(), bytes.size(), 0), 3093);
}

// -- recvmmsg(2)

struct Messages {
  Messages() {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i] = {bytes[i].data(), bytes[i].size()};
      headers[i].msg_hdr.msg_iov = &parts[i];
      headers[i].msg_hdr.msg_iovlen = 1;
    }
  }
  std::array<std::array<char, 2>, 2> bytes{};
  std::array<iovec, 2> parts{};
  std::array<mmsghdr, 2> headers{};
};

TEST(RareCalls, RecvmmsgTellsAPendingErrorBeforeItsBytes) {
  Messages two;
  const Fd alice = reset_end("abcd");
  EXPECT_EQ(error_of(::recvmmsg(alice, two.headers.data(), 2, 0, nullptr)), ECONNRESET);
  EXPECT_EQ(socket_error(alice), 0);
}

TEST(RareCalls, RecvmmsgOfNoMessagesTellsAPendingError) {
  Messages two;
  const Fd alice = reset_end();
  EXPECT_EQ(error_of(::recvmmsg(alice, two.headers.data(), 0, 0, nullptr)), ECONNRESET);
  EXPECT_EQ(error_of(::recvmmsg(alice, two.headers.data(), 0, 0, nullptr)), 0);
}

TEST(RareCalls, RecvmmsgLooksAtItsTimeLimitFirstAndAtItsMessagesLast) {
  Messages two;
  const Fd alice = reset_end();
  timespec never{-1, 0};
  EXPECT_EQ(error_of(::recvmmsg(alice, two.headers.data(), 1, 0, &never)), EINVAL);
  EXPECT_EQ(error_of(::recvmmsg(alice, two.headers.data(), 1, MSG_ERRQUEUE, nullptr)), EAGAIN);
  EXPECT_EQ(error_of(::recvmmsg(alice, reinterpret_cast<mmsghdr*>(8), 1, 0, nullptr)), ECONNRESET);
}

// -- the end of connections

TEST(RareCalls, ASocketThatIsDisconnectedAfterBothStreamsHaveEndedHasNoError) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::shutdown(alice, SHUT_WR), 0);
  ASSERT_EQ(::shutdown(bob, SHUT_WR), 0);
  let_kernel_know(alice);
  ASSERT_EQ(::connect(alice, &kNowhere, sizeof kNowhere), 0);
  EXPECT_EQ(socket_error(alice), 0);
}

TEST(RareCalls, EachShutdownIsAnEventForAnEdgeTriggeredSet) {
  auto [alice, bob] = connected_pair();
  const Fd set(::epoll_create1(0));
  epoll_event wanted{EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, {}}, got{};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, alice, &wanted), 0);
  ASSERT_EQ(::epoll_wait(set, &got, 1, 5000), 1);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(::shutdown(alice, SHUT_WR), 0);
    EXPECT_EQ(::epoll_wait(set, &got, 1, 5000), 1) << i;
    EXPECT_EQ(::epoll_wait(set, &got, 1, 0), 0) << i;
  }
  ASSERT_EQ(::shutdown(bob, SHUT_WR), 0);
  EXPECT_EQ(::epoll_wait(set, &got, 1, 5000), 1);
  EXPECT_EQ(error_of(::shutdown(alice, SHUT_WR)), ENOTCONN);
  EXPECT_EQ(::epoll_wait(set, &got, 1, 5000), 1);
}

TEST(RareCalls, UrgentDataAfterShutdownAndAfterAReset) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::shutdown(alice, SHUT_WR), 0);
  EXPECT_EQ(error_of(::send(alice, "x", 1, MSG_OOB | MSG_NOSIGNAL)), EPIPE);
  EXPECT_EQ(error_of(::send(alice, "x", 0, MSG_OOB | MSG_NOSIGNAL)), EPIPE);
  const Fd carol = reset_end();
  EXPECT_EQ(error_of(::send(carol, "x", 1, MSG_OOB | MSG_NOSIGNAL)), ECONNRESET);
  EXPECT_EQ(error_of(::send(carol, "x", 1, MSG_OOB | MSG_NOSIGNAL)), EPIPE);
}

TEST(RareCalls, AResetIsToldInADirectionThatOneHasEndedOneself) {
  char byte = 0;
  const Fd alice = reset_end({}, SHUT_WR);
  EXPECT_EQ(error_of(::send(alice, "x", 1, MSG_NOSIGNAL)), ECONNRESET);
  EXPECT_EQ(error_of(::send(alice, "x", 1, MSG_NOSIGNAL)), EPIPE);
  const Fd carol = reset_end({}, SHUT_RD);
  EXPECT_EQ(error_of(::recv(carol, &byte, 1, 0)), ECONNRESET);
  EXPECT_EQ(::recv(carol, &byte, 1, 0), 0);
}

/// A server that asks so whether a client is still there sends no answer to one that has gone.
TEST(RareCalls, TcpInfoTellsOfAResetAtOnce) {
  const Fd alice = reset_end();
  tcp_info info{};
  socklen_t length = sizeof info;
  ASSERT_EQ(::getsockopt(alice, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
  EXPECT_EQ(info.tcpi_state, TCP_CLOSE);
}

TEST(RareCalls, BindOfAnAcceptedSocketToNoFamily) {
  auto [alice, bob] = connected_pair();
  sockaddr_in any{};
  any.sin_family = AF_UNSPEC;
  for (const int fd : {int(alice), int(bob)}) {
    EXPECT_EQ(error_of(::bind(fd, reinterpret_cast<sockaddr*>(&any), sizeof any)), EINVAL);
    EXPECT_EQ(error_of(::bind(fd, reinterpret_cast<sockaddr*>(&any), 2)), EINVAL);
  }
}

// -- flags and requests

TEST(RareCalls, NoPacketOfAConnectionHadATime) {
  auto [alice, bob] = connected_pair();
  timespec time{};
  for (const unsigned long request : {static_cast<unsigned long>(SIOCGSTAMP), static_cast<unsigned long>(SIOCGSTAMPNS)})
    EXPECT_EQ(error_of(::ioctl(alice, request, &time)), ENOENT);
}

TEST(RareCalls, FlagsOfPwritev2AreThoseOfTheKernel) {
  auto [alice, bob] = connected_pair();
  const Fd kernels(static_cast<int>(raw_syscall(SYS_socket, AF_INET, SOCK_STREAM, 0)));
  std::string text = "x";
  const iovec part{text.data(), 1};
  for (int flag = 1; flag <= 0x400; flag *= 2) {
    const bool is_known = raw_syscall(SYS_preadv2, int(kernels), &part, 1, -1, -1, flag) >= 0 || errno != EOPNOTSUPP;
    EXPECT_EQ(error_of(::pwritev2(alice, &part, 1, -1, flag)), is_known ? 0 : EOPNOTSUPP) << flag;
    EXPECT_EQ(error_of(::preadv2(bob, &part, 1, -1, flag)), is_known ? 0 : EOPNOTSUPP) << flag;
  }
}

}  // namespace
}  // namespace ringsock::preload_tests
