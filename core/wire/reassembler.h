// Reassembly of UDP packets. Sources: RFC 791 3.2, RFC 8200 4.5, RFC 5722 (overlaps), RFC 3168 5.3 (ECN).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"

namespace ringsock::wire {

/// The fields that all fragments of a packet have in common. IPv4 addresses use the first four bytes.
struct FragmentName {
  std::array<std::byte, 16> source{}, destination{};
  std::uint32_t identification = 0;
  bool is_ipv6 = false;
  bool operator==(const FragmentName&) const = default;
};

/// A fragment, which stays in its frame.
struct Fragment {
  FragmentName name;
  std::span<const std::byte> headers;  ///< up to the fixed header of IPv6, or the options of IPv4, inclusive
  std::span<const std::byte> payload;
  std::size_t ip_offset = 0;  ///< of the IP header in `headers`
  std::size_t offset = 0;     ///< of the payload in the packet's payload
  bool is_last = false;
  std::uint8_t ecn = 0;  ///< 0..3

  [[nodiscard]] std::size_t end() const { return offset + payload.size(); }
};

/// Reads a frame whose IP header begins at `ip_offset`. Errors: EPROTO when it is no fragment of a UDP packet; when it
/// is empty, or ends beyond the longest packet; when it is not the last fragment and its length is no multiple of 8
/// (for IPv4 the odd rest is ignored instead, as Linux does). EBADMSG when the checksum of the IPv4 header is wrong.
Result<Fragment> parse_fragment(std::span<const std::byte> frame, std::size_t ip_offset);

/// Reassembles packets. Its memory is bounded: a new packet replaces the oldest one. Threads: one at a time.
class Reassembler {
 public:
  static constexpr std::size_t kMostPackets = 64;  ///< of 64 KiB each, so 4 MiB: as Linux's ipfrag_high_thresh
  static constexpr std::size_t kMostRuns = 256;    ///< most pieces of a packet with holes between them
  static constexpr Nanos kIpv4Patience = std::chrono::seconds(30);
  static constexpr Nanos kIpv6Patience = std::chrono::seconds(60);

  /// Adds a fragment. A packet with overlapping fragments is dropped; a fragment that is known already is ignored.
  /// @param now  the time of arrival
  /// @return     a frame with the packet that this fragment completes, valid until the next call; otherwise empty
  /// Throws std::bad_alloc; then the fragment is lost.
  std::span<const std::byte> add(const Fragment& fragment, Nanos now);
  /// Returns the number of incomplete packets.
  [[nodiscard]] std::size_t count() const { return packets_.size(); }

 private:
  struct Run {
    std::size_t begin, end;
  };
  struct Packet {
    FragmentName name;
    Nanos began{};
    std::vector<std::byte> headers;  ///< of the first fragment; empty: it has not come
    std::size_t ip_offset = 0;       ///< of the IP header in `headers`
    std::vector<std::byte> payload;
    std::vector<Run> runs;          ///< pieces of the payload that have come, in order, with holes between them
    std::size_t payload_bytes = 0;  ///< of the whole packet; 0: the last fragment has not come
    unsigned ecn_seen = 0;          ///< a bit for each value of Fragment::ecn
  };
  enum class Fit { new_piece, known, contradiction };

  Packet& packet_of(const FragmentName& name, Nanos now);
  static Fit fit(Packet& packet, const Fragment& fragment);
  static Fit insert_run(std::vector<Run>& runs, Run piece);
  bool finish(const Packet& packet);

  std::vector<Packet> packets_;  ///< oldest first
  std::vector<std::byte> whole_;
};

}  // namespace ringsock::wire
