// Packets on the way from the ring that has received them to the application.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/base/clock.h"
#include "core/verbs/buffer.h"
#include "core/wire/frame_ends.h"

namespace ringsock::ethernet {

/// A received UDP or TCP packet, which stays where it is.
struct Packet {
  std::span<const std::byte> headers;  ///< the frame's first bytes, at least up to the payload
  std::span<const std::byte> payload;
  wire::FrameLayout layout;
  int ifindex = 0;
  Nanos time{};  ///< time of arrival, CLOCK_REALTIME; 0: not requested, or the device does not know
};

/// A packet in a buffer that a socket may keep. Copies share the buffer.
struct Arrival {
  verbs::BufferRef buffer;
  wire::FrameLayout layout;
  int ifindex = 0;
  Nanos time{};

  [[nodiscard]] std::span<const std::byte> bytes() const { return buffer.bytes(); }
  [[nodiscard]] Packet packet() const {
    const auto all = bytes();
    return {.headers = all,
            .payload = all.subspan(layout.payload, layout.payload_bytes),
            .layout = layout,
            .ifindex = ifindex,
            .time = time};
  }
};

/// The packets that a socket has received and the application has not read, oldest first. Its memory grows to what is
/// needed, and is kept. Threads: one at a time.
class ArrivalQueue {
 public:
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] std::size_t payload_bytes() const { return payload_bytes_; }
  [[nodiscard]] Arrival& front() { return places_[first_]; }

  void push(Arrival arrival) {
    if (count_ == capacity_) grow();
    payload_bytes_ += arrival.layout.payload_bytes;
    places_[(first_ + count_++) & (capacity_ - 1)] = std::move(arrival);
  }
  /// Puts a packet before all others.
  void put_first(Arrival arrival) {
    if (count_ == capacity_) grow();
    payload_bytes_ += arrival.layout.payload_bytes;
    first_ = (first_ - 1) & (capacity_ - 1);
    places_[first_] = std::move(arrival);
    ++count_;
  }
  void pop() {
    payload_bytes_ -= front().layout.payload_bytes;
    front().buffer.reset();
    first_ = (first_ + 1) & (capacity_ - 1);
    --count_;
  }
  void clear() {
    while (!empty()) pop();
  }

 private:
  void grow() {
    const std::size_t capacity = capacity_ == 0 ? 16 : 2 * capacity_;
    auto places = std::make_unique<Arrival[]>(capacity);
    for (std::size_t i = 0; i < count_; ++i) places[i] = std::move(places_[(first_ + i) & (capacity_ - 1)]);
    places_ = std::move(places);
    capacity_ = capacity;
    first_ = 0;
  }

  std::unique_ptr<Arrival[]> places_;
  std::size_t capacity_ = 0;  ///< 0 or a power of two
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::size_t payload_bytes_ = 0;
};

}  // namespace ringsock::ethernet
