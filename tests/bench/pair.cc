#include "tests/bench/pair.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace ringsock::bench {

using testing::Channel;
using testing::Child;
using testing::Milliseconds;

namespace {

constexpr Milliseconds kLongestMeasurement(120000);

struct Go {};

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/// Kernel TCP at its best for small messages; rsockets accept the option too.
void switch_nagle_off(const Calls& calls, int socket) {
  const int on = 1;
  calls.setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Figure result_of(Child& child, const char* who) {
  auto result = child.channel().receive<double>(kLongestMeasurement);
  if (!result) std::fprintf(stderr, "rsocket_bench: the %s ended or stood still\n", who);
  return result;
}

}  // namespace

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void Party::fail(const char* call) const {
  std::fprintf(stderr, "rsocket_bench: %s: %s: %s\n", calls.name, call, std::strerror(errno));
  _exit(1);
}

int Party::listen_anywhere() const {
  const int listener = calls.socket(AF_INET, SOCK_STREAM, 0);
  if (listener < 0) fail("socket");
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  if (calls.bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0) fail("bind");
  if (calls.listen(listener, 1024) != 0) fail("listen");
  if (calls.getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) fail("getsockname");
  parent.send(ntohs(address.sin_port));
  return listener;
}

int Party::accept_one(int listener) const {
  const int socket = calls.accept(listener, nullptr, nullptr);
  if (socket < 0) fail("accept");
  switch_nagle_off(calls, socket);
  return socket;
}

int Party::connect_to(std::uint16_t port, const std::function<void(int)>& prepare) const {
  const int socket = calls.socket(AF_INET, SOCK_STREAM, 0);
  if (socket < 0) fail("socket");
  switch_nagle_off(calls, socket);
  if (prepare) prepare(socket);
  const sockaddr_in address = loopback(port);
  if (calls.connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("connect");
  return socket;
}

void Party::send_all(int socket, const void* data, std::size_t length) const {
  const auto* at = static_cast<const char*>(data);
  while (length > 0) {
    const ssize_t sent = calls.send(socket, at, length, 0);
    if (sent <= 0) fail("send");
    at += sent;
    length -= static_cast<std::size_t>(sent);
  }
}

bool Party::receive_all(int socket, void* data, std::size_t length) const {
  auto* at = static_cast<char*>(data);
  while (length > 0) {
    const ssize_t got = calls.recv(socket, at, length, 0);
    if (got == 0) return false;
    if (got < 0) fail("recv");
    at += got;
    length -= static_cast<std::size_t>(got);
  }
  return true;
}

Figure run_processes(const Calls& calls, const std::function<double(const Party&)>& server,
                     const std::function<double(const Party&, std::uint16_t)>& client) {
  Child serving = Child::start([&](Channel& parent) {
    parent.send(server({calls, parent}));
    return 0;
  });
  const auto port = serving.channel().receive<std::uint16_t>();
  if (!port) return std::nullopt;
  Child connecting = Child::start([&](Channel& parent) {
    const Party party{calls, parent};
    parent.send(client(party, *port));
    return 0;
  });
  const Figure from_client = result_of(connecting, "client");
  if (!from_client) return std::nullopt;
  const Figure from_server = result_of(serving, "server");
  if (!from_server) return std::nullopt;
  serving.wait();
  connecting.wait();
  return *from_client + *from_server;
}

Figure run_connected(const Calls& calls, const std::function<void(const Party&, int)>& server,
                     const std::function<double(const Party&, int)>& client) {
  return run_pairs_together(calls, 1, server, client);
}

Figure run_pairs_together(const Calls& calls, int count, const std::function<void(const Party&, int)>& server,
                          const std::function<double(const Party&, int)>& client) {
  std::vector<Child> servers, clients;
  for (int i = 0; i < count; ++i) {
    servers.push_back(Child::start([&](Channel& parent) {
      const Party party{calls, parent};
      const int listener = party.listen_anywhere();
      const int socket = party.accept_one(listener);
      server(party, socket);
      calls.close(socket);
      calls.close(listener);
      return 0;
    }));
    const auto port = servers.back().channel().receive<std::uint16_t>();
    if (!port) return std::nullopt;
    clients.push_back(Child::start([&](Channel& parent) {
      const Party party{calls, parent};
      const int socket = party.connect_to(*port);
      parent.send(Go{});
      if (!parent.receive<Go>()) return 1;
      parent.send(client(party, socket));
      calls.close(socket);
      return 0;
    }));
  }
  for (auto& one : clients) {
    if (!one.channel().receive<Go>()) return std::nullopt;
  }
  for (auto& one : clients) one.channel().send(Go{});
  double sum = 0;
  for (auto& one : clients) {
    const Figure figure = result_of(one, "client");
    if (!figure) return std::nullopt;
    sum += *figure;
  }
  for (auto& one : servers) one.wait();
  return sum;
}

}  // namespace ringsock::bench
