// Decides when datagrams wait for further ones, to leave together.
//
// A datagram leaves within the call that sends it, unless its thread is in a burst: several sends by rings in quick
// succession, with nothing received in between. In a burst the ring keeps the datagram, and further ones of the same
// flow and size, as a train (train.h). A train leaves when it is full; before anything else that leaves by the ring or
// by the kernel's socket; when the thread receives, polls or closes; when the process forks or ends. The service thread
// sends trains that are older than kLongestWait.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/process_state.h"
#include "core/ethernet/thread_rings.h"

namespace ringsock::ethernet {

class Ring;

/// Threads: any.
class Bursts {
 public:
  static constexpr ProcessPart kPart = ProcessPart::bursts;
  static constexpr Nanos kLongestWait = std::chrono::microseconds(50);
  /// The number of sends that leave at once before later ones wait.
  static constexpr unsigned kFirstSends = 16;
  /// The least number of datagrams for which a train is worth its cost.
  static constexpr std::size_t kWorthWaiting = 4;

  constexpr Bursts() = default;
  Bursts(const Bursts&) = delete;
  Bursts& operator=(const Bursts&) = delete;

  // -- for rings. After leave() no train of the ring is sent any more.
  void enter(Ring& ring);
  void leave(Ring& ring);
  /// Called when a ring has begun a train. Returns false when the train must leave now, because nothing would send it
  /// later.
  bool train_begins();
  void train_leaves() { left_.fetch_add(1, std::memory_order_seq_cst); }

  // -- for sockets
  /// Counts a send of the calling thread by that ring. Returns whether the datagram may wait.
  static bool continue_run(const Ring& ring);
  static void end_run() { thread_rings.run.sends = 0; }
  /// Called when the calling thread receives.
  static void note_receive();
  /// Called when it looks whether it can receive or send.
  static void note_look();
  /// Sends all trains, before something that must not overtake them.
  void send_all() {
    if (any_waits()) [[unlikely]]
      send_trains();
  }
  /// The same for a process that is about to end or to call exec(2): does not wait for a lock for long.
  void send_last() noexcept;
  /// From now on no datagram waits.
  void stop() { stopped_.store(true, std::memory_order_relaxed); }
  void after_fork_in_child();

 private:
  [[nodiscard]] bool any_waits() const {
    return begun_.load(std::memory_order_relaxed) != left_.load(std::memory_order_relaxed);
  }
  bool is_burst(const Ring& ring);
  void send_before_look();
  std::size_t send_trains();
  bool try_send_trains() noexcept;
  bool look_later(Nanos when);
  void look();

  std::atomic<bool> stopped_{false};
  std::atomic<bool> is_watched_{false};  ///< a look() is scheduled
  std::atomic<std::uint64_t> begun_{0};  ///< number of trains begun
  std::atomic<std::uint64_t> left_{0};
  std::uint64_t seen_ = 0;  ///< value of begun_ at the last look()
  Mutex lock_;
  std::vector<Ring*> rings_;
};

/// The object of the process.
inline Bursts& bursts() { return process_state<Bursts>(); }

// A thread that is not in a burst only pays for an access to thread-local memory.

inline bool Bursts::continue_run(const Ring& ring) { return ++thread_rings.run.sends > 1 && bursts().is_burst(ring); }

inline void Bursts::note_receive() {
  if (thread_rings.run.sends > kFirstSends) [[unlikely]]
    bursts().send_all();
  end_run();
}

inline void Bursts::note_look() {
  if (thread_rings.run.sends > kFirstSends) [[unlikely]]
    bursts().send_before_look();
}

}  // namespace ringsock::ethernet
