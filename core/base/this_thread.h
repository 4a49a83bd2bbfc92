// What this room keeps for each thread.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/base/fork_order.h"

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

struct ThreadEnd;

struct ThisThread {
  static constexpr std::uint64_t kUnnumbered = std::uint64_t{1} << 63;
  /// What gettid(2) returns, 0 before it is known (thread_id.h).
  pid_t id = 0;
  /// The number under which the thread owns locks (biased_mutex.h), kUnnumbered before it has one.
  std::uint64_t lock_number = kUnnumbered;
  unsigned open_batches = 0;  ///< AsymmetricBarrier::Batch
  bool batch_owes = false;    ///< whether a heavy barrier was asked for in the batch
  ForkUnderWay fork{};
  ThreadEnd* last_end = nullptr;  ///< the last registered one (of_thread.h)
};

/// A plain variable of a library that is loaded with the program, so no function has to find its address.
extern thread_local constinit ThisThread this_thread __attribute__((tls_model("initial-exec")));

}  // namespace ringsock
