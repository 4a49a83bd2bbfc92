#include "core/statistics/page_parts.h"

#include <netinet/in.h>

#include <algorithm>

namespace ringsock::runtime {

SlotAddress slot_address(const SocketAddress& address) {
  SlotAddress out{};
  if (address.is_infiniband()) return out;  // the page has room for IP
  out.family = static_cast<std::uint16_t>(address.family());
  out.port = address.is_unspecified() ? std::uint16_t{0} : address.port();
  if (address.family() == AF_INET) {
    std::memcpy(out.bytes.data(), &address.in4().sin_addr, sizeof(in_addr));
  } else if (address.family() == AF_INET6) {
    std::memcpy(out.bytes.data(), &address.in6().sin6_addr, sizeof(in6_addr));
    out.scope = address.in6().sin6_scope_id;
  }
  return out;
}

std::optional<SocketAddress> address_of(const SlotAddress& slot) {
  if (slot.family == AF_UNSPEC) return SocketAddress();
  if (slot.family == AF_INET) {
    in_addr v4;
    std::memcpy(&v4, slot.bytes.data(), sizeof v4);
    return SocketAddress::v4(ntohl(v4.s_addr), slot.port);
  }
  if (slot.family != AF_INET6) return std::nullopt;
  in6_addr v6;
  std::memcpy(&v6, slot.bytes.data(), sizeof v6);
  return SocketAddress::v6(v6, slot.port, slot.scope);
}

std::string printable_text(std::span<const char> text) {
  std::string out(text.data(), ::strnlen(text.data(), text.size()));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return out;
}

}  // namespace ringsock::runtime
