// What this room keeps for each thread.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/base/fork_order.h"
#include "core/base/of_thread.h"

namespace ringsock {

/// The state of a thread that forks, which is the only thread of the child.
struct ForkUnderWay {
  bool is_forking;  ///< in the child until its handlers have run; its cleared mark has no meaning until then
  bool may_run;     ///< whether the library's state belongs to this process
  /// The number of handlers of each step that ran before the fork. Handlers that are registered meanwhile have nothing
  /// to undo.
  std::array<std::size_t, kForkSteps> prepared;
  std::size_t locked;  ///< the number of leaf locks that are held
};

/// A mask as the kernel has it: bit 0 is signal 1. Masks of applications are that long, too.
using SignalBits = std::uint64_t;

/// What a thread's signals and its calls of the library know of each other. A handler that ran in the middle of a call
/// could use the same socket again, whose locks its own thread holds, or leave by siglongjmp(3), with a watch and a
/// lock left behind. So a preload library stands in for the handlers (preload/signal_calls.cc). A signal that comes
/// while the thread is inside is sent to the thread again and held until the call has ended, and the call ends early:
/// it sleeps no more. Where a call ends, core/runtime/library_call.h lets the signal through.
///
/// Used by the thread and its handlers.
struct HandlersWait {
  bool is_due;             ///< the end of the call has something to do: `is_signal_due`, or DueCalls has something
  bool is_signal_due;      ///< a signal is held until the call has ended, together with all other signals
  bool do_all_restart;     ///< the handlers of all signals that are due have SA_RESTART
  bool is_mask_held;       ///< HeldMask holds signals; `own_mask` is what the thread blocks by itself
  bool has_sleeping_mask;  ///< the thread sleeps with a mask of the application's (ppoll(2))
  bool has_due_mask;       ///< a signal that is due was let through by such a mask
  unsigned depth;          ///< how many calls that hold more than a read-side section the thread is inside of
  SignalBits own_mask;
  SignalBits sleeping_mask;
  SignalBits due_signals;      ///< those that are due
  SignalBits mask_afterwards;  ///< what the thread blocks by itself, once nothing is due any more
  SignalBits due_mask;
};

class DueCall;

/// Functions of the application, other than handlers, that run where the thread's call ends
/// (core/runtime/due_calls.h), and what the call needs that is made again after them.
struct DueCalls {
  static constexpr std::size_t kMost = 4;
  std::array<DueCall*, kMost> calls;
  std::size_t count;
  bool has_deadline;      ///< the call that they end waits until `deadline`
  bool is_resumed;        ///< the call is made again, and waits until `deadline`
  bool has_left;          ///< a function that has just run has left something for the call
  std::int64_t deadline;  ///< CLOCK_MONOTONIC, ns
};

/// The CPU that the thread was bound to (core/runtime/ring_choice.h).
struct BoundCpu {
  int cpu = -1;                          ///< -1: it could not be bound
  void (*give_back)(int cpu) = nullptr;  ///< null: nobody has tried to bind it
  ~BoundCpu() {
    if (give_back != nullptr && cpu >= 0) give_back(cpu);
  }
};

struct ThisThread {
  static constexpr std::uint64_t kUnnumbered = std::uint64_t{1} << 63;
  /// What gettid(2) returns, 0 before it is known (thread_id.h).
  pid_t id = 0;
  /// The number under which the thread owns locks (biased_mutex.h), kUnnumbered before it has one.
  std::uint64_t lock_number = kUnnumbered;
  unsigned open_batches = 0;  ///< AsymmetricBarrier::Batch
  bool batch_owes = false;    ///< whether a heavy barrier was asked for in the batch
  ForkUnderWay fork{};
  HandlersWait handlers{};
  DueCalls due{};
  /// Replaces liburcu's record of the thread where that cannot be allocated (core/runtime/rcu.h).
  unsigned long reader_counter = 0;
  bool makes_helper = false;  ///< forks for the library (helper_process.h): the application's sockets stay the parent's
  ThreadEnd* last_end = nullptr;  ///< the last registered one (of_thread.h)
  OfThread<BoundCpu> bound_cpu{};
};

/// A plain variable of a library that is loaded with the program, so no function has to find its address, and a signal
/// handler need not allocate memory for it.
extern thread_local constinit ThisThread this_thread __attribute__((tls_model("initial-exec")));

}  // namespace ringsock
