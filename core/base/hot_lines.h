// The cache lines that a message of a connection needs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ringsock {

/// A list of cache lines that are loaded ahead of their use. With thousands of connections none of them is in the
/// caches when its next message comes, and the objects lead to each other: loaded one after the other, the lines cost
/// more than the work on them. The list is a hint. Memory that does not exist any more may be in it.
class HotLines {
 public:
  /// Adds the lines from the one with `first` to the one with `last`, at most 63. Runs for which there is no place are
  /// left out.
  void add(const void* first, const void* last) {
    const std::uintptr_t begin = line_of(first);
    const std::uintptr_t count = (line_of(last) - begin) / kLineBytes + 1;
    if (count_ < runs_.size() && count < kLineBytes) runs_[count_++] = begin | count;
  }
  void load() const {
    for (std::size_t i = 0; i < count_; ++i) {
      const std::uintptr_t begin = line_of(runs_[i]);
      const std::uintptr_t end = begin + runs_[i] % kLineBytes * kLineBytes;
      for (std::uintptr_t line = begin; line != end; line += kLineBytes) load_line(line);
    }
  }
  /// Loads the lines of an object, which may be null.
  static void load(const void* object, std::size_t bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(object);
    for (std::size_t i = 0; i < bytes; i += kLineBytes) load_line(begin + i);
  }

 private:
  static constexpr std::uintptr_t kLineBytes = 64;
  static std::uintptr_t line_of(std::uintptr_t address) { return address / kLineBytes * kLineBytes; }
  static std::uintptr_t line_of(const void* address) { return line_of(reinterpret_cast<std::uintptr_t>(address)); }
  static void load_line(std::uintptr_t line) {
    __builtin_prefetch(reinterpret_cast<const void*>(line));
    // GCC takes a function that only prefetches for one without effect, and drops its calls.
    asm volatile("" : : "r"(line));
  }

  std::array<std::uintptr_t, 13> runs_{};  ///< the first line of each, and the number of lines in the lower bits
  std::size_t count_ = 0;
};

}  // namespace ringsock
