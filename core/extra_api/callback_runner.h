// The thread that runs a function of the application for a socket.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/base/thread_id.h"

namespace ringsock::vma {

/// One thread at a time runs it, so that packets keep their order. Calls of the library that the function makes may run
/// it again, in the same thread. Threads: any.
class CallbackRunner {
 public:
  /// Returns whether the calling thread may run the function now.
  [[nodiscard]] bool may_run() const noexcept {
    const std::uint64_t runner = runner_.load(std::memory_order_acquire);
    return runner == 0 || runner == this_thread_id();
  }
  /// Called in a forked child.
  void forget() noexcept { runner_.store(0, std::memory_order_relaxed); }

  /// The thread is the one that runs the function while this exists, unless another one is: false then. Inner ones are
  /// parts of the outermost.
  class Running {
   public:
    explicit Running(CallbackRunner& runner) : runner_(runner.runner_) {
      std::uint64_t nobody = 0;
      is_outermost_ = runner_.compare_exchange_strong(nobody, this_thread_id(), std::memory_order_acq_rel);
      may_run_ = is_outermost_ || nobody == this_thread_id();
    }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
    ~Running() {
      if (is_outermost_) runner_.store(0, std::memory_order_release);
    }
    explicit operator bool() const { return may_run_; }

   private:
    std::atomic<std::uint64_t>& runner_;
    bool is_outermost_;
    bool may_run_;
  };

 private:
  std::atomic<std::uint64_t> runner_{0};  ///< 0: none
};

}  // namespace ringsock::vma
