// What can be done with a stream socket now, and how to sleep until more can be done.
#pragma once

#include "core/runtime/roles.h"
#include "librsocket/stream_core.h"

namespace ringsock::rs {

/// Answers for the state that the socket is in. Takes setup_lock for a listener and a connect, and for the connection
/// manager's events; holds nothing while it polls a connection.
class StreamReadiness final : public runtime::Readiness, public StreamPart {
 public:
  StreamReadiness(StreamSocket& socket, StreamCore& core) : StreamPart(socket, core) {}

  std::uint32_t ready() noexcept override;
  runtime::WaitFds arm() noexcept override;
  void woken() noexcept override;
  Nanos deadline() noexcept override;
  void look_for_end() noexcept override;
  [[nodiscard]] bool asks_kernel() const noexcept override { return core_.state() == State::listening; }
  runtime::Listable* listable() noexcept override;
  /// Until data has come: when the application called connect(2). A listener answers its clients in that order.
  std::uint32_t arrival_stamp() noexcept override;
  [[nodiscard]] std::uint64_t taken_in_turns() const noexcept override;
  void expect_turns() noexcept override;
  [[nodiscard]] bool waits_for_our_cpus() const noexcept override {
    return core_.is_connected() && core_.connection->device().traits().works_on_our_cpus;
  }

 private:
  std::uint32_t listening_events() noexcept;
  std::uint32_t connecting_events() noexcept;
  std::uint32_t connected_events() noexcept;
  [[nodiscard]] bool has_enough() const noexcept;
  [[nodiscard]] bool has_peer_ended() const noexcept;
};

}  // namespace ringsock::rs
