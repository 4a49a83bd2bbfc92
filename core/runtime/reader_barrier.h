// The barrier between the readers of rcu.h and a thread that has taken something away from them.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/process_state.h"

namespace ringsock::runtime {

/// Two ways. Usually readers use no fences, and a thread that takes something away executes membarrier(2), which
/// interrupts every CPU on which a thread of the process runs: 5 to 30 us. Where that takes more than a fiftieth of the
/// time, as with threads that make short connections, readers use fences for a while (some 20 ns a section) and
/// membarrier(2) is not needed. Threads: any.
class ReaderBarrier {
 public:
  static constexpr ProcessPart kPart = ProcessPart::reader_barrier;
  /// membarrier(2) will no longer be permitted: readers use fences from now on.
  void forgo_membarrier() noexcept;
  /// Executes a barrier on all threads of this process that are in a section or leave one.
  void execute() noexcept;
  /// Returns whether readers use fences.
  [[nodiscard]] bool are_readers_fenced() const { return way_.load(std::memory_order_relaxed) == Way::fences; }

  /// Called by a timer while readers use fences. Returns whether they still do.
  bool look_again() noexcept;
  static constexpr Nanos kLookInterval = std::chrono::milliseconds(20);

  void before_fork() { lock_.lock(); }
  void after_fork() { lock_.unlock(); }
  void after_fork_in_child() noexcept;

 private:
  /// by_liburcu: as liburcu has found out at its start whether there is membarrier(2).
  enum class Way { by_liburcu, changing, fences };
  [[nodiscard]] bool needs_membarrier() const noexcept;
  void execute_and_measure() noexcept;
  bool try_to_begin_fences() noexcept;
  void begin_fences() noexcept;
  void end_fences() noexcept;

  Mutex lock_;  ///< held while the way changes
  std::atomic<Way> way_{Way::by_liburcu};
  bool is_forbidden_ = false;               ///< under lock_
  std::atomic<std::uint32_t> executed_{0};  ///< while readers use fences, since the last look
  // Of the present period. Races lose a measurement.
  std::atomic<Nanos> period_began_{Nanos(0)};
  std::atomic<Nanos> spent_{Nanos(0)};
};

inline ReaderBarrier& reader_barrier() { return process_state<ReaderBarrier>(); }

}  // namespace ringsock::runtime
