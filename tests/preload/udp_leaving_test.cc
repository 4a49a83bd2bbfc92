// What rings cannot do makes a socket the kernel's: nothing that waits is lost, and what comes afterwards is as with
// the kernel.
#include <fcntl.h>
#include <netinet/udp.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "tests/preload/udp_world.h"
#include "tests/support/libc_aio.h"
#include "tests/support/passed_descriptor.h"

namespace ringsock::preload_tests {
namespace {

constexpr int kOn = 1;

/// Runs `body` in a child, which ends with 0 when that returns true.
pid_t spawn(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  return child;
}
int status_of_child(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

/// Bob has two datagrams that wait, `act` happens, and then all goes by the kernel.
void leaves_with(const std::function<void(const UdpPair&)>& act) {
  const UdpPair pair;
  pair.alice.send_to(pair.bob, "one");
  pair.alice.send_to(pair.bob, "two");
  EXPECT_EQ(pair.bob.kernel_has_one(), !has_rings());
  act(pair);
  pair.alice.send_to(pair.bob, "three");
  EXPECT_TRUE(pair.bob.kernel_has_one());
  EXPECT_EQ(pair.bob.receive(), "one");
  pair.alice.send_to(pair.bob, "four");
  EXPECT_EQ(pair.bob.receive(), "two");
  EXPECT_TRUE(pair.bob.is_readable());
  EXPECT_EQ(pair.bob.receive(), "three");
  EXPECT_EQ(pair.bob.receive(), "four");
  EXPECT_FALSE(pair.bob.is_readable());
  for (int i = 0; i < 20; ++i) {
    pair.alice.send_to(pair.bob, "later");
    EXPECT_TRUE(pair.bob.kernel_has_one());
    EXPECT_EQ(pair.bob.receive(MSG_DONTWAIT), "later");
    pair.bob.send_to(pair.alice, "back");
    EXPECT_EQ(pair.alice.receive(), "back");
  }
}

TEST(UdpLeaving, ForAnOptionThatRingsDoNotHave) {
  leaves_with(
      [](const UdpPair& pair) { ASSERT_EQ(::setsockopt(pair.bob, IPPROTO_IP, IP_RECVTTL, &kOn, sizeof kOn), 0); });
}

TEST(UdpLeaving, ForASharedPort) {
  leaves_with(
      [](const UdpPair& pair) { ASSERT_EQ(::setsockopt(pair.bob, SOL_SOCKET, SO_REUSEPORT, &kOn, sizeof kOn), 0); });
}

TEST(UdpLeaving, ForAForkedChild) {
  leaves_with([](const UdpPair& pair) {
    ASSERT_EQ(status_of_child(spawn([&] { return pair.bob.receive(MSG_DONTWAIT | MSG_PEEK) == "one"; })), 0);
  });
}

TEST(UdpLeaving, ForAnotherProcessThatIsPassedTheDescriptor) {
  leaves_with([](const UdpPair& pair) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
    ASSERT_TRUE(support::send_descriptor(ends[0], pair.bob));
    ::close(ends[0]);
    ::close(ends[1]);
  });
}

TEST(UdpLeaving, ForAioOfLibc) {
  const UdpPair pair;
  pair.alice.send_to(pair.bob, "one");
  pair.alice.send_to(pair.bob, "two");
  std::array<char, 8> room{};
  ringsock::testing::LibcRequest request(pair.bob, LIO_NOP, room.data(), room.size());
  for (const char* const expected : {"one", "two", "six"}) {
    ASSERT_EQ(::aio_read(&request.block), 0);
    if (*expected == 's') pair.alice.send_to(pair.bob, "six");
    ASSERT_EQ(request.result(), 3);
    EXPECT_EQ(std::string(room.data(), 3), expected);
  }
  pair.alice.send_to(pair.bob, "later");
  EXPECT_TRUE(pair.bob.kernel_has_one());
  EXPECT_EQ(pair.bob.receive(), "later");
}

TEST(UdpLeaving, OptionsOfBuffersAndTimesChangeNothing) {
  const UdpPair pair;
  const int bytes = 1 << 20;
  ASSERT_EQ(::setsockopt(pair.bob, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes), 0);
  ASSERT_EQ(::setsockopt(pair.alice, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes), 0);
  const int tos = 0x10;
  ASSERT_EQ(::setsockopt(pair.alice, IPPROTO_IP, IP_TOS, &tos, sizeof tos), 0);
  pair.alice.send_to(pair.bob, "by ring");
  EXPECT_EQ(pair.bob.kernel_has_one(), !has_rings());
}

TEST(UdpLeaving, ControlDataComesWithWhatIsSentAfterItsOption) {
  const UdpPair pair;
  pair.alice.send_to(pair.bob, "before");
  ASSERT_EQ(::setsockopt(pair.bob, IPPROTO_IP, IP_PKTINFO, &kOn, sizeof kOn), 0);
  pair.alice.send_to(pair.bob, "after");
  EXPECT_EQ(pair.bob.receive(), "before");
  std::array<char, 16> room{};
  iovec part{room.data(), room.size()};
  alignas(cmsghdr) std::array<char, 128> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ASSERT_EQ(::recvmsg(pair.bob, &message, 0), 5);
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  ASSERT_NE(header, nullptr);
  EXPECT_EQ(header->cmsg_type, IP_PKTINFO);
}

TEST(UdpLeaving, MsgMoreMakesOneDatagramOfSeveralSends) {
  const UdpPair pair;
  pair.alice.send_to(pair.bob, "first");
  pair.alice.send_to(pair.bob, "one ", MSG_MORE);
  pair.alice.send_to(pair.bob, "datagram");
  EXPECT_EQ(pair.bob.receive(), "first");
  EXPECT_EQ(pair.bob.receive(), "one datagram");
}

TEST(UdpLeaving, ShutdownEndsAReceiver) {
  const UdpPair pair;
  pair.bob.connect(pair.alice.name());
  warm_up(pair.alice, pair.bob);
  std::atomic<bool> has_ended{false};
  std::thread waiting([&] {
    EXPECT_EQ(pair.bob.receive(), "");
    has_ended = true;
  });
  ::usleep(20'000);
  EXPECT_FALSE(has_ended);
  EXPECT_EQ(::shutdown(pair.bob, SHUT_RD), 0);
  waiting.join();
}

TEST(UdpLeaving, ASenderLearnsThatTheReceiverWasClosed) {
  std::optional<Udp> bob(std::in_place);
  const Udp alice;
  const sockaddr_in name = bob->name();
  alice.connect(name);
  for (int i = 0; i < 20; ++i) {
    alice.send("warm");
    ASSERT_EQ(bob->receive(), "warm");
    if (i == 8) ::usleep(5000);
  }
  bob.reset();
  alice.send("lost");
  EXPECT_EQ(alice.receive(), kRefused);
}

TEST(UdpLeaving, ASenderFollowsToANewSocketWithThePort) {
  std::optional<Udp> bob(std::in_place);
  const Udp alice;
  for (int i = 0; i < 10; ++i) {
    const std::uint16_t port = bob->port();
    warm_up(alice, *bob);
    bob.reset();
    bob.emplace(Udp::Bound::yes, 0, port);
    alice.send_to(*bob, "to the new one");
    EXPECT_EQ(bob->receive(), "to the new one");
  }
}

TEST(UdpLeaving, DuplicatesAreOneSocket) {
  const UdpPair pair;
  Udp copy(::dup(pair.bob));
  pair.alice.send_to(pair.bob, "one");
  pair.alice.send_to(pair.bob, "two");
  EXPECT_EQ(copy.receive(), "one");
  copy.close();
  EXPECT_EQ(pair.bob.receive(), "two");
  pair.alice.send_to(pair.bob, "three");
  EXPECT_EQ(pair.bob.receive(), "three");
}

TEST(UdpLeaving, TheFirstDescriptorMayBeClosed) {
  UdpPair pair;
  const sockaddr_in name = pair.bob.name();
  const Udp copy(::dup(pair.bob));
  pair.bob.close();
  for (int i = 0; i < 20; ++i) {
    pair.alice.send_to(name, "one");
    EXPECT_EQ(copy.receive(), "one");
  }
}

TEST(UdpLeaving, AGroupOfSocketsWithOnePortSharesItsDatagrams) {
  const Udp one(::socket(AF_INET, SOCK_DGRAM, 0)), two(::socket(AF_INET, SOCK_DGRAM, 0));
  sockaddr_in name = loopback(0);
  for (const Udp* end : {&one, &two}) {
    ASSERT_EQ(::setsockopt(*end, SOL_SOCKET, SO_REUSEPORT, &kOn, sizeof kOn), 0);
    ASSERT_EQ(::bind(*end, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
    name = one.name();
  }
  std::vector<Udp> senders(20);
  int by_one = 0, by_two = 0;
  for (int round = 0; round < 10; ++round) {
    for (const Udp& sender : senders) {
      sender.send_to(name, "either");
      (one.kernel_has_one() ? by_one : by_two) += 1;
      ASSERT_EQ((one.kernel_has_one() ? one : two).receive(MSG_DONTWAIT), "either");
    }
  }
  EXPECT_GT(by_one, 0);
  EXPECT_GT(by_two, 0);
}

TEST(UdpLeaving, AServerMayMakeASocketForEachClient) {
  const Udp server(::socket(AF_INET, SOCK_DGRAM, 0)), client;
  sockaddr_in name = loopback(0);
  ASSERT_EQ(::setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &kOn, sizeof kOn), 0);
  ASSERT_EQ(::bind(server, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  name = server.name();
  for (int i = 0; i < 20; ++i) {
    client.send_to(name, "hello");
    ASSERT_EQ(server.receive(), "hello");
  }
  const Udp child(::socket(AF_INET, SOCK_DGRAM, 0));
  ASSERT_EQ(::setsockopt(child, SOL_SOCKET, SO_REUSEADDR, &kOn, sizeof kOn), 0);
  ASSERT_EQ(::bind(child, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  child.connect(client.name());
  client.send_to(name, "to the child");
  EXPECT_EQ(child.receive(MSG_DONTWAIT), "to the child");
}

/// A socket with SO_REUSEADDR, bound to `name`.
Udp shared_port(const sockaddr_in& name) {
  Udp out(::socket(AF_INET, SOCK_DGRAM, 0));
  EXPECT_EQ(::setsockopt(out, SOL_SOCKET, SO_REUSEADDR, &kOn, sizeof kOn), 0);
  EXPECT_EQ(::bind(out, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  return out;
}

TEST(UdpLeaving, ForAnotherSocketWithThePort) {
  const Udp bob = shared_port(loopback(0)), alice;
  warm_up(alice, bob);
  alice.send_to(bob, "by ring");
  EXPECT_EQ(bob.kernel_has_one(), !has_rings());
  const Udp other = shared_port(bob.name());
  alice.send_to(bob, "to either");
  EXPECT_NE(bob.kernel_has_one() && !other.kernel_has_one(), other.kernel_has_one());
  EXPECT_EQ(bob.receive(), "by ring");
}

// -- several processes -----------------------------------------------------------------------------

TEST(UdpProcesses, ExchangeDatagrams) {
  const std::uint16_t port = Udp().port();
  const pid_t echo = spawn([port] {
    const Udp bob(Udp::Bound::yes, 0, port);
    for (;;) {
      const auto [text, from] = bob.receive_from();
      bob.send_to(loopback(from), text);
      if (text == "end") return true;
    }
  });
  const Udp alice;
  // Until bob has a socket, nobody answers.
  do alice.send_to(loopback(port), "hello");
  while (!alice.is_readable(10));
  for (int i = 0; i < 500; ++i) {
    alice.send_to(loopback(port), std::to_string(i));
    std::string got = alice.receive();
    while (got == "hello") got = alice.receive();
    ASSERT_EQ(got, std::to_string(i));
    if (i < 20) ::usleep(1000);
  }
  alice.send_to(loopback(port), "end");
  EXPECT_EQ(status_of_child(echo), 0);
}

TEST(UdpProcesses, ASenderThatIsKilledLeavesItsDatagrams) {
  const Udp bob;
  const sockaddr_in name = bob.name();
  const pid_t alice = spawn([&name] {
    const Udp end;
    for (int i = 0; i < 60; ++i) {
      end.send_to(name, std::to_string(i));
      if (i < 20) ::usleep(1000);
    }
    ::raise(SIGKILL);
    return false;
  });
  for (int i = 0; i < 60; ++i) ASSERT_EQ(bob.receive(), std::to_string(i));
  EXPECT_TRUE(WIFSIGNALED(status_of_child(alice)));
  EXPECT_EQ(bob.receive(MSG_DONTWAIT), kAgain);
}

TEST(UdpProcesses, AReceiverThatIsKilledIsNoticed) {
  const std::uint16_t port = Udp().port();
  const pid_t bob = spawn([port]() -> bool {
    const Udp end(Udp::Bound::yes, 0, port);
    for (;;) {
      const auto [text, from] = end.receive_from();
      end.send_to(loopback(from), text);
    }
  });
  const Udp alice;
  alice.connect(loopback(port));
  for (int i = 0; i < 60;) {
    [[maybe_unused]] const ssize_t sent = ::send(alice, "ping", 4, 0);
    pollfd entry{alice, POLLIN, 0};
    if (::poll(&entry, 1, 20) == 1 && alice.receive(MSG_DONTWAIT) == "ping") ++i;
    ::usleep(500);
  }
  ::kill(bob, SIGKILL);
  status_of_child(bob);
  bool is_refused = false;
  for (int i = 0; i < 100 && !is_refused; ++i) {
    is_refused = ::send(alice, "lost", 4, 0) < 0 && errno == ECONNREFUSED;
    ::usleep(2000);
  }
  EXPECT_TRUE(is_refused);
}

/// Two datagrams wait for Bob, in a ring where there are any.
void let_two_wait(const UdpPair& pair) {
  pair.alice.send_to(pair.bob, "one");
  pair.alice.send_to(pair.bob, "two");
  EXPECT_EQ(pair.bob.kernel_has_one(), !has_rings());
}

TEST(UdpProcesses, AChildHasWhatWaitsWhenItsParentClosesTheSocket) {
  UdpPair pair;
  let_two_wait(pair);
  std::array<int, 2> closed{}, taken{};
  ASSERT_EQ(::pipe(closed.data()), 0);
  ASSERT_EQ(::pipe(taken.data()), 0);
  const pid_t child = spawn([&] {
    char byte = 0;
    if (::read(closed[0], &byte, 1) != 1) return false;
    if (!pair.bob.is_readable() || pair.bob.receive() != "one" || pair.bob.receive() != "two") return false;
    const bool was_all = !pair.bob.is_readable();
    return ::write(taken[1], "", 1) == 1 && was_all && pair.bob.receive() == "three";
  });
  const sockaddr_in name = pair.bob.name();
  pair.bob.close();
  ASSERT_EQ(::write(closed[1], "", 1), 1);
  ::close(taken[1]);
  char byte = 0;
  EXPECT_EQ(::read(taken[0], &byte, 1), 1);
  pair.alice.send_to(name, "three");
  EXPECT_EQ(status_of_child(child), 0);
  for (const int end : {closed[0], closed[1], taken[0]}) ::close(end);
}

TEST(UdpProcesses, AProcessThatIsPassedTheDescriptorGetsWhatWaits) {
  UdpPair pair;
  let_two_wait(pair);
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  const pid_t stranger = ::fork();
  if (stranger == 0) {
    pair.bob.close();
    ::close(ends[0]);
    const Udp bob(support::receive_descriptor(ends[1]));
    const auto [text, port] = bob.receive_from();
    ::_exit(text == "one" && port == pair.alice.port() && bob.receive() == "two" && !bob.is_readable() ? 0 : 1);
  }
  ASSERT_TRUE(support::send_descriptor(ends[0], pair.bob));
  pair.bob.close();
  EXPECT_EQ(status_of_child(stranger), 0);
  for (const int end : ends) ::close(end);
}

TEST(UdpProcesses, AProgramThatIsExecutedGetsWhatWaits) {
  for (const int flags : {0, FD_CLOEXEC}) {
    UdpPair pair;
    let_two_wait(pair);
    ASSERT_EQ(::fcntl(pair.bob, F_SETFD, flags), 0);
    std::array<int, 2> heard{};
    ASSERT_EQ(::pipe2(heard.data(), O_CLOEXEC), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::dup2(pair.bob, STDIN_FILENO);
      ::dup2(heard[1], STDOUT_FILENO);
      ::unsetenv("LD_PRELOAD");  // a sanitizer's library would need its runtime there
      ::execlp("head", "head", "-c6", nullptr);
      ::_exit(1);
    }
    pair.bob.close();
    ::close(heard[1]);
    EXPECT_EQ(status_of_child(child), 0);
    std::array<char, 16> text{};
    EXPECT_EQ(::read(heard[0], text.data(), text.size()), 6);
    EXPECT_STREQ(text.data(), "onetwo");
    ::close(heard[0]);
  }
}

TEST(UdpProcesses, AnEpollSetThatAProgramKeepsOverExecHasTheSocket) {
  std::array<int, 2> heard{};
  ASSERT_EQ(::pipe2(heard.data(), O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const UdpPair pair;
    const int set = ::epoll_create1(0);
    epoll_event event{EPOLLIN, {.u64 = 7}};
    ::epoll_ctl(set, EPOLL_CTL_ADD, pair.bob, &event);
    let_two_wait(pair);
    ::dup2(set, STDIN_FILENO);
    ::dup2(heard[1], STDOUT_FILENO);
    ::unsetenv("LD_PRELOAD");  // a sanitizer's library would need its runtime there
    // poll(2) on the set tells whether it has something to report.
    ::execlp("python3", "python3", "-c", "import select; print(len(select.select([0], [], [], 5)[0]))", nullptr);
    ::_exit(1);
  }
  ::close(heard[1]);
  EXPECT_EQ(status_of_child(child), 0);
  std::array<char, 16> text{};
  EXPECT_EQ(::read(heard[0], text.data(), text.size()), 2);
  EXPECT_STREQ(text.data(), "1\n");
  ::close(heard[0]);
}

TEST(UdpProcesses, ParentChildAndGrandchildShareWhatWaits) {
  constexpr int kDatagrams = 200;
  const UdpPair pair;
  for (int i = 0; i < kDatagrams; ++i) pair.alice.send_to(pair.bob, std::to_string(i));
  std::array<int, 2> heard{};
  ASSERT_EQ(::pipe(heard.data()), 0);
  const auto tell_all = [&] {
    for (std::string text = pair.bob.receive(MSG_DONTWAIT); text != kAgain; text = pair.bob.receive(MSG_DONTWAIT)) {
      const int number = std::stoi(text);
      if (::write(heard[1], &number, sizeof number) != sizeof number) return false;
    }
    return true;
  };
  const pid_t child = spawn([&] {
    const pid_t grandchild = spawn(tell_all);
    return tell_all() && status_of_child(grandchild) == 0;
  });
  EXPECT_TRUE(tell_all());
  EXPECT_EQ(status_of_child(child), 0);
  EXPECT_FALSE(pair.bob.is_readable());
  std::vector<int> times(kDatagrams);
  for (int i = 0; i < kDatagrams; ++i) {
    int number = -1;
    ASSERT_EQ(::read(heard[0], &number, sizeof number), static_cast<ssize_t>(sizeof number));
    ++times.at(static_cast<std::size_t>(number));
  }
  EXPECT_EQ(times, std::vector<int>(kDatagrams, 1));
  for (const int end : heard) ::close(end);
}

TEST(UdpProcesses, AChildGoesOnWithItsParentsSocket) {
  const UdpPair pair;
  const pid_t child = spawn([&] {
    for (int i = 0; i < 30; ++i) {
      if (pair.bob.receive() != std::to_string(i)) return false;
      pair.bob.send_to(pair.alice, "heard");
    }
    return true;
  });
  for (int i = 0; i < 30; ++i) {
    pair.alice.send_to(pair.bob, std::to_string(i));
    ASSERT_EQ(pair.alice.receive(), "heard");
  }
  EXPECT_EQ(status_of_child(child), 0);
}

}  // namespace
}  // namespace ringsock::preload_tests
