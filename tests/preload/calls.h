// Connections to a peer process, and what tests send over them.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <string>
#include <thread>

#include "tests/preload/preloaded.h"
#include "tests/support/sanitizers.h"

namespace ringsock::preloaded {

/// For programs whose stories all need that connections are handed over: by processes with threads, which fork for it.
class MayFork : public ::testing::Environment {
  void SetUp() override {
    if (!support::kForksWhileThreadsAllocate) GTEST_SKIP() << "this sanitizer's allocator may be locked in a child";
  }
};

/// A connection on a ring to a process that runs `body` on its end.
class Call {
 public:
  template <class Body>
  explicit Call(Body body) {
    const Listener listener = listen_anywhere();
    peer = spawn([&] {
      const int client = ::accept(listener.fd, nullptr, nullptr);
      ::close(listener.fd);
      body(client);
    });
    fd = connect_to(listener.port);
    ::close(listener.fd);
    expect(is_on_ring(fd), "the connection is on a ring");
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  /// Returns how the peer ends once we have closed our end, as wait_for().
  [[nodiscard]] int end() const {
    ::close(fd);
    return wait_for(peer);
  }

  int fd = -1;
  pid_t peer = -1;
};

/// The peer sends back what it gets, and ends with 0 once it has seen the end of the stream.
class Echo : public Call {
 public:
  Echo() : Call([](int client) { echo(client); }) {}
};

/// Sends the question to an Echo, which answers with the same. An exception unless it does.
inline void ask(int fd, const std::string& question) {
  send_all(fd, question);
  expect(receive(fd, question.size()) == question, "the answer is the question");
}

/// A peer that echoes until the end of the stream sends all of `bytes` back, and then the end.
inline void expect_echo(int fd, std::size_t bytes, unsigned seed = 1) {
  const std::string text = pattern(bytes, seed);
  std::thread writer([&] {
    send_all(fd, text);
    ::shutdown(fd, SHUT_WR);
  });
  EXPECT_TRUE(receive_all(fd) == text);
  writer.join();
}

/// A child that `spawns` makes has an answer from an Echo, and is killed.
template <class Spawn>
void have_user_killed(int fd, Spawn spawns) {
  Signal asked;
  const pid_t child = spawns([&] {
    ask(fd, "by the child");
    asked.give();
    ::pause();
  });
  asked.wait();
  ::kill(child, SIGKILL);
  EXPECT_EQ(wait_for(child), 128 + SIGKILL);
}

inline void send_in_pieces(int fd, const std::string& text, std::size_t piece) {
  for (std::size_t at = 0; at < text.size(); at += piece) send_all(fd, text.substr(at, piece));
}

/// Sends pieces without waiting until there is no room. Returns the number of bytes.
inline std::size_t send_until_full(int fd, std::size_t piece) {
  const std::string bytes(piece, 'x');
  std::size_t sent = 0;
  for (;;) {
    const ssize_t step = ::send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (step < 0) break;
    sent += static_cast<std::size_t>(step);
  }
  EXPECT_EQ(errno, EAGAIN);
  return sent;
}

}  // namespace ringsock::preloaded
