// A way that carries no bytes but remembers what it was asked for.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <deque>
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
  bool can_listen = false;
  std::deque<int> clients;     ///< descriptors that accept() by the way returns
  bool ended_for_all = false;  ///< another process has ended the listener
  // -- what happened
  bool listens = false;
  bool refuses = false;
  int connects_asked = 0;
  std::string sent;
  bool closed = false;
};

class FakeWay final : public transports::Way,
                      public runtime::Transfer,
                      public runtime::Readiness,
                      public runtime::Setup,
                      public runtime::DescriptorLife,
                      public runtime::ProcessLife,
                      public transports::Listening {
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

  Status bind(const sockaddr*, socklen_t) override { return ok(); }
  Status listen(int) override {
    network_.listens = true;
    return ok();
  }
  Result<int> accept(SocketAddress& peer, int flags) override { return accept_waiting(peer, flags); }
  Status shutdown(int) override { return ok(); }
  transports::Listening* listening() noexcept override { return network_.can_listen ? this : nullptr; }
  void stop_listening() override { network_.listens = false; }
  void refuse_clients() override { network_.refuses = true; }
  [[nodiscard]] bool refuses_clients() override { return network_.refuses; }
  void forget_listening() override { network_.listens = network_.refuses = false; }
  void end_for_all() override { network_.ended_for_all = true; }
  [[nodiscard]] bool has_ended_for_all() const noexcept override { return network_.ended_for_all; }
  [[nodiscard]] bool nobody_waits(int) override { return false; }
  [[nodiscard]] bool has_half_open() override { return false; }
  Result<int> accept_waiting(SocketAddress&, int) override {
    if (network_.clients.empty()) return Error{EAGAIN, "fake: accept"};
    const int client = network_.clients.front();
    network_.clients.pop_front();
    return client;
  }
  [[nodiscard]] bool is_strangers_too() const noexcept override { return false; }

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
  [[nodiscard]] bool permits(int, const SocketAddress&, config::VmaRole) const override { return network_.permits; }

 private:
  FakeNetwork& network_;
};

}  // namespace ringsock::fakes
