// One open file description that several processes have: what one of them sets, the others see, as in the kernel.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "tests/preload/preloaded.h"

namespace ringsock::preloaded {
namespace {

int number(int fd, int level, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  expect(::getsockopt(fd, level, name, &value, &length) == 0, "getsockopt");
  return value;
}
void set_number(int fd, int level, int name, int value) {
  expect(::setsockopt(fd, level, name, &value, sizeof value) == 0, "setsockopt");
}
long seconds(int fd, int name) {
  timeval limit{};
  socklen_t length = sizeof limit;
  expect(::getsockopt(fd, SOL_SOCKET, name, &limit, &length) == 0, "getsockopt");
  return limit.tv_sec;
}
void set_seconds(int fd, int name, long value) {
  const timeval limit{value, 0};
  expect(::setsockopt(fd, SOL_SOCKET, name, &limit, sizeof limit) == 0, "setsockopt");
}
bool is_nonblocking(int fd) { return (::fcntl(fd, F_GETFL) & O_NONBLOCK) != 0; }
void set_nonblocking(int fd, bool on) {
  const int flags = ::fcntl(fd, F_GETFL);
  expect(::fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK) == 0, "F_SETFL");
}

void set_all(int fd) {
  set_nonblocking(fd, true);
  set_seconds(fd, SO_RCVTIMEO, 7);
  set_seconds(fd, SO_SNDTIMEO, 8);
  set_number(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_number(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_number(fd, IPPROTO_TCP, TCP_KEEPIDLE, 77);
  const linger two_seconds{1, 2};
  expect(::setsockopt(fd, SOL_SOCKET, SO_LINGER, &two_seconds, sizeof two_seconds) == 0, "SO_LINGER");
}

/// Returns the names of the values that are not as set_all() sets them.
std::string missing(int fd) {
  std::string names;
  linger value{};
  socklen_t length = sizeof value;
  expect(::getsockopt(fd, SOL_SOCKET, SO_LINGER, &value, &length) == 0, "SO_LINGER");
  if (!is_nonblocking(fd)) names += " O_NONBLOCK";
  if (seconds(fd, SO_RCVTIMEO) != 7) names += " SO_RCVTIMEO";
  if (seconds(fd, SO_SNDTIMEO) != 8) names += " SO_SNDTIMEO";
  if (number(fd, SOL_SOCKET, SO_KEEPALIVE) != 1) names += " SO_KEEPALIVE";
  if (number(fd, IPPROTO_TCP, TCP_NODELAY) != 1) names += " TCP_NODELAY";
  if (number(fd, IPPROTO_TCP, TCP_KEEPIDLE) != 77) names += " TCP_KEEPIDLE";
  if (value.l_onoff == 0 || value.l_linger != 2) names += " SO_LINGER";
  return names;
}

TEST(SharedDescription, AParentSeesWhatItsChildHasSet) {
  const Ends ends;
  EXPECT_EQ(wait_for(spawn([&] { set_all(ends.ours); })), 0);
  ASSERT_EQ(missing(ends.ours), "");
  char byte = 0;
  EXPECT_EQ(error_of(::read(ends.ours, &byte, 1)), EAGAIN);
}

TEST(SharedDescription, AChildAndItsDuplicateSeeWhatTheParentHasSet) {
  const Ends ends;
  Signal is_set;
  const pid_t child = spawn([&] {
    const int duplicate = ::dup(ends.ours);
    is_set.wait();
    expect(missing(ends.ours).empty(), missing(ends.ours).c_str());
    expect(missing(duplicate).empty(), missing(duplicate).c_str());
    // And back again, by the other call for the flag.
    int off = 0;
    expect(::ioctl(duplicate, FIONBIO, &off) == 0, "FIONBIO");
  });
  set_all(ends.ours);
  is_set.give();
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_FALSE(is_nonblocking(ends.ours));
}

TEST(SharedDescription, AListenerThatAChildMakesNonBlockingIsSoForItsParent) {
  const Listener listener = listen_anywhere();
  EXPECT_EQ(wait_for(spawn([&] { set_nonblocking(listener.fd, true); })), 0);
  ASSERT_TRUE(is_nonblocking(listener.fd));
  EXPECT_EQ(error_of(::accept(listener.fd, nullptr, nullptr)), EAGAIN);
  EXPECT_EQ(wait_for(spawn([&] {
              const Listener same = listener;
              int off = 0;
              expect(::ioctl(same.fd, FIONBIO, &off) == 0, "FIONBIO");
            })),
            0);
  EXPECT_FALSE(is_nonblocking(listener.fd));
  ::close(listener.fd);
}

/// The child moves the connection: it has used it, so the parent's use makes it the kernel's.
TEST(SharedDescription, FlagsAreSharedBeforeAndAfterTheConnectionMovesToTheKernel) {
  const Ends ends;
  Signal used, parent_has_set, child_has_seen, parent_has_used, child_has_set;
  const pid_t child = spawn([&] {
    send_all(ends.ours, "child");
    set_seconds(ends.ours, SO_RCVTIMEO, 5);
    used.give();
    parent_has_set.wait();
    expect(seconds(ends.ours, SO_RCVTIMEO) == 6, "what the parent set before it used the connection");
    child_has_seen.give();
    parent_has_used.wait();
    expect(seconds(ends.ours, SO_RCVTIMEO) == 9, "what the parent set at the kernel's socket");
    set_nonblocking(ends.ours, true);
    child_has_set.give();
  });
  used.wait();
  EXPECT_EQ(receive(ends.peers, 5), "child");
  EXPECT_EQ(seconds(ends.ours, SO_RCVTIMEO), 5);
  set_seconds(ends.ours, SO_RCVTIMEO, 6);
  parent_has_set.give();
  child_has_seen.wait();
  send_all(ends.ours, "parent");
  EXPECT_EQ(receive(ends.peers, 6), "parent");
  set_seconds(ends.ours, SO_RCVTIMEO, 9);
  parent_has_used.give();
  child_has_set.wait();
  EXPECT_TRUE(is_nonblocking(ends.ours));
  EXPECT_EQ(wait_for(child), 0);
}

/// The parent moves the connection to the kernel for one child. Another child has not used it by then.
TEST(SharedDescription, AProcessThatHasNotMovedYetSeesWhatIsSetAtTheKernelsSocket) {
  const Ends ends;
  Signal used, moved, is_set, has_set;
  const pid_t idle = spawn([&] {
    is_set.wait();
    expect(is_nonblocking(ends.ours), "O_NONBLOCK, which was set at the kernel's socket");
    set_seconds(ends.ours, SO_SNDTIMEO, 3);
    has_set.give();
  });
  const pid_t user = spawn([&] {
    send_all(ends.ours, "child");
    used.give();
    moved.wait();
  });
  used.wait();
  EXPECT_EQ(receive(ends.peers, 5), "child");
  send_all(ends.ours, "parent");
  EXPECT_EQ(receive(ends.peers, 6), "parent");
  set_nonblocking(ends.ours, true);
  is_set.give();
  has_set.wait();
  EXPECT_EQ(seconds(ends.ours, SO_SNDTIMEO), 3);
  moved.give();
  EXPECT_EQ(wait_for(idle), 0);
  EXPECT_EQ(wait_for(user), 0);
}

/// The parent makes one duplicate after the other while a thread of the library, which the child has asked, gives the
/// connection's numbers to the kernel's socket.
TEST(SharedDescription, ADuplicateThatIsMadeWhileTheConnectionMovesToTheKernelMovesToo) {
  for (int round = 0; round < 60; ++round) {
    const Ends ends;
    Signal begin;
    send_all(ends.ours, "before");
    EXPECT_EQ(receive(ends.peers, 6), "before");
    const pid_t child = spawn([&] {
      begin.wait();
      send_all(ends.ours, "child");
    });
    send_all(ends.ours, "parent");
    EXPECT_EQ(receive(ends.peers, 6), "parent");
    begin.give();
    ::usleep(static_cast<useconds_t>(round % 20) * 200);  // the move takes some milliseconds
    siginfo_t news{};
    std::vector<int> copies;
    while (::waitid(P_PID, static_cast<id_t>(child), &news, WEXITED | WNOHANG | WNOWAIT) == 0 && news.si_pid == 0) {
      if (copies.size() < 800) copies.push_back(::dup(ends.ours));
    }
    EXPECT_EQ(wait_for(child), 0);
    EXPECT_EQ(receive(ends.peers, 5), "child");
    for (const int copy : copies) {
      ASSERT_FALSE(is_on_ring(copy)) << "round " << round;
      ::close(copy);
    }
  }
}

// -- shutdown(2)

TEST(SharedDescription, AChildsEndOfSendingIsItsParents) {
  const Ends ends;
  EXPECT_EQ(wait_for(spawn([&] {
              send_all(ends.ours, "last words");
              expect(::shutdown(ends.ours, SHUT_WR) == 0, "shutdown");
            })),
            0);
  EXPECT_EQ(receive_all(ends.peers), "last words");
  EXPECT_EQ(error_of(::send(ends.ours, "x", 1, MSG_NOSIGNAL)), EPIPE);
  send_all(ends.peers, "answer");
  EXPECT_EQ(receive(ends.ours, 6), "answer");
}

TEST(SharedDescription, AParentsEndOfSendingIsItsChilds) {
  const Ends ends;
  Signal has_shut;
  const pid_t child = spawn([&] {
    has_shut.wait();
    expect(error_of(::send(ends.ours, "x", 1, MSG_NOSIGNAL)) == EPIPE, "EPIPE");
    expect(receive(ends.ours, 6) == "answer", "the other direction");
  });
  ASSERT_EQ(::shutdown(ends.ours, SHUT_WR), 0);
  has_shut.give();
  EXPECT_EQ(receive_all(ends.peers), "");
  send_all(ends.peers, "answer");
  EXPECT_EQ(wait_for(child), 0);
}

TEST(SharedDescription, AChildsEndOfReceivingIsItsParents) {
  const Ends ends;
  EXPECT_EQ(wait_for(spawn([&] { expect(::shutdown(ends.ours, SHUT_RD) == 0, "shutdown"); })), 0);
  EXPECT_EQ(receive_all(ends.ours), "");
  send_all(ends.ours, "still");
  EXPECT_EQ(receive(ends.peers, 5), "still");
}

TEST(SharedDescription, AChildsEndOfBothIsItsParents) {
  const Ends ends;
  EXPECT_EQ(wait_for(spawn([&] { expect(::shutdown(ends.ours, SHUT_RDWR) == 0, "shutdown"); })), 0);
  EXPECT_EQ(receive_all(ends.ours), "");
  EXPECT_EQ(error_of(::send(ends.ours, "x", 1, MSG_NOSIGNAL)), EPIPE);
  EXPECT_EQ(receive_all(ends.peers), "");
}

}  // namespace
}  // namespace ringsock::preloaded
