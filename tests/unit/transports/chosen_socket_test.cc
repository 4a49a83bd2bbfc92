// A kernel TCP socket with a fake way beside it.
#include "core/transports/chosen_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

#include "core/base/unique_fd.h"
#include "core/runtime/fd_table.h"
#include "tests/fakes/fake_way.h"

namespace ringsock::transports {
namespace {

using runtime::fd_table;
using runtime::Ref;

/// A listener of the kernel on a port of the loopback.
class Server {
 public:
  Server() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const SocketAddress any = SocketAddress::v4(INADDR_LOOPBACK, 0);
    EXPECT_EQ(::bind(fd_.get(), any.get(), any.length()), 0);
    EXPECT_EQ(::listen(fd_.get(), 8), 0);
  }
  [[nodiscard]] SocketAddress address() const { return *name_by(::getsockname, fd_.get(), "getsockname"); }
  /// Returns what the next client sends until it closes.
  [[nodiscard]] std::string read_all() const {
    const UniqueFd client(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    std::string all;
    std::array<char, 64> piece;
    for (ssize_t got = 0; (got = ::recv(client.get(), piece.data(), piece.size(), 0)) > 0;)
      all.append(piece.data(), static_cast<std::size_t>(got));
    return all;
  }
  [[nodiscard]] bool has_client() const {
    pollfd entry{fd_.get(), POLLIN, 0};
    return ::poll(&entry, 1, 0) > 0;
  }

 private:
  UniqueFd fd_;
};

/// A socket of the application, in the table.
class Client {
 public:
  explicit Client(const WayMaker& maker) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    socket_ = Ref(new ChosenSocket(maker, AF_INET, fd_.get()));
    EXPECT_TRUE(fd_table().insert(fd_.get(), Ref::share(*socket_)));
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() {
    const Ref gone = fd_table().remove(fd_.get());
    if (!socket_->has_descriptors()) socket_->retire();
  }
  Status connect(const SocketAddress& address) { return socket_->connect(address.get(), address.length()); }
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] ChosenSocket& socket() const { return *socket_->as_chosen_socket(); }

 private:
  UniqueFd fd_;
  Ref socket_;
};

TEST(ChosenSocket, ConnectsByTheWayThatTheRulesAndTheWayItselfPermit) {
  fakes::FakeNetwork network;
  const fakes::FakeWayMaker maker(network);
  const Server server;
  Client client(maker);
  EXPECT_TRUE(client.socket().is_kernel_socket());

  EXPECT_EQ(client.connect(server.address()).error().code, EINPROGRESS);

  // The kernel's listener has no client, and bytes go by the way.
  EXPECT_FALSE(client.socket().is_kernel_socket());
  EXPECT_FALSE(server.has_client());
  EXPECT_EQ(*client.socket().send_bytes("by the way", 10, 0), 10);
  EXPECT_EQ(network.sent, "by the way");
  network.events = EPOLLIN | EPOLLOUT;
  EXPECT_EQ(client.socket().ready(), network.events);
}

TEST(ChosenSocket, LeavesTheDescriptorToTheKernelWhereARuleForbidsTheWay) {
  fakes::FakeNetwork network;
  network.permits = false;
  const fakes::FakeWayMaker maker(network);
  const Server server;
  Client client(maker);

  ASSERT_TRUE(client.connect(server.address()));

  // The table has forgotten it; libc's calls work on the number.
  EXPECT_FALSE(fd_table().holds(client.fd()));
  EXPECT_EQ(network.connects_asked, 0);
  EXPECT_EQ(::send(client.fd(), "kernel", 6, 0), 6);
  ::shutdown(client.fd(), SHUT_WR);
  EXPECT_EQ(server.read_all(), "kernel");
}

TEST(ChosenSocket, AsksTheWayWhetherTheDestinationIsWorthATry) {
  fakes::FakeNetwork network;
  network.why_not = runtime::KernelReason::nobody_listened;
  const fakes::FakeWayMaker maker(network);
  const Server server;
  Client client(maker);

  ASSERT_TRUE(client.connect(server.address()));

  EXPECT_EQ(network.connects_asked, 0);
  EXPECT_TRUE(server.has_client());
}

TEST(ChosenSocket, ConnectsByTheKernelWhenTheWayRefuses) {
  fakes::FakeNetwork network;
  network.connects = Error{ECONNREFUSED, "fake: refused"};
  const fakes::FakeWayMaker maker(network);
  const Server server;
  Client client(maker);

  ASSERT_TRUE(client.connect(server.address()));

  EXPECT_EQ(network.connects_asked, 1);
  EXPECT_FALSE(fd_table().holds(client.fd()));
  EXPECT_TRUE(server.has_client());
}

TEST(ChosenSocket, ConnectsByTheKernelWhenAConnectInTheBackgroundHasFailed) {
  fakes::FakeNetwork network;
  const fakes::FakeWayMaker maker(network);
  const Server server;
  Client client(maker);
  EXPECT_EQ(client.connect(server.address()).error().code, EINPROGRESS);

  network.failed = true;

  // A connect on the loopback is done at once.
  EXPECT_EQ(client.socket().ready() & (EPOLLOUT | EPOLLERR | EPOLLHUP), std::uint32_t{EPOLLOUT});
  EXPECT_TRUE(client.socket().is_kernel_socket());
  const iovec piece{const_cast<char*>("late"), 4};
  EXPECT_EQ(*client.socket().send_bytes(piece.iov_base, piece.iov_len, 0), 4);
  ::shutdown(client.fd(), SHUT_WR);
  EXPECT_EQ(server.read_all(), "late");
  EXPECT_EQ(network.sent, "");
}

TEST(ChosenSocket, ListensByTheKernelAloneWhereTheWayCannot) {
  fakes::FakeNetwork network;
  const fakes::FakeWayMaker maker(network);
  Client listener(maker);
  const SocketAddress any = SocketAddress::v4(INADDR_LOOPBACK, 0);
  ASSERT_TRUE(listener.socket().bind(any.get(), any.length()));

  ASSERT_TRUE(listener.socket().listen(1));

  EXPECT_FALSE(fd_table().holds(listener.fd()));
}

/// A listener of the application on a port of the loopback, by both ways.
class ListenerOfBoth : public testing::Test {
 protected:
  ListenerOfBoth() {
    network_.can_listen = true;
    const SocketAddress any = SocketAddress::v4(INADDR_LOOPBACK, 0);
    EXPECT_TRUE(socket().bind(any.get(), any.length()));
    EXPECT_TRUE(socket().listen(8));
  }
  [[nodiscard]] ChosenSocket& socket() const { return listener_.socket(); }
  /// A client that connects by the kernel.
  [[nodiscard]] UniqueFd client_of_kernel() const {
    UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const SocketAddress address = *name_by(::getsockname, listener_.fd(), "getsockname");
    EXPECT_EQ(::connect(client.get(), address.get(), address.length()), 0);
    return client;
  }
  /// A descriptor that stands for a client of the way.
  int client_of_way() {
    const int client = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    network_.clients.push_back(client);
    return client;
  }
  [[nodiscard]] Result<int> accept() const {
    SocketAddress peer;
    return socket().accept(peer, SOCK_CLOEXEC);
  }

