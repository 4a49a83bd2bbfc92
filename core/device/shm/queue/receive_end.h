// The peer that waits for this side's progress, and the end of receiving.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/device/shm/link/link.h"
#include "core/device/shm/memory/segment.h"
#include "core/device/shm/queue/completion_queue.h"
#include "core/device/shm/queue/fences.h"

namespace ringsock::soft {

/// A peer whose sends have stalled, and which sleeps. Threads: any.
class StalledPeer {
 public:
  StalledPeer(ProducerLine& producer, const Fences& fences) : producer_(producer), fences_(fences) {}
  /// @param link  must exist as long as this
  void attach(Link& link) { link_.store(&link, std::memory_order_release); }
  /// Returns the link, null: not attached.
  [[nodiscard]] Link* link() const { return link_.load(std::memory_order_acquire); }
  /// Call it after anything that may let the peer's stalled sends continue.
  void ring_if_waiting() {
    fences_.behind_store();
    if (producer_.waiting.load(std::memory_order_relaxed) != 0) [[unlikely]]
      ring();
  }

 private:
  void ring() {
    Link* const to = link();
    if (to != nullptr && producer_.waiting.exchange(0) != 0) to->ring();
  }

  ProducerLine& producer_;
  const Fences& fences_;
  std::atomic<Link*> link_{nullptr};
};

/// Whether receiving has come to its end: once the inbox is empty, posted receives are flushed. Threads: any.
class ReceiveEnd {
 public:
  ReceiveEnd(ConsumerLine& consumer, StalledPeer& peer, CompletionQueue& receive_queue)
      : consumer_(consumer), peer_(peer), queue_(receive_queue) {}
  /// Wakes the peer, whose stalled sends will now never complete, and our own sleepers, whose receives now complete.
  void come();
  /// The queue pair is used anew.
  void forget() { has_come_.store(false, std::memory_order_release); }
  [[nodiscard]] bool has_come() const { return has_come_.load(std::memory_order_acquire); }

  // ibv_wc::vendor_err of the flushed receives: 0, verbs::kVendorErrPeerEnded, verbs::kVendorErrPeerEndedAsleep
  void note_cause(std::uint32_t vendor_err) { cause_.store(vendor_err, std::memory_order_relaxed); }
  [[nodiscard]] std::uint32_t cause() const { return cause_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> has_come_{false};  ///< each poll looks at it
  std::atomic<std::uint32_t> cause_{0};
  ConsumerLine& consumer_;
  StalledPeer& peer_;
  CompletionQueue& queue_;
};

}  // namespace ringsock::soft
