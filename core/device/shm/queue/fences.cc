#include "core/device/shm/queue/fences.h"

#include <utility>

namespace ringsock::soft {

void Fences::begin(ProducerLine& producer, bool always) {
  producer_ = &producer;
  always_ = always;
  begin_again();
}

void Fences::begin_again() {
  full_ = true;
  follows_ = true;
  producer_->fences.store(1, std::memory_order_relaxed);
}

void Fences::change(bool wish, std::uint32_t entries) {
  // Going back costs a barrier of our own, so a peer cannot ask for it after every message.
  if (!wish && entries - entries_at_change_ < kManyEntriesAwake) return;
  follows_ = wish;
  entries_at_change_ = entries;
  if (always_) return;
  if (wish) {
    full_.store(true, std::memory_order_relaxed);
    // Stored with release, so that a peer that sees this value and looks at the ring sees all earlier entries.
    producer_->fences.store(1, std::memory_order_release);
    return;
  }
  producer_->fences.store(0, std::memory_order_relaxed);
  // After this barrier we see the arming of a peer that read 1. A peer that arms later reads 0.
  AsymmetricBarrier::heavy_now();
  full_.store(false, std::memory_order_relaxed);
}

void FenceWish::begin(std::uint32_t index) {
  index_at_arming_ = index;
  frequent_armings_ = kManyArmings;
  doorbell_.wants_fences.store(1, std::memory_order_relaxed);
}

void FenceWish::note_arming(std::uint32_t index) {
  constexpr std::uint32_t kFewEntries = 64;
  note_consumed(index);
  const std::uint32_t entries = index - std::exchange(index_at_arming_, index);
  if (entries < kFewEntries && ++frequent_armings_ == kManyArmings)
    doorbell_.wants_fences.store(1, std::memory_order_relaxed);
}

void FenceWish::withdraw() {
  frequent_armings_ = 0;
  doorbell_.wants_fences.store(0, std::memory_order_relaxed);
}

}  // namespace ringsock::soft
