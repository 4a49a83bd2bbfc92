// poll, select, epoll over connections and other descriptors.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/timerfd.h>
#include <sys/wait.h>

#include <array>
#include <csignal>

#include "tests/preload/tcp_world.h"
#include "tests/support/raw_syscall.h"

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

TEST(PreloadedWaiting, PpollLetsASignalThrough) {
  auto [alice, bob] = connected_pair();
  struct sigaction action {
  }, old{};
  action.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR2, &action, &old), 0);
  sigset_t blocked, before;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGUSR2);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &blocked, &before), 0);
  ASSERT_EQ(::pthread_kill(::pthread_self(), SIGUSR2), 0);
  pollfd entry{bob, POLLIN, 0};
  EXPECT_EQ(::ppoll(&entry, 1, nullptr, &before), -1);
  EXPECT_EQ(errno, EINTR);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::sigaction(SIGUSR2, &old, nullptr);
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

/// A client that takes part, or one of the kernel's.
Fd client_of(int listener, bool takes_part) {
  if (takes_part) return connected_to(listener);
  Address there = name_of(listener);
  Fd client(static_cast<int>(raw_syscall(SYS_socket, AF_INET, SOCK_STREAM, 0)));
  EXPECT_EQ(raw_syscall(SYS_connect, int(client), there.get(), there.length), 0);
  return client;
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
  const Fd third = client_of(listener, GetParam());
  EXPECT_EQ(edges(5000), 1) << "though this process has not seen that the queue was empty";
}

TEST(PreloadedWaiting, EpollCtlSaysWhatLinuxSays) {
  auto [alice, bob] = connected_pair();
  const Fd set(::epoll_create1(0));
  ASSERT_EQ(add(set, bob, EPOLLIN), 0);
  EXPECT_EQ(add(set, bob, EPOLLIN), -1);
  EXPECT_EQ(errno, EEXIST);
  epoll_event event{};
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
