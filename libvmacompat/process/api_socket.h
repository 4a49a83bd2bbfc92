// What VMA's Extra API asks a socket.
#pragma once

#include <mellanox/vma_extra.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/ethernet/arrival.h"
#include "core/ethernet/ring.h"

namespace ringsock::vma {

struct LentPacket;

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

  /// Sets the function that sees packets first; null: none. Errors: EINVAL the socket shows its packets to nobody.
  virtual Status set_callback(vma_recv_callback_t function, void* context) = 0;
  /// What receive_packet() has received.
  struct Received {
    /// A piece of a stream, which has been lent by lender().
    struct Piece {
      const LentPacket* packet = nullptr;
      std::span<const std::byte> bytes{};
    };
    ssize_t bytes = 0;                          ///< of payload
    std::optional<ethernet::Arrival> packet{};  ///< nothing, and no pieces: it was copied into the message
    std::vector<Piece> pieces{};
    bool is_kernels = false;  ///< nothing was received: the kernel has the socket now
  };
  /// Receives a packet in its buffer, without waiting. A packet that the kernel's socket has is copied into `message`,
  /// unless `never_copies`. The message gets no control data. `flags` are those of recvmsg(2). Errors: those of
  /// recvmsg(2); ENOBUFS there is a packet, and `message` has less than `least_room` bytes; EIO it would be copied. A
  /// stream gives pieces, as many as a list in `message` has room for.
  virtual Result<Received> receive_packet(msghdr& message, std::size_t least_room, int flags, bool never_copies) = 0;
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
  /// The number under which the socket lends packets (lent_packets.h).
  virtual std::uint32_t lender() = 0;
  /// Called after packets of lender() have come back.
  virtual void packets_freed() {}

 protected:
  ApiSocket() = default;
  ApiSocket(const ApiSocket&) = default;
  ApiSocket& operator=(const ApiSocket&) = default;
  ~ApiSocket() = default;
};

}  // namespace ringsock::vma
