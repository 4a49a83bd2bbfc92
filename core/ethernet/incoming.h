// Packets on the way from a ring to its sockets.
#pragma once

#include <cstring>
#include <optional>
#include <utility>

#include "core/ethernet/arrival.h"
#include "core/ethernet/spare_buffers.h"

namespace ringsock::ethernet {

class PacketSink;

/// A call that waits for a packet of a socket. The first packet that arrives is copied straight to the application,
/// without passing through a buffer and the socket's queue. Sinks derive types of their own with the call's arguments.
struct WaitingCall {
  const PacketSink* sink = nullptr;  ///< null: all sockets of the ring (RingPoll, packet_sink.h)
  bool is_served = false;
};

/// One packet, either in a buffer or where the device shows it. Holds references to the arguments of its constructor.
class Incoming {
 public:
  Incoming(const Packet& packet, WaitingCall* waiting, SpareBuffers& spares)
      : packet_(packet), waiting_(waiting), spares_(spares) {}
  Incoming(const Packet& packet, verbs::BufferRef buffer, WaitingCall* waiting, SpareBuffers& spares)
      : packet_(packet), waiting_(waiting), spares_(spares), buffer_(std::move(buffer)) {}

  [[nodiscard]] const Packet& packet() const { return packet_; }
  /// Returns the call of `sink` that still waits, or null.
  [[nodiscard]] WaitingCall* call_of(const PacketSink& sink) const {
    return waiting_ != nullptr && waiting_->sink == &sink && !waiting_->is_served ? waiting_ : nullptr;
  }
  /// Returns the call for all sockets of the ring that still waits, or null.
  [[nodiscard]] WaitingCall* call_of_all() const {
    return waiting_ != nullptr && waiting_->sink == nullptr && !waiting_->is_served ? waiting_ : nullptr;
  }
  /// Called when the packet goes to more than one sink.
  void expect_many() { is_for_many_ = true; }
  /// Returns the packet in a buffer, or nothing when there are no buffers. The sink must not use this object
  /// afterwards.
  std::optional<Arrival> keep() {
    if (!buffer_ && !copy()) return std::nullopt;
    return Arrival{.buffer = is_for_many_ ? buffer_ : std::move(buffer_),
                   .layout = packet_.layout,
                   .ifindex = packet_.ifindex,
                   .time = packet_.time};
  }

 private:
  bool copy() {
    const auto& [headers, payload] = std::pair(packet_.headers, packet_.payload);
    verbs::BufferRef buffer = spares_.take(headers.size() + payload.size());
    if (!buffer) return false;
    std::memcpy(buffer.bytes().data(), headers.data(), headers.size());
    if (!payload.empty()) std::memcpy(buffer.bytes().data() + headers.size(), payload.data(), payload.size());
    buffer_ = std::move(buffer);
    return true;
  }

  const Packet& packet_;
  WaitingCall* waiting_;
  SpareBuffers& spares_;
  verbs::BufferRef buffer_;
  bool is_for_many_ = false;
};

}  // namespace ringsock::ethernet
