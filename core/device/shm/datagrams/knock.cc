#include "core/device/shm/datagrams/knock.h"

#include <cerrno>
#include <cstring>

namespace ringsock::soft {

Knock make_knock(const KnockingSender& sender) {
  const SocketAddress& source = sender.source;
  Knock out{};
  out.version = kKnockVersion;
  out.family = static_cast<std::uint16_t>(source.family());
  out.port = source.port();
  if (source.family() == AF_INET) {
    std::memcpy(out.host, &source.in4().sin_addr, sizeof(in_addr));
  } else {
    std::memcpy(out.host, &source.in6().sin6_addr, sizeof(in6_addr));
  }
  out.descriptor = sender.descriptor;
  return out;
}

Result<KnockingSender> parse_knock(std::span<const std::byte> bytes) {
  Knock knock;
  if (bytes.size() != sizeof knock) return Error{EPROTO, "knock: length"};
  std::memcpy(&knock, bytes.data(), sizeof knock);
  if (knock.version != kKnockVersion) return Error{ENOTSUP, "knock: version"};
  if (knock.port == 0) return Error{EPROTO, "knock: port"};
  if (knock.family == AF_INET) {
    in_addr host{};
    std::memcpy(&host, knock.host, sizeof host);
    return KnockingSender{SocketAddress::v4(ntohl(host.s_addr), knock.port), knock.descriptor};
  }
  if (knock.family != AF_INET6) return Error{EPROTO, "knock: family"};
  in6_addr host{};
  std::memcpy(&host, knock.host, sizeof host);
  return KnockingSender{SocketAddress::v6(host, knock.port), knock.descriptor};
}

std::string door_name(std::uint64_t cookie) { return "ringsock1/datagrams/" + std::to_string(cookie); }

}  // namespace ringsock::soft
