// The state that the process's rsockets share: configuration and devices.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/config/rsocket_config.h"
#include "core/transports/short_connections.h"
#include "core/verbs/registry.h"

namespace ringsock::rs {

/// What became of the connections of a server. A process that forks shares them with its children, because the child is
/// the one that hands its parent's connection over to a program.
struct ServerCounts {
  std::atomic<std::uint64_t> accepted{0};     ///< connections by rings
  std::atomic<std::uint64_t> handed_over{0};  ///< connections that became the kernel's
};

/// Made on first use and never destroyed, because a program may use sockets while its static objects are being
/// destroyed.
struct Process {
  explicit Process(config::RsocketConfig settings);
  /// Uses these devices, and leaves alone what the whole program shares: a test may make and destroy several.
  Process(config::RsocketConfig settings, std::vector<std::unique_ptr<verbs::DeviceProvider>> devices);

  config::RsocketConfig config;
  verbs::DeviceRegistry registry;
  transports::ShortConnections short_connections;
  std::atomic<std::uint64_t> listeners{0};  ///< how many there have been; each has its number
  std::atomic<ServerCounts*> counts{&own_counts_};
  /// Lets children share `counts`. Threads: only the forking one, before the fork.
  void share_counts() noexcept;

  bool is_held_by_fork = false;  ///< `registry`, by the fork that is under way, of which there is one at a time

 private:
  ServerCounts own_counts_;
  std::shared_ptr<ServerCounts> shared_counts_;
};

/// For a program whose listeners share their ports with kernel listeners: iWARP devices, whose ports are the kernel's
/// TCP ports, are then not used, unless the configuration permits only RDMA devices. Call it before process().
void share_ports_with_kernel();

/// Returns whether the descriptor is under a connection on a ring, of this process or another one. Threads: any.
bool is_under_ring(int fd) noexcept;

/// Reads the environment and the configuration files the first time. Thread-safe.
Process& process();

}  // namespace ringsock::rs
