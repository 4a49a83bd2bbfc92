// Sequence numbers of TCP: 32 bits that wrap (RFC 9293, 3.4).
#pragma once

#include <cstdint>

namespace ringsock::engine::tcp {

using Seq = std::uint32_t;

/// Returns the signed distance from `from` to `to`; it is valid below 2^31 bytes.
constexpr std::int32_t distance(Seq from, Seq to) { return static_cast<std::int32_t>(to - from); }
constexpr bool before(Seq a, Seq b) { return distance(a, b) > 0; }
constexpr bool at_or_before(Seq a, Seq b) { return distance(a, b) >= 0; }
constexpr Seq later_of(Seq a, Seq b) { return before(a, b) ? b : a; }

}  // namespace ringsock::engine::tcp
