// Whether the datagram that is next is news.
#pragma once

#include <atomic>
#include <cstdint>

namespace ringsock::rs {

/// Nobody tells of an arrival in a ring while nobody sleeps. So the datagram that is next is news when it is first
/// found: an edge for EPOLLET, also where it has come since the last receive found nothing. Threads: any.
class NextNews {
 public:
  /// A datagram was taken.
  void taken() noexcept { taken_.fetch_add(1, std::memory_order_relaxed); }
  /// Called when there is a next one. Returns whether nobody has been told of it.
  bool is_first_found() noexcept {
    const std::uint32_t next = taken_.load(std::memory_order_relaxed) + 1;
    if (told_.load(std::memory_order_relaxed) == next) return false;
    told_.store(next, std::memory_order_relaxed);
    return true;
  }

 private:
  std::atomic<std::uint32_t> taken_{0};  ///< which wraps
  std::atomic<std::uint32_t> told_{0};   ///< the number of the last one that was told of
};

}  // namespace ringsock::rs
