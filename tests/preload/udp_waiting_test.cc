// Calls that wait for datagrams of rings and of the kernel's socket.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>

#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <thread>

#include "tests/preload/udp_world.h"
#include "tests/support/thread_status.h"

namespace ringsock::preload_tests {
namespace {

/// Runs `wait` in a thread, and `act` once that sleeps.
template <class Wait, class Act>
void while_asleep(Wait wait, Act act) {
  std::atomic<pid_t> thread{0};
  std::thread waiting([&] {
    thread = static_cast<pid_t>(::syscall(SYS_gettid));
    wait();
  });
  while (thread == 0) std::this_thread::yield();
  ASSERT_TRUE(support::falls_asleep(thread));
  act();
  waiting.join();
}

TEST(UdpWaiting, ADatagramOfARingWakesAReceiver) {
  const UdpPair pair;
  while_asleep([&] { EXPECT_EQ(pair.bob.receive(), "wake up"); }, [&] { pair.alice.send_to(pair.bob, "wake up"); });
}

// A receiver that was about to sleep took the bell of a datagram, and slept beside it.
TEST(UdpWaiting, ManyRoundsOfBlockingReceiversGoOn) {
  constexpr int kRounds = 20'000;
  const UdpPair pair;
  const timeval limit{5, 0};
  for (const Udp* end : {&pair.alice, &pair.bob})
    ASSERT_EQ(::setsockopt(*end, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  std::thread echo([&] {
    for (int i = 0; i < kRounds && pair.bob.receive() == "ping"; ++i) pair.bob.send_to(pair.alice, "pong");
  });
  int done = 0;
  for (; done < kRounds; ++done) {
    pair.alice.send_to(pair.bob, "ping");
    if (pair.alice.receive() != "pong") break;
  }
  echo.join();
  EXPECT_EQ(done, kRounds);
}

TEST(UdpWaiting, PollTellsOfRoomByAllItsNames) {
  const UdpPair pair;
  constexpr short kRoom = POLLOUT | POLLWRNORM | POLLWRBAND;
  pollfd entry{pair.bob, POLLIN | POLLPRI | POLLRDNORM | kRoom, 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 1);
  EXPECT_EQ(entry.revents, kRoom);
  pair.alice.send_to(pair.bob, "one");
  EXPECT_EQ(::poll(&entry, 1, 0), 1);
  EXPECT_EQ(entry.revents, POLLIN | POLLRDNORM | kRoom);
}

TEST(UdpWaiting, ADatagramOfTheKernelWakesAReceiver) {
  const UdpPair pair;
  const Udp carol;
  while_asleep([&] { EXPECT_EQ(pair.bob.receive(), "wake up"); }, [&] { carol.send_to(pair.bob, "wake up"); });
}

// The kernel keeps the file as long as a call that waits in it.
TEST(UdpWaiting, AReceiverGoesOnWhenItsNumberBecomesAnotherSocket) {
  const UdpPair pair;
  const Udp other;
  const sockaddr_in bob = pair.bob.name();
  while_asleep([&] { EXPECT_EQ(pair.bob.receive(), "to the old socket"); },
               [&] {
                 ASSERT_EQ(::dup2(other, pair.bob), int{pair.bob});
                 pair.alice.send_to(bob, "to the old socket");
               });
  pair.alice.send_to(other, "to the new one");
  EXPECT_EQ(pair.bob.receive(), "to the new one");
}

TEST(UdpWaiting, AReceiverGoesOnWhenItsNumberIsClosed) {
  const UdpPair pair;
  const sockaddr_in bob = pair.bob.name();
  const int number = pair.bob;
  while_asleep([&] { EXPECT_EQ(pair.bob.receive(), "last words"); },
               [&] {
                 ASSERT_EQ(::close(number), 0);
                 EXPECT_EQ(::fcntl(number, F_GETFD), -1);
                 pair.alice.send_to(bob, "last words");
               });
  // Nobody has the port any more.
  EXPECT_EQ(::open("/dev/null", O_RDONLY), number);
  const Udp again(Udp::Bound::yes, 0, ntohs(bob.sin_port));
}

TEST(UdpWaiting, ANewSenderWakesAReceiver) {
  const UdpPair pair;
  const Udp carol;
  warm_up(carol, pair.alice);  // carol knows rings, but has none to bob
  for (int i = 0; i < 30; ++i) {
    while_asleep([&] { EXPECT_EQ(pair.bob.receive(), "wake up"); }, [&] { carol.send_to(pair.bob, "wake up"); });
  }
}

TEST(UdpWaiting, TwoReceiversGetOneDatagramEach) {
  const UdpPair pair;
  while_asleep([&] { EXPECT_EQ(pair.bob.receive(), "wake up"); },
               [&] {
                 while_asleep([&] { EXPECT_EQ(pair.bob.receive(), "wake up"); },
                              [&] {
                                pair.alice.send_to(pair.bob, "wake up");
                                pair.alice.send_to(pair.bob, "wake up");
                              });
               });
}

// Each sender of a receiver that slept once used the kernel for its next datagram, long after that receiver was awake.
TEST(UdpWaiting, AReceiverIsWokenByOneOfItsSenders) {
  const UdpPair pair;
  const Udp carol;
  warm_up(carol, pair.bob);
  while_asleep([&] { EXPECT_EQ(pair.bob.receive(), "wake up"); }, [&] { pair.alice.send_to(pair.bob, "wake up"); });
  carol.send_to(pair.bob, "by the ring");
  EXPECT_EQ(pair.bob.kernel_has_one(), !has_rings());
  EXPECT_EQ(pair.bob.receive(), "by the ring");
}

TEST(UdpWaiting, EndsWithTheTimeLimit) {
  const UdpPair pair;
  const timeval limit{0, 20'000};
  ASSERT_EQ(::setsockopt(pair.bob, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  EXPECT_EQ(pair.bob.receive(), kAgain);
  pair.alice.send_to(pair.bob, "in time");
  EXPECT_TRUE(pair.bob.kernel_has_one());  // as it carries what wakes a sleeper
  pair.alice.send_to(pair.bob, "by ring");
  EXPECT_EQ(pair.bob.receive(), "in time");
  EXPECT_EQ(pair.bob.kernel_has_one(), !has_rings());
  EXPECT_EQ(pair.bob.receive(), "by ring");
}

/// A socket whose peers are not served by rings waits in the kernel, as it does without the library.
TEST(UdpWaiting, WithoutRingsEndsAsTheKernelsDoes) {
  const Udp bob, alice;
  const timeval limit{0, 20'000};
  ASSERT_EQ(::setsockopt(bob, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  EXPECT_EQ(bob.receive(), kAgain);
  alice.send_to(bob, "in time");
  EXPECT_EQ(bob.receive(MSG_PEEK), "in time");
  EXPECT_EQ(bob.receive(), "in time");
  EXPECT_EQ(bob.receive(MSG_DONTWAIT), kAgain);
}

TEST(UdpWaiting, WithoutRingsIsInterruptedByASignalsHandler) {
  const Udp bob;
  struct sigaction action {};
  action.sa_handler = [](int) {};
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  const pthread_t waiter = ::pthread_self();
  std::atomic<bool> is_over = false;
  std::thread caller([&] {
    while (!is_over) {
      ::pthread_kill(waiter, SIGUSR1);
      ::usleep(1000);
    }
  });
  EXPECT_EQ(bob.receive(), "<errno " + std::to_string(EINTR) + ">");
  is_over = true;
  caller.join();
  ASSERT_EQ(::sigaction(SIGUSR1, &before, nullptr), 0);
}

TEST(UdpWaiting, WithoutRingsACancelledThreadLeavesTheSocketUsable) {
  const Udp bob, alice;
  std::thread waiter([&] { static_cast<void>(bob.receive()); });
  ::usleep(20'000);
  ::pthread_cancel(waiter.native_handle());
  waiter.join();
  warm_up(alice, bob);
}

/// A thread that waits in the kernel keeps the socket's rings away until it has got something.
TEST(UdpWaiting, ThreadsThatShareASocketGetAllDatagrams) {
  constexpr int kDatagrams = 3000, kThreads = 3;
  const Udp bob, alice;
  std::atomic<int> came = 0;
  std::vector<std::thread> readers;
  readers.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    readers.emplace_back([&] {
      while (bob.receive() != "end") ++came;
    });
  }
  for (int i = 0; i < kDatagrams; ++i) {
    alice.send_to(bob, "one");
    while (came <= i) ::sched_yield();
  }
  for (int i = 0; i < kThreads; ++i) alice.send_to(bob, "end");
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(came, kDatagrams);
}

TEST(UdpWaiting, DoesNotHappenOnANonblockingSocket) {
  const UdpPair pair;
  EXPECT_EQ(pair.bob.receive(MSG_DONTWAIT), kAgain);
  pair.alice.send_to(pair.bob, "there");
  EXPECT_EQ(pair.bob.receive(MSG_DONTWAIT), "there");
  const Udp carol(Udp::Bound::yes, SOCK_NONBLOCK);
  EXPECT_EQ(carol.receive(), kAgain);
}

TEST(UdpWaiting, ANonblockingReceiverThatNeverSleepsGetsRings) {
  const Udp alice;
  const Udp bob(Udp::Bound::yes, SOCK_NONBLOCK);
  for (int i = 0; i < 200; ++i) {
    alice.send_to(bob, std::to_string(i));
    std::string got = kAgain;
    while (got == kAgain) got = bob.receive();
    ASSERT_EQ(got, std::to_string(i));
    if (i < 20) ::usleep(1000);
  }
  alice.send_to(bob, "the last");
  EXPECT_EQ(bob.kernel_has_one(), !has_rings());
}

TEST(UdpWaiting, PollTellsOfBothWays) {
  const UdpPair pair;
  const Udp carol;
  EXPECT_FALSE(pair.bob.is_readable());
  pair.alice.send_to(pair.bob, "ring");
  EXPECT_TRUE(pair.bob.is_readable());
  EXPECT_EQ(pair.bob.receive(), "ring");
  EXPECT_FALSE(pair.bob.is_readable());
  carol.send_to(pair.bob, "kernel");
  EXPECT_TRUE(pair.bob.is_readable());
  EXPECT_EQ(pair.bob.receive(), "kernel");
  EXPECT_FALSE(pair.bob.is_readable(10));
  pollfd entry{pair.bob, POLLIN | POLLOUT, 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 1);
  EXPECT_EQ(entry.revents, POLLOUT);
}

TEST(UdpWaiting, PollWakesForBothWays) {
  const UdpPair pair;
  const Udp carol;
  while_asleep([&] { EXPECT_TRUE(pair.bob.is_readable(10'000)); }, [&] { pair.alice.send_to(pair.bob, "ring"); });
  EXPECT_EQ(pair.bob.receive(), "ring");
  while_asleep([&] { EXPECT_TRUE(pair.bob.is_readable(10'000)); }, [&] { carol.send_to(pair.bob, "kernel"); });
  EXPECT_EQ(pair.bob.receive(), "kernel");
}

TEST(UdpWaiting, SelectWakesForARing) {
  const UdpPair pair;
  while_asleep(
      [&] {
        fd_set readable;
        FD_ZERO(&readable);
        FD_SET(pair.bob, &readable);
        timeval limit{10, 0};
        EXPECT_EQ(::select(pair.bob + 1, &readable, nullptr, nullptr, &limit), 1);
        EXPECT_TRUE(FD_ISSET(pair.bob, &readable));
      },
      [&] { pair.alice.send_to(pair.bob, "ring"); });
}

/// Bob in an epoll set.
struct Watched : UdpPair {
  explicit Watched(std::uint32_t events) : set(::epoll_create1(0)) {
    epoll_event event{events, {.u64 = 7}};
    EXPECT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, bob, &event), 0);
  }
  /// The events of bob, 0 when there are none.
  [[nodiscard]] std::uint32_t wait(int milliseconds) const {
    epoll_event event{};
    const int count = ::epoll_wait(set, &event, 1, milliseconds);
    if (count != 1) return 0;
    EXPECT_EQ(std::uint64_t{event.data.u64}, 7U);  // it is not aligned
    return event.events;
  }
  Udp set;
};

TEST(UdpWaiting, EpollTellsOfBothWays) {
  const Watched pair(EPOLLIN);
  const Udp carol;
  EXPECT_EQ(pair.wait(0), 0U);
  pair.alice.send_to(pair.bob, "ring");
  EXPECT_EQ(pair.wait(0), EPOLLIN);
  EXPECT_EQ(pair.wait(0), EPOLLIN);
  EXPECT_EQ(pair.bob.receive(), "ring");
  EXPECT_EQ(pair.wait(0), 0U);
  carol.send_to(pair.bob, "kernel");
  EXPECT_EQ(pair.wait(1000), EPOLLIN);
  EXPECT_EQ(pair.bob.receive(), "kernel");
  EXPECT_EQ(pair.wait(10), 0U);
}

TEST(UdpWaiting, EpollWakesForBothWays) {
  const Watched pair(EPOLLIN);
  const Udp carol;
  for (int i = 0; i < 10; ++i) {
    while_asleep([&] { EXPECT_EQ(pair.wait(10'000), EPOLLIN); }, [&] { pair.alice.send_to(pair.bob, "ring"); });
    EXPECT_EQ(pair.bob.receive(), "ring");
    while_asleep([&] { EXPECT_EQ(pair.wait(10'000), EPOLLIN); }, [&] { carol.send_to(pair.bob, "kernel"); });
    EXPECT_EQ(pair.bob.receive(), "kernel");
  }
}

TEST(UdpWaiting, AnEdgeComesWithNewDatagramsOnly) {
  const Watched pair(EPOLLIN | EPOLLET);
  pair.alice.send_to(pair.bob, "one");
  EXPECT_EQ(pair.wait(1000), EPOLLIN);
  EXPECT_EQ(pair.wait(0), 0U);
  EXPECT_EQ(pair.bob.receive(), "one");
  EXPECT_EQ(pair.wait(0), 0U);
  pair.alice.send_to(pair.bob, "two");
  EXPECT_EQ(pair.wait(1000), EPOLLIN);
  EXPECT_EQ(pair.bob.receive(), "two");
}

TEST(UdpWaiting, AnEdgeComesForADatagramThatArrivesBetweenTheLastReceiveAndTheNextWait) {
  const Watched pair(EPOLLIN | EPOLLET);
  for (int i = 0; i < 10; ++i) {
    pair.alice.send_to(pair.bob, "ring");
    ASSERT_EQ(pair.wait(1000), EPOLLIN) << i;
    EXPECT_EQ(pair.bob.receive(), "ring");
    char none = 0;
    EXPECT_EQ(::recv(pair.bob, &none, 1, MSG_DONTWAIT), -1);
  }
}

TEST(UdpWaiting, ADisabledMemberStaysSilentWhenItsSocketBecomesTheKernels) {
  const Watched pair(EPOLLIN | EPOLLOUT | EPOLLONESHOT);
  std::optional<Udp> nobody(std::in_place);
  pair.bob.connect(nobody->name());
  nobody.reset();
  EXPECT_EQ(pair.wait(100), EPOLLOUT);
  const int on = 1;
  ASSERT_EQ(::setsockopt(pair.bob, IPPROTO_IP, IP_PKTINFO, &on, sizeof on), 0);
  for (int i = 0; i < 3; ++i) {
    static_cast<void>(::send(pair.bob, "into the void", 4, 0));  // an error comes back
    EXPECT_EQ(pair.wait(20), 0U);
  }
  epoll_event event{EPOLLIN, {.u64 = 7}};
  ASSERT_EQ(::epoll_ctl(pair.set, EPOLL_CTL_MOD, pair.bob, &event), 0);
  EXPECT_EQ(pair.wait(100), EPOLLERR);
}

TEST(UdpWaiting, ASocketInASetGetsARingLater) {
  const Udp alice, bob;
  const Udp set(::epoll_create1(0));
  epoll_event event{EPOLLIN, {.u64 = 7}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, bob, &event), 0);
  for (int i = 0; i < 100; ++i) {
    alice.send_to(bob, std::to_string(i));
    ASSERT_EQ(::epoll_wait(set, &event, 1, 10'000), 1);
    ASSERT_EQ(bob.receive(MSG_DONTWAIT), std::to_string(i));
    if (i < 20) ::usleep(1000);
  }
  alice.send_to(bob, "the last");
  EXPECT_EQ(bob.kernel_has_one(), !has_rings());
}

}  // namespace
}  // namespace ringsock::preload_tests
