// An IPv4 or IPv6 address without a port, as routes and neighbours have it.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "core/base/socket_address.h"

namespace ringsock::net {

/// 4 or 16 bytes in network order with their family, or nothing (AF_UNSPEC). A value: compares, hashes.
class IpAddress {
 public:
  constexpr IpAddress() = default;
  static IpAddress v4(std::uint32_t host_order);
  static IpAddress v4(const in_addr& address);
  static IpAddress v6(const in6_addr& address);
  /// Returns nothing unless `family` is AF_INET or AF_INET6 and `bytes` has its length.
  static std::optional<IpAddress> from_bytes(int family, std::span<const std::byte> bytes);
  /// Returns the address without its port: unspecified for AF_UNSPEC, the IPv4 address for a v4-mapped one.
  static IpAddress of(const SocketAddress& address);
  /// Returns 0.0.0.0 or ::.
  static IpAddress wildcard(int family);

  [[nodiscard]] int family() const { return family_; }
  [[nodiscard]] bool is_unspecified() const { return family_ == AF_UNSPEC; }
  [[nodiscard]] bool is_v4() const { return family_ == AF_INET; }
  [[nodiscard]] bool is_v6() const { return family_ == AF_INET6; }
  [[nodiscard]] bool is_wildcard() const;    ///< 0.0.0.0, ::
  [[nodiscard]] bool is_multicast() const;   ///< 224/4, ff00::/8
  [[nodiscard]] bool is_loopback() const;    ///< 127/8, ::1
  [[nodiscard]] bool is_link_local() const;  ///< 169.254/16, fe80::/10; an IPv6 one is valid on one link only

  /// Returns 4 or 16 bytes, or none for AF_UNSPEC.
  [[nodiscard]] std::span<const std::byte> bytes() const { return {bytes_.data(), length()}; }
  [[nodiscard]] in_addr in4() const;
  [[nodiscard]] in6_addr in6() const;
  [[nodiscard]] SocketAddress with_port(std::uint16_t port, std::uint32_t scope_id = 0) const;
  /// Returns "10.0.0.1", "fe80::1" or "unspecified".
  [[nodiscard]] std::string to_string() const;

  [[nodiscard]] std::size_t hash() const;
  bool operator==(const IpAddress&) const = default;

 private:
  [[nodiscard]] std::size_t length() const { return is_v4() ? 4 : is_v6() ? 16 : 0; }

  std::array<std::byte, 16> bytes_{};
  std::uint8_t family_ = AF_UNSPEC;
};

/// The addresses that share their first `length` bits. Length 0 means all addresses of the family, AF_UNSPEC every
/// address.
struct Prefix {
  IpAddress address;
  std::uint8_t length = 0;  ///< bits, 0..32 or 0..128

  [[nodiscard]] bool contains(const IpAddress& other) const;
  bool operator==(const Prefix&) const = default;
};

}  // namespace ringsock::net

template <>
struct std::hash<ringsock::net::IpAddress> {
  std::size_t operator()(const ringsock::net::IpAddress& address) const noexcept { return address.hash(); }
};
