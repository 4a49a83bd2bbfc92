// What a descriptor of a ring is in a child that was made without our fork handlers.
#pragma once

#include <cerrno>

#include "core/runtime/endpoint.h"

namespace ringsock::runtime {

/// Takes the place of every endpoint that only the parent can use (at_strange_child()): bytes are refused with EIO,
/// poll reports an error, close(2) closes the child's descriptor. Made in static memory, never destroyed, in as many
/// tables' places as there are.
class LostEndpoint final : public Endpoint {
 public:
  Status shutdown(int) override { return lost(); }
  Result<SocketAddress> local_name() override { return lost(); }
  Result<SocketAddress> peer_name() override { return lost(); }
  Result<ssize_t> receive(msghdr&, int) override { return lost(); }
  Result<ssize_t> send(const msghdr&, int) override { return lost(); }
  std::uint32_t ready() noexcept override { return EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP; }
  WaitFds arm() noexcept override { return {}; }
  void woken() noexcept override {}
  void closed() noexcept override {}

 private:
  static Error lost() { return {EIO, "the connection is the parent's: this process was made without fork(3)"}; }
};

}  // namespace ringsock::runtime
