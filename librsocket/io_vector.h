// A position in a scatter or gather list.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstring>
#include <span>

#include "core/base/result.h"

namespace ringsock::rs {

/// Walks over the bytes of an iovec array without changing it.
class IoCursor {
 public:
  explicit IoCursor(std::span<const iovec> parts) : rest_(parts) { next_part(); }
  /// Walks over a single part.
  IoCursor(void* data, std::size_t length) : piece_(static_cast<std::byte*>(data), length) {}

  [[nodiscard]] bool done() const { return piece_.empty(); }
  /// Returns the rest of the current part, which is not empty unless done().
  [[nodiscard]] std::span<std::byte> piece() const { return piece_; }
  /// Advances by `bytes`, at most piece().size().
  void advance(std::size_t bytes) {
    piece_ = piece_.subspan(bytes);
    if (piece_.empty()) next_part();
  }
  /// Returns the next bytes of the current part, at most `limit`, and advances behind them.
  std::span<std::byte> take(std::size_t limit) {
    const auto taken = piece_.first(std::min(limit, piece_.size()));
    advance(taken.size());
    return taken;
  }
  /// Returns the bytes that are left, or `most` if there are more.
  [[nodiscard]] std::size_t left(std::size_t most) const {
    std::size_t bytes = piece_.size();
    for (auto part = rest_.begin(); part != rest_.end() && bytes < most; ++part) bytes += part->iov_len;
    return std::min(bytes, most);
  }
  /// Returns whether the rest has at most `bytes` in at most `parts` pieces.
  [[nodiscard]] bool fits(std::size_t bytes, std::size_t parts) const {
    if (rest_.size() >= parts) return false;
    std::size_t left = piece_.size();
    for (const iovec& part : rest_) {
      if (left > bytes) return false;
      left += part.iov_len;
    }
    return left <= bytes;
  }
  /// Copies up to `size` bytes from `source` into the parts. Returns the bytes copied.
  std::size_t fill_from(const std::byte* source, std::size_t size) {
    std::size_t copied = 0;
    while (copied < size && !done()) {
      const auto to = take(size - copied);
      std::memcpy(to.data(), source + copied, to.size());
      copied += to.size();
    }
    return copied;
  }

 private:
  void next_part() {
    while (piece_.empty() && !rest_.empty()) {
      piece_ = {static_cast<std::byte*>(rest_.front().iov_base), rest_.front().iov_len};
      rest_ = rest_.subspan(1);
    }
  }
  std::span<std::byte> piece_;
  std::span<const iovec> rest_;
};

/// Returns the total bytes of a list. Errors as readv(2): EINVAL when the count is not 0..IOV_MAX or the sum exceeds
/// SSIZE_MAX.
inline Result<std::size_t> total_bytes(const iovec* parts, std::size_t count) {
  if (count > IOV_MAX) return Error{EMSGSIZE, "iovec count"};
  std::size_t total = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (parts[i].iov_len > static_cast<std::size_t>(SSIZE_MAX) - total) return Error{EINVAL, "iovec length"};
    total += parts[i].iov_len;
  }
  return total;
}

}  // namespace ringsock::rs
