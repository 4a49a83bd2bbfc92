#include "core/engine/ip/fragmentation.h"

namespace ringsock::engine {

namespace {

/// Offsets count in units of 8 bytes.
constexpr std::size_t whole_units(std::size_t bytes) { return bytes / 8 * 8; }

constexpr std::size_t pieces(std::size_t total, std::size_t piece) {
  return total == 0 ? 1 : (total + piece - 1) / piece;
}

}  // namespace

Result<Ipv4Fragmenter> Ipv4Fragmenter::of(const wire::Ipv4Fields& fields, std::size_t datagram_bytes, std::size_t mtu) {
  constexpr std::size_t kHeader = sizeof(wire::Ipv4Header);
  if (datagram_bytes > wire::kMaxIpv4Packet - kHeader) return Error{EMSGSIZE, "ipv4: datagram length"};
  wire::Ipv4Fields kept = fields;
  kept.fragment &= wire::kIpv4DontFragment;
  if (kHeader + datagram_bytes <= mtu)
    return Ipv4Fragmenter(kept, datagram_bytes, std::max<std::size_t>(datagram_bytes, 1));
  if (kept.fragment != 0) return Error{EMSGSIZE, "ipv4: must not be fragmented"};
  if (mtu < kHeader + 8) return Error{EMSGSIZE, "ipv4: mtu"};
  return Ipv4Fragmenter(kept, datagram_bytes, whole_units(mtu - kHeader));
}

Ipv4Fragment Ipv4Fragmenter::next() {
  wire::Ipv4Fields fields = fields_;
  const std::size_t bytes = std::min(piece_, total_ - offset_);
  const bool more = offset_ + bytes < total_;
  fields.payload_bytes = static_cast<std::uint16_t>(bytes);
  fields.fragment = static_cast<std::uint16_t>(fields.fragment | (more ? wire::kIpv4MoreFragments : 0) | offset_ / 8);
  const Ipv4Fragment out{.header = wire::make_ipv4_header(fields), .offset = offset_, .bytes = bytes};
  offset_ += bytes;
  done_ = !more;
  return out;
}

std::size_t Ipv4Fragmenter::count() const { return pieces(total_, piece_); }

Result<Ipv6Fragmenter> Ipv6Fragmenter::of(const wire::Ipv6Fields& fields, std::uint32_t identification,
                                          std::size_t datagram_bytes, std::size_t mtu) {
  constexpr std::size_t kHeader = sizeof(wire::Ipv6Header);
  if (datagram_bytes > wire::kMaxIpv6Payload) return Error{EMSGSIZE, "ipv6: datagram length"};
  if (kHeader + datagram_bytes <= mtu)
    return Ipv6Fragmenter(fields, identification, datagram_bytes, std::max<std::size_t>(datagram_bytes, 1));
  if (mtu < wire::kMinIpv6LinkMtu) return Error{EMSGSIZE, "ipv6: mtu"};
  return Ipv6Fragmenter(fields, identification, datagram_bytes,
                        whole_units(mtu - kHeader - sizeof(wire::Ipv6FragmentHeader)));
}

Ipv6Fragment Ipv6Fragmenter::next() {
  wire::Ipv6Fields fields = fields_;
  const std::size_t bytes = std::min(piece_, total_ - offset_);
  const bool more = offset_ + bytes < total_;
  Ipv6Fragment out{
      .header = {}, .has_fragment_header = piece_ < total_, .fragment_header = {}, .offset = offset_, .bytes = bytes};
  if (out.has_fragment_header) {
    out.fragment_header = {.next_header = fields.next_header,
                           .reserved = 0,
                           .offset_and_more = wire::Be16(static_cast<std::uint16_t>(offset_ | (more ? 1 : 0))),
                           .identification = wire::Be32(identification_)};
    fields.next_header = wire::kIpProtocolIpv6Fragment;
  }
  fields.payload_bytes = static_cast<std::uint16_t>(out.header_bytes() - sizeof out.header + bytes);
  out.header = wire::make_ipv6_header(fields);
  offset_ += bytes;
  done_ = !more;
  return out;
}

std::size_t Ipv6Fragmenter::count() const { return pieces(total_, piece_); }

}  // namespace ringsock::engine
