// What VMA's Extra API asks a socket, whatever carries it.
#pragma once

#include <mellanox/vma_extra.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>

#include "core/base/result.h"

namespace ringsock::vma {

class PacketList;
class PolledStream;
class RingUser;

/// Played by a part of a socket that something of the library may carry, of any protocol (Setup::as_api_socket()).
/// Threads: any. Locks: none are held.
class ApiSocket {
 public:
  /// Sets the function that sees packets first; null: none. Errors: EINVAL the socket shows its packets to nobody.
  virtual Status set_callback(vma_recv_callback_t function, void* context) = 0;

  /// What receive_packets() has received.
  struct Received {
    enum class As : std::uint8_t {
      bytes,    ///< copied into the message
      packets,  ///< lent by lender(), and written into the list
      nothing,  ///< the kernel has the socket now
    };
    ssize_t bytes = 0;  ///< of payload
    As as = As::bytes;
  };
  /// Receives without waiting: a datagram, or as many pieces of a stream as the list has room for. What does not lie
  /// where it can be lent is copied into `message`, unless `never_copies`. The message, whose part is the memory of the
  /// list, gets a name as recvmsg(2) sets it, and no control data. `flags` are those of recvmsg(2). Errors: those of
  /// recvmsg(2); ENOBUFS there is something, and the list has no room; EIO, EOPNOTSUPP it would be copied.
  virtual Result<Received> receive_packets(PacketList& list, msghdr& message, int flags, bool never_copies) = 0;
  /// The number under which the socket lends packets (lent_packets.h).
  virtual std::uint32_t lender() = 0;
  /// Called after packets of lender() have come back.
  virtual void packets_freed() {}

  /// Returns what a program that polls its SharedRing learns of the socket; null: it has rings of its own,
  /// or none yet.
  virtual PolledStream* polled_stream() noexcept { return nullptr; }

  /// Returns the socket as libvma's own functions use it (libvmacompat/process/ring_user.h), or null.
  virtual RingUser* as_ring_user() noexcept { return nullptr; }

 protected:
  ApiSocket() = default;
  ApiSocket(const ApiSocket&) = default;
  ApiSocket& operator=(const ApiSocket&) = default;
  ~ApiSocket() = default;
};

}  // namespace ringsock::vma
