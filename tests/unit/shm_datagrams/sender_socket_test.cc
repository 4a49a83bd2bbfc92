// A receiver borrows the socket of a sender of its host; it gets no other.
#include "core/device/shm/datagrams/sender_socket.h"

#include <fcntl.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <climits>

#include "tests/unit/shm_datagrams/udp_world.h"

namespace ringsock::soft {
namespace {

using tests::local;
using tests::UdpEnd;

SenderSocket socket_of(const UdpEnd& end) { return {::getpid(), end.fd.get()}; }

TEST(SenderSockets, AreBorrowedToSendInTheirName) {
  const UdpEnd alice, bob;
  const auto borrowed = borrow_socket(socket_of(alice), alice.name);
  ASSERT_TRUE(borrowed);
  ASSERT_EQ(::sendto(borrowed->get(), "hello", 5, 0, bob.name.get(), bob.name.length()), 5);
  std::array<char, 8> text{};
  sockaddr_in from{};
  socklen_t length = sizeof from;
  ASSERT_EQ(::recvfrom(bob.fd.get(), text.data(), text.size(), 0, reinterpret_cast<sockaddr*>(&from), &length), 5);
  EXPECT_EQ(ntohs(from.sin_port), alice.name.port());
}

TEST(SenderSockets, AreThoseOfAnotherProcess) {
  const UdpEnd alice;
  std::array<int, 2> end{};
  ASSERT_EQ(::pipe2(end.data(), O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    ::close(end[1]);
    ::_exit(::read(end[0], &byte, 1) == 0 ? 0 : 1);
  }
  EXPECT_TRUE(borrow_socket({child, alice.fd.get()}, alice.name));
  for (const int one : end) ::close(one);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(borrow_socket({child, alice.fd.get()}, alice.name).error().code, ESRCH);
}

TEST(SenderSockets, OfAnotherNameOrKindAreRefused) {
  const UdpEnd alice, carol;
  EXPECT_EQ(borrow_socket(socket_of(carol), alice.name).error().code, EPROTO);
  std::array<int, 2> pair{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair.data()), 0);
  EXPECT_EQ(borrow_socket({::getpid(), pair[0]}, alice.name).error().code, EPROTO);
  const UniqueFd tcp(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(tcp.get(), alice.name.get(), alice.name.length()), 0);
  EXPECT_EQ(borrow_socket({::getpid(), tcp.get()}, alice.name).error().code, EPROTO);
  for (const int one : pair) ::close(one);
}

TEST(SenderSockets, WithNonsenseForANumberDoNotExist) {
  for (const int number : {-1, INT_MIN, INT_MAX, 1'000'000})
    EXPECT_EQ(borrow_socket({::getpid(), number}, local(1)).error().code, EBADF);
  EXPECT_EQ(borrow_socket({0, 3}, local(1)).error().code, EBADF);
}

}  // namespace
}  // namespace ringsock::soft
