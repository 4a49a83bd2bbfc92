// What VMA's Extra API asks a socket.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/base/socket_address.h"
#include "core/ethernet/ring.h"

namespace ringsock::vma {

/// Played by a part of a socket that may use rings, of any protocol. Threads: any. Locks: none are held.
class ApiSocket {
 public:
  /// Returns the rings that bring packets to the socket, each once.
  virtual std::vector<std::shared_ptr<ethernet::Ring>> receiving_rings() = 0;
  /// Returns the ring by which datagrams to `destination` leave, or null when the kernel sends them. The destination is
  /// looked up if it is new.
  virtual std::shared_ptr<ethernet::Ring> sending_ring(const SocketAddress& destination) = 0;
  /// Returns the headers of a packet without payload to the socket's peer, from Ethernet to UDP, with an UDP checksum
  /// of 0. Empty when the socket is not connected, or the kernel sends.
  virtual std::vector<std::byte> headers_to_peer() = 0;

 protected:
  ApiSocket() = default;
  ApiSocket(const ApiSocket&) = default;
  ApiSocket& operator=(const ApiSocket&) = default;
  ~ApiSocket() = default;
};

}  // namespace ringsock::vma
