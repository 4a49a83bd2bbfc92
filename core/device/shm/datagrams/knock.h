// How the sender of datagrams presents itself at the door of a UDP socket.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/base/result.h"
#include "core/base/socket_address.h"

namespace ringsock::soft {

inline constexpr std::uint32_t kKnockVersion = 4;

/// The largest datagram that a ring takes, in bytes of payload: that of UDP over IPv4 (RFC 768, RFC 791). A quarter of
/// the ring.
inline constexpr std::size_t kMaxRingDatagram = 65'507;

/// The one packet of a sender that is more than a byte. It comes with the memory of a ring (core/device/shm/queue/
/// ud_ring.h). Both ends run on one host, so numbers are in host byte order.
struct Knock {
  std::uint32_t version;
  std::uint16_t family;     ///< AF_INET or AF_INET6
  std::uint16_t port;       ///< of the sender, never 0
  std::uint8_t host[16];    ///< of the sender, in network byte order; an IPv4 address is in the first 4 bytes
  std::int32_t descriptor;  ///< of the sender's UDP socket in its process (SenderSocket)
};
static_assert(sizeof(Knock) == 28);

struct KnockingSender {
  SocketAddress source;  ///< its name, which every datagram of the ring has as its source
  int descriptor = -1;   ///< any number
};
/// Pure.
Knock make_knock(const KnockingSender& sender);
/// Pure. Errors: EPROTO wrong length or a value out of range; ENOTSUP another version.
Result<KnockingSender> parse_knock(std::span<const std::byte> bytes);

/// Returns the abstract AF_UNIX name of the door of the UDP socket with that SO_COOKIE.
std::string door_name(std::uint64_t cookie);

}  // namespace ringsock::soft
