// A socket address by value: family, address, port, in one comparable type.
#pragma once

#include <infiniband/ib.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "core/base/result.h"

namespace ringsock {

/// An AF_INET or AF_INET6 address with port, or none (AF_UNSPEC). from_rdma() also takes AF_IB addresses: a GID, with
/// the port in the last 16 bits of the service id.
class SocketAddress {
 public:
  SocketAddress() { std::memset(&storage_, 0, sizeof storage_); }

  /// Copies an address. Checks family and length as the kernel does. Errors: EINVAL too short, EAFNOSUPPORT other
  /// family.
  static Result<SocketAddress> from(const sockaddr* address, socklen_t length);
  /// Does the same, and also takes AF_IB, struct sockaddr_ib.
  static Result<SocketAddress> from_rdma(const sockaddr* address, socklen_t length);
  static SocketAddress v4(std::uint32_t host_order_address, std::uint16_t port);
  static SocketAddress v6(const in6_addr& address, std::uint16_t port, std::uint32_t scope_id = 0);
  static SocketAddress wildcard(int family, std::uint16_t port);

  [[nodiscard]] int family() const { return storage_.any.sa_family; }
  [[nodiscard]] bool is_unspecified() const { return family() == AF_UNSPEC; }
  [[nodiscard]] bool is_infiniband() const { return family() == AF_IB; }
  [[nodiscard]] std::uint16_t port() const;
  void set_port(std::uint16_t port);
  /// is_wildcard() and is_loopback() are false for AF_IB: only the RDMA CM knows what such an address reaches.
  [[nodiscard]] bool is_wildcard() const;
  [[nodiscard]] bool is_loopback() const;
  [[nodiscard]] bool is_v4_mapped() const;
  /// Returns a.b.c.d for ::ffff:a.b.c.d, and everything else as it is.
  [[nodiscard]] SocketAddress unmapped() const;
  /// Returns ::ffff:a.b.c.d for a.b.c.d, for AF_INET6 sockets, and :: for the wildcard.
  [[nodiscard]] SocketAddress mapped() const;

  [[nodiscard]] const sockaddr* get() const { return &storage_.any; }
  [[nodiscard]] socklen_t length() const;
  [[nodiscard]] const sockaddr_in& in4() const { return storage_.in4; }
  [[nodiscard]] const sockaddr_in6& in6() const { return storage_.in6; }
  [[nodiscard]] const sockaddr_ib& ib() const { return storage_.ib; }

  /// Copies to a caller's buffer with the value-result rule of getsockname(2): at most *length bytes are written,
  /// *length becomes the full length. Does nothing when either pointer is null.
  void copy_to(sockaddr* out, socklen_t* length) const;
  /// Returns the address without port and scope, as inet_ntop(3) does: "10.0.0.1", "::1", a GID in the form of an IPv6
  /// address, "".
  [[nodiscard]] std::string host_to_string() const;
  /// Returns "10.0.0.1:80", "[::1]:80", "gid [fe80::1]:80" or "unspecified".
  [[nodiscard]] std::string to_string() const;

  friend bool operator==(const SocketAddress& a, const SocketAddress& b);

 private:
  union {
    sockaddr any;
    sockaddr_in in4;
    sockaddr_in6 in6;
    sockaddr_ib ib;
  } storage_;
};

/// Returns the address that `call`, which is getsockname(2) or getpeername(2), gives for socket `fd`. Errors: those of
/// the call; EAFNOSUPPORT.
/// @param where  for the error
Result<SocketAddress> name_by(int (*call)(int, sockaddr*, socklen_t*), int fd, const char* where);

}  // namespace ringsock
