// Datagrams on their way from a ring to its sockets.
#pragma once

#include <sys/socket.h>

#include <cstring>
#include <optional>
#include <utility>

#include "libvmacompat/arrival.h"
#include "libvmacompat/spare_buffers.h"

namespace ringsock::vma {

class DatagramSink;

/// A call that waits for a datagram of a socket. The first that comes goes straight to the application, without a
/// buffer and the socket's queue in between.
struct WaitingCall {
  const DatagramSink& sink;
  msghdr& message;
  int flags;
  std::optional<ssize_t> answer{};  ///< the call's, once it has been served
};

/// One datagram, in a buffer already, or as the device shows it. Refers to what it is made of.
class Incoming {
 public:
  Incoming(const Datagram& datagram, WaitingCall* waiting, SpareBuffers& spares)
      : datagram_(datagram), waiting_(waiting), spares_(spares) {}
  Incoming(const Datagram& datagram, verbs::BufferRef buffer, WaitingCall* waiting, SpareBuffers& spares)
      : datagram_(datagram), waiting_(waiting), spares_(spares), buffer_(std::move(buffer)) {}

  [[nodiscard]] const Datagram& datagram() const { return datagram_; }
  /// The call of `sink` that still waits, or null.
  [[nodiscard]] WaitingCall* call_of(const DatagramSink& sink) const {
    return waiting_ != nullptr && &waiting_->sink == &sink && !waiting_->answer ? waiting_ : nullptr;
  }
  /// There are more sinks than one.
  void expect_many() { is_for_many_ = true; }
  /// In a buffer. The last thing that its sink does with it. Nothing: there are no buffers.
  std::optional<Arrival> keep() {
    if (!buffer_ && !copy()) return std::nullopt;
    return Arrival{.buffer = is_for_many_ ? buffer_ : std::move(buffer_),
                   .frame = datagram_.frame,
                   .ifindex = datagram_.ifindex,
                   .time = datagram_.time};
  }

 private:
  bool copy() {
    const auto& [headers, payload] = std::pair(datagram_.headers, datagram_.payload);
    verbs::BufferRef buffer = spares_.take(headers.size() + payload.size());
    if (!buffer) return false;
    std::memcpy(buffer.bytes().data(), headers.data(), headers.size());
    if (!payload.empty()) std::memcpy(buffer.bytes().data() + headers.size(), payload.data(), payload.size());
    buffer_ = std::move(buffer);
    return true;
  }

  const Datagram& datagram_;
  WaitingCall* waiting_;
  SpareBuffers& spares_;
  verbs::BufferRef buffer_;
  bool is_for_many_ = false;
};

}  // namespace ringsock::vma
