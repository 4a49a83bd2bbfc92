// Where a socket with a way is: with the kernel, on its way, or both.
#pragma once

#include <atomic>
#include <cstdint>

namespace ringsock::transports {

/// The state of a ChosenSocket; README.md draws it. Threads: any.
class Choice {
 public:
  enum class State : std::uint8_t {
    undecided,  ///< neither connected nor listening
    on_way,     ///< connecting or connected by the way
    both,       ///< listening by the way and by the kernel
    listener,   ///< with a mover: listening by the kernel only; its connections move to the way later
    moving,     ///< with a mover: connected by the kernel; moves to the way when it is used
    kernel,     ///< left to the kernel, which answers calls on the socket, too
  };

  [[nodiscard]] State state() const { return state_.load(std::memory_order_acquire); }
  void set(State next) { state_.store(next, std::memory_order_release); }
  /// Changes the state if it is `from`. Returns whether it was.
  bool set_from(State from, State next) { return state_.compare_exchange_strong(from, next); }

  [[nodiscard]] bool is_undecided() const { return state() == State::undecided; }
  /// Returns whether the socket listens, is not connected yet, or only by the kernel, and may be left to the kernel.
  [[nodiscard]] bool is_on_no_way_yet() const { return state() != State::on_way && state() != State::kernel; }
  [[nodiscard]] bool is_moving() const { return state() == State::moving; }

 private:
  std::atomic<State> state_{State::undecided};
};

}  // namespace ringsock::transports
