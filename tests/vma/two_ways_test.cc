// Streams where both preload libraries are there and VMA_TCP=on, for two_ways.sh: memory rings carry those within the
// host, Ethernet rings those between hosts, in whichever order the libraries are.
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "tests/support/raw_syscall.h"
#include "tests/vma/tcp_world.h"

namespace ringsock::vma_tests {
namespace {

constexpr const char* kHere = "10.9.0.1";
constexpr const char* kThere = "10.9.0.2";

/// What the kernel has under the number of a connection on a memory ring is the doorbell, an AF_UNIX socket.
bool is_on_memory_ring(const Stream& stream) {
  int domain = -1;
  socklen_t length = sizeof domain;
  EXPECT_EQ(raw_syscall(SYS_getsockopt, stream.fd(), SOL_SOCKET, SO_DOMAIN, &domain, &length), 0);
  return domain == AF_UNIX;
}

void expect_talk(const Stream& here, const Stream& there) {
  const std::string text(100'000, 'x');
  std::thread sends([&] { EXPECT_EQ(here.send(text), text.size()); });
  EXPECT_EQ(there.receive(text.size()), text);
  sends.join();
  EXPECT_EQ(there.send("answer"), 6U);
  EXPECT_EQ(here.receive(6), "answer");
}

TEST(TwoWays, AStreamWithinTheHostIsOnMemoryRings) {
  for (const char* const address : {"127.0.0.1", kHere, "::1"}) {
    const Listener listener(address, Calls::librarys);
    const Stream client = connected_to(listener.name(), Calls::librarys);
    const Stream server = listener.accept();
    EXPECT_TRUE(is_on_memory_ring(client)) << address;
    EXPECT_TRUE(is_on_memory_ring(server)) << address;
    expect_talk(client, server);
  }
}

TEST(TwoWays, AConnectionToAnotherHostIsOnAnEthernetRing) {
  const Pair pair = connect_from_here(kThere, Calls::kernels);
  EXPECT_TRUE(pair.here.is_on_ring());
  expect_talk(pair.here, pair.there);
}

TEST(TwoWays, SoIsOneThatIsMadeWhileTheProgramDoesOtherThings) {
  const Listener far = over_there([] { return Listener(kThere, Calls::kernels); });
  const Stream here(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), Calls::librarys);
  ASSERT_EQ(::connect(here.fd(), far.name().get(), far.name().length()), -1);
  ASSERT_EQ(errno, EINPROGRESS);
  pollfd wait{.fd = here.fd(), .events = POLLOUT, .revents = 0};
  ASSERT_EQ(::poll(&wait, 1, 10'000), 1);
  int error = -1;
  socklen_t length = sizeof error;
  ASSERT_EQ(::getsockopt(here.fd(), SOL_SOCKET, SO_ERROR, &error, &length), 0);
  EXPECT_EQ(error, 0);
  EXPECT_TRUE(here.is_on_ring());
  const Stream there = over_there([&] { return far.accept(); });
  EXPECT_EQ(here.send("hello"), 5U);
  EXPECT_EQ(there.receive(5), "hello");
}

TEST(TwoWays, AConnectionFromAnotherHostIsOnAnEthernetRing) {
  const Pair pair = accept_here(kHere, Calls::kernels);
  EXPECT_TRUE(pair.here.is_on_ring());
  expect_talk(pair.here, pair.there);
}

TEST(TwoWays, AListenerTakesConnectionsOfBothKinds) {
  const Listener listener("0.0.0.0", Calls::librarys);
  const Address here(kHere, listener.name().port());
  for (int round = 0; round < 3; ++round) {
    const Stream near = connected_to(here, Calls::librarys);
    const Stream by_memory = listener.accept();
    EXPECT_TRUE(is_on_memory_ring(by_memory));
    const Stream far = over_there([&] { return connected_to(here, Calls::kernels); });
    const Stream by_ethernet = listener.accept();
    EXPECT_TRUE(by_ethernet.is_on_ring());
    expect_talk(near, by_memory);
    expect_talk(by_ethernet, far);
  }
}

TEST(TwoWays, ARefusedConnectionToAnotherHostIsRefused) {
  const Address nobody = over_there([] { return Listener(kThere, Calls::kernels).name(); });
  const Stream here(::socket(AF_INET, SOCK_STREAM, 0), Calls::librarys);
  EXPECT_EQ(::connect(here.fd(), nobody.get(), nobody.length()), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
}

TEST(TwoWays, AnOptionThatOnlyTheKernelHasKeepsAConnectionThere) {
  const Listener far = over_there([] { return Listener(kThere, Calls::kernels); });
  const Stream here(::socket(AF_INET, SOCK_STREAM, 0), Calls::librarys);
  const int clamp = 60'000;
  ASSERT_EQ(::setsockopt(here.fd(), IPPROTO_TCP, TCP_WINDOW_CLAMP, &clamp, sizeof clamp), 0);
  ASSERT_EQ(::connect(here.fd(), far.name().get(), far.name().length()), 0);
  EXPECT_FALSE(here.is_on_ring());
  const Stream there = over_there([&] { return far.accept(); });
  expect_talk(here, there);
}

TEST(TwoWays, OneSetTellsOfBothKinds) {
  const Pair far = connect_from_here(kThere, Calls::kernels);
  const Listener listener(kHere, Calls::librarys);
  const Stream near = connected_to(listener.name(), Calls::librarys);
  const Stream by_memory = listener.accept();
  const int set = ::epoll_create1(0);
  for (const int member : {far.here.fd(), by_memory.fd()}) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = member}};
    ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, member, &event), 0);
  }
  epoll_event event{};
  ASSERT_EQ(near.send("near"), 4U);
  ASSERT_EQ(::epoll_wait(set, &event, 1, 10'000), 1);
  EXPECT_EQ(event.data.fd, by_memory.fd());
  EXPECT_EQ(by_memory.receive(4), "near");
  ASSERT_EQ(far.there.send("far"), 3U);
  ASSERT_EQ(::epoll_wait(set, &event, 1, 10'000), 1);
  EXPECT_EQ(event.data.fd, far.here.fd());
  EXPECT_EQ(far.here.receive(3), "far");
  ::close(set);
}

}  // namespace
}  // namespace ringsock::vma_tests
