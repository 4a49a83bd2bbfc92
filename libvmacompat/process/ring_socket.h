// What VMA's Extra API asks a socket about its Ethernet rings.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/ethernet/ring.h"
#include "core/extra_api/api_socket.h"

namespace ringsock::vma {

/// Played by a part of a socket that may use Ethernet rings, of any protocol. Threads: any. Locks: none are held.
class RingSocket : public ApiSocket {
 public:
  /// Returns the rings that bring packets to the socket, each once.
  virtual std::vector<std::shared_ptr<ethernet::Ring>> receiving_rings() = 0;
  /// Returns the ring by which datagrams to `destination` leave, or null when the kernel sends them. The destination is
  /// looked up if it is new.
  virtual std::shared_ptr<ethernet::Ring> sending_ring(const SocketAddress& destination) = 0;
  /// Returns the headers of a packet without payload to the socket's peer, from Ethernet to UDP, with an UDP checksum
  /// of 0. Empty when the socket is not connected, or the kernel sends.
  virtual std::vector<std::byte> headers_to_peer() = 0;

  /// Returns whether received packets go into a cyclic buffer.
  virtual bool has_cyclic() { return false; }
  /// Some packets of it, in a row.
  struct CyclicBatch {
    std::size_t packets = 0;
    std::span<std::byte> payload{};
    std::span<std::byte> headers{};  ///< empty: they are not separated
    Nanos time{};                    ///< of the first one's arrival; 0: not known
  };
  /// Reads `least` to `most` packets without waiting, less before the linear end. What the last call has returned is
  /// given back. There must be a buffer. Errors: EAGAIN there are fewer.
  virtual Result<CyclicBatch> read_cyclic(std::size_t least, std::size_t most, bool wants_time) {
    static_cast<void>(least), static_cast<void>(most), static_cast<void>(wants_time);
    return Error{EOPNOTSUPP, "vma_cyclic_buffer_read: no cyclic buffer"};
  }
  struct CyclicMemory {
    std::span<std::byte> bytes{};
    std::uint32_t key = 0;
  };
  /// Errors: ENODATA the socket has no ring yet; those of ibv_reg_mr(3).
  virtual Result<CyclicMemory> cyclic_memory() { return Error{EOPNOTSUPP, "get_mem_info: no cyclic buffer"}; }

 protected:
  RingSocket() = default;
  RingSocket(const RingSocket&) = default;
  RingSocket& operator=(const RingSocket&) = default;
  ~RingSocket() = default;
};

}  // namespace ringsock::vma
