// TCP options: parse and emit (RFC 9293, 3.2; 7323; 2018).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/engine/tcp/segment.h"

namespace ringsock::engine::tcp {

struct SackBlock {
  Seq begin;
  Seq end;
  bool operator==(const SackBlock&) const = default;
};

struct Options {
  std::uint16_t mss = 0;  ///< 0: absent
  std::optional<std::uint8_t> window_scale;
  bool sack_permitted = false;
  bool timestamps = false;
  std::uint32_t ts_value = 0;
  std::uint32_t ts_echo = 0;
  std::uint8_t sack_count = 0;
  std::array<SackBlock, 4> sack{};
};

/// Reads the options. A length that cannot be ends them: what was read before counts. Unknown kinds and those with a
/// wrong length are skipped.
Options parse_options(std::span<const std::byte> bytes);

/// Writes the options in Linux's order, padded to a multiple of 4. SACK blocks that do not fit are left out. Returns
/// the number of bytes.
std::uint8_t emit_options(const Options& options, std::array<std::byte, kMostOptionBytes>& out);

}  // namespace ringsock::engine::tcp
