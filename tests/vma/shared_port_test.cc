// One port, several sockets.
#include <sys/un.h>
#include <sys/wait.h>

#include <chrono>
#include <cstddef>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/poor_process.h"
#include "tests/vma/udp_fixture.h"

namespace ringsock::vma_tests {
namespace {

class SharedPort : public Udp {
 protected:
  SharedPort() : messenger_(echo_) {}

  Socket reusing(std::uint16_t port = 0) {
    Socket socket(GetParam().family);
    socket.limit_waits();
    socket.set(SOL_SOCKET, SO_REUSEADDR, 1);
    const Address any(GetParam().family == AF_INET ? "0.0.0.0" : "::", port);
    EXPECT_EQ(::bind(socket, any.get(), any.length()), 0) << std::strerror(errno);
    return socket;
  }
  void other_host_sends(const std::string& text, std::uint16_t port) { messenger_.send(text, GetParam().here, port); }

  long by_the_kernel_of_twenty(const Socket& socket, std::uint16_t port);

  const Messenger messenger_;
};
INSTANTIATE_TEST_SUITE_P(Over, SharedPort, both_versions(), name_of_version);

TEST_P(SharedPort, TheLastSocketOfAProcessGetsAll) {
  const Socket first = reusing();
  const std::uint16_t port = first.name().port();
  {
    const Socket second = reusing(port);
    other_host_sends("second", port);
    EXPECT_EQ(all_of(second), Texts{"second"});
    EXPECT_EQ(all_of(first), Texts());
  }
  other_host_sends("first", port);
  EXPECT_EQ(all_of(first), Texts{"first"});
}

TEST_P(SharedPort, TheLastSocketOfTheHostGetsAll) {
  int ready[2], told[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(told), 0);
  const pid_t child = ::fork();  // before it has sockets that the parent has, too
  char byte = 0;
  if (child == 0) {
    std::uint16_t port = 0;
    if (::read(told[0], &port, sizeof port) != sizeof port) ::_exit(2);
    const Socket theirs = reusing(port);
    if (::write(ready[1], "r", 1) != 1 || ::read(told[0], &byte, 1) != 1) ::_exit(2);
    ::_exit(all_of(theirs) == Texts{"child's"} ? 0 : 1);
  }
  const Socket mine = reusing();
  const std::uint16_t port = mine.name().port();
  other_host_sends("mine", port);
  EXPECT_EQ(all_of(mine), Texts{"mine"});

  ASSERT_EQ(::write(told[1], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  other_host_sends("child's", port);
  EXPECT_EQ(all_of(mine), Texts());
  ASSERT_EQ(::write(told[1], "t", 1), 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);

  other_host_sends("mine again", port);
  EXPECT_EQ(all_of(mine), Texts{"mine again"});
  for (const int fd : {ready[0], ready[1], told[0], told[1]}) ::close(fd);
}

/// An abstract AF_UNIX socket of a process that keeps it for itself; `listens` and never answers.
int squat(const std::string& name) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), length) != 0 || ::listen(fd, 8) != 0) return -1;
  return fd;
}

