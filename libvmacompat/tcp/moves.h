// The moves of a TCP connection between the kernel and a ring, counted.
#pragma once

#include <atomic>
#include <cstdint>

namespace ringsock::vma {

/// While a move is under way (the number is odd), the kernel's socket is in states that are not the connection's.
/// Threads: any; one at a time moves.
class Moves {
 public:
  /// Looks at the kernel's socket by `look()`, which returns events. Returns 0 if a move was under way meanwhile: those
  /// who watch look again behind it.
  template <class Look>
  [[nodiscard]] std::uint32_t unless_moving(Look look) const {
    const unsigned before = number_.load();
    const std::uint32_t events = look();
    return before % 2 == 0 && number_.load() == before ? events : 0;
  }

 private:
  friend class Moving;
  std::atomic<unsigned> number_{0};
};

/// A move, as long as it exists.
class Moving {
 public:
  explicit Moving(Moves& moves) : number_(moves.number_) { number_.fetch_add(1); }
  Moving(const Moving&) = delete;
  Moving& operator=(const Moving&) = delete;
  ~Moving() { number_.fetch_add(1); }

 private:
  std::atomic<unsigned>& number_;
};

}  // namespace ringsock::vma
