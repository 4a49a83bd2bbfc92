// poll, select, epoll over connections and other descriptors.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <utility>
#include <vector>

#include "tests/preload/tcp_world.h"
#include "tests/support/raw_syscall.h"
#include "tests/support/signals.h"
#include "tests/support/thread_status.h"

namespace ringsock::preload_tests {
namespace {

int add(int set, int fd, std::uint32_t events) {
  epoll_event event{events, {.fd = fd}};
  return ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
}

TEST(PreloadedWaiting, PollTellsOfDataAndOfTheEnd) {
  auto [alice, bob] = connected_pair();
  EXPECT_EQ(poll_once(bob, POLLIN), 0);
  EXPECT_EQ(poll_once(bob, POLLIN | POLLOUT), POLLOUT);
  ASSERT_EQ(::write(alice, "x", 1), 1);
  EXPECT_EQ(poll_once(bob, POLLIN, 1000), POLLIN);
  alice.reset();
  EXPECT_NE(poll_once(bob, POLLRDHUP, 1000) & POLLRDHUP, 0);
}

TEST(PreloadedWaiting, PollSleepsUntilWokenBesidesPipesAndTimers) {
  auto [alice, bob] = connected_pair();
  const Fd timer(::timerfd_create(CLOCK_MONOTONIC, 0));
  const Fd event(::eventfd(0, 0));
  std::array<pollfd, 3> entries{{{bob, POLLIN, 0}, {timer, POLLIN, 0}, {event, POLLIN, 0}}};
  EXPECT_EQ(::poll(entries.data(), 3, 20), 0);
  const itimerspec soon{{}, {0, 10'000'000}};
  ASSERT_EQ(::timerfd_settime(timer, 0, &soon, nullptr), 0);
  EXPECT_EQ(::poll(entries.data(), 3, 5000), 1);
  EXPECT_EQ(entries[1].revents, POLLIN);
  std::thread writer([fd = int(alice)] { EXPECT_EQ(::write(fd, "x", 1), 1); });
  entries[1].fd = -1;
  EXPECT_EQ(::poll(entries.data(), 3, 5000), 1);
  EXPECT_EQ(entries[0].revents, POLLIN);
  writer.join();
}

TEST(PreloadedWaiting, PollRefusesMoreEntriesThanTheProcessMayHaveDescriptors) {
  constexpr rlim_t kLimit = 100;
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::write(alice, "x", 1), 1);
  std::vector<pollfd> entries(kLimit + 1, pollfd{-1, POLLIN, 0});
  entries[0].fd = bob;
  EXPECT_EQ(::poll(entries.data(), kLimit + 1, 1000), 1);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit small{kLimit, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
  const timespec none{};
  EXPECT_EQ(::poll(entries.data(), kLimit + 1, 0), -1);
  EXPECT_EQ(std::exchange(errno, 0), EINVAL);
  EXPECT_EQ(::ppoll(entries.data(), kLimit + 1, &none, nullptr), -1);
  EXPECT_EQ(std::exchange(errno, 0), EINVAL);
  EXPECT_EQ(::poll(entries.data(), kLimit, 1000), 1);
  EXPECT_EQ(errno, 0);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(PreloadedWaiting, PpollLetsASignalThrough) {
  auto [alice, bob] = connected_pair();
  const support::Disposition handled(SIGUSR2);
  sigset_t blocked, before;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGUSR2);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &blocked, &before), 0);
  ASSERT_EQ(::pthread_kill(::pthread_self(), SIGUSR2), 0);
  pollfd entry{bob, POLLIN, 0};
  EXPECT_EQ(::ppoll(&entry, 1, nullptr, &before), -1);
  EXPECT_EQ(errno, EINTR);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(PreloadedWaiting, SelectAndPselectCountConnections) {
  auto [alice, bob] = connected_pair();
  fd_set readable, writable;
  FD_ZERO(&readable);
  FD_ZERO(&writable);
  FD_SET(bob, &readable);
  FD_SET(bob, &writable);
  timeval at_once{};
  ASSERT_EQ(::select(bob + 1, &readable, &writable, nullptr, &at_once), 1);
  EXPECT_FALSE(FD_ISSET(bob, &readable));
  EXPECT_TRUE(FD_ISSET(bob, &writable));
  ASSERT_EQ(::write(alice, "x", 1), 1);
  FD_SET(bob, &readable);
  const timespec second{1, 0};
  ASSERT_EQ(::pselect(bob + 1, &readable, nullptr, nullptr, &second, nullptr), 1);
  EXPECT_TRUE(FD_ISSET(bob, &readable));
}

TEST(PreloadedWaiting, EpollTellsLevelsAndEdges) {
  auto [alice, bob] = connected_pair();
  const Fd set(::epoll_create1(EPOLL_CLOEXEC));
  ASSERT_EQ(add(set, bob, EPOLLIN), 0);
  ASSERT_EQ(add(set, alice, EPOLLIN | EPOLLET), 0);
  std::array<epoll_event, 4> events{};
  EXPECT_EQ(::epoll_wait(set, events.data(), 4, 0), 0);
  ASSERT_EQ(::write(alice, "x", 1), 1);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(::epoll_wait(set, events.data(), 4, 1000), 1) << "level: as long as it is there";
    EXPECT_EQ(events[0].data.fd, int(bob));
  }
  ASSERT_EQ(::write(bob, "y", 1), 1);
  EXPECT_EQ(read_all(bob, 1), "x");
  ASSERT_EQ(::epoll_wait(set, events.data(), 4, 1000), 1);
  EXPECT_EQ(events[0].data.fd, int(alice));
  EXPECT_EQ(::epoll_wait(set, events.data(), 4, 0), 0) << "edge: once";
}

