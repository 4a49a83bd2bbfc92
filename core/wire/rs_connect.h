// Private data of the rsockets connect request and reply. Source: rdma-core librdmacm/docs/rsocket; fact sheet 2.2.
#pragma once

#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "core/base/result.h"
#include "core/wire/big_endian.h"

namespace ringsock::wire {

/// One remote buffer in CM private data, which is always big-endian. Entries that RDMA later writes into the peer's
/// memory have the peer's byte order; they are of another type, PeerSge (rs_message.h).
struct WireSge {
  Be64 addr;
  Be32 key;
  Be32 length;  ///< bytes, or entries of an array
};
static_assert(sizeof(WireSge) == 16 && alignof(WireSge) == 1);

/// Version 1 of the private data, the same in REQ and REP.
struct RsConnect {
  std::uint8_t version;            ///< kRsVersion
  std::uint8_t flags;              ///< kRsBigEndianHost, kRsHasIomap; other bits are ignored on receipt
  Be16 credits;                    ///< initial credit limit: data messages that the receiver of this may send
  std::uint8_t reserved[3];        ///< sent as 0, not read
  std::uint8_t iomap_size_scaled;  ///< see decode_iomap_size()
  WireSge target_sgl;              ///< array where the peer announces its buffers; length counts entries
  WireSge first_buffer;            ///< the sender's first receive buffer; length in bytes
};
static_assert(sizeof(RsConnect) == 40 && alignof(RsConnect) == 1);

inline constexpr std::uint8_t kRsVersion = 1;
inline constexpr std::uint8_t kRsBigEndianHost = 1 << 0;
inline constexpr std::uint8_t kRsHasIomap = 1 << 1;
inline constexpr std::uint8_t kRsLocalOrderFlag = std::endian::native == std::endian::big ? kRsBigEndianHost : 0;
inline constexpr std::uint32_t kMaxIomapEntries = 127u << 8;

/// Decodes a number of entries: 0..128 stand for themselves, 129..255 for (value & 0x7f) * 256.
constexpr std::uint32_t decode_iomap_size(std::uint8_t scaled) {
  return scaled <= 128 ? scaled : static_cast<std::uint32_t>(scaled & 0x7f) << 8;
}
/// Encodes the largest number of entries that is not above `entries`.
constexpr std::uint8_t encode_iomap_size(std::uint32_t entries) {
  if (entries <= 128) return static_cast<std::uint8_t>(entries);
  if (entries < 256) return 128;
  if (entries > kMaxIomapEntries) entries = kMaxIomapEntries;
  return static_cast<std::uint8_t>(0x80 | (entries >> 8));
}

/// Ringsock's addition behind the connect data, between two processes of a host: an overflow area
/// (core/engine/stream/overflow.h). Its OverflowWords are in front of the first receive buffer. Both are accessed with
/// the key of that buffer.
struct RsOverflow {
  Be32 magic;  ///< kRsOverflowMagic
  Be32 length;
  Be64 addr;
};
static_assert(sizeof(RsOverflow) == 16 && alignof(RsOverflow) == 1);
/// Has changed with OverflowWords: ends of different versions have no overflow areas.
inline constexpr std::uint32_t kRsOverflowMagic = 0x52534f33;
inline constexpr std::uint32_t kRsOverflowWordBytes = 64;
inline constexpr std::uint32_t kMaxRsOverflow = 64u << 20;

/// The connect data, and the addition, which is sent if its magic is set.
struct RsConnectMore {
  RsConnect connect;
  RsOverflow overflow;
  [[nodiscard]] std::span<const std::byte> bytes() const {
    return std::as_bytes(std::span(this, 1)).first(overflow.magic.host() != 0 ? sizeof *this : sizeof connect);
  }
};
static_assert(sizeof(RsConnectMore) == 56, "as much as a connect request carries");

/// Returns the addition behind a peer's connect data, if there is one.
inline std::optional<RsOverflow> find_rs_overflow(std::span<const std::byte> bytes) {
  RsOverflow out;
  if (bytes.size() < sizeof(RsConnectMore)) return std::nullopt;
  std::memcpy(&out, bytes.data() + sizeof(RsConnect), sizeof out);
  const std::uint32_t length = out.length.host();
  if (out.magic.host() != kRsOverflowMagic || length == 0 || length > kMaxRsOverflow) return std::nullopt;
  return out;
}

/// Reads a peer's connect data. `bytes` may be longer, because the CM pads it. Errors: EPROTO when it is too short;
/// ENOTSUP when its version is not 1, as in rdma-core.
inline Result<RsConnect> parse_rs_connect(std::span<const std::byte> bytes) {
  RsConnect out;
  if (bytes.size() < sizeof out) return Error{EPROTO, "rs_connect: short"};
  std::memcpy(&out, bytes.data(), sizeof out);
  if (out.version != kRsVersion) return Error{ENOTSUP, "rs_connect: version"};
  return out;
}

}  // namespace ringsock::wire
