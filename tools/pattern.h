// The bytes that -T verify sends and expects: 0, 1, 2 ... modulo 256, running on from buffer to buffer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/result.h"

namespace ringsock::tools {

/// The position of one direction of the stream in the pattern.
class Pattern {
 public:
  void fill(std::span<std::byte> buffer) {
    std::generate(buffer.begin(), buffer.end(), [this] { return static_cast<std::byte>(next_++); });
  }
  /// Error: EBADMSG when a byte is not the expected one.
  Status verify(std::span<const std::byte> buffer) {
    const bool same = std::all_of(buffer.begin(), buffer.end(),
                                  [this](std::byte byte) { return byte == static_cast<std::byte>(next_++); });
    return same ? ok() : Status(Error{EBADMSG, "verify: data differs from what was sent"});
  }

 private:
  std::uint8_t next_ = 0;
};

}  // namespace ringsock::tools
