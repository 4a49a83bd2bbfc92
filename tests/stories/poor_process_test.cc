// rsockets of processes that get no thread.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <rdma/rsocket.h>
#include <unistd.h>

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

/// 0: five clients had their echo.
int serve_five(int listener) {
  for (int i = 0; i < 5; ++i) {
    const int client = raccept(listener, nullptr, nullptr);
    char byte = 0;
    while (rrecv(client, &byte, 1, 0) == 1) {
      if (rsend(client, &byte, 1, 0) != 1) return 2;
    }
    rclose(client);
  }
  return rclose(listener);
}
int be_five_clients(std::uint16_t port) {
  for (int i = 0; i < 5; ++i) {
    const int fd = rsocket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = loopback(port);
    if (rconnect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return 3;
    int one = 1;
    rsetsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
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

TEST(PoorProcess, NeedsNoThreadOfALonelyUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "another user's limit needs root";
  five_connections(testing::become_lonely_user, is_rich);
  five_connections(is_rich, testing::become_lonely_user);
}

}  // namespace
}  // namespace ringsock::stories
