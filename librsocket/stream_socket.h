// A stream rsocket, as made by rsocket(…, SOCK_STREAM, …).
#pragma once

#include <mellanox/vma_extra.h>
#include <sys/socket.h>

#include <optional>

#include "core/transports/endpoint_of.h"
#include "core/transports/way.h"
#include "librsocket/cm_events.h"
#include "librsocket/direct_placement.h"
#include "librsocket/inheritance.h"
#include "librsocket/keepalive.h"
#include "librsocket/listener.h"
#include "librsocket/progress.h"
#include "librsocket/readiness.h"
#include "librsocket/stream_connector.h"
#include "librsocket/stream_core.h"
#include "librsocket/stream_numbers.h"
#include "librsocket/stream_options.h"
#include "librsocket/transfer.h"

namespace ringsock::rs {

struct Process;

/// Has the parts, each of which has one duty, and passes on what sets a socket up. StreamCore tells of its life and its
/// locks.
class StreamSocket final : public transports::Way, public runtime::Setup {
 public:
  /// @param endpoint  the one that has it
  /// @param domain  AF_INET or AF_INET6
  /// @param fd      the descriptor it will be known by: a kernel TCP socket that holds the port, owned by the caller
  StreamSocket(runtime::Endpoint& endpoint, Process& process, int domain, int fd);
  ~StreamSocket() override;

  // -- Setup
  Status bind(const sockaddr* address, socklen_t length) override { return connector_.bind(address, length); }
  Status listen(int backlog) override { return listener_.listen(backlog); }
  Result<int> accept(SocketAddress& peer, int flags) override { return listener_.accept(peer, flags); }
  Status connect(const sockaddr* address, socklen_t length) override { return connector_.connect(address, length); }
  Status shutdown(int how) override;
  Result<SocketAddress> local_name() override;
  Result<SocketAddress> peer_name() override;
  /// Returns the peer's address even when both directions have ended.
  Result<SocketAddress> last_peer();
  Status set_option(int level, int name, const void* value, socklen_t length) override {
    return options_.set(level, name, value, length);
  }
  Status get_option(int level, int name, void* value, socklen_t* length) override {
    return options_.get(level, name, value, length);
  }

  // -- Way
  runtime::Roles roles() noexcept override { return {transfer_, readiness_, *this, numbers_, inheritance_}; }
  [[nodiscard]] int descriptor() const override { return core_.fd.load(std::memory_order_relaxed); }
  runtime::SocketStatistics* statistics() noexcept override { return &core_.statistics; }
  std::optional<runtime::KernelReason> why_not_to(const SocketAddress& destination, bool by_kernel_first) override;
  [[nodiscard]] bool has_own_option(int level, int name) const override {
    return level == kSolRdma || (level == SOL_SOCKET && (name == SO_VMA_USER_DATA || name == SO_VMA_RING_ALLOC_LOGIC));
  }
  void hold_port() override { numbers_.hold_port(); }
  [[nodiscard]] bool is_connecting() const override { return core_.state() == StreamCore::State::connecting; }
  [[nodiscard]] bool has_failed_to_connect() const override { return core_.state() == StreamCore::State::failed; }
  [[nodiscard]] int connect_error() const override { return core_.pending_error.load(std::memory_order_acquire); }
  void inherit_options(const Way& listener) override;
  transports::Listening* listening() noexcept override { return &listener_; }

  [[nodiscard]] bool is_connected() const { return core_.is_connected(); }
  /// Stops all work for this socket on the service thread, except for the connection manager, whose events a closed
  /// connection still wants. Called without locks.
  void stop_background();

  // -- the parts
  StreamCore& core() { return core_; }
  Progress& progress() { return progress_; }
  StreamTransfer& transfer() { return transfer_; }
  StreamReadiness& readiness() { return readiness_; }
  [[nodiscard]] const StreamReadiness& readiness() const { return readiness_; }
  StreamNumbers& numbers() { return numbers_; }
  [[nodiscard]] const StreamNumbers& numbers() const { return numbers_; }
  Inheritance& inheritance() { return inheritance_; }
  [[nodiscard]] const Inheritance& inheritance() const { return inheritance_; }
  Connector& connector() { return connector_; }
  CmEvents& cm_events() { return cm_events_; }
  Listener& listener() { return listener_; }
  StreamOptions& options() { return options_; }
  ProofsOfLife& proofs_of_life() { return proofs_; }
  DirectPlacement& direct() { return direct_; }

 private:
  // What each call uses comes first, in few cache lines.
  StreamTransfer transfer_;
  StreamCore& core_ = transfer_.core();
  Progress progress_{*this, core_};
  StreamReadiness readiness_{*this, core_};
  Inheritance inheritance_{*this, core_};
  Connector connector_{*this, core_};
  StreamNumbers numbers_{*this, core_};
  CmEvents cm_events_{*this, core_};
  Listener listener_{*this, core_};
  StreamOptions options_;
  ProofsOfLife proofs_{*this, core_};
  DirectPlacement direct_{*this, core_};
};

/// An rsocket without a kernel socket beside it.
using StreamEndpoint = transports::EndpointOf<StreamSocket>;

/// Returns the stream of an endpoint that has one.
inline StreamSocket& stream_of(runtime::Endpoint& endpoint) { return static_cast<StreamSocket&>(*endpoint.way()); }
/// Returns the stream of an endpoint, or null when it has none.
inline StreamSocket* find_stream(runtime::Endpoint& endpoint) { return dynamic_cast<StreamSocket*>(endpoint.way()); }

}  // namespace ringsock::rs
