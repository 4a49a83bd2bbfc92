// Closing sockets in which somebody else has left something.
#include "libvmacompat/udp/foreign_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <chrono>
#include <cstring>
#include <string>

namespace ringsock::vma {
namespace {

/// Two seconds is what closing costs a TCP socket that lingers: its peer reads nothing.
struct LingeringTcp {
  LingeringTcp() {
    UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listener.get(), name, length), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener.get(), name, &length), 0);
    socket.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket.get(), name, length), 0);
    peer.reset(::accept(listener.get(), nullptr, nullptr));
    const linger two_seconds{1, 2};
    EXPECT_EQ(::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &two_seconds, sizeof two_seconds), 0);
    const std::string text(1 << 16, 'x');
    while (::send(socket.get(), text.data(), text.size(), MSG_DONTWAIT) > 0) {
    }
  }
  UniqueFd socket, peer;
};

/// sendmsg(2) of a byte with the descriptor, whose last owner is then on its way.
bool pass(int by, UniqueFd passed) {
  char byte = 'p';
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const item = CMSG_FIRSTHDR(&message);
  item->cmsg_level = SOL_SOCKET;
  item->cmsg_type = SCM_RIGHTS;
  item->cmsg_len = CMSG_LEN(sizeof(int));
  const int number = passed.get();
  std::memcpy(CMSG_DATA(item), &number, sizeof number);
  return ::sendmsg(by, &message, MSG_NOSIGNAL) == 1;
}

std::chrono::milliseconds time_of(const auto& act) {
  const auto begin = std::chrono::steady_clock::now();
  act();
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
}

constexpr std::chrono::milliseconds kLessThanLingering{1500};

struct Pair {
  Pair() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    ours.reset(ends[0]);
    theirs.reset(ends[1]);
  }
  UniqueFd ours, theirs;
};

TEST(ForeignSocket, AnOrdinaryCloseWaitsForWhatStrangersPassed) {
  Pair pair;
  LingeringTcp tcp;
  ASSERT_TRUE(pass(pair.theirs.get(), std::move(tcp.socket)));
  EXPECT_GT(time_of([&] { pair.ours.reset(); }), kLessThanLingering);
}

TEST(ForeignSocket, ItsCloseWaitsForNothing) {
  Pair pair;
  LingeringTcp tcp;
  ASSERT_TRUE(pass(pair.theirs.get(), std::move(tcp.socket)));
  EXPECT_LT(time_of([&] { close_foreign_socket(std::move(pair.ours)); }), kLessThanLingering);
}

TEST(ForeignSocket, AListenersVisitorsHoldItUpNeither) {
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)), 0);  // any name
  ASSERT_EQ(::listen(listener.get(), 8), 0);
  socklen_t length = sizeof address;
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  const UniqueFd visitor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(visitor.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  LingeringTcp tcp;
  ASSERT_TRUE(pass(visitor.get(), std::move(tcp.socket)));
  EXPECT_LT(time_of([&] { close_foreign_socket(std::move(listener)); }), kLessThanLingering);
}

TEST(ForeignSocket, NobodyPassesAnythingWhereTheKernelCanRefuseIt) {
  Pair pair;
  int value = 1;
  socklen_t length = sizeof value;
  constexpr int kPassRights = 83;
  if (::getsockopt(pair.ours.get(), SOL_SOCKET, kPassRights, &value, &length) != 0)
    GTEST_SKIP() << "this kernel has no SO_PASSRIGHTS (Linux 6.16)";
  refuse_descriptors(pair.ours.get());
  EXPECT_FALSE(pass(pair.theirs.get(), UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC))));
  EXPECT_EQ(errno, EPERM);
}

}  // namespace
}  // namespace ringsock::vma
