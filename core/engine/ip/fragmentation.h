// Cuts a datagram into packets that fit a link. Sources: RFC 791 3.2, RFC 8200 4.5.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/base/result.h"
#include "core/wire/ip.h"

namespace ringsock::engine {

/// One packet: its complete header, and the range of bytes of the datagram (transport header included) that follow it.
struct Ipv4Fragment {
  wire::Ipv4Header header;
  std::size_t offset;
  std::size_t bytes;  ///< a multiple of 8, unless it is the last
};

/// The same for IPv6. A packet that is the whole datagram has no fragment header.
struct Ipv6Fragment {
  wire::Ipv6Header header;
  bool has_fragment_header;
  wire::Ipv6FragmentHeader fragment_header;  ///< follows `header`
  std::size_t offset;
  std::size_t bytes;

  [[nodiscard]] constexpr std::size_t header_bytes() const {
    return sizeof header + (has_fragment_header ? sizeof fragment_header : 0);
  }
};

/// Generates the packets of one datagram, in order. Allocates no memory.
class Ipv4Fragmenter {
 public:
  /// @param fields          of every packet; payload_bytes and the fragment field's offset and flag of more to come do
  ///                        not count, its kIpv4DontFragment does. The identification must be fresh if it is cut.
  /// @param datagram_bytes  transport header and payload, 0..65515
  /// @param mtu             of the link or path, IPv4 header included
  /// Errors: EMSGSIZE when the datagram is longer than a packet can express, when it does not fit and must not be cut,
  /// or when `mtu` has no room for data.
  static Result<Ipv4Fragmenter> of(const wire::Ipv4Fields& fields, std::size_t datagram_bytes, std::size_t mtu);

  /// Returns whether next() has a packet. At first it always has: an empty datagram is one packet.
  [[nodiscard]] bool has_next() const { return !done_; }
  /// Requires has_next().
  Ipv4Fragment next();
  /// Returns the number of all packets.
  [[nodiscard]] std::size_t count() const;

 private:
  Ipv4Fragmenter(const wire::Ipv4Fields& fields, std::size_t datagram_bytes, std::size_t piece_bytes)
      : fields_(fields), total_(datagram_bytes), piece_(piece_bytes) {}

  wire::Ipv4Fields fields_;
  std::size_t total_;
  std::size_t piece_;  ///< bytes per packet but the last
  std::size_t offset_ = 0;
  bool done_ = false;
};

/// The same for IPv6.
class Ipv6Fragmenter {
 public:
  /// @param fields          of every packet; next_header is the datagram's protocol, payload_bytes does not count
  /// @param identification  fresh if the datagram is cut
  /// @param datagram_bytes  transport header and payload, 0..65535
  /// @param mtu             of the link or path, IPv6 header included
  /// Errors: EMSGSIZE when the datagram is longer than a packet can express, or must be cut for an `mtu` below the 1280
  /// bytes that every IPv6 link carries.
  static Result<Ipv6Fragmenter> of(const wire::Ipv6Fields& fields, std::uint32_t identification,
                                   std::size_t datagram_bytes, std::size_t mtu);

  [[nodiscard]] bool has_next() const { return !done_; }
  /// Requires has_next().
  Ipv6Fragment next();
  [[nodiscard]] std::size_t count() const;

 private:
  Ipv6Fragmenter(const wire::Ipv6Fields& fields, std::uint32_t identification, std::size_t datagram_bytes,
                 std::size_t piece_bytes)
      : fields_(fields), identification_(identification), total_(datagram_bytes), piece_(piece_bytes) {}

  wire::Ipv6Fields fields_;
  std::uint32_t identification_;
  std::size_t total_;
  std::size_t piece_;
  std::size_t offset_ = 0;
  bool done_ = false;
};

/// Calls `emit(fragment)`, which returns a Status, for each packet of `fragmenter` until a call fails; that failure is
/// returned. A datagram with missing fragments costs the receiver memory, so a sender first makes sure of room for
/// count() packets.
template <class Fragmenter, class Emit>
Status for_each_fragment(Fragmenter fragmenter, Emit&& emit) {
  while (fragmenter.has_next()) {
    if (Status status = emit(fragmenter.next()); !status) return status;
  }
  return ok();
}

}  // namespace ringsock::engine