  fakes::FakeNetwork network_;
  const fakes::FakeWayMaker maker_{network_};
  Client listener_{maker_};
};

TEST_F(ListenerOfBoth, TakesClientsFromBothInTurns) {
  EXPECT_TRUE(socket().listens_by_way());
  EXPECT_EQ(accept().error().code, EAGAIN) << "the kernel's listener does not block";
  const UniqueFd one = client_of_kernel();
  const UniqueFd other = client_of_kernel();
  const int first = client_of_way();
  const int second = client_of_way();

  std::array<UniqueFd, 4> accepted;
  for (UniqueFd& each : accepted) each.reset(*accept());

  EXPECT_EQ(accepted[1].get(), first);
  EXPECT_EQ(accepted[3].get(), second);
  EXPECT_EQ(accept().error().code, EAGAIN);
}

TEST_F(ListenerOfBoth, RefusesClientsOfTheWayOnceShutDownUntilItListensAgain) {
  ASSERT_TRUE(socket().shutdown(SHUT_RD));
  EXPECT_TRUE(network_.refuses);

  ASSERT_TRUE(socket().listen(8));

  EXPECT_FALSE(network_.refuses);
  EXPECT_TRUE(network_.listens);
}

TEST_F(ListenerOfBoth, IsTheKernelsAloneWhenAnotherProcessHasEndedTheWaysListener) {
  const int waiting = client_of_way();
  const UniqueFd client = client_of_kernel();
  network_.ended_for_all = true;

  const auto first = accept();
  ASSERT_TRUE(first);
  EXPECT_EQ(*first, waiting) << "a client that was answered is accepted";
  ::close(*first);
  const auto second = accept();
  ASSERT_TRUE(second);
  ::close(*second);

  EXPECT_FALSE(network_.listens);
  EXPECT_FALSE(fd_table().holds(listener_.fd()));
}

TEST_F(ListenerOfBoth, GivesItsWayUpAndBlocksAsTheApplicationSaid) {
  socket().give_up_way();

  EXPECT_FALSE(network_.listens);
  EXPECT_FALSE(fd_table().holds(listener_.fd()));
  EXPECT_EQ(::fcntl(listener_.fd(), F_GETFL) & O_NONBLOCK, 0);
}

TEST(ChosenSocket, ClosesItsWayWithTheLastDescriptor) {
  fakes::FakeNetwork network;
  const fakes::FakeWayMaker maker(network);
  const Server server;
  {
    Client client(maker);
    EXPECT_EQ(client.connect(server.address()).error().code, EINPROGRESS);
  }
  EXPECT_TRUE(network.closed);
}

}  // namespace
}  // namespace ringsock::transports
