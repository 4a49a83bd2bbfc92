// Datagrams between the ring that has received them and the application.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/base/clock.h"
#include "core/verbs/buffer.h"
#include "libvmacompat/udp_frame.h"

namespace ringsock::vma {

/// A received datagram where it lies.
struct Datagram {
  std::span<const std::byte> headers;  ///< the frame's first bytes, up to the payload at least
  std::span<const std::byte> payload;
  UdpFrame frame;
  int ifindex = 0;
  Nanos time{};  ///< of arrival, CLOCK_REALTIME; 0: nobody wanted to know, or the device does not
};

/// A datagram in a buffer that may be kept. Copies share the buffer.
struct Arrival {
  verbs::BufferRef buffer;
  UdpFrame frame;
  int ifindex = 0;
  Nanos time{};

  [[nodiscard]] std::span<const std::byte> bytes() const { return buffer.bytes(); }
  [[nodiscard]] Datagram datagram() const {
    const auto all = bytes();
    return {.headers = all,
            .payload = all.subspan(frame.payload_offset(), frame.payload_bytes),
            .frame = frame,
            .ifindex = ifindex,
            .time = time};
  }
};

/// What a socket has received and nobody has read, oldest first. Grows up to its limit, and keeps its memory.
/// Threads: one at a time.
class ArrivalQueue {
 public:
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] std::size_t payload_bytes() const { return payload_bytes_; }
  [[nodiscard]] Arrival& front() { return places_[first_]; }

  void push(Arrival arrival) {
    if (count_ == capacity_) grow();
    payload_bytes_ += arrival.frame.payload_bytes;
    places_[(first_ + count_++) & (capacity_ - 1)] = std::move(arrival);
  }
  void pop() {
    payload_bytes_ -= front().frame.payload_bytes;
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

}  // namespace ringsock::vma
