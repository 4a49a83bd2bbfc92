// Two processes with more connections than memory is kept for: from the 65th on, several share a memfd.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/preload/calls.h"
#include "tests/preload/preloaded.h"

namespace ringsock::preloaded {
namespace {

constexpr int kMany = 120;
/// Of these numbers a connection shares its memfd with others.
constexpr std::size_t kOneOfMany = 90;

/// Accepts clients until one sends '.' alone, and sends all others back what they send.
void echo_many(int listener) {
  std::vector<pollfd> all{{listener, POLLIN, 0}};
  for (;;) {
    expect(::poll(all.data(), all.size(), 20'000) > 0, "something to do");
    for (std::size_t i = all.size(); i-- > 1;) {
      if (all[i].revents == 0) continue;
      char bytes[4096];
      const ssize_t got = ::recv(all[i].fd, bytes, sizeof bytes, 0);
      if (got == 1 && bytes[0] == '.') return;
      if (got > 0) {
        send_all(all[i].fd, std::string(bytes, static_cast<std::size_t>(got)));
        continue;
      }
      ::close(all[i].fd);
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (all[0].revents != 0) all.push_back({::accept(listener, nullptr, nullptr), POLLIN, 0});
  }
}

/// A child with a connection each.
void fork_for_each(int listener) {
  for (;;) {
    const int client = ::accept(listener, nullptr, nullptr);
    if (::fork() == 0) {
      ::close(listener);
      echo(client);
      ::_exit(0);
    }
    ::close(client);
  }
}

/// A server process and this one's connections to it.
class Many {
 public:
  explicit Many(void (*serve)(int listener)) {
    const Listener listener = listen_anywhere();
    port = listener.port;
    server = spawn([&] { serve(listener.fd); });
    ::close(listener.fd);
    for (int i = 0; i < kMany; ++i) fds.push_back(connect_on_ring());
  }
  ~Many() {
    for (const int fd : fds) ::close(fd);
  }
  Many(const Many&) = delete;
  Many& operator=(const Many&) = delete;
  [[nodiscard]] int connect_on_ring() const {
    const int fd = connect_to(port);
    expect(is_on_ring(fd), "the connection is on a ring");
    return fd;
  }
  void end_server() const {
    send_all(fds.back(), ".");
    EXPECT_EQ(wait_for(server), 0);
  }

  std::uint16_t port = 0;
  pid_t server = -1;
  std::vector<int> fds;
};

TEST(KeptConnections, EachHasItsOwnBytes) {
  Many to(echo_many);
  for (std::size_t i = 0; i < to.fds.size(); ++i) send_all(to.fds[i], "connection " + std::to_string(1000 + i));
  for (std::size_t i = 0; i < to.fds.size(); ++i)
    EXPECT_EQ(receive(to.fds[i], 15), "connection " + std::to_string(1000 + i));
  for (std::size_t i = kOneOfMany; i < kOneOfMany + 4; ++i) ask(to.fds[i], pattern(50'000, static_cast<unsigned>(i)));
  to.end_server();
}

TEST(KeptConnections, TheOthersStayWhenSomeEnd) {
  Many to(echo_many);
  for (std::size_t i = 0; i < to.fds.size(); ++i) ask(to.fds[i], pattern(3000, static_cast<unsigned>(i)));
  for (std::size_t i = 0; i < to.fds.size(); i += 2) {
    send_all(to.fds[i], "unread");
    ::close(to.fds[i]);
    to.fds[i] = to.connect_on_ring();
  }
  for (std::size_t i = 0; i < to.fds.size(); ++i) ask(to.fds[i], pattern(3000, static_cast<unsigned>(i + 1)));
  to.end_server();
}

TEST(KeptConnections, TheServerMayForkForEach) {
  if (!support::kForksWhileThreadsAllocate) GTEST_SKIP() << "this sanitizer's allocator may be locked in a child";
  Many to(fork_for_each);
  for (std::size_t i = 0; i < to.fds.size(); ++i) ask(to.fds[i], pattern(3000, static_cast<unsigned>(i)));
  ::kill(to.server, SIGKILL);
  EXPECT_EQ(wait_for(to.server), 128 + SIGKILL);
  for (std::size_t i = 0; i < to.fds.size(); ++i) ask(to.fds[i], "the children have them");
}

TEST(KeptConnections, AForkedClientGoesOnWithOneAndItsParentWithTheOthers) {
  Many to(echo_many);
  const pid_t child = spawn([&] {
    for (std::size_t i = 0; i < to.fds.size(); ++i)
      if (i != kOneOfMany) ::close(to.fds[i]);
    for (unsigned i = 0; i < 20; ++i) ask(to.fds[kOneOfMany], pattern(5000, i));
  });
  for (std::size_t i = kOneOfMany + 1; i < to.fds.size(); ++i) ask(to.fds[i], pattern(5000, static_cast<unsigned>(i)));
  const int later = to.connect_on_ring();
  ask(later, "made beside the child");
  EXPECT_EQ(wait_for(child), 0);
  ask(to.fds[kOneOfMany], "back with the parent");
  ask(later, "made beside the child");
  ::close(later);
  to.end_server();
}

TEST(KeptConnections, AProgramGetsOneAsItsInputAndOutput) {
  if (!support::kForksWhileThreadsAllocate) GTEST_SKIP() << "this sanitizer's allocator may be locked in a child";
  Many to(echo_many);
  const pid_t child = spawn([&] {
    ::dup2(to.fds[kOneOfMany], STDOUT_FILENO);
    ::execl("/bin/echo", "echo", "from a program", nullptr);
    expect(false, "execl");
  });
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(receive(to.fds[kOneOfMany], 15), "from a program\n");
  ask(to.fds[kOneOfMany + 1], "the others stay");
  to.end_server();
}

/// The server can no longer open what its client has, and gets no memfd of several connections over the link.
TEST(KeptConnections, AClientWhoseMemoryCannotBeOpenedStillConnects) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become two processes of another user";
  const pid_t story = spawn([] {
    constexpr uid_t kUser = 65001;
    expect(::setresgid(kUser, kUser, kUser) == 0 && ::setresuid(kUser, kUser, kUser) == 0, "another user");
    expect(::prctl(PR_SET_DUMPABLE, 1) == 0, "dumpable");
    Many to(echo_many);
    ask(to.fds[kOneOfMany], "as before");
    expect(::prctl(PR_SET_DUMPABLE, 0) == 0, "not dumpable");
    const int next = connect_to(to.port);  // by the kernel, if it would have had a part that the server has not mapped
    ask(next, "still");
    for (int i = 0; i < 40; ++i) {
      const int fd = connect_to(to.port);
      ask(fd, pattern(1000, static_cast<unsigned>(i)));
      to.fds.push_back(fd);
    }
    expect(is_on_ring(to.fds.back()), "each has a memfd of its own, which goes over the link");
    to.end_server();
  });
  EXPECT_EQ(wait_for(story), 0);
}

}  // namespace
}  // namespace ringsock::preloaded
