// Answers that are remembered for a while.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "core/base/clock.h"

namespace ringsock::soft {

/// Remembers yes or no for a name. Bounded: of two names that share a place the newer one is remembered. Threads: any.
class Lately {
 public:
  void remember(std::string_view about, bool verdict, Nanos until) {
    const std::uint64_t key = key_of(about);
    Place& place = places_[key % places_.size()];
    place.until.store(until, std::memory_order_relaxed);
    place.key_and_verdict.store((key & ~std::uint64_t{1}) | (verdict ? 1 : 0), std::memory_order_release);
  }
  /// The clock is read only when something is remembered.
  [[nodiscard]] std::optional<bool> find(std::string_view about) const {
    const std::uint64_t key = key_of(about);
    const Place& place = places_[key % places_.size()];
    const std::uint64_t found = place.key_and_verdict.load(std::memory_order_acquire);
    if (found >> 1 != key >> 1 || monotonic_now() >= place.until.load(std::memory_order_relaxed)) return std::nullopt;
    return (found & 1) != 0;
  }

 private:
  struct Place {
    std::atomic<std::uint64_t> key_and_verdict{0};
    std::atomic<Nanos> until{Nanos(0)};
  };
  static std::uint64_t key_of(std::string_view about) { return std::hash<std::string_view>{}(about); }
  std::array<Place, 64> places_;
};

}  // namespace ringsock::soft
