// The relay, a process between a ring and the kernel socket with which two processes of a family go on: what it has
// moved when they look, and when it ends.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <string>
#include <thread>

#include "tests/preload/preloaded.h"
#include "tests/support/thread_status.h"

namespace ringsock::preloaded {
namespace {

/// Echoes until the end, or until "end": then ends its own stream, and reads nothing of what comes.
void echo_until_end(int client) {
  std::string text(64, ' ');
  for (;;) {
    const ssize_t got = ::recv(client, text.data(), text.size(), 0);
    if (got <= 0) return;
    const std::string message = text.substr(0, static_cast<std::size_t>(got));
    if (message == "end") break;
    send_all(client, message);
  }
  ::shutdown(client, SHUT_WR);
  pollfd entry{client, POLLIN, 0};
  ::poll(&entry, 1, -1);
}

/// A connection to a peer that answers "?" with "data". A child has asked, and still has the connection. The answer is
/// there, and nobody has read it.
struct Family {
  Signal has_answered;
  Signal may_end;
  Listener listener = listen_anywhere();
  pid_t peer = spawn([this] {
    const int client = ::accept(listener.fd, nullptr, nullptr);
    ::close(listener.fd);
    expect(receive(client, 1) == "?", "the question");
    send_all(client, "data");
    has_answered.give();
    echo_until_end(client);
  });
  int fd = connect_to(listener.port);
  pid_t child = spawn([this] {
    ::close(listener.fd);
    send_all(fd, "?");
    may_end.wait();
  });

  Family() { has_answered.wait(); }
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;
  ~Family() { ::close(listener.fd); }

  void end_child() {
    may_end.give();
    EXPECT_EQ(wait_for(child), 0);
  }
  void end() {
    ::close(fd);
    EXPECT_EQ(wait_for(peer), 0);
  }
};

TEST(ARelay, HasMovedWhatWasThereBeforeTheSecondProcessLooks) {
  for (int round = 0; round < 10; ++round) {
    Family family;
    std::string room(10, ' ');
    EXPECT_EQ(::recv(family.fd, room.data(), room.size(), MSG_DONTWAIT), 4);
    EXPECT_FALSE(is_on_ring(family.fd));
    EXPECT_EQ(room.substr(0, 4), "data");
    family.end_child();
    family.end();
  }
}

bool has_ended(pid_t process) {
  const std::string state = support::status_of(process, "State");
  return state.empty() || state.starts_with('Z');
}

/// Returns the child of this process that is a relay: relays become children of the next subreaper.
pid_t find_relay() {
  std::ifstream children("/proc/self/task/" + std::to_string(::getpid()) + "/children");
  for (pid_t child = 0; children >> child;) {
    if (support::status_of(child, "Name") == "ringsock-relay" && !has_ended(child)) return child;
  }
  return 0;
}

class RelayOfASubreaper : public testing::Test {
 protected:
  void SetUp() override {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    ASSERT_EQ(receive(family_.fd, 4), "data");
    relay_ = find_relay();
    ASSERT_GT(relay_, 0);
  }
  void TearDown() override { await_end(); }
  void await_end() const {
    while (relay_ > 0 && !has_ended(relay_)) std::this_thread::yield();
  }
  Family family_;
  pid_t relay_ = 0;
};

TEST_F(RelayOfASubreaper, EndsWithItsConnection) {
  family_.end_child();
  family_.end();
}  // TearDown() waits for the end

/// A socket that its program forgets, or that it has closed without a word (TCP_REPAIR).
TEST_F(RelayOfASubreaper, EndsWithThePeerThoughTheProgramKeepsItsSocket) {
  family_.end_child();
  ASSERT_EQ(::kill(family_.peer, SIGKILL), 0);
  EXPECT_EQ(wait_for(family_.peer), 128 + SIGKILL);
  await_end();
  EXPECT_EQ(receive_all(family_.fd), "");
  EXPECT_EQ(::send(family_.fd, "x", 1, MSG_NOSIGNAL), 1);
  pollfd entry{family_.fd, 0, 0};
  EXPECT_EQ(::poll(&entry, 1, -1), 1);
  EXPECT_EQ(entry.revents, POLLERR | POLLHUP) << "the kernel has answered by a reset";
  ::close(family_.fd);
}

TEST_F(RelayOfASubreaper, TellsTheProgramOfAResetAfterTheEndOfThePeersStream) {
  family_.end_child();
  send_all(family_.fd, "end");
  EXPECT_EQ(receive_all(family_.fd), "");
  send_all(family_.fd, "unread");
  EXPECT_EQ(wait_for(family_.peer), 0);
  pollfd entry{family_.fd, 0, 0};
  EXPECT_EQ(::poll(&entry, 1, -1), 1);
  EXPECT_EQ(entry.revents, POLLERR | POLLHUP);
  ::close(family_.fd);
}

TEST_F(RelayOfASubreaper, SleepsWhileNothingHappensAndNobodyElseHasTheConnection) {
  family_.end_child();
  EXPECT_TRUE(support::falls_asleep(relay_));
  send_all(family_.fd, "still there");
  EXPECT_EQ(receive(family_.fd, 11), "still there");
  family_.end();
}

TEST_F(RelayOfASubreaper, EndsBySigtermAfterTheLastWords) {
  ASSERT_EQ(::kill(relay_, SIGTERM), 0);
  send_all(family_.fd, "last words");
  EXPECT_EQ(receive(family_.fd, 10), "last words");
  // Nobody says anything now, so both sides see the end.
  EXPECT_EQ(receive_all(family_.fd), "");
  EXPECT_EQ(wait_for(family_.peer), 0);
  family_.end_child();
  ::close(family_.fd);
}

}  // namespace
}  // namespace ringsock::preloaded