TEST(PreloadedWaiting, EpollLeavesTheArrayAloneWhenNothingIsReady) {
  auto [alice, bob] = connected_pair();
  const Fd set(::epoll_create1(EPOLL_CLOEXEC));
  constexpr std::uint64_t kOwn = 0x1122334455667788;
  epoll_event event{EPOLLIN, {.u64 = kOwn}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, bob, &event), 0);
  for (const int timeout : {0, 1, 0}) {
    EXPECT_EQ(::epoll_wait(set, &event, 1, timeout), 0);
    EXPECT_EQ(event.events, std::uint32_t{EPOLLIN});
    EXPECT_EQ(std::uint64_t{event.data.u64}, kOwn);
  }
}

class ClientsOfAListener : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Preloaded, ClientsOfAListener, testing::Bool(),
                         [](const auto& info) { return info.param ? "TakePart" : "AreTheKernels"; });

TEST_P(ClientsOfAListener, AreAnEdgeEachWhoeverTakesThem) {
  const Fd listener = listening(AF_INET, SOCK_NONBLOCK);
  const Fd set(::epoll_create1(0));
  ASSERT_EQ(add(set, listener, EPOLLIN | EPOLLET), 0);
  epoll_event event{};
  const auto edges = [&](int timeout) { return ::epoll_wait(set, &event, 1, timeout); };
  const Fd first = client_of(listener, GetParam());
  EXPECT_EQ(edges(5000), 1);
  const Fd second = client_of(listener, GetParam());
  EXPECT_EQ(edges(5000), 1) << "though none was accepted";
  EXPECT_EQ(edges(0), 0);

  const pid_t child = ::fork();
  if (child == 0) {
    int taken = 0;
    pollfd waiting{listener, POLLIN, 0};
    while (::poll(&waiting, 1, taken == 2 ? 0 : 5000) == 1 && ::accept(listener, nullptr, nullptr) >= 0) ++taken;
    ::_exit(taken);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (!GetParam() || !preloaded()) {
    EXPECT_EQ(WEXITSTATUS(status), 2);  // ring clients may have been taken in by this process before the fork
  }
  // It waits for this process, which has forked and never accepted.
  std::thread third([&] { const Fd client = client_of(listener, GetParam()); });
  EXPECT_EQ(edges(5000), 1) << "though this process has not seen that the queue was empty";
  third.join();
}

TEST(PreloadedWaiting, EpollCtlSaysWhatLinuxSays) {
  auto [alice, bob] = connected_pair();
  const Fd set(::epoll_create1(0));
  epoll_event event{};
  for (const int operation : {EPOLL_CTL_MOD, EPOLL_CTL_DEL}) {
    EXPECT_EQ(::epoll_ctl(set, operation, bob, &event), -1);
    EXPECT_EQ(errno, ENOENT) << "of a set that has no member yet";
  }
  ASSERT_EQ(add(set, bob, EPOLLIN), 0);
  EXPECT_EQ(add(set, bob, EPOLLIN), -1);
  EXPECT_EQ(errno, EEXIST);
  EXPECT_EQ(::epoll_ctl(set, EPOLL_CTL_MOD, alice, &event), -1);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(add(alice, bob, EPOLLIN), -1);
  EXPECT_EQ(errno, EINVAL);
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_DEL, bob, nullptr), 0);
}

