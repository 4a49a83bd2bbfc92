#include "libvmacompat/port_claims.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <new>
#include <string>

#include "libvmacompat/udp_socket.h"

namespace ringsock::vma {

namespace {

constexpr timeval kLongestAnswer{0, 200'000};
/// The one who has the name may go at that moment.
constexpr int kAttempts = 3;

struct PortName {
  explicit PortName(std::uint16_t port) {
    const std::string text = "ringsock-udp-port-" + std::to_string(port);
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, text.data(), text.size());  // abstract: begins with a zero
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  sockaddr_un address{};
  socklen_t length;
};

UniqueFd listen_as(const PortName& name) {
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener || ::bind(listener.get(), name.get(), name.length) != 0 || ::listen(listener.get(), SOMAXCONN) != 0)
    return {};
  return listener;
}

/// False: nobody has it any more.
bool ask_to_leave(const PortName& name) {
  const UniqueFd visitor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ::setsockopt(visitor.get(), SOL_SOCKET, SO_RCVTIMEO, &kLongestAnswer, sizeof kLongestAnswer);
  ::setsockopt(visitor.get(), SOL_SOCKET, SO_SNDTIMEO, &kLongestAnswer, sizeof kLongestAnswer);
  if (::connect(visitor.get(), name.get(), name.length) != 0) return errno != ECONNREFUSED;
  char nothing = 0;
  static_cast<void>(::recv(visitor.get(), &nothing, sizeof nothing, 0));  // its end is what is waited for
  return true;
}

[[gnu::constructor]] void watch_forks() {
  // Before the first socket is there, so that fork(2) takes the sockets' locks first, as everybody does.
  ::pthread_atfork([] { port_claims().before_fork(); }, [] { port_claims().after_fork_in_parent(); },
                   [] { port_claims().after_fork_in_child(); });
}

}  // namespace

PortClaims& port_claims() {
  static PortClaims* const instance = new PortClaims;
  return *instance;
}

bool PortClaims::enter(std::uint16_t port, UdpSocket& socket) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (try_to_enter(port, socket)) return true;
    if (ask_to_leave(PortName(port))) return false;
  }
  return false;
}

bool PortClaims::try_to_enter(std::uint16_t port, UdpSocket& socket) {
  const std::lock_guard guard(lock_);
  const auto known = claims_.find(port);
  if (known != claims_.end()) {
    auto& sockets = known->second.sockets;
    if (std::find(sockets.begin(), sockets.end(), &socket) == sockets.end()) sockets.push_back(&socket);
    return true;
  }
  Claim claim;
  claim.listener = listen_as(PortName(port));
  if (!claim.listener) return false;
  auto watch = runtime::service_thread().watch(claim.listener.get(), EPOLLIN,
                                               [this, port](std::uint32_t) { visitors_came(port); });
  if (!watch) return false;
  claim.watch = *watch;
  claim.sockets.push_back(&socket);
  claims_.emplace(port, std::move(claim));
  return true;
}

void PortClaims::leave(std::uint16_t port, UdpSocket& socket) {
  Claim ended;  // without the lock: a call of visitors_came() may be waiting for it
  {
    const std::lock_guard guard(lock_);
    const auto claim = claims_.find(port);
    if (claim == claims_.end()) return;
    std::erase(claim->second.sockets, &socket);
    if (!claim->second.sockets.empty()) return;
    ended = std::move(claim->second);
    claims_.erase(claim);
  }
  runtime::service_thread().unwatch(ended.watch);
}

void PortClaims::visitors_came(std::uint16_t port) {
  std::vector<UniqueFd> visitors;
  std::vector<runtime::Ref> sockets;
  {
    const std::lock_guard guard(lock_);
    const auto claim = claims_.find(port);
    if (claim == claims_.end()) return;
    for (;;) {
      UniqueFd visitor(::accept4(claim->second.listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!visitor) break;
      visitors.push_back(std::move(visitor));
    }
    for (UdpSocket* const socket : claim->second.sockets) {
      if (socket->try_add_ref()) sockets.emplace_back(socket);
    }
  }
  for (const runtime::Ref& socket : sockets) static_cast<UdpSocket&>(*socket).leave_port_to_kernel();
}

void PortClaims::after_fork_in_child() {
  for (auto& [port, claim] : claims_) claim.listener.reset();
  new (&claims_) Claims;  // the watches are the parent's
  lock_.unlock();
}

}  // namespace ringsock::vma
