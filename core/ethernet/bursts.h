// When datagrams wait for the next ones, to leave together.
//
// A datagram leaves within the call that sends it, unless its thread is in a burst: so many sends by rings in
// succession, so quickly, with nothing received in between. Then its ring keeps it, and the next ones of the same flow
// and size, as a train (train.h). A train leaves when it is full, in front of anything else that leaves by the ring or
// by the kernel's socket, when the thread receives, polls or closes, when the process forks or ends; and the service
// thread sends what is left after kLongestWait.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"

namespace ringsock::ethernet {

class Ring;

/// What the calling thread has sent by rings since it last did something else.
struct SendRun {
  unsigned sends = 0;
  Nanos began{};               ///< when the second one was sent
  const Ring* ring = nullptr;  ///< of the last but the first: a name
};
extern constinit thread_local SendRun this_run __attribute__((tls_model("initial-exec")));

/// Threads: any.
class Bursts {
 public:
  static constexpr Nanos kLongestWait = std::chrono::microseconds(50);
  /// Sends that leave at once, before others wait.
  static constexpr unsigned kFirstSends = 16;
  /// Fewer that leave together do not pay.
  static constexpr std::size_t kWorthWaiting = 4;

  constexpr Bursts() = default;
  Bursts(const Bursts&) = delete;
  Bursts& operator=(const Bursts&) = delete;

  // -- for rings. Of a ring that leaves, no train is sent any more.
  void enter(Ring& ring);
  void leave(Ring& ring);
  /// A ring has begun a train. False: it must leave now, since nobody would send it later.
  bool train_begins();
  void train_leaves() { left_.fetch_add(1, std::memory_order_seq_cst); }

  // -- for sockets
  /// The calling thread sends one more, by that ring. True: it may wait.
  static bool continue_run(const Ring& ring);
  static void end_run() { this_run.sends = 0; }
  /// The calling thread receives.
  static void note_receive();
  /// It looks whether it may receive or send.
  static void note_look();
  /// Whatever waits leaves before what comes next.
  void send_all() {
    if (any_waits()) [[unlikely]]
      send_trains();
  }
  /// The same of a process that is about to end, or to become another program: without waiting for a lock for long.
  void send_last() noexcept;
  /// From now on nothing waits.
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
  std::atomic<bool> is_watched_{false};  ///< look() comes
  std::atomic<std::uint64_t> begun_{0};  ///< trains
  std::atomic<std::uint64_t> left_{0};
  std::uint64_t seen_ = 0;  ///< begun_, at the last look()
  Mutex lock_;
  std::vector<Ring*> rings_;
};

/// Those of the process. Never destroyed.
Bursts& bursts();

// Who is in no burst pays for a look at thread-local memory.

inline bool Bursts::continue_run(const Ring& ring) { return ++this_run.sends > 1 && bursts().is_burst(ring); }

inline void Bursts::note_receive() {
  if (this_run.sends > kFirstSends) [[unlikely]]
    bursts().send_all();
  end_run();
}

inline void Bursts::note_look() {
  if (this_run.sends > kFirstSends) [[unlikely]]
    bursts().send_before_look();
}

}  // namespace ringsock::ethernet
