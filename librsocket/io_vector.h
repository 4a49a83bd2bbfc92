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
  explicit IoCursor(std::span<const iovec> parts) : parts_(parts) { skip_empty(); }

  [[nodiscard]] bool done() const { return parts_.empty(); }
  /// The rest of the current part; never empty unless done().
  [[nodiscard]] std::span<std::byte> piece() const {
    if (done()) return {};
    return {static_cast<std::byte*>(parts_.front().iov_base) + used_, parts_.front().iov_len - used_};
  }
  /// Moves on by `bytes`, at most piece().size().
  void advance(std::size_t bytes) {
    used_ += bytes;
    skip_empty();
  }
  /// Whether what is left is at most `bytes` in at most `parts` pieces.
  [[nodiscard]] bool fits(std::size_t bytes, std::size_t parts) const {
    if (parts_.size() > parts) return false;
    std::size_t left = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      left += parts_[i].iov_len - (i == 0 ? used_ : 0);
      if (left > bytes) return false;
    }
    return true;
  }
  /// Copies up to `size` bytes from `source` into the parts. Bytes copied.
  std::size_t fill_from(const std::byte* source, std::size_t size) {
    std::size_t copied = 0;
    while (copied < size && !done()) {
      const auto to = piece();
      const std::size_t step = std::min(to.size(), size - copied);
      std::memcpy(to.data(), source + copied, step);
      advance(step);
      copied += step;
    }
    return copied;
  }

 private:
  void skip_empty() {
    while (!parts_.empty() && used_ == parts_.front().iov_len) {
      parts_ = parts_.subspan(1);
      used_ = 0;
    }
  }
  std::span<const iovec> parts_;
  std::size_t used_ = 0;
};

/// Total bytes of a list. Errors as readv(2): EINVAL when the count is not 0..IOV_MAX or the sum exceeds SSIZE_MAX.
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
