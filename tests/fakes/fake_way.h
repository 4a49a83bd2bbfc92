// A way that carries no bytes but remembers what it was asked for.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/runtime/fork_registry.h"
#include "core/transports/chosen_socket.h"

namespace ringsock::fakes {

/// What the test says, and what the ways of one maker did.
struct FakeNetwork {
  // -- said by the test
  bool permits = true;                                    ///< the rules
  std::optional<runtime::KernelReason> why_not;           ///< of the way
  Status connects = Error{EINPROGRESS, "fake: connect"};  ///< the answer of each connect()
  bool failed = false;                                    ///< a connect in the background has failed
  std::uint32_t events = 0;
  // -- what happened
  int connects_asked = 0;
  std::string sent;
  bool closed = false;
};

class FakeWay final : public transports::Way,
                      public runtime::Transfer,
                      public runtime::Readiness,
                      public runtime::Setup,
                      public runtime::DescriptorLife,
                      public runtime::ProcessLife {
 public:
  runtime::Roles roles() noexcept override { return {*this, *this, *this, *this, *this}; }
  FakeWay(FakeNetwork& network, runtime::Endpoint& endpoint, int fd) : Way(endpoint), network_(network), fd_(fd) {}
  ~FakeWay() override { runtime::fork_registry().leave(endpoint()); }

  Result<ssize_t> send_bytes(const void* data, std::size_t length, int) override {
    network_.sent.append(static_cast<const char*>(data), length);
    return static_cast<ssize_t>(length);
  }
  Result<ssize_t> send(const msghdr&, int) override { return Error{ENOTCONN, "fake: send"}; }
  std::uint32_t ready() noexcept override { return network_.failed ? EPOLLHUP | EPOLLERR : network_.events; }
  runtime::WaitFds arm() noexcept override { return {}; }
  void woken() noexcept override {}
  Status connect(const sockaddr*, socklen_t) override {
    ++network_.connects_asked;
    return network_.connects;
  }
  void closed() noexcept override { network_.closed = true; }

  [[nodiscard]] int descriptor() const override { return fd_; }
  std::optional<runtime::KernelReason> why_not_to(const SocketAddress&, bool) override { return network_.why_not; }
  [[nodiscard]] bool is_connecting() const override { return false; }
  [[nodiscard]] bool has_failed_to_connect() const override { return network_.failed; }
  [[nodiscard]] int connect_error() const override { return ECONNREFUSED; }
  void inherit_options(const Way&) override {}

 private:
  FakeNetwork& network_;
  const int fd_;
};

class FakeWayMaker final : public transports::WayMaker {
 public:
  explicit FakeWayMaker(FakeNetwork& network) : network_(network) {}
  [[nodiscard]] std::unique_ptr<transports::Way> make_way(transports::ChosenSocket& socket, int,
                                                          int fd) const override {
    return std::make_unique<FakeWay>(network_, socket, fd);
  }
  [[nodiscard]] std::unique_ptr<transports::Mover> make_mover(transports::ChosenSocket&,
                                                              transports::Way&) const override {
    return nullptr;
  }
  [[nodiscard]] bool permits(int, const SocketAddress&) const override { return network_.permits; }

 private:
  FakeNetwork& network_;
};

}  // namespace ringsock::fakes
