// Fences behind ring entries, or barriers before a sleep: the two ends of a connection choose one of them.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/base/barrier.h"
#include "core/device/shm/memory/segment.h"

namespace ringsock::soft {

/// After this many entries without a sleep their fences cost more than the sleeper's barriers did.
inline constexpr std::uint32_t kManyEntriesAwake = 1024;

/// What this side does behind a store that a sleeping peer must learn of: nothing, or a full fence while the peer
/// wishes it. The peer's barrier costs it up to 10 us and interrupts us; a fence behind each of our entries costs us
/// 5-100 ns. Threads: behind_store() from any thread, the others one at a time.
class Fences {
 public:
  /// Begins with fences, so that a connection of few messages never pays for a barrier.
  /// @param producer  our line in the peer's inbox
  /// @param always    one side could not register for AsymmetricBarrier::heavy()
  void begin(ProducerLine& producer, bool always);
  /// The same for a process that takes the connection over.
  void begin_again();
  void behind_store() const {
    if (full_.load(std::memory_order_relaxed)) [[unlikely]] {
      AsymmetricBarrier::full();
    } else {
      AsymmetricBarrier::light();
    }
  }
  /// Follows the peer's wish, as it was found behind the entry of that number.
  void follow(bool wish, std::uint32_t entries) {
    if (wish != follows_) [[unlikely]]
      change(wish, entries);
  }

 private:
  void change(bool wish, std::uint32_t entries);

  std::atomic<bool> full_{true};
  bool always_ = true;
  bool follows_ = false;
  std::uint32_t entries_at_change_ = 0;
  ProducerLine* producer_ = nullptr;
};

/// The consumer's wish for the peer's fences, which it has while it arms before nearly every message. Threads: one at a
/// time.
class FenceWish {
 public:
  explicit FenceWish(DoorbellLine& doorbell) : doorbell_(doorbell) {}
  /// A connection begins with the wish; an end that stays awake for many messages withdraws it.
  /// @param index  number of entries that were consumed
  void begin(std::uint32_t index = 0);
  /// Called when a thread is about to sleep. After repeated sleeps with few messages in between it asks for fences.
  /// @param index  number of entries that were consumed
  void note_arming(std::uint32_t index);
  /// Withdraws the wish after many messages without a sleep, when fences cost more than barriers would.
  void note_consumed(std::uint32_t index) {
    if (frequent_armings_ != 0 && index - index_at_arming_ >= kManyEntriesAwake) [[unlikely]]
      withdraw();
  }

 private:
  static constexpr unsigned kManyArmings = 4;
  void withdraw();

  DoorbellLine& doorbell_;
  std::uint32_t index_at_arming_ = 0;
  unsigned frequent_armings_ = 0;
};

}  // namespace ringsock::soft
