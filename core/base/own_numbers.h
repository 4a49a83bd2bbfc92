// The numbers of the descriptors that the library keeps for itself.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/base/process_state.h"

namespace ringsock {

/// A set of descriptor numbers. A program that closes all descriptors that it does not know must not close these: the
/// calls that close descriptors ask here. Numbers that are too large for the set are not protected. Threads: any.
class OwnNumbers {
 public:
  static constexpr ProcessPart kPart = ProcessPart::own_numbers;
  static constexpr unsigned kEnd = 16'384;

  [[nodiscard]] bool holds(int fd) const {
    const auto number = static_cast<unsigned>(fd);
    return number < kEnd && (word(number).load(std::memory_order_relaxed) & bit(number)) != 0;
  }
  /// Returns whether a number that is as high may be in the set: one load and a compare tell it for most numbers.
  static bool may_hold(int fd) { return above(fd) <= process_parts.own_numbers_reach.load(std::memory_order_relaxed); }
  void add(int fd);
  void remove(int fd) {
    const auto number = static_cast<unsigned>(fd);
    if (holds(fd)) word(number).fetch_and(~bit(number), std::memory_order_relaxed);
  }
  /// Returns the lowest number in the set from `first` on, or kEnd.
  [[nodiscard]] unsigned next(unsigned first) const {
    for (unsigned number = first; number < kEnd; number = (number / kBits + 1) * kBits) {
      const std::uint64_t left = word(number).load(std::memory_order_relaxed) >> number % kBits;
      if (left != 0) return number + static_cast<unsigned>(std::countr_zero(left));
    }
    return kEnd;
  }

 private:
  /// How many numbers are above `fd`; more than of any number if it is negative.
  static constexpr unsigned above(int fd) {
    return unsigned{std::numeric_limits<int>::max()} - static_cast<unsigned>(fd);
  }
  using Word = std::atomic<std::uint64_t>;
  static constexpr unsigned kBits = 64;

  static constexpr std::uint64_t bit(unsigned number) { return std::uint64_t{1} << number % kBits; }
  [[nodiscard]] const Word& word(unsigned number) const { return words_[number / kBits]; }
  Word& word(unsigned number) { return words_[number / kBits]; }

  std::array<Word, kEnd / kBits> words_{};
};

inline OwnNumbers& own_numbers() { return process_state<OwnNumbers>(); }

}  // namespace ringsock
