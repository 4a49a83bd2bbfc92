// The rest of a message of which a part has been moved.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <vector>

namespace ringsock::runtime {

/// A copy of a message whose parts can be consumed.
class RestOfMessage {
 public:
  explicit RestOfMessage(const msghdr& message)
      : parts_(message.msg_iov, message.msg_iov + std::min<std::size_t>(message.msg_iovlen, IOV_MAX)),
        message_(message) {
    update();
  }
  void advance(std::size_t bytes) {
    for (iovec& part : parts_) {
      const std::size_t step = std::min(bytes, part.iov_len);
      part.iov_base = static_cast<std::byte*>(part.iov_base) + step;
      part.iov_len -= step;
      bytes -= step;
    }
  }
  [[nodiscard]] std::size_t left() const {
    std::size_t total = 0;
    for (const iovec& part : parts_) total += part.iov_len;
    return total;
  }
  msghdr& get() { return message_; }
  /// Gives what a receive has said beside bytes to the message of the caller.
  void copy_answers_to(msghdr& message) const {
    message.msg_namelen = message_.msg_namelen;
    message.msg_controllen = message_.msg_controllen;
    message.msg_flags = message_.msg_flags;
  }

 private:
  void update() { message_.msg_iov = parts_.data(); }
  std::vector<iovec> parts_;
  msghdr message_;
};

}  // namespace ringsock::runtime
