#include "core/base/socket_address.h"

#include <arpa/inet.h>
#include <endian.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace ringsock {

Result<SocketAddress> SocketAddress::from(const sockaddr* address, socklen_t length) {
  SocketAddress out;
  if (address == nullptr || length < sizeof(sa_family_t)) return Error{EINVAL, "address: too short"};
  sa_family_t family = AF_UNSPEC;
  std::memcpy(&family, address, sizeof family);
  if (family == AF_INET) {
    if (length < sizeof(sockaddr_in)) return Error{EINVAL, "address: shorter than sockaddr_in"};
    std::memcpy(&out.storage_.in4, address, sizeof(sockaddr_in));
    std::memset(out.storage_.in4.sin_zero, 0, sizeof out.storage_.in4.sin_zero);
    return out;
  }
  if (family == AF_INET6) {
    // Linux takes sockaddr_in6 without the scope id (RFC 2133 size, 24 bytes).
    constexpr socklen_t kRfc2133Length = 24;
    if (length < kRfc2133Length) return Error{EINVAL, "address: shorter than sockaddr_in6"};
    std::memcpy(&out.storage_.in6, address, std::min<std::size_t>(length, sizeof(sockaddr_in6)));
    return out;
  }
  return Error{EAFNOSUPPORT, "address: family"};
}

Result<SocketAddress> SocketAddress::from_rdma(const sockaddr* address, socklen_t length) {
  sa_family_t family = AF_UNSPEC;
  if (address != nullptr && length >= sizeof family) std::memcpy(&family, address, sizeof family);
  if (family != AF_IB) return from(address, length);
  if (length < sizeof(sockaddr_ib)) return Error{EINVAL, "address: shorter than sockaddr_ib"};
  SocketAddress out;
  std::memcpy(&out.storage_.ib, address, sizeof(sockaddr_ib));
  return out;
}

SocketAddress SocketAddress::v4(std::uint32_t host_order_address, std::uint16_t port) {
  SocketAddress out;
  out.storage_.in4.sin_family = AF_INET;
  out.storage_.in4.sin_addr.s_addr = htonl(host_order_address);
  out.storage_.in4.sin_port = htons(port);
  return out;
}

SocketAddress SocketAddress::v6(const in6_addr& address, std::uint16_t port, std::uint32_t scope_id) {
  SocketAddress out;
  out.storage_.in6.sin6_family = AF_INET6;
  out.storage_.in6.sin6_addr = address;
  out.storage_.in6.sin6_port = htons(port);
  out.storage_.in6.sin6_scope_id = scope_id;
  return out;
}

SocketAddress SocketAddress::wildcard(int family, std::uint16_t port) {
  if (family != AF_IB) return family == AF_INET6 ? v6(in6addr_any, port) : v4(INADDR_ANY, port);
  SocketAddress any;
  any.storage_.ib.sib_family = AF_IB;
  any.set_port(port);
  return any;
}

std::uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(storage_.in4.sin_port);
  if (family() == AF_INET6) return ntohs(storage_.in6.sin6_port);
  if (is_infiniband()) return static_cast<std::uint16_t>(be64toh(storage_.ib.sib_sid));
  return 0;
}

void SocketAddress::set_port(std::uint16_t port) {
  if (family() == AF_INET) storage_.in4.sin_port = htons(port);
  if (family() == AF_INET6) storage_.in6.sin6_port = htons(port);
  if (is_infiniband()) storage_.ib.sib_sid = htobe64((be64toh(storage_.ib.sib_sid) & ~std::uint64_t{0xffff}) | port);
}

bool SocketAddress::is_wildcard() const {
  if (family() == AF_INET) return storage_.in4.sin_addr.s_addr == htonl(INADDR_ANY);
  if (family() == AF_INET6) return IN6_IS_ADDR_UNSPECIFIED(&storage_.in6.sin6_addr);
  return false;
}

bool SocketAddress::is_loopback() const {
  const SocketAddress plain = unmapped();
  if (plain.family() == AF_INET) return (ntohl(plain.storage_.in4.sin_addr.s_addr) >> 24) == IN_LOOPBACKNET;
  if (plain.family() == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&plain.storage_.in6.sin6_addr);
  return false;
}

