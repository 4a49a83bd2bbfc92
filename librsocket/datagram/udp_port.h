// The kernel's UDP socket of a datagram rsocket: its port, and the way for rendezvous packets.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <span>

#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/base/unique_fd.h"

namespace ringsock::rs {

/// A duplicate of the application's descriptor, so that nothing depends on that number. Addresses are not mapped here,
/// whatever the socket's family. Never blocks. Threads: the caller's lock.
class UdpPort {
 public:
  UdpPort() = default;
  /// @param fd  a UDP socket of `family`. Error: EMFILE.
  static Result<UdpPort> of(int fd, int family);

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] int family() const { return family_; }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  void close() { fd_.reset(); }

  /// Binds to a free port unless there is one. Errors: those of bind(2).
  Status ensure_bound();
  /// Returns the bound address, mapped if it is.
  [[nodiscard]] Result<SocketAddress> name() const;
  /// Sends header and parts. Errors: those of sendmsg(2).
  /// @param from  the source address; its port is not read
  Status send(std::span<const std::byte> header, std::span<const iovec> parts, const SocketAddress& to,
              const SocketAddress& from);

  struct Packet {
    SocketAddress from;
    SocketAddress to;   ///< our address, port 0
    std::size_t bytes;  ///< of the packet, which may be more than the buffer has
  };
  /// Takes the oldest packet. Errors: EAGAIN; one that an earlier packet met (ECONNREFUSED).
  Result<Packet> receive(std::span<std::byte> buffer);

 private:
  UdpPort(UniqueFd fd, int family) : fd_(std::move(fd)), family_(family) {}

  UniqueFd fd_;
  int family_ = AF_UNSPEC;
};

}  // namespace ringsock::rs
