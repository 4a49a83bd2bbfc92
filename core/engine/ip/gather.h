// Reads a message that consists of several pieces.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

namespace ringsock::engine {

using Bytes = std::span<const std::byte>;

/// Reads the bytes of `pieces` in order. Refers to the caller's array, which it does not change.
class GatherReader {
 public:
  explicit GatherReader(std::span<const Bytes> pieces) : pieces_(pieces) {}

  /// Copies the next out.size() bytes, fewer when fewer are left. Returns the number.
  std::size_t read(std::span<std::byte> out) {
    std::size_t done = 0;
    while (done < out.size() && !pieces_.empty()) {
      const Bytes rest = pieces_.front().subspan(offset_);
      const std::size_t count = std::min(rest.size(), out.size() - done);
      if (count != 0) std::memcpy(out.data() + done, rest.data(), count);
      done += count;
      offset_ += count;
      if (count == rest.size()) {
        pieces_ = pieces_.subspan(1);
        offset_ = 0;
      }
    }
    return done;
  }

 private:
  std::span<const Bytes> pieces_;
  std::size_t offset_ = 0;  ///< bytes already read of the first piece
};

/// Returns the number of bytes in all pieces.
constexpr std::size_t total_bytes(std::span<const Bytes> pieces) {
  std::size_t out = 0;
  for (const Bytes piece : pieces) out += piece.size();
  return out;
}

}  // namespace ringsock::engine
