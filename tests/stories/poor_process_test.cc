// rsockets of processes that get no thread.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <rdma/rsocket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "tests/support/child.h"
#include "tests/support/poor_process.h"

namespace ringsock::stories {
namespace {

using testing::Channel;
using testing::Child;

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

struct Listening {
  int fd;
  std::uint16_t port;
};
Listening listen_anywhere() {
  const int fd = rsocket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  if (rbind(fd, name, length) != 0 || rlisten(fd, 8) != 0 || rgetsockname(fd, name, &length) != 0) return {-1, 0};
  return {fd, ntohs(address.sin_port)};
}

/// Over a ring a descriptor is whatever wakes its sleepers, and no socket of the kernel's TCP.
bool is_off_kernel(int fd) {
  int domain = 0;
  socklen_t length = sizeof domain;
  return fd >= 0 && (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 || domain != AF_INET);
}

/// 0: five clients had their echo.
int serve_five(int listener) {
  for (int i = 0; i < 5; ++i) {
    const int client = raccept(listener, nullptr, nullptr);
    if (!is_off_kernel(client)) return 7;
    char byte = 0;
    while (rrecv(client, &byte, 1, 0) == 1) {
      if (rsend(client, &byte, 1, 0) != 1) return 2;
    }
    rclose(client);
  }
  return rclose(listener);
}
void keep_alive(int fd) {
  const int one = 1;
  rsetsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
  rsetsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &one, sizeof one);
}
int be_five_clients(std::uint16_t port) {
  for (int i = 0; i < 5; ++i) {
    const int fd = rsocket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = loopback(port);
    if (rconnect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return 3;
    if (!is_off_kernel(fd)) return 7;
    keep_alive(fd);
    for (const char byte : std::string("hello")) {
      char back = 0;
      if (rsend(fd, &byte, 1, 0) != 1 || rrecv(fd, &back, 1, 0) != 1 || back != byte) return 4;
    }
    if (rclose(fd) != 0) return 5;
  }
  return 0;
}

using Prepare = std::function<bool()>;
Child server_after(const Prepare& prepare) {
  return Child::start([prepare](Channel& channel) {
    ::alarm(20);
    if (!prepare()) return 6;
    const Listening listening = listen_anywhere();
    channel.send(listening.port);
    return serve_five(listening.fd);
  });
}
Child clients_after(const Prepare& prepare, std::uint16_t port) {
  return Child::start([prepare, port](Channel&) {
    ::alarm(20);
    return prepare() ? be_five_clients(port) : 6;
  });
}

void five_connections(const Prepare& server_prepares, const Prepare& client_prepares) {
  Child server = server_after(server_prepares);
  const auto port = server.channel().receive<std::uint16_t>();
  ASSERT_TRUE(port && *port != 0);
  Child clients = clients_after(client_prepares, *port);
  EXPECT_EQ(clients.wait(), 0);
  EXPECT_EQ(server.wait(), 0);
}

bool is_rich() { return true; }

TEST(PoorProcess, NeedsNoThread) {
  five_connections(testing::deny_threads, is_rich);
  five_connections(is_rich, testing::deny_threads);
  five_connections(testing::deny_threads, testing::deny_threads);
}

/// Both ends in one process, which connects before it accepts.
int talk_to_self() {
  ::alarm(20);
  if (!testing::deny_threads()) return 6;
  const Listening listening = listen_anywhere();
  for (int i = 0; i < 5; ++i) {
    const int client = rsocket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = loopback(listening.port);
    if (rconnect(client, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return 3;
    const int server = raccept(listening.fd, nullptr, nullptr);
    if (server < 0 || !is_off_kernel(client) || !is_off_kernel(server)) return 7;
    keep_alive(client);
    keep_alive(server);
    char byte = 'x';
    if (rsend(client, &byte, 1, 0) != 1 || rrecv(server, &byte, 1, 0) != 1) return 4;
    if (rclose(client) != 0 || rrecv(server, &byte, 1, 0) != 0 || rclose(server) != 0) return 5;
  }
  return rclose(listening.fd);
}

TEST(PoorProcess, TalksToItself) {
  Child process = Child::start([](Channel&) { return talk_to_self(); });
  EXPECT_EQ(process.wait(), 0);
}

/// What was sent before rclose() arrives, though the peer reads late.
constexpr std::size_t kUnderWay = 64 * 1024;
TEST(PoorProcess, ClosesWhileDataIsUnderWay) {
  Child server = Child::start([](Channel& channel) {
    ::alarm(20);
    const Listening listening = listen_anywhere();
    channel.send(listening.port);
    const int client = raccept(listening.fd, nullptr, nullptr);
    ::usleep(300'000);
    std::string room(kUnderWay, '\0');
    std::size_t all = 0;
    for (ssize_t got = 0; (got = rrecv(client, room.data(), room.size(), 0)) > 0;) all += static_cast<std::size_t>(got);
    return all == kUnderWay ? rclose(client) : 4;
  });
  const auto port = server.channel().receive<std::uint16_t>();
  ASSERT_TRUE(port && *port != 0);
  Child client = Child::start([port](Channel&) {
    ::alarm(20);
    if (!testing::deny_threads()) return 6;
    const int fd = rsocket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = loopback(*port);
    if (rconnect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return 3;
    const std::string text(kUnderWay, 'x');
    for (std::size_t sent = 0; sent < text.size();) {
      const ssize_t more = rsend(fd, text.data() + sent, text.size() - sent, 0);
      if (more <= 0) return 4;
      sent += static_cast<std::size_t>(more);
    }
    if (!is_off_kernel(fd)) return 7;
    return rclose(fd);
  });
  EXPECT_EQ(client.wait(), 0);
  EXPECT_EQ(server.wait(), 0);
}

TEST(PoorProcess, NeedsNoThreadOfALonelyUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "another user's limit needs root";
  five_connections(testing::become_lonely_user, is_rich);
  five_connections(is_rich, testing::become_lonely_user);
}

}  // namespace
}  // namespace ringsock::stories
