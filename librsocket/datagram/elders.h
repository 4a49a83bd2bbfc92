// The queue pairs of the processes from which a datagram rsocket has come by fork(2).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/base/clock.h"
#include "librsocket/datagram/lane.h"

namespace ringsock::rs {

/// The numbers on the embedded device, as long as this process has read nothing from the socket. While one of the queue
/// pairs is there, another process may read the answers to what this one sends. Threads: the caller's lock.
class Elders {
 public:
  /// Adds the number of a queue pair that this process leaves to its parent. The newest kMost are kept.
  void add(std::uint32_t number) {
    numbers_[next_++ % kMost] = number;
    look_again_ = Nanos::min();
  }
  void clear() { next_ = 0; }
  [[nodiscard]] bool empty() const { return next_ == 0; }
  /// Returns whether one is there, by `lane`, of the embedded device. Looks once in a millisecond, and forgets all when
  /// none is there.
  [[nodiscard]] bool are_there(Lane& lane, Nanos now) {
    constexpr Nanos kPatience = std::chrono::milliseconds(1);
    if (empty() || now < look_again_) return !empty();
    look_again_ = now + kPatience;
    for (std::size_t i = 0; i < kMost && i < next_; ++i) {
      if (lane.is_there(numbers_[i])) return true;
    }
    clear();
    return false;
  }

 private:
  static constexpr std::size_t kMost = 4;
  std::array<std::uint32_t, kMost> numbers_{};
  std::size_t next_ = 0;
  Nanos look_again_ = Nanos::min();
};

}  // namespace ringsock::rs
