// Detects path MTUs that shrink. No netlink group reports the kernel's path MTU exceptions, so raw sockets listen for
// the ICMP messages that cause them.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/net/ip_address.h"

namespace ringsock::net {

/// Returns the destination of the packet that was too big, from an IPv4 packet with an ICMP "fragmentation needed"
/// message (type 3 code 4) as a raw socket gives it. Returns nothing for any other or truncated packet. Source: RFC
/// 792, RFC 1191.
std::optional<IpAddress> too_big_destination_v4(std::span<const std::byte> packet);
/// Does the same for an ICMPv6 "packet too big" message (type 2), without IPv6 header. Source: RFC 4443 section 3.2.
std::optional<IpAddress> too_big_destination_v6(std::span<const std::byte> message);

/// Threads: one at a time.
class PathMtuWatch {
 public:
  PathMtuWatch() = default;
  /// Opens the sockets in the calling thread's network namespace. Receives nothing without CAP_NET_RAW, and nothing of
  /// an IP version that the kernel lacks.
  static PathMtuWatch open();

  /// fd_v4() and fd_v6() return the descriptors to wait for, -1 where there is none.
  [[nodiscard]] int fd_v4() const { return v4_.get(); }
  [[nodiscard]] int fd_v6() const { return v6_.get(); }
  /// Reads at most 64 destinations of such messages, without waiting.
  std::vector<IpAddress> read();

 private:
  UniqueFd v4_;
  UniqueFd v6_;
};

}  // namespace ringsock::net