bool SocketAddress::is_v4_mapped() const {
  return family() == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&storage_.in6.sin6_addr);
}

SocketAddress SocketAddress::unmapped() const {
  if (!is_v4_mapped()) return *this;
  std::uint32_t address = 0;
  std::memcpy(&address, storage_.in6.sin6_addr.s6_addr + 12, sizeof address);
  return v4(ntohl(address), port());
}

SocketAddress SocketAddress::mapped() const {
  if (family() != AF_INET) return *this;
  if (is_wildcard()) return v6(in6addr_any, port());
  in6_addr address{};
  address.s6_addr[10] = address.s6_addr[11] = 0xff;
  std::memcpy(address.s6_addr + 12, &storage_.in4.sin_addr.s_addr, 4);
  return v6(address, port());
}

socklen_t SocketAddress::length() const {
  if (family() == AF_INET) return sizeof(sockaddr_in);
  if (family() == AF_INET6) return sizeof(sockaddr_in6);
  if (is_infiniband()) return sizeof(sockaddr_ib);
  return sizeof(sa_family_t);
}

void SocketAddress::copy_to(sockaddr* out, socklen_t* out_length) const {
  if (out_length == nullptr) return;
  if (out != nullptr) std::memcpy(out, &storage_, std::min(*out_length, length()));
  *out_length = length();
}

namespace {
/// Does the same as inet_ntop(3) in a tenth of its time, because each connection on the embedded device makes some
/// names of addresses.
std::string dotted(in_addr address) {
  std::array<unsigned char, sizeof address> bytes;
  std::memcpy(bytes.data(), &address, sizeof address);
  std::array<char, INET_ADDRSTRLEN> text;
  char* at = text.data();
  for (const unsigned char byte : bytes) {
    if (at != text.data()) *at++ = '.';
    at = std::to_chars(at, text.data() + text.size(), byte).ptr;
  }
  return {text.data(), at};
}
}  // namespace

std::string SocketAddress::host_to_string() const {
  if (family() == AF_INET) return dotted(storage_.in4.sin_addr);
  char text[INET6_ADDRSTRLEN] = "";
  if (family() == AF_INET6) ::inet_ntop(AF_INET6, &storage_.in6.sin6_addr, text, sizeof text);
  if (is_infiniband()) ::inet_ntop(AF_INET6, storage_.ib.sib_addr.sib_raw, text, sizeof text);
  return text;
}

std::string SocketAddress::to_string() const {
  if (is_unspecified()) return "unspecified";
  const std::string host = family() == AF_INET ? host_to_string() : "[" + host_to_string() + "]";
  return (is_infiniband() ? "gid " : "") + host + ":" + std::to_string(port());
}

bool operator==(const SocketAddress& a, const SocketAddress& b) {
  if (a.family() != b.family() || a.port() != b.port()) return false;
  if (a.family() == AF_INET) return a.storage_.in4.sin_addr.s_addr == b.storage_.in4.sin_addr.s_addr;
  if (a.family() == AF_INET6) {
    return IN6_ARE_ADDR_EQUAL(&a.storage_.in6.sin6_addr, &b.storage_.in6.sin6_addr) &&
           a.storage_.in6.sin6_scope_id == b.storage_.in6.sin6_scope_id;
  }
  if (a.is_infiniband()) {
    return ib_addr_cmp(&a.storage_.ib.sib_addr, &b.storage_.ib.sib_addr) == 0 &&
           a.storage_.ib.sib_sid == b.storage_.ib.sib_sid && a.storage_.ib.sib_pkey == b.storage_.ib.sib_pkey;
  }
  return true;
}

Result<SocketAddress> name_by(int (*call)(int, sockaddr*, socklen_t*), int fd, const char* where) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (call(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return Error::last(where);
  return SocketAddress::from(reinterpret_cast<const sockaddr*>(&storage), length);
}

}  // namespace ringsock
