// The asymmetric barrier between a producer on its hot path and a consumer about to sleep.
#pragma once

#include <atomic>

namespace ringsock {

/// Sleeping on shared memory is Dekker's problem: the producer stores an entry and then loads "is the consumer armed?",
/// the consumer stores "armed" and then loads the entries once more. Each side needs a store-load barrier between its
/// two steps. A full fence on the producer's side would make every message wait for the store buffer to drain (the
/// cache line belongs to the other CPU at that moment, 50-100 ns). membarrier(2) moves the whole cost to the side that
/// sleeps anyway: the producer uses light(), the consumer heavy().
///
/// heavy() interrupts every CPU on which a registered process runs, 10 us on a virtual machine, so a consumer that
/// sleeps after every few messages should ask its producers to use full() (soft::FenceWish).
///
/// MEMBARRIER_CMD_GLOBAL_EXPEDITED reaches every process that has registered; a producer that has not (membarrier
/// refused by seccomp, say) must be told apart at connection set-up and use full().
class AsymmetricBarrier {
 public:
  /// Registers this process, once. Cheap afterwards. Threads: any. @return false when the kernel refuses: producers of
  /// this process must use full()
  static bool register_process();

  /// For the producer, when both processes are registered. Keeps the compiler from reordering, and takes no
  /// instruction.
  static void light() { std::atomic_signal_fence(std::memory_order_seq_cst); }
  /// For the producer, when one of the processes is not registered.
  static void full() { std::atomic_thread_fence(std::memory_order_seq_cst); }
  /// For the consumer: every registered thread has passed a full barrier when it returns. Takes 0.5 us when no other
  /// CPU runs a registered process, up to 10 us when one does.
  static void heavy();
  /// Does the same as heavy(), even while a Batch is open.
  static void heavy_now();

  /// While a Batch exists on this thread, heavy() is only recorded. The end of the outermost Batch executes one
  /// barrier. So arming many queues and then looking at all of them costs one barrier.
  class Batch {
   public:
    Batch();
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;
    ~Batch();
  };
};

}  // namespace ringsock
