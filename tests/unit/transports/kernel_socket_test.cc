// What a socket with a way asks of the kernel's socket.
#include "core/transports/kernel_calls.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "core/base/socket_address.h"
#include "core/base/unique_fd.h"
#include "core/transports/choice.h"

namespace ringsock::transports {
namespace {

TEST(KernelSocket, SetsOnlyTheFlagThatIsAsked) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::fcntl(socket.get(), F_SETFL, O_APPEND), 0);

  set_kernel_nonblocking(socket.get(), true);
  EXPECT_EQ(::fcntl(socket.get(), F_GETFL) & (O_APPEND | O_NONBLOCK), O_APPEND | O_NONBLOCK);

  set_kernel_nonblocking(socket.get(), false);
  EXPECT_EQ(::fcntl(socket.get(), F_GETFL) & (O_APPEND | O_NONBLOCK), O_APPEND);
}

TEST(KernelSocket, TellsWhatThePeerHasDoneAndLeavesErrno) {
  std::array<int, 2> pair{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
  const UniqueFd mine(pair[0]);
  UniqueFd peer(pair[1]);
  errno = ENOENT;
  EXPECT_EQ(kernel_events(mine.get()), std::uint32_t{EPOLLOUT});

  peer.reset();

  EXPECT_EQ(kernel_events(mine.get()), std::uint32_t{EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLHUP});
  EXPECT_EQ(errno, ENOENT);
}

TEST(KernelSocket, ConnectsAndTellsWhyNot) {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress any = SocketAddress::v4(INADDR_LOOPBACK, 0);
  ASSERT_EQ(::bind(listener.get(), any.get(), any.length()), 0);
  const SocketAddress address = *name_by(::getsockname, listener.get(), "getsockname");
  const UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_FALSE(is_loopback_down(client.get()));

  EXPECT_EQ(connect_as_application(client.get(), address.get(), address.length()).error().code, ECONNREFUSED);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_TRUE(connect_as_application(client.get(), address.get(), address.length()));
}

TEST(Choice, ChangesFromTheStateThatIsNamedOnly) {
  Choice choice;
  EXPECT_EQ(choice.state(), Choice::State::undecided);
  choice.set(Choice::State::on_way);

  EXPECT_FALSE(choice.set_from(Choice::State::moving, Choice::State::kernel));
  EXPECT_EQ(choice.state(), Choice::State::on_way);
  EXPECT_TRUE(choice.set_from(Choice::State::on_way, Choice::State::kernel));
  EXPECT_EQ(choice.state(), Choice::State::kernel);
}

}  // namespace
}  // namespace ringsock::transports