TEST(PreloadedWaiting, AThreadThatSleepsInEpollWaitHearsOfAConnectionThatIsAddedLater) {
  const Fd set(::epoll_create1(0));
  auto [alice, bob] = connected_pair();
  std::array<epoll_event, 4> events{};
  int ready = -1;
  std::thread sleeper([&] { ready = ::epoll_wait(set, events.data(), 4, 10'000); });
  ASSERT_EQ(add(set, bob, EPOLLIN), 0);
  ASSERT_EQ(::write(alice, "x", 1), 1);
  sleeper.join();
  ASSERT_EQ(ready, 1);
  EXPECT_EQ(events[0].data.fd, int(bob));
}

TEST(PreloadedWaiting, AllDescriptorsOfASetTellTheSame) {
  int (*const ways[])(int) = {
      [](int set) { return ::dup(set); },
      [](int set) { return ::fcntl(set, F_DUPFD, 40); },
      [](int set) { return ::dup2(set, 60); },
      [](int set) { return ::dup(::dup(set)); },
  };
  for (const auto way : ways) {
    for (const bool through_the_copy : {true, false}) {
      auto [alice, bob] = connected_pair();
      const Fd set(::epoll_create1(0));
      const Fd copy(way(set));
      ASSERT_EQ(add(through_the_copy ? copy : set, bob, EPOLLIN), 0);
      ASSERT_EQ(::write(alice, "x", 1), 1);
      for (const int which : {int(set), int(copy)}) {
        epoll_event event{};
        ASSERT_EQ(::epoll_wait(which, &event, 1, 5000), 1);
        EXPECT_EQ(event.data.fd, int(bob));
      }
    }
  }
}

TEST(PreloadedWaiting, ConnectionsAreToldInTheOrderOfTheirFirstBytes) {
  auto [alice, bob] = connected_pair();
  auto [carol, dave] = connected_pair();
  const Fd set(::epoll_create1(0));
  ASSERT_EQ(add(set, bob, EPOLLIN), 0);
  ASSERT_EQ(add(set, dave, EPOLLIN), 0);
  std::array<epoll_event, 4> events{};
  ASSERT_EQ(::epoll_wait(set, events.data(), 4, 0), 0);
  ASSERT_EQ(::write(carol, "x", 1), 1);
  ASSERT_EQ(::write(alice, "x", 1), 1);
  ASSERT_EQ(::epoll_wait(set, events.data(), 4, 5000), 2);
  EXPECT_EQ(events[0].data.fd, int(dave));
  EXPECT_EQ(events[1].data.fd, int(bob));
}

TEST(PreloadedWaiting, AnEdgeOfANestedSetIsToldOnce) {
  auto [alice, bob] = connected_pair();
  const Fd event(::eventfd(0, EFD_NONBLOCK));
  const Fd inner(::epoll_create1(0));
  const Fd outer(::epoll_create1(0));
  ASSERT_EQ(add(inner, bob, EPOLLIN), 0);
  ASSERT_EQ(add(inner, event, EPOLLIN), 0);
  ASSERT_EQ(add(outer, inner, EPOLLIN | EPOLLET), 0);
  epoll_event told{};
  EXPECT_EQ(::epoll_wait(outer, &told, 1, 20), 0);
  ASSERT_EQ(::eventfd_write(event, 1), 0);
  EXPECT_EQ(::epoll_wait(outer, &told, 1, 5000), 1);
  for (int call = 0; call < 3; ++call) EXPECT_EQ(::epoll_wait(outer, &told, 1, 20), 0) << "nothing came since";
  ASSERT_EQ(::write(alice, "x", 1), 1);
  EXPECT_EQ(::epoll_wait(outer, &told, 1, 5000), 1);
}

TEST(PreloadedWaiting, WhatTheKernelHasHasItsTurnBesideABusyConnection) {
  auto [alice, bob] = connected_pair();
  const Fd event(::eventfd(1, EFD_NONBLOCK));
  const Fd set(::epoll_create1(0));
  ASSERT_EQ(add(set, event, EPOLLIN), 0);
  ASSERT_EQ(add(set, bob, EPOLLIN), 0);
  ASSERT_EQ(::write(alice, "x", 1), 1);
  int of_the_kernel = 0;
  for (int call = 0; call < 100; ++call) {
    epoll_event told{};
    ASSERT_EQ(::epoll_wait(set, &told, 1, 5000), 1);
    if (told.data.fd == int(event)) ++of_the_kernel;
  }
  EXPECT_GE(of_the_kernel, 40);
  EXPECT_LE(of_the_kernel, 60);
}

TEST(PreloadedWaiting, ASetHoldsConnectionsBesideWhatTheKernelHas) {
  auto [alice, bob] = connected_pair();
  const Fd event(::eventfd(0, EFD_NONBLOCK));
  const Fd set(::epoll_create1(0));
  ASSERT_EQ(add(set, event, EPOLLIN), 0);  // a set of the kernel's until here
  ASSERT_EQ(add(set, bob, EPOLLIN), 0);
  std::array<epoll_event, 4> events{};
  ASSERT_EQ(::eventfd_write(event, 1), 0);
  ASSERT_EQ(::epoll_wait(set, events.data(), 4, 1000), 1);
  EXPECT_EQ(events[0].data.fd, int(event));
  ASSERT_EQ(::write(alice, "x", 1), 1);
  int found = 0;
  while (found < 2) {
    found = ::epoll_wait(set, events.data(), 4, 1000);
    ASSERT_GT(found, 0);
  }
  EXPECT_EQ(::epoll_ctl(set, EPOLL_CTL_DEL, event, nullptr), 0);
}

TEST(PreloadedWaiting, ASocketAddedBeforeItConnectsByTheKernelStaysInTheSet) {
  const Fd listener(static_cast<int>(raw_syscall(SYS_socket, AF_INET, SOCK_STREAM, 0)));
  Address any = Address::loopback(AF_INET, 0);
  ASSERT_EQ(raw_syscall(SYS_bind, int(listener), any.get(), any.length), 0);
  ASSERT_EQ(raw_syscall(SYS_listen, int(listener), 1), 0);
  const Fd alice(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  const Fd set(::epoll_create1(0));
  ASSERT_EQ(add(set, alice, EPOLLOUT | EPOLLONESHOT), 0);
  Address there = name_of(listener);
  if (::connect(alice, there.get(), there.length) != 0) {
    ASSERT_EQ(errno, EINPROGRESS);
  }
  std::array<epoll_event, 4> events{};
  ASSERT_EQ(::epoll_wait(set, events.data(), 4, 2000), 1);
  EXPECT_EQ(events[0].data.fd, int(alice));
  EXPECT_NE(events[0].events & EPOLLOUT, 0U);
}

TEST(PreloadedWaiting, AListenerIsReadableWhileSomebodyWaits) {
  const Fd listener = listening(AF_INET, SOCK_NONBLOCK);
  const Fd set(::epoll_create1(0));
  ASSERT_EQ(add(set, listener, EPOLLIN), 0);
  std::array<epoll_event, 4> events{};
  for (int round = 0; round < 3; ++round) {
    const Fd alice = connected_to(listener);
    ASSERT_EQ(::epoll_wait(set, events.data(), 4, 2000), 1);
    const Fd bob(::accept(listener, nullptr, nullptr));
    ASSERT_GE(bob, 0) << std::strerror(errno);
    EXPECT_EQ(::accept(listener, nullptr, nullptr), -1);
    EXPECT_EQ(errno, EAGAIN);
    EXPECT_EQ(::epoll_wait(set, events.data(), 4, 0), 0);
  }
}

TEST(PreloadedWaiting, ASetInsideAnotherTellsOfItsConnections) {
  auto [alice, bob] = connected_pair();
  const Fd inner(::epoll_create1(0));
  const Fd outer(::epoll_create1(0));
  ASSERT_EQ(add(inner, bob, EPOLLIN), 0);
  ASSERT_EQ(add(outer, inner, EPOLLIN), 0);
  std::array<epoll_event, 4> events{};
  EXPECT_EQ(::epoll_wait(outer, events.data(), 4, 0), 0);
  ASSERT_EQ(::write(alice, "x", 1), 1);
  ASSERT_EQ(::epoll_wait(outer, events.data(), 4, 2000), 1);
  EXPECT_EQ(events[0].data.fd, int(inner));
  ASSERT_EQ(::epoll_pwait(inner, events.data(), 4, 0, nullptr), 1);
  EXPECT_EQ(events[0].data.fd, int(bob));
}

TEST(PreloadedWaiting, ASetThatWasInsideAnotherBeforeItHeldConnectionsTellsOfThem) {
  auto [alice, bob] = connected_pair();
  const Fd inner(::epoll_create1(0));
  const Fd outer(::epoll_create1(0));
  ASSERT_EQ(add(outer, inner, EPOLLIN), 0);
  ASSERT_EQ(add(inner, bob, EPOLLIN), 0);
  std::array<epoll_event, 4> events{};
  EXPECT_EQ(::epoll_wait(inner, events.data(), 4, 0), 0);
  std::thread writer([fd = int(alice)] { EXPECT_EQ(::write(fd, "x", 1), 1); });
  ASSERT_EQ(::epoll_wait(outer, events.data(), 4, 5000), 1);
  EXPECT_EQ(events[0].data.fd, int(inner));
  writer.join();
}

/// The inner set gets its first connection when the outer one has one already.
TEST(PreloadedWaiting, ASetThatWasInsideASetWithConnectionsTellsOfItsOwn) {
  auto [alice, bob] = connected_pair();
  auto [carol, dave] = connected_pair();
  const Fd inner(::epoll_create1(0));
  const Fd outer(::epoll_create1(0));
  ASSERT_EQ(add(outer, bob, EPOLLIN), 0);
  ASSERT_EQ(add(outer, inner, EPOLLIN | EPOLLET), 0);
  ASSERT_EQ(add(inner, dave, EPOLLIN), 0);
  std::array<epoll_event, 4> events{};
  for (int round = 0; round < 100; ++round) {
    EXPECT_EQ(::epoll_wait(inner, events.data(), 4, 0), 0);
    EXPECT_EQ(::epoll_wait(outer, events.data(), 4, 0), 0);
    std::thread writer([fd = int(carol)] { EXPECT_EQ(::write(fd, "x", 1), 1); });
    ASSERT_EQ(::epoll_wait(outer, events.data(), 4, 5000), 1) << "round " << round;
    EXPECT_EQ(events[0].data.fd, int(inner));
    writer.join();
    EXPECT_EQ(read_all(dave, 1), "x");
  }
}

TEST(PreloadedWaiting, ASetWhoseOnlyMemberHasGoneIsSilent) {
  auto [alice, bob] = connected_pair();
  Fd inner(::epoll_create1(0));
  const Fd outer(::epoll_create1(0));
  ASSERT_EQ(add(inner, bob, EPOLLIN), 0);
  ASSERT_EQ(add(outer, inner, EPOLLIN), 0);
  ASSERT_EQ(::write(alice, "x", 1), 1);
  EXPECT_EQ(poll_once(outer, POLLIN, 5000), POLLIN);
  inner.reset();
  EXPECT_EQ(poll_once(outer, POLLIN), 0);
  epoll_event event{};
  EXPECT_EQ(::epoll_wait(outer, &event, 1, 0), 0);
}

TEST(PreloadedWaiting, SetsInACircleOrTooDeepAreRefused) {
  auto [alice, bob] = connected_pair();
  std::array<Fd, 6> sets;
  for (Fd& set : sets) set = Fd(::epoll_create1(0));
  ASSERT_EQ(add(sets[0], bob, EPOLLIN), 0);
  ASSERT_EQ(add(sets[0], sets[5], EPOLLIN), 0);
  EXPECT_EQ(add(sets[5], sets[0], EPOLLIN), -1);
  EXPECT_EQ(errno, ELOOP);
  ASSERT_EQ(::epoll_ctl(sets[0], EPOLL_CTL_DEL, sets[5], nullptr), 0);
  for (std::size_t i = 1; i < 5; ++i) EXPECT_EQ(add(sets[i], sets[i - 1], EPOLLIN), 0) << i;
  EXPECT_EQ(add(sets[5], sets[4], EPOLLIN), -1);
  EXPECT_EQ(errno, ELOOP);
  EXPECT_EQ(poll_once(sets[5], POLLIN), 0);
  ASSERT_EQ(::write(alice, "x", 1), 1);
  EXPECT_EQ(poll_once(sets[4], POLLIN, 5000), POLLIN);
}

TEST(PreloadedWaiting, ASetIsNoSocket) {
  auto [alice, bob] = connected_pair();
  const Fd set(::epoll_create1(0));
  ASSERT_EQ(add(set, bob, EPOLLIN), 0);
  char byte = 0;
  Address name;
  name.length = sizeof name.storage;
  EXPECT_EQ(error_of(::read(set, &byte, 1)), EINVAL);
  EXPECT_EQ(error_of(::write(set, &byte, 1)), EINVAL);
  EXPECT_EQ(error_of(::recv(set, &byte, 1, 0)), ENOTSOCK);
  EXPECT_EQ(error_of(::send(set, &byte, 1, MSG_NOSIGNAL)), ENOTSOCK);
  EXPECT_EQ(error_of(::shutdown(set, SHUT_RDWR)), ENOTSOCK);
  EXPECT_EQ(error_of(::listen(set, 1)), ENOTSOCK);
  EXPECT_EQ(error_of(::accept(set, nullptr, nullptr)), ENOTSOCK);
  EXPECT_EQ(error_of(::getsockname(set, name.get(), &name.length)), ENOTSOCK);
  EXPECT_EQ(error_of(::getsockopt(set, SOL_SOCKET, SO_ERROR, &byte, &name.length)), ENOTSOCK);
}

/// Reading announces room to a peer that has closed by now. That comes to nothing, and what was sent before is not lost
/// for it.
TEST(PreloadedWaiting, WhoReadsLateGetsTheRestAndTheEndOfAPeerThatHasClosed) {
  auto [alice, bob] = connected_pair();
  const Fd set(::epoll_create1(0));
  ASSERT_EQ(add(set, bob, EPOLLIN), 0);
  std::array<epoll_event, 4> events{};
  EXPECT_EQ(::epoll_wait(set, events.data(), 4, 1), 0);
  const std::string much(100'000, 'm');
  ASSERT_EQ(::write(alice, much.data(), much.size()), ssize_t(much.size()));
  EXPECT_EQ(read_all(bob, 1), "m");
  ASSERT_EQ(::write(alice, "rest", 4), 4);
  alice.reset();
  EXPECT_EQ(read_all(bob, much.size() - 1).size(), much.size() - 1);
  ::usleep(1000);
  EXPECT_EQ(::epoll_wait(set, events.data(), 4, 0), 1);
  EXPECT_EQ(read_all(bob, 4), "rest");
  std::array<char, 4> end{};
  EXPECT_EQ(::read(bob, end.data(), end.size()), 0) << std::strerror(errno);
}

TEST(PreloadedWaiting, ASocketIsReadableWithAsManyBytesAsSoRcvlowatSays) {
  auto [alice, bob] = connected_pair();
  const int mark = 10;
  ASSERT_EQ(::setsockopt(bob, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark), 0);
  pollfd wanted{bob, POLLIN, 0};
  ASSERT_EQ(::write(alice, "123456789", 9), 9);
  EXPECT_EQ(::poll(&wanted, 1, 20), 0);
  std::array<char, 16> some{};
  EXPECT_EQ(::recv(bob, some.data(), 2, MSG_DONTWAIT), 2) << "who does not wait takes what there is";
  ASSERT_EQ(::write(alice, "abc", 3), 3);
  EXPECT_EQ(::poll(&wanted, 1, 2000), 1);
  const int low = 1;
  EXPECT_EQ(read_all(bob, 5).size(), 5u);
  EXPECT_EQ(::poll(&wanted, 1, 0), 0);
  ASSERT_EQ(::setsockopt(bob, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low), 0);
  EXPECT_EQ(::poll(&wanted, 1, 2000), 1);
  alice.reset();
  ASSERT_EQ(::setsockopt(bob, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark), 0);
  EXPECT_EQ(::poll(&wanted, 1, 2000), 1) << "the end counts";
}

TEST(PreloadedWaiting, AReceiveWaitsForSoRcvlowat) {
  auto [alice, bob] = connected_pair();
  const int mark = 6;
  ASSERT_EQ(::setsockopt(bob, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark), 0);
  std::array<char, 16> some{};
  // The reader sleeps before the first byte comes. Linux counts only what has come since a sleep began: a reader that
  // had taken three bytes before would wait for six more.
  std::thread writer([fd = int(alice), reader = ::gettid()] {
    EXPECT_TRUE(support::falls_asleep(reader));
    EXPECT_EQ(::write(fd, "abc", 3), 3);
    EXPECT_TRUE(support::falls_asleep(reader));
    EXPECT_EQ(::write(fd, "defg", 4), 4);
  });
  EXPECT_EQ(::recv(bob, some.data(), some.size(), 0), 7);
  writer.join();
  ASSERT_EQ(::write(alice, "xy", 2), 2);
  EXPECT_EQ(::recv(bob, some.data(), 2, 0), 2) << "what there is room for is enough";
  ASSERT_EQ(::write(alice, "end", 3), 3);
  alice.reset();
  iovec part{some.data(), some.size()};
  msghdr message = message_of(part);
  EXPECT_EQ(::recvmsg(bob, &message, 0), 3);
}

TEST(PreloadedWaiting, AMarkBeyondTheBufferHoldsUpNobody) {
  auto [alice, bob] = connected_pair();
  const int mark = 1 << 20;
  const int least = 1;
  ASSERT_EQ(::setsockopt(bob, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark), 0);
  std::thread writer([fd = int(alice)] {
    const std::string much(8 << 20, 'm');
    EXPECT_EQ(::write(fd, much.data(), much.size()), ssize_t(much.size()));
  });
  std::size_t got = 0;
  std::string some(1 << 20, ' ');
  while (got < 8 << 20) {
    pollfd wanted{bob, POLLIN, 0};
    ASSERT_EQ(::poll(&wanted, 1, 10'000), 1) << "after " << got;
    const ssize_t part = ::recv(bob, some.data(), some.size(), MSG_DONTWAIT);
    ASSERT_GT(part, 0) << std::strerror(errno);
    got += static_cast<std::size_t>(part);
    // The last of it is less than half of any buffer.
    if (got >= 7 << 20) {
      ASSERT_EQ(::setsockopt(bob, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least), 0);
    }
  }
  writer.join();
}

/// SIGALRM ends what waits, again and again while this lives.
class Alarm {
 public:
  Alarm() {
    const itimerval often{{0, 30'000}, {0, 30'000}};
    ::setitimer(ITIMER_REAL, &often, nullptr);
  }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;
  ~Alarm() {
    const itimerval never{};
    ::setitimer(ITIMER_REAL, &never, nullptr);
  }

 private:
  support::Disposition handled_{SIGALRM};
};

/// The descriptor of such a connection is readable for ever: a wait that went on and on held all signals.
TEST(PreloadedWaiting, WhoAsksForNothingThatAPeersEndTellsSleepsAndHearsSignals) {
  auto [alice, bob] = connected_pair();
  const Fd set(::epoll_create1(0));
  ASSERT_EQ(add(set, bob, EPOLLOUT | EPOLLET), 0);
  epoll_event event{};
  ASSERT_EQ(::epoll_wait(set, &event, 1, 2000), 1);
  alice.reset();
  ::usleep(10'000);
  while (::epoll_wait(set, &event, 1, 0) > 0) continue;
  const Alarm alarm;
  pollfd nothing{bob, 0, 0};
  EXPECT_EQ(::poll(&nothing, 1, 5000), -1);
  EXPECT_EQ(errno, EINTR);
  EXPECT_EQ(::epoll_wait(set, &event, 1, 5000), -1);
  EXPECT_EQ(errno, EINTR);
}

TEST(PreloadedWaiting, AResetIsSeenByTheFirstLookThatDoesNotWait) {
  for (const bool by_epoll : {false, true}) {
    auto [alice, bob] = connected_pair();
    const Fd set(::epoll_create1(0));
    ASSERT_EQ(add(set, bob, EPOLLIN), 0);
    const linger at_once{1, 0};
    ASSERT_EQ(::setsockopt(alice, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
    alice.reset();
    ::usleep(10'000);
    epoll_event event{};
    pollfd entry{bob, POLLIN | POLLOUT, 0};
    if (by_epoll) {
      EXPECT_EQ(::epoll_wait(set, &event, 1, 0), 1);
    } else {
      EXPECT_EQ(::poll(&entry, 1, 0), 1);
      EXPECT_EQ(entry.revents, POLLIN | POLLOUT | POLLERR | POLLHUP);
    }
  }
}

TEST(PreloadedWaiting, EpollPwait2TakesNanoseconds) {
  auto [alice, bob] = connected_pair();
  const Fd set(::epoll_create1(0));
  ASSERT_EQ(add(set, bob, EPOLLIN), 0);
  std::array<epoll_event, 4> events{};
  const timespec shortly{0, 1000};
  EXPECT_EQ(::epoll_pwait2(set, events.data(), 4, &shortly, nullptr), 0);
  ASSERT_EQ(::write(alice, "x", 1), 1);
  EXPECT_EQ(::epoll_pwait2(set, events.data(), 4, nullptr, nullptr), 1);
}

TEST(PreloadedWaiting, ClosingTakesAConnectionOutOfItsSets) {
  auto [alice, bob] = connected_pair();
  const Fd set(::epoll_create1(0));
  ASSERT_EQ(add(set, bob, EPOLLIN), 0);
  ASSERT_EQ(::write(alice, "x", 1), 1);
  bob.reset();
  std::array<epoll_event, 4> events{};
  EXPECT_EQ(::epoll_wait(set, events.data(), 4, 0), 0);
}

}  // namespace
}  // namespace ringsock::preload_tests
