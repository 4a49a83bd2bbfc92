// What a descriptor of ours is that cannot be used.
#pragma once

#include "core/runtime/endpoint.h"

namespace ringsock::runtime {

/// Takes the place of endpoints in the table: operations are refused, poll reports an error. Made in static memory,
/// never destroyed, in as many tables' places as there are.
class RefusingEndpoint final : public Endpoint {
 public:
  explicit RefusingEndpoint(Error why) : why_(why) {}

  Status bind(const sockaddr*, socklen_t) override { return why_; }
  Status listen(int) override { return why_; }
  Result<int> accept(SocketAddress&, int) override { return why_; }
  Status connect(const sockaddr*, socklen_t) override { return why_; }
  Status shutdown(int) override { return why_; }
  Result<SocketAddress> local_name() override { return why_; }
  Result<SocketAddress> peer_name() override { return why_; }
  Status set_option(int, int, const void*, socklen_t) override { return why_; }
  Status get_option(int, int, void*, socklen_t*) override { return why_; }
  Result<ssize_t> receive(msghdr&, int) override { return why_; }
  Result<ssize_t> send(const msghdr&, int) override { return why_; }
  Result<int> unread_bytes() override { return why_; }
  Result<int> unsent_bytes() override { return why_; }
  std::uint32_t ready() noexcept override { return EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP; }
  WaitFds arm() noexcept override { return {}; }
  void woken() noexcept override {}
  void closed() noexcept override {}

 private:
  const Error why_;
};

}  // namespace ringsock::runtime
