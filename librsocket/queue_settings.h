// The sizes of a connection's queues and buffers.
#pragma once

#include <cstdint>

namespace ringsock::rs {

/// The settings of SOL_RDMA, SO_RCVBUF and the configuration files. Accepted sockets inherit them.
struct QueueSettings {
  std::uint16_t send_queue = 384;     ///< entries, 16..65534
  std::uint16_t receive_queue = 384;  ///< entries, 16..65534
  std::uint32_t inline_bytes = 64;
  std::uint32_t receive_ring = 131072;  ///< bytes
  std::uint32_t send_ring = 131072;     ///< bytes
  std::uint32_t iomap_entries = 0;      ///< slots in which the peer may map buffers for us
  /// Bytes that may wait unread beside the ring, whatever the size of the messages: those of the peer, which we offer,
  /// and ours. 0: none. Only between processes on this host.
  std::uint32_t receive_overflow = 0;
  std::uint32_t send_overflow = 0;
};
/// What librspreload's sockets take: about as much as the kernel does over the loopback.
inline constexpr std::uint32_t kOverflowBytes = 4u << 20;

}  // namespace ringsock::rs
