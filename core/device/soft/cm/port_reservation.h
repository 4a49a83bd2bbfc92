// A port that an id holds: the kernel's port of that number, and a name that other rsockets of the host see.
#pragma once

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/device/soft/cm/port_name.h"

namespace ringsock::soft {

/// Holds at most one port. Kernel socket and name go when it is destroyed.
class PortReservation {
 public:
  struct Options {
    bool reuse_address = false;
    bool v6_only = false;
  };

  /// A kernel TCP (UDP) socket of the caller's that bind() is to bind instead of making one. It stays the caller's.
  void share_with(int kernel_socket) { shared_ = kernel_socket; }
  /// Binds under the kernel's rules; port 0 picks one. When the kernel says EADDRINUSE the port is still ours if only
  /// sockets of this user hold it and no other rsocket does.
  /// Errors: bind(2)'s: EACCES, EADDRINUSE, EADDRNOTAVAIL, EINVAL when bound already.
  Status bind(verbs::PortSpace space, const SocketAddress& address, Options options);
  /// The same for a connecting id: the kernel picks the port. The name is checked against nobody: the port is new.
  Status bind_ephemeral(verbs::PortSpace space, const SocketAddress& host);
  /// The socket that carries the port's name, an unconnected AF_UNIX SOCK_SEQPACKET socket, non-blocking: becomes the
  /// link of a connecting id. -1 once taken.
  [[nodiscard]] UniqueFd take_named_socket() { return std::move(named_); }
  [[nodiscard]] bool is_bound() const { return bound_; }
  [[nodiscard]] const PortBinding& binding() const { return binding_; }
  [[nodiscard]] bool reuses_address() const { return reuse_; }
  /// The kernel socket of share_with() had SO_REUSEPORT: others of this user may listen on the same port.
  [[nodiscard]] bool shares_port() const { return shares_port_; }
  /// Whether another rsocket of this user listens on an overlapping address; `own_name` is not another.
  /// Error: those of sock_diag.
  Status check_no_other_listener(const std::string& own_name) const;

 private:
  Status bind_kernel(const SocketAddress& address, Options options);
  Status bind_name();
  Status check_names(const std::string& own_name, bool listeners_only) const;
  void release();

  int shared_ = -1;
  UniqueFd kernel_;
  UniqueFd named_;
  std::string name_;
  PortBinding binding_;
  bool reuse_ = false;
  bool shares_port_ = false;
  bool bound_ = false;
};

/// A non-blocking, close-on-exec AF_UNIX SOCK_SEQPACKET socket.
Result<UniqueFd> make_link_socket();

}  // namespace ringsock::soft
