#include <cerrno>
#include <cstdio>
#include <cstring>
#include <span>

#include "tools/resolve.h"
#include "tools/udpong_session.h"

namespace ringsock::tools {

namespace {
bool is_same(const sockaddr_storage& a, socklen_t a_length, const sockaddr_storage& b, socklen_t b_length) {
  return a_length == b_length && std::memcmp(&a, &b, a_length) == 0;
}
}  // namespace

/// A client that repeats its login, because the answer was lost, keeps its number.
bool UdpongClients::log_in(UdpongHeader& message, const sockaddr_storage& from, socklen_t length) {
  for (std::size_t i = 0; i < clients_.size(); ++i) {
    if (!is_same(clients_[i].address, clients_[i].length, from, length)) continue;
    message.client = static_cast<std::uint8_t>(i);
    return true;
  }
  has_new_client_ = true;
  message.client = next_;
  clients_[next_++] = {from, length, 0};
  return true;
}

UdpongClients::Client* UdpongClients::find(const UdpongHeader& message, const sockaddr_storage& from,
                                           socklen_t length) {
  Client& client = clients_[message.client];
  return is_same(client.address, client.length, from, length) ? &client : nullptr;
}

bool UdpongClients::serve(UdpongHeader& message, const sockaddr_storage& from, socklen_t length) {
  has_new_client_ = false;
  if (message.op == UdpongOp::login) return log_in(message, from, length);
  Client* const client = find(message, from, length);
  if (client == nullptr) return false;
  switch (message.op) {
    case UdpongOp::start: client->count = 0; return true;
    case UdpongOp::data: ++client->count; return false;
    case UdpongOp::echo: ++client->count; return true;
    case UdpongOp::end: message.count = wire::Be32(client->count); return true;
    default: return false;
  }
}

Status serve_udpong(const UdpongOptions& options, const Socket& socket) {
  const SocketCalls& calls = socket.calls();
  UdpongClients clients;
  std::array<std::byte, kMaxUdpongBytes> buffer;
  const int flags = options.blocking ? 0 : MSG_DONTWAIT;
  for (;;) {
    if (options.async) {
      if (const auto ready = socket.wait(POLLIN, -1); !ready) return ready.error();
    }
    sockaddr_storage from{};
    socklen_t length = sizeof from;
    auto* const name = reinterpret_cast<sockaddr*>(&from);
    const ssize_t got = calls.recvfrom(socket.fd(), buffer.data(), buffer.size(), flags, name, &length);
    if (got < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNREFUSED) return Error::last("recvfrom");
    if (got < static_cast<ssize_t>(sizeof(UdpongHeader))) continue;
    UdpongHeader header;
    std::memcpy(&header, buffer.data(), sizeof header);
    if (!clients.serve(header, from, length)) continue;
    std::memcpy(buffer.data(), &header, sizeof header);
    if (clients.has_new_client()) {
      std::printf("client login from %s\n", host_text(name, length).c_str());
      std::fflush(stdout);
    }
    // A lost answer is asked for again.
    calls.sendto(socket.fd(), buffer.data(), static_cast<std::size_t>(got), flags, name, length);
  }
}

}  // namespace ringsock::tools
