// A connection's completion queue, and how a sleeper learns of its completions.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>

#include "core/base/result.h"
#include "core/verbs/device.h"
#include "core/verbs/handles.h"

namespace ringsock::rs {

/// Threads: any, but arm(), arm_on_resume() and resume() with ConnectionCore::poll_lock.
class CompletionEvents {
 public:
  /// @param context  ibv_cq::cq_context
  Status create(verbs::Device& device, unsigned entries, void* context);
  [[nodiscard]] ibv_cq* get() const { return cq_.get(); }

  /// Requests a notification.
  void arm();
  /// Makes the next resume() do that.
  void arm_on_resume() { arms_on_resume_ = true; }
  void resume();
  /// Returns the descriptor that becomes readable with the notification, -1 for that of the connection id.
  [[nodiscard]] int fd() const { return channel_ ? channel_->fd : -1; }
  /// Returns, once each time, whether arm() found that there is more to poll, for which no notification will come.
  bool must_look_again() {
    return must_look_again_.load(std::memory_order_relaxed) &&
           must_look_again_.exchange(false, std::memory_order_relaxed);
  }
  /// Consumes the notification.
  void woken(verbs::Device& device);

 private:
  verbs::CompChannel channel_;  ///< none on a device that wakes through the connection
  verbs::Cq cq_;
  bool arms_on_resume_ = false;
  std::atomic<bool> must_look_again_{false};
};

}  // namespace ringsock::rs
