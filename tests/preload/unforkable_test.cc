// Processes that fork while they have connections and listeners on a device whose connections stay with the process
// that made them, as those of real devices do: the embedded device pretends to be one.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "tests/preload/calls.h"
#include "tests/preload/preloaded.h"

namespace ringsock::preloaded {
namespace {

[[maybe_unused]] const int kPretends = ::setenv("RINGSOCK_TEST_SOFT_LIKE", "unforkable", 1);

std::string read_to_end(int fd) {
  std::string text;
  char part[256];
  for (ssize_t got = 0; (got = ::read(fd, part, sizeof part)) > 0;) text.append(part, static_cast<std::size_t>(got));
  return text;
}

/// Accepts one client and sends back what it sends.
void serve_one(int listener) {
  const int client = ::accept(listener, nullptr, nullptr);
  expect(client >= 0, "accept");
  echo(client);
  ::close(client);
}

/// The listener is a process that must be asked over the kernel's TCP; it echoes.
void be_client_by_kernel(std::uint16_t port) {
  const int fd = connect_to(port);
  EXPECT_FALSE(is_off_kernel(fd));
  ask(fd, "hello");
  expect_echo(fd, 5);
  ::close(fd);
}

TEST(Unforkable, AConnectionStaysWithTheProcessThatMadeItAndAChildHearsOfItOnce) {
  const Listener listener = listen_anywhere();
  const int alice = connect_to(listener.port);
  const int bob = ::accept(listener.fd, nullptr, nullptr);
  ASSERT_TRUE(is_off_kernel(alice) && is_off_kernel(bob));
  int log[2];
  ASSERT_EQ(::pipe(log), 0);
  const pid_t child = spawn([&] {
    ::dup2(log[1], STDERR_FILENO);
    char byte = 0;
    expect(error_of(::recv(alice, &byte, 1, 0)) == EIO, "recv");
    expect(error_of(::send(alice, &byte, 1, MSG_NOSIGNAL)) == EIO, "send");
    pollfd entry{alice, POLLIN, 0};
    expect(::poll(&entry, 1, 10'000) == 1 && (entry.revents & POLLERR) != 0, "poll");
    ::close(alice);
  });
  EXPECT_EQ(wait_for(child), 0);
  ::close(log[1]);
  const std::string told = read_to_end(log[0]);
  EXPECT_NE(told.find("EIO"), std::string::npos) << told;
  EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 1) << told;
  send_all(alice, "still here");
  EXPECT_EQ(receive(bob, 10), "still here");
  for (const int fd : {alice, bob, listener.fd, log[0]}) ::close(fd);
}

TEST(Unforkable, AParentWhoseChildrenLeaveTheListenerAloneKeepsItWhole) {
  const Listener listener = listen_anywhere();
  Signal end;
  const pid_t child = spawn([&] { end.wait(); });
  for (int round = 0; round < 3; ++round) {
    // Nobody accepts while the client connects.
    const int alice = connect_to(listener.port);
    EXPECT_TRUE(is_off_kernel(alice));
    const int bob = ::accept(listener.fd, nullptr, nullptr);
    send_all(alice, "hello");
    EXPECT_EQ(receive(bob, 5), "hello");
    ::close(alice);
    ::close(bob);
  }
  end.give();
  EXPECT_EQ(wait_for(child), 0);
  ::close(listener.fd);
}

TEST(Unforkable, ClientsComeByTheKernelOnceAChildTakesThem) {
  const Listener listener = listen_anywhere();
  Signal polled;
  const pid_t worker = spawn([&] {
    pollfd entry{listener.fd, POLLIN, 0};
    expect(::poll(&entry, 1, 0) == 0, "no client yet");
    polled.give();
    serve_one(listener.fd);
    serve_one(listener.fd);
  });
  polled.wait();
  for (int client = 0; client < 2; ++client) be_client_by_kernel(listener.port);
  EXPECT_EQ(wait_for(worker), 0);
  ::close(listener.fd);
}

TEST(Unforkable, AClientThatCameBeforeAChildListenedIsNotLeftWaiting) {
  const Listener listener = listen_anywhere();
  Signal listen;
  const pid_t worker = spawn([&] {
    listen.wait();
    serve_one(listener.fd);
  });
  const int early = connect_to(listener.port);
  ASSERT_TRUE(is_off_kernel(early));
  listen.give();
  char byte = 0;
  const ssize_t got = ::recv(early, &byte, 1, 0);
  EXPECT_TRUE(got == 0 || errno == ECONNRESET) << got;
  be_client_by_kernel(listener.port);
  ::close(early);
  EXPECT_EQ(wait_for(worker), 0);
  ::close(listener.fd);
}

TEST(Unforkable, AGrandchildThatListensCountsToo) {
  const Listener listener = listen_anywhere();
  Signal polled;
  const pid_t child = spawn([&] {
    const pid_t grandchild = spawn([&] {
      pollfd entry{listener.fd, POLLIN, 0};
      ::poll(&entry, 1, 0);
      polled.give();
      serve_one(listener.fd);
    });
    expect(wait_for(grandchild) == 0, "the grandchild");
  });
  polled.wait();
  be_client_by_kernel(listener.port);
  EXPECT_EQ(wait_for(child), 0);
  ::close(listener.fd);
}

TEST(Unforkable, AChildListensAnewAfterItsParentHasGone) {
  const Listener listener = listen_anywhere();
  Signal ready;
  const pid_t starter = spawn([&] {
    expect(::daemon(1, 1) == 0, "daemon");
    ready.give();
    serve_one(listener.fd);
  });
  EXPECT_EQ(wait_for(starter), 0);
  ready.wait();
  const std::uint16_t port = listener.port;
  ::close(listener.fd);
  be_client_by_kernel(port);
}

}  // namespace
}  // namespace ringsock::preloaded
