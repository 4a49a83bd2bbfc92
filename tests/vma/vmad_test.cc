// vmad and its clients. vmad_vma.sh runs the service; "Clients" are processes with libvma beside the echo service
// (two_hosts.sh), "Resets" speak to the service themselves.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "libvmacompat/agent/messages.h"
#include "tests/vma/udp_world.h"

namespace ringsock::vma_tests {
namespace {

namespace agent = vma::agent;

std::string notify_directory() { return std::getenv("VMA_VMAD_NOTIFY_DIR"); }
std::string file_of(pid_t pid, const char* suffix) {
  return notify_directory() + "/vma_agent." + std::to_string(pid) + suffix;
}
bool has_files(pid_t pid) {
  return std::filesystem::exists(file_of(pid, ".sock")) && std::filesystem::exists(file_of(pid, ".pid"));
}
void until_gone(const std::string& file) {
  while (std::filesystem::exists(file)) ::usleep(1000);
}

/// A child process that has done `begin` when this returns, and then waits to be killed. Returns its number.
template <class Begin>
pid_t start_child(Begin begin) {
  std::array<int, 2> told{};
  EXPECT_EQ(::pipe(told.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    begin();
    if (::write(told[1], "b", 1) != 1) std::abort();
    for (;;) ::pause();
  }
  ::close(told[1]);
  char byte = 0;
  EXPECT_EQ(::read(told[0], &byte, 1), 1);
  ::close(told[0]);
  return child;
}
void reap(pid_t child) { EXPECT_EQ(::waitpid(child, nullptr, 0), child); }

// -- processes with libvma

/// A socket on a ring.
void begin_with_ring() {
  const Address echo("10.9.0.2", kEchoPort), here("10.9.0.1", 0);
  static const Socket socket(AF_INET);
  socket.limit_waits();
  ::bind(socket, here.get(), here.length());
  for (int i = 0; i < 3; ++i) {
    socket.send_to(echo, "hello");
    socket.receive();
  }
}

TEST(Clients, AreKnownToTheServiceAsLongAsTheyHaveRings) {
  const pid_t child = start_child([] { begin_with_ring(); });
  EXPECT_TRUE(has_files(child));
  EXPECT_FALSE(has_files(::getpid())) << "this process has no ring";
  ::kill(child, SIGKILL);
  reap(child);
  until_gone(file_of(child, ".sock"));
  until_gone(file_of(child, ".pid"));
}

TEST(Clients, ThatEndTakeTheirFilesWithThem) {
  const pid_t child = ::fork();
  if (child == 0) {
    begin_with_ring();
    std::exit(has_files(::getpid()) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(std::filesystem::exists(file_of(child, ".sock")));
  EXPECT_FALSE(std::filesystem::exists(file_of(child, ".pid")));
}

TEST(Clients, AForkedChildIsAnotherOne) {
  const pid_t parent = start_child([] {
    begin_with_ring();
    const pid_t child = ::fork();
    if (child == 0) std::exit(0);
    ::waitpid(child, nullptr, 0);
  });
  EXPECT_TRUE(has_files(parent)) << "its child, which has ended, had no ring";
  ::kill(parent, SIGKILL);
  reap(parent);
  until_gone(file_of(parent, ".sock"));
}

// -- connections

/// A client of the service.
class Client {
 public:
  Client() {
    sockaddr_un own{}, service{};
    own.sun_family = service.sun_family = AF_UNIX;
    std::strncpy(own.sun_path, file_of(::getpid(), ".sock").c_str(), sizeof own.sun_path - 1);
    std::strncpy(service.sun_path, agent::kServiceSocket, sizeof service.sun_path - 1);
    ::bind(fd_, reinterpret_cast<const sockaddr*>(&own), sizeof own);
    ::connect(fd_, reinterpret_cast<const sockaddr*>(&service), sizeof service);
  }
  template <class Body>
  void say(const Body& body) const {
    const auto bytes = agent::encode({.pid = ::getpid(), .body = body});
    ::send(fd_, bytes.bytes.data(), bytes.size, 0);
  }
  /// The answer to a message; what was sent before it has been handled, too.
  Status begin() const {
    say(agent::Init{1});
    std::array<std::byte, 64> room;
    const ssize_t got = ::recv(fd_, room.data(), room.size(), 0);
    if (got < 0) return Error::last("recv");
    return agent::parse_init_answer(std::span(room).first(static_cast<std::size_t>(got)), ::getpid());
  }
  /// Returns when the service has handled all that was said.
  void until_heard() const {
    say(agent::Flow{.wants_answer = true});
    std::array<std::byte, 64> room;
    static_cast<void>(::recv(fd_, room.data(), room.size(), 0));
  }

 private:
  const int fd_ = ::socket(AF_UNIX, SOCK_DGRAM, 0);
};

/// A process that has died without the kernel's knowing of its connection: TCP_REPAIR closes without a word.
void connect_tell_and_vanish(const sockaddr_in& server) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in own{};
  socklen_t length = sizeof own;
  const int on = 1;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&server), sizeof server) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0)
    std::abort();
  const Client client;
  if (!client.begin()) std::abort();
  client.say(agent::State{.id = 1,
                          .source = own.sin_addr,
                          .destination = server.sin_addr,
                          .source_port = own.sin_port,
                          .destination_port = server.sin_port,
                          .type = SOCK_STREAM,
                          .state = agent::State::kEstablished});
  client.until_heard();
  if (::setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &on, sizeof on) != 0) std::abort();
  ::close(fd);
}

TEST(Resets, ThePeerOfAProcessThatDiedIsTold) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t length = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);

  const pid_t child = start_child([&] { connect_tell_and_vanish(address); });
  const int peer = ::accept(listener, nullptr, nullptr);
  ASSERT_GE(peer, 0);
  char byte = 0;
  EXPECT_EQ(::recv(peer, &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN) << "the peer knows nothing";

  ::kill(child, SIGKILL);
  reap(child);
  EXPECT_EQ(::recv(peer, &byte, 1, 0), -1);
  EXPECT_EQ(errno, ECONNRESET);
  until_gone(file_of(child, ".sock"));
  ::close(peer);
  ::close(listener);
}

}  // namespace
}  // namespace ringsock::vma_tests