/// Connects to everything that is named after the port.
int visit_all(std::uint16_t port) {
  const std::string wanted = "@ringsock-udp-port-" + std::to_string(port);
  std::ifstream names("/proc/net/unix");
  int visits = 0;
  for (std::string line; std::getline(names, line);) {
    const auto at = line.find(wanted);
    if (at == line.npos) continue;
    const std::string name = line.substr(at + 1);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    const int visitor = ::socket(AF_UNIX, SOCK_STREAM, 0);
    const timeval limit{2, 0};
    ::setsockopt(visitor, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (::connect(visitor, reinterpret_cast<const sockaddr*>(&address), length) != 0) continue;
    char nothing = 0;
    if (::recv(visitor, &nothing, 1, 0) == 0) ++visits;
    ::close(visitor);
  }
  return visits;
}

/// A process of another user. Made before the sockets that it is not to inherit; acts when it is told of a port, and
/// lives until the end of this object.
class Stranger {
 public:
  explicit Stranger(const std::function<bool(const Stranger&, std::uint16_t)>& act) {
    if (::pipe(told_) != 0 || ::pipe(orders_) != 0) return;
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::close(orders_[1]);
    std::uint16_t port = 0;
    const bool goes = ::setgid(4711) == 0 && ::setuid(4711) == 0 && ::read(orders_[0], &port, sizeof port) > 0;
    const bool acted = goes && act(*this, port);
    ::_exit(acted ? 0 : 1);
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  ~Stranger() {
    for (const int fd : {orders_[0], orders_[1], told_[0], told_[1]}) ::close(fd);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  }
  void go(std::uint16_t port) const { EXPECT_GT(::write(orders_[1], &port, sizeof port), 0); }
  /// By the stranger: something has happened.
  [[nodiscard]] bool tell() const { return ::write(told_[1], "t", 1) == 1; }
  void hear() const {
    char byte = 0;
    EXPECT_EQ(::read(told_[0], &byte, 1), 1);
  }
  /// By the stranger: until this object ends.
  void stay() const {
    char byte = 0;
    static_cast<void>(::read(orders_[0], &byte, 1) == 1);
  }
  /// Whether it did what it wanted; it has ended.
  bool acted() {
    int status = -1;
    return ::waitpid(std::exchange(pid_, -1), &status, 0) > 0 && status == 0;
  }

 private:
  pid_t pid_ = -1;
  int told_[2]{}, orders_[2]{};
};

std::uint16_t free_port(int family) {
  const Socket socket(family);
  const Address any(family == AF_INET ? "0.0.0.0" : "::", 0);
  EXPECT_EQ(::bind(socket, any.get(), any.length()), 0);
  return socket.name().port();
}

/// How many of twenty datagrams the kernel had.
long SharedPort::by_the_kernel_of_twenty(const Socket& socket, std::uint16_t port) {
  // No process but this one has its socket: the fixture's may be a stranger's, too, and what comes to it the kernel's.
  const Messenger messenger(echo_);
  const auto other_host_sends = [&](const std::string& text, std::uint16_t to) {
    messenger.send(text, GetParam().here, to);
  };
  other_host_sends("first", port);  // may be the kernel's: rings come with the first use
  static_cast<void>(all_of(socket));
  const long before = kernels_datagrams(GetParam().family);
  Texts all;
  for (int i = 0; i < 20; ++i) {
    other_host_sends("twenty", port);
    for (const std::string& text : all_of(socket)) all.push_back(text);
  }
  EXPECT_EQ(all, Texts(20, "twenty"));
  return kernels_datagrams(GetParam().family) - before;
}

TEST_P(SharedPort, AStrangersNameTakesNothing) {
  const Stranger stranger([&](const Stranger& self, std::uint16_t port) {
    const std::string name = "ringsock-udp-port-" + std::to_string(port);
    const bool has_names = squat(name) >= 0 && squat(name + "-0123456789abcdef") >= 0;
    if (!has_names || !self.tell()) return false;
    self.stay();
    return true;
  });
  const std::uint16_t port = free_port(GetParam().family);
  stranger.go(port);
  stranger.hear();
  const auto begin = std::chrono::steady_clock::now();
  const Socket mine = reusing(port);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(150));
  const long by_the_kernel = by_the_kernel_of_twenty(mine, port);
  if (preloaded()) {
    EXPECT_LT(by_the_kernel, 10) << "of twenty";
  }
}

TEST_P(SharedPort, AStrangersVisitsTakeNothing) {
  Stranger stranger([&](const Stranger&, std::uint16_t port) {
    int visits = 0;
    for (int i = 0; i < 20; ++i) visits += visit_all(port);
    return visits >= (preloaded() ? 20 : 0);
  });
  const Socket mine = reusing();
  const std::uint16_t port = mine.name().port();
  stranger.go(port);
  EXPECT_TRUE(stranger.acted());
  const long by_the_kernel = by_the_kernel_of_twenty(mine, port);
  if (preloaded()) {
    EXPECT_LT(by_the_kernel, 10) << "of twenty";
  }
}

TEST_P(SharedPort, ASocketOnOtherAddressesTakesNothing) {
  Stranger stranger([&](const Stranger&, std::uint16_t port) {
    const Socket other(GetParam().family);
    other.set(SOL_SOCKET, SO_REUSEADDR, 1);
    const Address loopback(GetParam().loopback, port);
    return ::bind(other, loopback.get(), loopback.length()) == 0 && visit_all(port) >= 0;
  });
  const Socket mine = reusing();
  const std::uint16_t port = mine.name().port();
  stranger.go(port);
  EXPECT_TRUE(stranger.acted());
  const long by_the_kernel = by_the_kernel_of_twenty(mine, port);
  if (preloaded()) {
    EXPECT_LT(by_the_kernel, 10) << "of twenty";
  }
}

/// The kernel lets any user have a part in such a port.
TEST_P(SharedPort, TheLastSocketGetsAllAlsoWhenItIsAnotherUsers) {
  Stranger other([&](const Stranger& self, std::uint16_t port) {
    const Socket theirs = reusing(port);
    return self.tell() && theirs.receive() == "theirs";
  });
  const Socket mine = reusing();
  const std::uint16_t port = mine.name().port();
  other_host_sends("mine", port);
  EXPECT_EQ(all_of(mine), Texts{"mine"});
  other.go(port);
  other.hear();
  other_host_sends("theirs", port);
  EXPECT_EQ(all_of(mine), Texts());
  EXPECT_TRUE(other.acted());
}

TEST_P(SharedPort, WhoIsConnectedGoesBeforeWhoIsNot) {
  const Socket connected = reusing();
  const std::uint16_t port = connected.name().port();
  ASSERT_EQ(::connect(connected, echo_.get(), echo_.length()), 0);
  const Socket other = reusing(port);
  other_host_sends("for the connected one", port);
  EXPECT_EQ(all_of(connected), Texts{"for the connected one"});
  EXPECT_EQ(all_of(other), Texts());
}

/// A process in poverty (poor_process.h) that talks to the other host, with its first socket and one that shares a
/// port.
class PoorUdp : public Udp {
 protected:
  static void echoes(const Socket& socket, const Address& echo) {
    socket.limit_waits();
    for (int i = 0; i < 20; ++i) {
      if (socket.send_to(echo, "hello") != 5 || socket.receive() != "hello") ::_exit(3);
    }
  }
  int in_poverty(const std::function<bool()>& begin) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      if (!begin()) ::_exit(2);
      echoes(Socket(GetParam().family), echo_);
      Socket shared(GetParam().family);
      shared.set(SOL_SOCKET, SO_REUSEADDR, 1);
      const Address any(GetParam().family == AF_INET ? "0.0.0.0" : "::", 0);
      if (::bind(shared, any.get(), any.length()) != 0) ::_exit(4);
      echoes(shared, echo_);
      ::_exit(0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    return status;
  }
};
INSTANTIATE_TEST_SUITE_P(Over, PoorUdp, both_versions(), name_of_version);

TEST_P(PoorUdp, NeedsNoThread) { EXPECT_EQ(in_poverty(&testing::deny_threads), 0); }
TEST_P(PoorUdp, NeedsNoThreadOfALonelyUser) { EXPECT_EQ(in_poverty(&testing::become_lonely_user), 0); }
TEST_P(PoorUdp, MayCloseAllItDoesNotKnow) {
  const auto begin = [&] {
    echoes(Socket(GetParam().family), echo_);
    ::closefrom(3);
    return true;
  };
  EXPECT_EQ(in_poverty(begin), 0);
}

}  // namespace
}  // namespace ringsock::vma_tests
