#include "core/net/ip_address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <string_view>

namespace ringsock::net {

IpAddress IpAddress::v4(std::uint32_t host_order) { return v4(in_addr{htonl(host_order)}); }

IpAddress IpAddress::v4(const in_addr& address) {
  return *from_bytes(AF_INET, std::as_bytes(std::span(&address.s_addr, 1)));
}

IpAddress IpAddress::v6(const in6_addr& address) {
  return *from_bytes(AF_INET6, std::as_bytes(std::span(&address, 1)));
}

std::optional<IpAddress> IpAddress::from_bytes(int family, std::span<const std::byte> bytes) {
  IpAddress out;
  out.family_ = static_cast<std::uint8_t>(family);
  if (out.length() == 0 || bytes.size() != out.length()) return std::nullopt;
  std::ranges::copy(bytes, out.bytes_.begin());
  return out;
}

IpAddress IpAddress::of(const SocketAddress& address) {
  const SocketAddress plain = address.unmapped();
  if (plain.family() == AF_INET) return v4(plain.in4().sin_addr);
  if (plain.family() == AF_INET6) return v6(plain.in6().sin6_addr);
  return {};
}

IpAddress IpAddress::wildcard(int family) { return family == AF_INET6 ? v6(in6addr_any) : v4(INADDR_ANY); }

bool IpAddress::is_wildcard() const { return !is_unspecified() && *this == wildcard(family()); }

bool IpAddress::is_multicast() const {
  if (is_v4()) return (bytes_[0] & std::byte{0xf0}) == std::byte{0xe0};
  return is_v6() && bytes_[0] == std::byte{0xff};
}

bool IpAddress::is_loopback() const {
  if (is_v4()) return bytes_[0] == std::byte{127};
  return is_v6() && *this == v6(in6addr_loopback);
}

bool IpAddress::is_link_local() const {
  if (is_v4()) return bytes_[0] == std::byte{169} && bytes_[1] == std::byte{254};
  return is_v6() && bytes_[0] == std::byte{0xfe} && (bytes_[1] & std::byte{0xc0}) == std::byte{0x80};
}

in_addr IpAddress::in4() const {
  in_addr out{};
  std::memcpy(&out, bytes_.data(), sizeof out);
  return out;
}

in6_addr IpAddress::in6() const {
  in6_addr out{};
  std::memcpy(&out, bytes_.data(), sizeof out);
  return out;
}

SocketAddress IpAddress::with_port(std::uint16_t port, std::uint32_t scope_id) const {
  if (is_v4()) return SocketAddress::v4(ntohl(in4().s_addr), port);
  if (is_v6()) return SocketAddress::v6(in6(), port, scope_id);
  return {};
}

std::string IpAddress::to_string() const {
  char text[INET6_ADDRSTRLEN] = "unspecified";
  if (!is_unspecified()) ::inet_ntop(family(), bytes_.data(), text, sizeof text);
  return text;
}

std::size_t IpAddress::hash() const {
  return std::hash<std::string_view>{}({reinterpret_cast<const char*>(bytes_.data()), length()});
}

bool Prefix::contains(const IpAddress& other) const {
  if (address.is_unspecified()) return true;
  if (other.family() != address.family()) return false;
  const auto ours = address.bytes();
  const auto theirs = other.bytes();
  const std::size_t whole = std::min<std::size_t>(length / 8U, ours.size());
  if (!std::ranges::equal(ours.first(whole), theirs.first(whole))) return false;
  const unsigned rest = length % 8U;
  if (rest == 0 || whole == ours.size()) return true;
  const auto mask = static_cast<std::byte>(0xff00U >> rest);
  return ((ours[whole] ^ theirs[whole]) & mask) == std::byte{0};
}

}  // namespace ringsock::net
