// The port that an id holds: the kernel's port of that number, and a name that other rsockets on the host see.
#pragma once

#include <cstdint>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/device/shm/names/port_name.h"

namespace ringsock::soft {

/// Holds at most one port. Its destruction closes the kernel socket and frees the name.
class PortReservation {
 public:
  struct Options {
    bool reuse_address = false;
    bool v6_only = false;
  };

  /// Makes bind() use the caller's kernel TCP (UDP) socket instead of a new one. The caller keeps it.
  void share_with(int kernel_socket) { shared_ = kernel_socket; }
  /// Binds by the kernel's rules; port 0 picks a port. If the kernel returns EADDRINUSE, the port is taken nevertheless
  /// when only sockets of this user hold it and no other rsocket does.
  /// Errors: bind(2)'s: EACCES, EADDRINUSE, EADDRNOTAVAIL, EINVAL when bound already.
  Status bind(verbs::PortSpace space, const SocketAddress& address, Options options);
  /// Gives a connecting id towards `target` a port. With a kernel socket of the caller that has no port this is a
  /// number that no other connecting id at that address has; the kernel's socket stays as it is. Otherwise the kernel
  /// picks the port. The port is new, so other names are not checked.
  Status bind_ephemeral(verbs::PortSpace space, const SocketAddress& target);
  /// Returns the socket with the port's name, a non-blocking, unconnected AF_UNIX SOCK_SEQPACKET socket, which becomes
  /// the link of a connecting id. -1 once taken.
  [[nodiscard]] UniqueFd take_named_socket() { return std::move(named_); }
  [[nodiscard]] bool is_bound() const { return bound_; }
  [[nodiscard]] const PortBinding& binding() const { return binding_; }
  [[nodiscard]] bool reuses_address() const { return reuse_; }
  /// Returns whether the kernel socket of share_with() had SO_REUSEPORT, so that other sockets of this user may listen
  /// on the same port.
  [[nodiscard]] bool shares_port() const { return shares_port_; }
  /// Checks that no other rsocket of this user, apart from `own_name`, listens on an overlapping address. Error: those
  /// of sock_diag.
  Status check_no_other_listener(const std::string& own_name) const;

 private:
  Status bind_kernel(const SocketAddress& address, Options options);
  Status take_number(std::uint16_t not_this);
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

/// Returns whether a connecting id has taken this number (bind_ephemeral()), which the kernel does not know of. A
/// wildcard is compared with the loopback addresses only. Costs nothing outside of the range of such numbers, otherwise
/// three system calls per address. Threads: any.
bool is_number_taken(verbs::PortSpace space, const SocketAddress& address);

/// Makes a non-blocking, close-on-exec AF_UNIX SOCK_SEQPACKET socket.
Result<UniqueFd> make_link_socket();

}  // namespace ringsock::soft
