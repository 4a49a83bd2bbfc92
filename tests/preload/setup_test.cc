// Connecting, accepting, falling back; names, options, duplicates.
#include <dirent.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <csignal>
#include <thread>
#include <vector>

#include "tests/preload/tcp_world.h"
#include "tests/support/raw_syscall.h"
#include "tests/support/sanitizers.h"

namespace ringsock::preload_tests {
namespace {

class Preloaded : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Families, Preloaded, testing::Values(AF_INET, AF_INET6),
                         [](const auto& info) { return info.param == AF_INET ? "IPv4" : "IPv6"; });

/// Sockets made behind the library's back: the other side does not take part.
Fd foreign_listener(int family) {
  Fd fd(static_cast<int>(raw_syscall(SYS_socket, family, SOCK_STREAM, 0)));
  Address any = Address::loopback(family, 0);
  EXPECT_EQ(raw_syscall(SYS_bind, int(fd), any.get(), any.length), 0);
  EXPECT_EQ(raw_syscall(SYS_listen, int(fd), 16), 0);
  return fd;
}

TEST_P(Preloaded, BothSidesKnowEachOthersNames) {
  const Fd listener = listening(GetParam());
  const Fd alice = connected_to(listener);
  Address seen;
  seen.length = sizeof seen.storage;
  const Fd bob(::accept(listener, seen.get(), &seen.length));
  ASSERT_GE(bob, 0);
  EXPECT_EQ(seen.port(), name_of(alice).port());
  EXPECT_EQ(peer_of(alice).port(), name_of(listener).port());
  EXPECT_EQ(peer_of(bob).port(), name_of(alice).port());
  EXPECT_EQ(name_of(bob).port(), name_of(listener).port());
  EXPECT_EQ(seen.storage.ss_family, GetParam());
}

/// Accepts until nobody waits; how many.
int accept_all(int listener) {
  int count = 0;
  while (poll_once(listener, POLLIN, 0) != 0) {
    const Fd accepted(::accept(listener, nullptr, nullptr));
    EXPECT_GE(accepted, 0);
    EXPECT_EQ(is_on_ring(accepted), preloaded());
    ++count;
  }
  return count;
}

TEST_P(Preloaded, ListenersThatShareAPortShareItsClients) {
  const auto share = [&](Address where) {
    Fd fd(::socket(GetParam(), SOCK_STREAM, 0));
    const int on = 1;
    EXPECT_EQ(::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    EXPECT_EQ(::setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on), 0);
    EXPECT_EQ(::bind(fd, where.get(), where.length), 0) << std::strerror(errno);
    EXPECT_EQ(::listen(fd, 100), 0) << std::strerror(errno);
    return fd;
  };
  Fd first = share(Address::loopback(GetParam(), 0));
  const Fd second = share(name_of(first));
  const Fd third = share(name_of(first));
  constexpr int kClients = 60;
  std::vector<Fd> clients;
  clients.reserve(kClients);
  for (int i = 0; i < kClients; ++i) clients.push_back(connected_to(first));
  const int by_first = accept_all(first), by_second = accept_all(second), by_third = accept_all(third);
  EXPECT_EQ(by_first + by_second + by_third, kClients);
  EXPECT_GT(by_first, 0);
  EXPECT_GT(by_second, 0);
  EXPECT_GT(by_third, 0);
  // The others go on when one has gone.
  const Address where = name_of(first);
  first = Fd();
  const Fd fourth = share(where);
  for (int i = 0; i < kClients; ++i) clients.push_back(connected_to(second));
  EXPECT_GT(accept_all(fourth), 0);
  EXPECT_GT(accept_all(second), 0);
}

TEST_P(Preloaded, AClientOfAListenerThatDoesNotTakePartGoesByTheKernel) {
  const Fd listener = foreign_listener(GetParam());
  const Fd alice = connected_to(listener);
  EXPECT_FALSE(is_on_ring(alice));
  const Fd bob(static_cast<int>(raw_syscall(SYS_accept, int(listener), nullptr, nullptr)));
  ASSERT_EQ(::write(alice, "k", 1), 1);
  EXPECT_EQ(read_all(bob, 1), "k");
}

TEST_P(Preloaded, AListenerAlsoTakesClientsThatDoNotTakePart) {
  const Fd listener = listening(GetParam());
  Address there = name_of(listener);
  const Fd alice(static_cast<int>(raw_syscall(SYS_socket, GetParam(), SOCK_STREAM, 0)));
  ASSERT_EQ(raw_syscall(SYS_connect, int(alice), there.get(), there.length), 0);
  EXPECT_EQ(poll_once(listener, POLLIN, 1000), POLLIN);
  const Fd bob(::accept(listener, nullptr, nullptr));
  ASSERT_GE(bob, 0);
  EXPECT_FALSE(is_on_ring(bob));
  const Fd carol = connected_to(listener);
  const Fd dave(::accept(listener, nullptr, nullptr));
  EXPECT_EQ(is_on_ring(dave), preloaded());
}

TEST_P(Preloaded, NobodyListensIsConnectionRefused) {
  Address nowhere;
  {
    const Fd gone = listening(GetParam());
    nowhere = name_of(gone);
  }
  const Fd alice(::socket(GetParam(), SOCK_STREAM, 0));
  EXPECT_EQ(::connect(alice, nowhere.get(), nowhere.length), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
}

sockaddr_in& as_v4(Address& address) { return reinterpret_cast<sockaddr_in&>(address.storage); }

TEST(PreloadedSetup, AClientOfAnotherLoopbackAddressHasTheUsualOne) {
  const Fd listener(::socket(AF_INET, SOCK_STREAM, 0));
  Address there = Address::loopback(AF_INET, 0);
  as_v4(there).sin_addr.s_addr = htonl(INADDR_ANY);
  ASSERT_EQ(::bind(listener, there.get(), there.length), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  there = Address::loopback(AF_INET, name_of(listener).port());
  as_v4(there).sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
  const Fd alice(::socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(::connect(alice, there.get(), there.length), 0);
  EXPECT_EQ(is_on_ring(alice), preloaded());
  Address hers = name_of(alice);
  EXPECT_EQ(as_v4(hers).sin_addr.s_addr, htonl(INADDR_LOOPBACK));
  Address client;
  client.length = sizeof client.storage;
  const Fd bob(::accept(listener, client.get(), &client.length));
  ASSERT_GE(int(bob), 0);
  EXPECT_EQ(as_v4(client).sin_addr.s_addr, htonl(INADDR_LOOPBACK));
}

TEST(PreloadedSetup, ASocketForIPv6OnlyDoesNotReachAMappedAddress) {
  const Fd listener = listening(AF_INET);
  const Fd alice(::socket(AF_INET6, SOCK_STREAM, 0));
  const int only = 1;
  ASSERT_EQ(::setsockopt(alice, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only), 0);
  sockaddr_in6 mapped{};
  mapped.sin6_family = AF_INET6;
  mapped.sin6_port = htons(name_of(listener).port());
  ASSERT_EQ(::inet_pton(AF_INET6, "::ffff:127.0.0.1", &mapped.sin6_addr), 1);
  EXPECT_EQ(::connect(alice, reinterpret_cast<const sockaddr*>(&mapped), sizeof mapped), -1);
  EXPECT_EQ(errno, ENETUNREACH);
}

TEST_P(Preloaded, ANonblockingConnectEndsWithSoErrorZero) {
  const Fd listener = listening(GetParam());
  Address there = name_of(listener);
  const Fd alice(::socket(GetParam(), SOCK_STREAM | SOCK_NONBLOCK, 0));
  if (::connect(alice, there.get(), there.length) != 0) {
    ASSERT_EQ(errno, EINPROGRESS);
    ASSERT_NE(poll_once(alice, POLLOUT, 2000) & POLLOUT, 0);
  }
  int error = -1;
  socklen_t length = sizeof error;
  ASSERT_EQ(::getsockopt(alice, SOL_SOCKET, SO_ERROR, &error, &length), 0);
  EXPECT_EQ(error, 0);
  EXPECT_EQ(is_on_ring(alice), preloaded());
}

TEST_P(Preloaded, AConnectThatNobodyAcceptsYetSucceedsAsTheBacklogSays) {
  const Fd listener = listening(GetParam());
  const Fd alice = connected_to(listener);
  ASSERT_EQ(::write(alice, "early", 5), 5);
  const Fd bob(::accept(listener, nullptr, nullptr));
  EXPECT_EQ(read_all(bob, 5), "early");
}

TEST(PreloadedSetup, AListenerForIPv6Only) {
  const Fd listener(::socket(AF_INET6, SOCK_STREAM, 0));
  const int on = 1;
  ASSERT_EQ(::setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on), 0);
  Address any = Address::loopback(AF_INET6, 0);
  ASSERT_EQ(::bind(listener, any.get(), any.length), 0);
  ASSERT_EQ(::listen(listener, 4), 0);
  const Fd alice = connected_to(listener);
  EXPECT_EQ(is_on_ring(alice), preloaded());
}

TEST(PreloadedSetup, AcceptedSocketsHaveTheFlagsThatAccept4Names) {
  const Fd listener = listening();
  const Fd alice = connected_to(listener);
  const Fd bob(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  ASSERT_GE(bob, 0);
  EXPECT_NE(::fcntl(bob, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(::fcntl(bob, F_GETFD) & FD_CLOEXEC, 0);
  const Fd carol = connected_to(listener);
  const Fd dave(::accept(listener, nullptr, nullptr));
  EXPECT_EQ(::fcntl(dave, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_EQ(::fcntl(dave, F_GETFD) & FD_CLOEXEC, 0);
}

TEST(PreloadedSetup, OptionsReadBackWhatLinuxSays) {
  auto [alice, bob] = connected_pair();
  const auto get = [](int fd, int level, int name) {
    int value = -1;
    socklen_t length = sizeof value;
    EXPECT_EQ(::getsockopt(fd, level, name, &value, &length), 0) << level << " " << name << std::strerror(errno);
    return value;
  };
  EXPECT_EQ(get(alice, SOL_SOCKET, SO_TYPE), SOCK_STREAM);
  EXPECT_EQ(get(alice, SOL_SOCKET, SO_DOMAIN), AF_INET);
  EXPECT_EQ(get(alice, SOL_SOCKET, SO_PROTOCOL), IPPROTO_TCP);
  EXPECT_EQ(get(alice, SOL_SOCKET, SO_ACCEPTCONN), 0);
  EXPECT_EQ(get(alice, SOL_SOCKET, SO_ERROR), 0);
  const int on = 1;
  struct Option {
    int level, name;
  };
  for (const auto& [level, name] : {Option{IPPROTO_TCP, TCP_NODELAY},
                                    {SOL_SOCKET, SO_KEEPALIVE},
                                    {IPPROTO_TCP, TCP_CORK},
                                    {IPPROTO_TCP, TCP_QUICKACK},
                                    {SOL_SOCKET, SO_PRIORITY},
                                    {IPPROTO_TCP, TCP_USER_TIMEOUT}}) {
    EXPECT_EQ(::setsockopt(alice, level, name, &on, sizeof on), 0) << level << " " << name << std::strerror(errno);
  }
  EXPECT_EQ(get(alice, IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_EQ(::setsockopt(alice, IPPROTO_TCP, 9999, &on, sizeof on), -1);
  EXPECT_EQ(errno, ENOPROTOOPT);
}

TEST(PreloadedSetup, BuffersOfAConnectionReadBackTwiceWhatWasSetAsFarAsTheSystemPermits) {
  const auto [alice, bob] = connected_pair();
  for (const int name : {SO_SNDBUF, SO_RCVBUF}) {
    const int set = 100'000;
    ASSERT_EQ(::setsockopt(alice, SOL_SOCKET, name, &set, sizeof set), 0);
    int size = 0;
    socklen_t length = sizeof size;
    ASSERT_EQ(::getsockopt(alice, SOL_SOCKET, name, &size, &length), 0);
    EXPECT_EQ(size, 2 * set);

    const int most = 2'000'000'000;
    ASSERT_EQ(::setsockopt(alice, SOL_SOCKET, name, &most, sizeof most), 0);
    ASSERT_EQ(::getsockopt(alice, SOL_SOCKET, name, &size, &length), 0);
    const int plain = ::socket(AF_UNIX, SOCK_STREAM, 0);
    int kernels = 0;
    ASSERT_EQ(::setsockopt(plain, SOL_SOCKET, name, &most, sizeof most), 0);
    ASSERT_EQ(::getsockopt(plain, SOL_SOCKET, name, &kernels, &length), 0);
    EXPECT_EQ(size, kernels);
    ::close(plain);
  }
}

TEST(PreloadedSetup, ReceiveTimeoutEndsABlockedRead) {
  auto [alice, bob] = connected_pair();
  const timeval short_time{0, 20'000};
  ASSERT_EQ(::setsockopt(bob, SOL_SOCKET, SO_RCVTIMEO, &short_time, sizeof short_time), 0);
  char byte = 0;
  EXPECT_EQ(::read(bob, &byte, 1), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST(PreloadedSetup, TheFirstConnectAfterAConnectThatWasUnderWaySucceedsLaterOnesDoNot) {
  const Fd listener = listening();
  Address there = name_of(listener);
  const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  ASSERT_EQ(::connect(fd, there.get(), there.length), -1);
  ASSERT_EQ(errno, EINPROGRESS);
  const Fd accepted(::accept(listener, nullptr, nullptr));
  pollfd entry{fd, POLLOUT, 0};
  ASSERT_EQ(::poll(&entry, 1, 5000), 1);
  EXPECT_EQ(::connect(fd, there.get(), there.length), 0) << std::strerror(errno);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(::connect(fd, there.get(), there.length), -1);
    EXPECT_EQ(errno, EISCONN);
  }
  EXPECT_EQ(::send(fd, "x", 1, MSG_FASTOPEN), -1);
  EXPECT_EQ(errno, EISCONN);
}

/// Calls connect(2) with AF_UNSPEC on `fd`, one end of a connection.
void disconnect_and_expect_reset(int fd, int other_end) {
  const sockaddr nowhere{.sa_family = AF_UNSPEC, .sa_data = {}};
  ASSERT_EQ(::connect(fd, &nowhere, sizeof nowhere), 0) << std::strerror(errno);
  char byte = 0;
  EXPECT_EQ(::read(other_end, &byte, 1), -1);
  EXPECT_EQ(errno, ECONNRESET);
  Address peer;
  peer.length = sizeof peer.storage;
  EXPECT_EQ(::getpeername(fd, peer.get(), &peer.length), -1);
  EXPECT_EQ(errno, ENOTCONN);
}

TEST(PreloadedSetup, AConnectWithoutAnAddressResetsTheConnectionAndTheSocketMayConnectAgain) {
  auto [alice, bob] = connected_pair();
  const int more = 1;
  ASSERT_EQ(::setsockopt(alice, SOL_SOCKET, SO_KEEPALIVE, &more, sizeof more), 0);
  const Fd set(::epoll_create1(0));
  epoll_event event{.events = EPOLLIN, .data = {.fd = alice}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, alice, &event), 0);
  ASSERT_NO_FATAL_FAILURE(disconnect_and_expect_reset(alice, bob));
  int keepalive = 0;
  socklen_t length = sizeof keepalive;
  EXPECT_EQ(::getsockopt(alice, SOL_SOCKET, SO_KEEPALIVE, &keepalive, &length), 0);
  EXPECT_EQ(keepalive, 1);

  const Fd listener = listening();
  Address there = name_of(listener);
  ASSERT_EQ(::connect(alice, there.get(), there.length), 0) << std::strerror(errno);
  const Fd carol(::accept(listener, nullptr, nullptr));
  EXPECT_EQ(::write(carol, "again", 5), 5);
  EXPECT_EQ(::epoll_wait(set, &event, 1, 5000), 1);
  EXPECT_EQ(event.data.fd, int(alice));
  EXPECT_EQ(read_all(alice, 5), "again");
}

TEST(PreloadedSetup, AConnectWithoutAnAddressResetsAnAcceptedConnection) {
  auto [alice, bob] = connected_pair();
  disconnect_and_expect_reset(bob, alice);
}

/// Ends without the connection of its parent, and tells by its status whether it has a peer.
[[noreturn]] void tell_whether_connected(int fd) {
  Address peer;
  peer.length = sizeof peer.storage;
  const bool is_connected = ::getpeername(fd, peer.get(), &peer.length) == 0;
  char byte = 0;
  static_cast<void>(::recv(fd, &byte, 1, MSG_DONTWAIT));  // the kernel leaves the error of the reset
  const bool reads = ::recv(fd, &byte, 1, MSG_DONTWAIT) >= 0 || errno != ENOTCONN;
  ::_exit((is_connected ? 1 : 0) + (reads ? 2 : 0));
}

TEST(PreloadedSetup, AConnectWithoutAnAddressResetsTheConnectionThatAForkedChildHasToo) {
  for (const bool has_child_used_it : {false, true}) {
    auto [alice, bob] = connected_pair();
    int used[2], done[2];
    ASSERT_EQ(::pipe(used), 0);
    ASSERT_EQ(::pipe(done), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      for (const int fd : {int(bob), used[0], done[1]}) ::close(fd);
      if (has_child_used_it && ::write(alice, "hello", 5) != 5) ::_exit(4);
      ::close(used[1]);
      char none = 0;
      if (::read(done[0], &none, 1) != 0) ::_exit(8);
      tell_whether_connected(alice);
    }
    for (const int fd : {used[1], done[0]}) ::close(fd);
    char none = 0;
    EXPECT_EQ(::read(used[0], &none, 1), 0);
    EXPECT_EQ(read_all(bob, has_child_used_it ? 5 : 0), has_child_used_it ? "hello" : "");
    disconnect_and_expect_reset(alice, bob);
    for (const int fd : {used[0], done[1]}) ::close(fd);
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

TEST(PreloadedSetup, AConnectWithoutAnAddressEndsListening) {
  const Fd listener = listening();
  Address there = name_of(listener);
  const sockaddr nowhere{.sa_family = AF_UNSPEC, .sa_data = {}};
  ASSERT_EQ(::connect(listener, &nowhere, sizeof nowhere), 0) << std::strerror(errno);
  const Fd client(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(::connect(client, there.get(), there.length), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
}

TEST(PreloadedSetup, ASignalHandlerWithoutRestartInterruptsARead) {
  auto [alice, bob] = connected_pair();
  struct sigaction action {
  }, old{};
  action.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &old), 0);
  std::atomic<bool> ended = false;
  const pthread_t reader = ::pthread_self();
  // Signals are sent until one falls into the read: which moment that is, nobody can know.
  std::thread disturber([&] {
    while (!ended) {
      ::pthread_kill(reader, SIGUSR1);
      std::this_thread::yield();
    }
  });
  char byte = 0;
  EXPECT_EQ(::read(bob, &byte, 1), -1);
  EXPECT_EQ(errno, EINTR);
  ended = true;
  disturber.join();
  ::sigaction(SIGUSR1, &old, nullptr);
}

TEST(PreloadedSetup, DuplicatesAreTheSameConnectionUntilTheLastIsClosed) {
  auto [alice, bob] = connected_pair();
  Fd copy(::dup(bob));
  Fd third(::fcntl(bob, F_DUPFD_CLOEXEC, 100));
  EXPECT_GE(third, 100);
  bob.reset();
  ASSERT_EQ(::write(alice, "one", 3), 3);
  EXPECT_EQ(read_all(copy, 3), "one");
  copy.reset();
  ASSERT_EQ(::write(alice, "two", 3), 3);
  EXPECT_EQ(read_all(third, 3), "two");
  third.reset();
  EXPECT_EQ(read_all(alice, 1), "");
}

/// The number becomes the ring's while the duplicate is still the kernel's socket.
TEST(PreloadedSetup, ADuplicateFromBeforeTheConnectionKeepsItWhenTheOriginalIsClosed) {
  const Fd listener = listening(AF_INET, 0);
  Address there = name_of(listener);
  for (const bool by_fcntl : {false, true}) {
    Fd original(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    ASSERT_EQ(::connect(original, there.get(), there.length), -1);
    ASSERT_EQ(errno, EINPROGRESS);
    const Fd duplicate(by_fcntl ? ::fcntl(original, F_DUPFD_CLOEXEC, 0) : ::dup(original));
    const Fd accepted(::accept(listener, nullptr, nullptr));
    ASSERT_EQ(poll_once(original, POLLOUT, 5000), POLLOUT);
    EXPECT_EQ(is_on_ring(original), preloaded());
    original.reset();
    ASSERT_EQ(::fcntl(duplicate, F_SETFL, 0), 0);
    EXPECT_EQ((::fcntl(duplicate, F_GETFD) & FD_CLOEXEC) != 0, by_fcntl);
    ASSERT_EQ(::send(duplicate, "hello", 5, 0), 5);
    EXPECT_EQ(read_all(accepted, 5), "hello");
    ASSERT_EQ(::send(accepted, "reply", 5, 0), 5);
    EXPECT_EQ(read_all(duplicate, 5), "reply");
  }
}

TEST(PreloadedSetup, AClosedNumberIsFreeAtOnceThoughADuplicateLives) {
  auto [alice, bob] = connected_pair();
  const int number = bob;
  const Fd copy(::dup(bob));
  bob.reset();
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
  EXPECT_EQ(errno, EBADF);
}

/// Sanitizers make a connection twenty times as expensive.
constexpr int kRoundsBesideAnOpener = support::kHasAddressSanitizer || support::kHasThreadSanitizer ? 300 : 1500;

/// Opens files, and looks whether they stay what they are, while `body` runs.
template <class Body>
void expect_files_stay(Body body) {
  std::atomic<bool> goes_on{true};
  int lost = 0;
  std::thread opener([&] {
    while (goes_on.load()) {
      const Fd file(::open("/dev/null", O_RDWR | O_CLOEXEC));
      const char byte = 0;
      for (int look = 0; look < 20; ++look) {
        if (::write(file, &byte, 1) != 1 || ::lseek(file, 0, SEEK_CUR) < 0) ++lost;
      }
    }
  });
  body();
  goes_on.store(false);
  opener.join();
  EXPECT_EQ(lost, 0);
}

TEST(PreloadedSetup, ClosingTheFirstOfTwoNumbersTakesNoOtherThreadsFile) {
  expect_files_stay([] {
    const Fd listener = listening(AF_INET);
    for (int round = 0; round < kRoundsBesideAnOpener; ++round) {
      Fd alice = connected_to(listener);
      const Fd bob(::accept(listener, nullptr, nullptr));
      const Fd copy(::dup(alice));
      alice.reset();
      EXPECT_EQ(::send(copy, "x", 1, MSG_NOSIGNAL), 1) << std::strerror(errno);
      char got = 0;
      EXPECT_EQ(::recv(bob, &got, 1, 0), 1);
    }
  });
}

TEST(PreloadedSetup, Dup2OntoAConnectionTakesNoOtherThreadsFile) {
  expect_files_stay([] {
    const Fd listener = listening(AF_INET);
    const Fd null(::open("/dev/null", O_RDWR));
    for (int round = 0; round < kRoundsBesideAnOpener; ++round) {
      const Fd alice = connected_to(listener);
      const Fd bob(::accept(listener, nullptr, nullptr));
      ASSERT_EQ(::dup2(null, alice), int(alice));
      char got = 0;
      EXPECT_EQ(::recv(bob, &got, 1, 0), 0);
    }
  });
}

TEST(PreloadedSetup, Dup2ClosesWhatWasThere) {
  auto [alice, bob] = connected_pair();
  auto [carol, dave] = connected_pair();
  ASSERT_EQ(::dup2(dave, bob), int(bob));
  EXPECT_EQ(read_all(alice, 1), "") << "bob's end is closed";
  ASSERT_EQ(::write(carol, "x", 1), 1);
  EXPECT_EQ(read_all(bob, 1), "x") << "his number is dave's now";
  dave.reset();
  ASSERT_EQ(::write(carol, "y", 1), 1);
  EXPECT_EQ(read_all(bob, 1), "y");
}

TEST(PreloadedSetup, Dup2OfAFileOntoAConnectionEndsIt) {
  auto [alice, bob] = connected_pair();
  const Fd null(::open("/dev/null", O_RDWR));
  ASSERT_EQ(::dup2(null, bob), int(bob));
  EXPECT_EQ(read_all(alice, 1), "");
  EXPECT_EQ(::write(bob, "gone", 4), 4) << "to /dev/null";
  ASSERT_EQ(::dup2(bob, bob), int(bob));
}

/// Until the connection manager has heard of the peer's end, too: only who sleeps listens to it.
void hear_of_the_end(int fd) {
  const Fd set(::epoll_create1(0));
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
  while (::epoll_wait(set, &event, 1, 50) > 0) EXPECT_EQ(read_all(fd, 1), "");
}

TEST(PreloadedSetup, ANumberThatANewFileTookFromAnEndedConnectionStaysTheFiles) {
  auto [alice, bob] = connected_pair();
  alice = Fd();
  hear_of_the_end(bob);
  const Fd null(::open("/dev/null", O_RDWR));
  ASSERT_EQ(::dup2(null, bob), int(bob));
  EXPECT_EQ(::write(bob, "gone", 4), 4) << "the connection's own end must not close it";
}

TEST(PreloadedSetup, TheFirstNumberOfAnEndedConnectionIsFreeThoughADuplicateLives) {
  auto [alice, bob] = connected_pair();
  alice = Fd();
  hear_of_the_end(bob);
  const int number = bob;
  const Fd copy(::dup(bob));
  bob.reset();
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(read_all(copy, 1), "");
}

TEST(PreloadedSetup, CloseRangeClosesConnections) {
  auto [alice, bob] = connected_pair();
  const int high = ::fcntl(bob, F_DUPFD, 500);
  ASSERT_GE(high, 500);
  bob.reset();
  ASSERT_EQ(::close_range(500, 600, 0), 0);
  EXPECT_EQ(read_all(alice, 1), "");
}

TEST(PreloadedSetup, ShutdownOfAListenerWakesWhoAccepts) {
  const Fd listener = listening();
  std::thread closer([fd = int(listener)] { ::shutdown(fd, SHUT_RDWR); });
  EXPECT_EQ(::accept(listener, nullptr, nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
  closer.join();
}

TEST(PreloadedSetup, AListenerThatWasShutDownRefusesClientsUntilItListensAgain) {
  const Fd listener = listening();
  Address address = name_of(listener);
  const Fd waiting = connected_to(listener);
  ASSERT_EQ(::shutdown(listener, SHUT_RDWR), 0);
  EXPECT_EQ(::accept(listener, nullptr, nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
  char byte = 0;
  EXPECT_EQ(::recv(waiting, &byte, 1, 0), -1) << "nobody will accept it";
  EXPECT_EQ(errno, ECONNRESET);
  const Fd refused(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(::connect(refused, address.get(), address.length), -1);
  EXPECT_EQ(errno, ECONNREFUSED);

  ASSERT_EQ(::listen(listener, 8), 0);
  const Fd client = connected_to(listener);
  const Fd server(::accept(listener, nullptr, nullptr));
  ASSERT_GE(server, 0);
  EXPECT_EQ(is_on_ring(client), preloaded());
  ASSERT_EQ(::send(client, "again", 5, 0), 5);
  EXPECT_EQ(read_all(server, 5), "again");
}

TEST(PreloadedSetup, AListenerThatWasShutDownIsPolledAsTheKernelsIs) {
  const Fd listener = listening();
  const Fd set(::epoll_create1(0));
  epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP, .data = {}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, listener, &event), 0);
  ASSERT_EQ(::shutdown(listener, SHUT_RD), 0);
  EXPECT_EQ(poll_once(listener, POLLIN | POLLOUT | POLLRDHUP), POLLOUT | POLLHUP);
  EXPECT_EQ(::epoll_wait(set, &event, 1, 0), 1);
  EXPECT_EQ(event.events, EPOLLOUT | EPOLLHUP);
}

TEST(PreloadedSetup, AShutdownBeforeTheConnectCountsAfterIt) {
  const Fd listener = listening();
  Address there = name_of(listener);
  const Fd alice(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(::shutdown(alice, SHUT_WR), -1);
  EXPECT_EQ(errno, ENOTCONN);
  ASSERT_EQ(::connect(alice, there.get(), there.length), 0);
  EXPECT_EQ(::send(alice, "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
  const Fd bob(::accept(listener, nullptr, nullptr));
  EXPECT_EQ(::send(bob, "x", 1, 0), 1);
  EXPECT_EQ(read_all(alice, 1), "x");
}

TEST(PreloadedSetup, AListenerThatWasShutDownMayConnect) {
  const Fd listener = listening();
  const Fd alice = listening();
  ASSERT_EQ(::shutdown(alice, SHUT_RDWR), 0);
  Address there = name_of(listener);
  EXPECT_EQ(::connect(alice, there.get(), there.length), 0) << std::strerror(errno);
  const Fd bob(::accept(listener, nullptr, nullptr));
  ASSERT_EQ(::send(bob, "hello", 5, 0), 5);
  EXPECT_EQ(read_all(alice, 5), "hello");
}

/// Since Linux 6.9.
TEST(PreloadedSetup, APeekBeginsAtItsOffset) {
  const Fd listener = listening();
  const Fd alice = connected_to(listener);
  const Fd bob(::accept(listener, nullptr, nullptr));
  ASSERT_EQ(::send(alice, "0123456789", 10, 0), 10);
  const int offset = 4;
  const Fd plain(static_cast<int>(raw_syscall(SYS_socket, AF_INET, SOCK_STREAM, 0)));
  if (raw_syscall(SYS_setsockopt, int(plain), SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset) != 0)
    GTEST_SKIP() << "the kernel's TCP has no offsets";
  ASSERT_EQ(::setsockopt(bob, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset), 0);
  char bytes[4] = {};
  EXPECT_EQ(::recv(bob, bytes, 3, MSG_PEEK | MSG_WAITALL), 3);
  EXPECT_STREQ(bytes, "456");
  EXPECT_EQ(::recv(bob, bytes, 3, MSG_PEEK | MSG_WAITALL), 3);
  EXPECT_STREQ(bytes, "789");
  EXPECT_EQ(read_all(bob, 10), "0123456789");
}

TEST(PreloadedSetup, ANameWithoutRoomIsNotWritten) {
  auto [alice, bob] = connected_pair();
  socklen_t none = 0;
  EXPECT_EQ(::getsockname(alice, nullptr, &none), 0);
  EXPECT_EQ(none, sizeof(sockaddr_in));
  none = 0;
  EXPECT_EQ(::getpeername(alice, nullptr, &none), 0);
  none = 1;
  EXPECT_EQ(::getpeername(alice, nullptr, &none), -1);
  EXPECT_EQ(errno, EFAULT);
}

TEST(PreloadedSetup, UnconnectedSocketsAnswerAsLinuxSays) {
  const Fd fd(::socket(AF_INET, SOCK_STREAM, 0));
  char byte = 0;
  EXPECT_EQ(::recv(fd, &byte, 1, 0), -1);
  EXPECT_EQ(errno, ENOTCONN);
  EXPECT_EQ(::send(fd, &byte, 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
  Address peer;
  peer.length = sizeof peer.storage;
  EXPECT_EQ(::getpeername(fd, peer.get(), &peer.length), -1);
  EXPECT_EQ(errno, ENOTCONN);
  EXPECT_EQ(::shutdown(fd, SHUT_RDWR), -1);
  EXPECT_EQ(errno, ENOTCONN);
  EXPECT_EQ(::accept(fd, nullptr, nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST(PreloadedSetup, AConnectedSocketCannotConnectAgain) {
  const Fd listener = listening();
  const Fd alice = connected_to(listener);
  Address there = name_of(listener);
  EXPECT_EQ(::connect(alice, there.get(), there.length), -1);
  EXPECT_EQ(errno, EISCONN);
}

TEST(PreloadedSetup, APortInUseIsRefusedToTheNext) {
  const Fd first = listening();
  Address taken = name_of(first);
  const Fd second(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(::bind(second, taken.get(), taken.length), -1);
  EXPECT_EQ(errno, EADDRINUSE);
}

TEST(PreloadedSetup, WhatFollowsANonBlockingConnectFindsItDone) {
  const auto name = [](int fd) { return name_of(fd).length == 0 ? -1 : 0; };
  const auto peer = [](int fd) {
    Address out;
    out.length = sizeof out.storage;
    return ::getpeername(fd, out.get(), &out.length);
  };
  const auto error = [](int fd) {
    int value = -1;
    socklen_t length = sizeof value;
    return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &length) == 0 ? value : -1;
  };
  const auto end = [](int fd) { return ::shutdown(fd, SHUT_WR); };
  for (int (*ask)(int) : std::initializer_list<int (*)(int)>{name, peer, error, end}) {
    const Fd listener = listening();
    Address there = name_of(listener);
    const Fd alice(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    EXPECT_LE(::connect(alice, there.get(), there.length), 0);
    ::close(::accept(listener, nullptr, nullptr));
    EXPECT_EQ(ask(alice), 0) << "the connection was made, and ended in order";
  }
}

TEST(PreloadedSetup, AClientsPortStaysTakenWhileItIsConnected) {
  const Fd listener = listening();
  Fd alice(::socket(AF_INET, SOCK_STREAM, 0));
  Address any = Address::loopback(AF_INET, 0);
  ASSERT_EQ(::bind(alice, any.get(), any.length), 0);
  Address hers = name_of(alice);
  Address there = name_of(listener);
  ASSERT_EQ(::connect(alice, there.get(), there.length), 0);
  Fd bob(::accept(listener, nullptr, nullptr));
  const Fd second(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(::bind(second, hers.get(), hers.length), -1);
  EXPECT_EQ(errno, EADDRINUSE);
  bob = Fd();  // first: the kernel keeps the port of who closes first
  alice = Fd();
  EXPECT_EQ(::bind(second, hers.get(), hers.length), 0);
}

TEST(PreloadedSetup, APortThatConnectGaveStaysTakenWhileItIsConnected) {
  const Fd listener = listening();
  const Fd alice = connected_to(listener);
  const Fd bob(::accept(listener, nullptr, nullptr));
  Address hers = name_of(alice);
  Address everywhere = hers;
  reinterpret_cast<sockaddr_in*>(&everywhere.storage)->sin_addr.s_addr = INADDR_ANY;
  Address twice = hers;
  const Fd second(::socket(AF_INET, SOCK_STREAM, 0));
  for (Address* taken : {&hers, &everywhere}) {
    EXPECT_EQ(::bind(second, taken->get(), taken->length), -1);
    EXPECT_EQ(errno, EADDRINUSE);
  }
  EXPECT_EQ(::bind(alice, twice.get(), twice.length), -1);
  EXPECT_EQ(errno, EINVAL) << "it has that port itself";
}

/// The kernel, which does not know such ports, may have some of them for other programs' connections, but not all.
TEST(PreloadedSetup, APortThatConnectGaveIsFreeAfterwards) {
  constexpr int kConnections = 20;
  const Fd listener = listening();
  int free = 0;
  for (int i = 0; i < kConnections; ++i) {
    Fd alice = connected_to(listener);
    Fd bob(::accept(listener, nullptr, nullptr));
    Address hers = name_of(alice);
    const Fd second(::socket(AF_INET, SOCK_STREAM, 0));
    EXPECT_EQ(::bind(second, hers.get(), hers.length), -1);
    EXPECT_EQ(errno, EADDRINUSE);
    bob = Fd();  // first: the kernel keeps the port of who closes first
    alice = Fd();
    free += ::bind(second, hers.get(), hers.length) == 0 ? 1 : 0;
  }
  EXPECT_GT(free, 0);
}

TEST(PreloadedSetup, AClosedConnectionLeavesNoDescriptorBehind) {
  const auto open_descriptors = [] {
    int count = 0;
    DIR* const dir = ::opendir("/proc/self/fd");
    while (::readdir(dir) != nullptr) ++count;
    ::closedir(dir);
    return count;
  };
  const Fd listener = listening();
  const auto one_round = [&] {
    const Fd alice = connected_to(listener);
    const Fd bob(::accept(listener, nullptr, nullptr));
    EXPECT_EQ(::write(alice, "x", 1), 1);
    EXPECT_EQ(read_all(bob, 1), "x");
  };
  for (int i = 0; i < 40; ++i) one_round();  // caches fill
  const int before = open_descriptors();
  for (int i = 0; i < 40; ++i) one_round();
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace ringsock::preload_tests
