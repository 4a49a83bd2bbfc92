// Sockets that several processes have: fork(2), exec(2), daemon(3), SCM_RIGHTS.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <functional>
#include <set>
#include <thread>

#include "tests/support/libc_aio.h"
#include "tests/support/sanitizers.h"
#include "tests/vma/udp_world.h"

namespace ringsock::vma_tests {
namespace {

using std::chrono::steady_clock;

constexpr const char* kThere = "10.9.0.2";

/// What a process writes, line by line, for another one to read until all writers are gone.
class Pipe {
 public:
  Pipe() { EXPECT_EQ(::pipe(ends_), 0); }
  ~Pipe() {
    ::close(ends_[0]);
    stop_writing();
  }
  void write(const std::string& line) const {
    const std::string text = line + "\n";
    EXPECT_EQ(::write(ends_[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void stop_writing() {
    if (ends_[1] >= 0) ::close(ends_[1]);
    ends_[1] = -1;
  }
  [[nodiscard]] int writing_end() const { return ends_[1]; }
  /// The next one; "" when there are no writers any more.
  [[nodiscard]] std::string line() {
    stop_writing();
    std::string out;
    for (char one = 0; ::read(ends_[0], &one, 1) == 1 && one != '\n';) out += one;
    return out;
  }
  /// To the end.
  std::vector<std::string> lines() {
    stop_writing();
    std::string text;
    char room[4096];
    for (ssize_t got = 0; (got = ::read(ends_[0], room, sizeof room)) > 0;)
      text.append(room, static_cast<std::size_t>(got));
    std::vector<std::string> out;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) out.push_back(line);
    return out;
  }
  /// One character.
  void wait() const {
    char one = 0;
    EXPECT_EQ(::read(ends_[0], &one, 1), 1);
  }

 private:
  int ends_[2]{-1, -1};
};

pid_t in_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  body();
  ::_exit(::testing::Test::HasFailure() ? 1 : 0);
}

void expect_success(pid_t child) {
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

class Inherited : public ::testing::Test {
 protected:
  Inherited() : echo_(kThere, kEchoPort), socket_(AF_INET) {
    socket_.limit_waits();
    const Address any("0.0.0.0", 0);
    EXPECT_EQ(::bind(socket_, any.get(), any.length()), 0);
    for (int i = 0; i < 3; ++i) ping(socket_);
  }
  void ping(const Socket& socket) const {
    ASSERT_EQ(socket.send_to(echo_, "ping"), 4) << std::strerror(errno);
    ASSERT_EQ(socket.receive(), "ping") << std::strerror(errno);
  }
  void send(const std::string& text) const {
    ASSERT_EQ(socket_.send_to(echo_, text), static_cast<ssize_t>(text.size()));
  }
  void wait_until_readable() const {
    pollfd entry{socket_, POLLIN, 0};
    ASSERT_EQ(::poll(&entry, 1, 5000), 1);
  }
  /// Whether the kernel sees nothing of datagrams to and fro, within some seconds.
  bool comes_to_rings() const {
    if (!preloaded()) return true;
    const auto limit = steady_clock::now() + std::chrono::seconds(10);
    do {
      const long before = kernels_datagrams(AF_INET);
      for (int i = 0; i < 10; ++i) ping(socket_);
      if (kernels_datagrams(AF_INET) == before) return true;
      // Asked again and again: the socket looks now and then whether it is alone, and tells nobody.
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    } while (steady_clock::now() < limit);
    return false;
  }

  Address echo_;
  Socket socket_;
};

TEST_F(Inherited, ChildrenOfAServerShareItsDatagrams) {
  constexpr int kChildren = 3, kDatagrams = 300, kAtOnce = 30;
  Pipe heard;
  std::vector<pid_t> children;
  for (int i = 0; i < kChildren; ++i) {
    children.push_back(in_child([&] {
      for (std::string text = socket_.receive(); text != "end" && !text.empty(); text = socket_.receive()) {
        heard.write(text);
      }
    }));
  }
  std::multiset<std::string> sent, received;
  for (int i = 0; i < kDatagrams; ++i) {
    sent.insert("datagram " + std::to_string(i));
    send("datagram " + std::to_string(i));
    // No buffer on the way holds them all.
    for (int j = 0; i % kAtOnce == kAtOnce - 1 && j < kAtOnce; ++j) received.insert(heard.line());
  }
  for (int i = 0; i < kChildren; ++i) send("end");
  for (const std::string& line : heard.lines()) received.insert(line);
  for (const pid_t child : children) expect_success(child);
  EXPECT_EQ(received, sent) << "each once, by one of them";
}

TEST_F(Inherited, WhatTheParentHadAndNotReadIsTheChilds) {
  send("first");
  send("second");
  // Both are here once a later one is. One that comes during fork(2) may overtake those that return to the kernel.
  const Socket later(AF_INET);
  later.limit_waits();
  ping(later);
  ASSERT_EQ(socket_.receive(nullptr, MSG_PEEK), "first");
  expect_success(in_child([&] {
    Address from;
    EXPECT_EQ(socket_.receive(&from), "first");
    EXPECT_EQ(from.host(), kThere);
    EXPECT_EQ(from.port(), kEchoPort);
    EXPECT_EQ(socket_.receive(), "second");
  }));
  EXPECT_EQ(socket_.receive(nullptr, MSG_DONTWAIT), "");
  EXPECT_EQ(errno, EAGAIN) << "it is gone from here";
}

TEST_F(Inherited, WhatCameByIPv6IsTheChildsToo) {
  Socket socket(AF_INET6);
  socket.limit_waits();
  const Address any("::", 0), echo("fd09::2", kEchoPort);
  ASSERT_EQ(::bind(socket, any.get(), any.length()), 0);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(socket.send_to(echo, "ping"), 4);
    ASSERT_EQ(socket.receive(), "ping");
  }
  ASSERT_EQ(socket.send_to(echo, "hello"), 5);
  ASSERT_EQ(socket.receive(nullptr, MSG_PEEK), "hello");
  expect_success(in_child([&] {
    Address from;
    EXPECT_EQ(socket.receive(&from), "hello");
    EXPECT_EQ(from.host(), "fd09::2");
  }));
}

TEST_F(Inherited, TheParentComesBackToRingsWhenItsChildrenAreGone) {
  ASSERT_TRUE(comes_to_rings());
  Pipe go;
  const pid_t child = in_child([&] { go.wait(); });
  for (int i = 0; i < 10; ++i) ping(socket_);
  const pid_t killed = in_child([] { ::pause(); });
  go.write("go");
  expect_success(child);
  ASSERT_EQ(::kill(killed, SIGKILL), 0);
  EXPECT_TRUE(comes_to_rings()) << "although nobody waited for the one that was killed";
  EXPECT_EQ(::waitpid(killed, nullptr, 0), killed);
}

TEST_F(Inherited, AChildThatClosesItsCopyLeavesTheRingsToItsParent) {
  Pipe go;
  const pid_t child = in_child([&] {
    ::close(socket_);
    go.wait();
  });
  EXPECT_TRUE(comes_to_rings());
  go.write("go");
  expect_success(child);
}

TEST_F(Inherited, ADaemonGoesOnByRings) {
  Pipe told;
  const pid_t parent = in_child([&] {
    Socket socket(AF_INET);
    socket.limit_waits();
    const Address any("0.0.0.0", 0);
    EXPECT_EQ(::bind(socket, any.get(), any.length()), 0);
    std::swap(socket, socket_);
    ping(socket_);
    if (::daemon(1, 1) != 0) return;
    told.write(comes_to_rings() ? "by rings" : "by the kernel");
  });
  expect_success(parent);
  EXPECT_EQ(told.lines(), std::vector<std::string>{"by rings"});
}

// Programs without ThreadSanitizer's runtime cannot load a library that needs it.

TEST_F(Inherited, AnExecutedProgramReadsWhatWaits) {
  if (support::kHasThreadSanitizer) GTEST_SKIP() << "dd has no ThreadSanitizer";
  send("for the other program");
  wait_until_readable();
  Pipe output;
  expect_success(in_child([&] {
    ::dup2(socket_, STDIN_FILENO);
    ::dup2(output.writing_end(), STDOUT_FILENO);
    ::execlp("dd", "dd", "bs=4096", "count=1", "status=none", nullptr);
    ADD_FAILURE() << std::strerror(errno);
  }));
  EXPECT_EQ(output.lines(), std::vector<std::string>{"for the other program"});
}

TEST_F(Inherited, AProcessThatBecomesAnotherProgramLeavesItsDatagramsToIt) {
  if (support::kHasThreadSanitizer) GTEST_SKIP() << "dd has no ThreadSanitizer";
  Pipe output;
  expect_success(in_child([&] {
    Socket socket(AF_INET);
    socket.limit_waits();
    const Address any("0.0.0.0", 0);
    EXPECT_EQ(::bind(socket, any.get(), any.length()), 0);
    std::swap(socket, socket_);
    for (int i = 0; i < 3; ++i) ping(socket_);
    send("one");
    EXPECT_EQ(socket_.receive(nullptr, MSG_PEEK), "one");
    ::execl("/no/such/program", "program", nullptr);
    EXPECT_EQ(socket_.receive(nullptr, MSG_PEEK), "one") << "it is still there when that failed";
    ::dup2(socket_, STDIN_FILENO);
    ::dup2(output.writing_end(), STDOUT_FILENO);
    ::execlp("dd", "dd", "bs=4096", "count=1", "status=none", nullptr);
    ADD_FAILURE() << std::strerror(errno);
  }));
  EXPECT_EQ(output.lines(), std::vector<std::string>{"one"});
}

TEST_F(Inherited, ASocketThatIsPassedOnIsReadWhereItArrives) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const pid_t reader = in_child([&] {
    char byte = 0;
    iovec part{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    ASSERT_EQ(::recvmsg(ends[1], &message, 0), 1);
    int passed = -1;
    std::memcpy(&passed, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof passed);
    char room[100];
    for (const std::string wanted : {"before", "after"}) {
      const ssize_t got = ::recv(passed, room, sizeof room, 0);
      EXPECT_EQ(std::string(room, static_cast<std::size_t>(std::max<ssize_t>(got, 0))), wanted);
    }
  });
  Socket mine(AF_INET);
  mine.limit_waits();
  const Address any("0.0.0.0", 0);
  ASSERT_EQ(::bind(mine, any.get(), any.length()), 0);
  for (int i = 0; i < 3; ++i) ping(mine);
  ASSERT_EQ(mine.send_to(echo_, "before"), 6);
  ASSERT_EQ(mine.receive(nullptr, MSG_PEEK), "before");

  char byte = 'x';
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  ASSERT_EQ(send_with_control(ends[0], message, SOL_SOCKET, SCM_RIGHTS, static_cast<int>(mine)), 1);
  ASSERT_EQ(mine.send_to(echo_, "after"), 5);
  expect_success(reader);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(Inherited, ASocketThatAioReadsGetsWhatCameByRingsAndWhatComesLater) {
  send("before");
  ASSERT_EQ(socket_.receive(nullptr, MSG_PEEK), "before");
  for (const std::string wanted : {"before", "after"}) {
    std::array<char, 100> room{};
    ringsock::testing::LibcRequest request(socket_, LIO_NOP, room.data(), room.size());
    ASSERT_EQ(::aio_read(&request.block), 0);
    send(wanted == "before" ? "after" : "no more");
    const ssize_t got = request.result();
    EXPECT_EQ(std::string(room.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))), wanted);
  }
}

}  // namespace
}  // namespace ringsock::vma_tests
