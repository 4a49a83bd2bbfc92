// A datagram of the embedded device's UD queue pairs. Both ends run on one host, so numbers are in host byte order.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "core/base/result.h"

namespace ringsock::soft {

inline constexpr std::uint16_t kDatagramVersion = 1;
inline constexpr std::size_t kMaxDatagramBytes = 4096;  ///< payload: one MTU, as on InfiniBand

inline constexpr std::uint16_t kDatagramHasImm = 1 << 0;
inline constexpr std::uint16_t kDatagramSolicited = 1 << 1;
inline constexpr std::uint16_t kDatagramIsGlobal = 1 << 2;  ///< the address handle had a GID
// Without payload, and between queue pairs that have asked for rings only:
inline constexpr std::uint16_t kDatagramRing = 1 << 3;  ///< comes with the memory of a ring (ud_ring.h)
inline constexpr std::uint16_t kDatagramBell = 1 << 4;  ///< a ring has datagrams

/// The header in front of the payload.
struct DatagramHeader {
  std::uint16_t version;
  std::uint16_t flags;
  std::uint32_t qkey;
  std::uint32_t source_qpn;  ///< claimed by the sender; the kernel only proves the sender's user
  std::uint32_t imm_data;    ///< as in ibv_send_wr
  std::uint8_t destination_gid[16];
};
static_assert(sizeof(DatagramHeader) == 32);

struct ParsedDatagram {
  DatagramHeader header;
  std::span<const std::byte> payload;  ///< 0..kMaxDatagramBytes
};

/// Returns whether a header's values are possible, besides its version.
inline bool is_sane_header(const DatagramHeader& header) {
  constexpr std::uint16_t kKnownFlags =
      kDatagramHasImm | kDatagramSolicited | kDatagramIsGlobal | kDatagramRing | kDatagramBell;
  return (header.flags & ~kKnownFlags) == 0 && header.source_qpn < (1U << 24);
}

/// Pure. Errors: EPROTO wrong length or a value out of range; ENOTSUP another version.
inline Result<ParsedDatagram> parse_datagram(std::span<const std::byte> bytes) {
  ParsedDatagram out{};
  if (bytes.size() < sizeof out.header) return Error{EPROTO, "datagram: short"};
  std::memcpy(&out.header, bytes.data(), sizeof out.header);
  out.payload = bytes.subspan(sizeof out.header);
  if (out.header.version != kDatagramVersion) return Error{ENOTSUP, "datagram: version"};
  if (!is_sane_header(out.header) || out.payload.size() > kMaxDatagramBytes) return Error{EPROTO, "datagram: header"};
  return out;
}

}  // namespace ringsock::soft
