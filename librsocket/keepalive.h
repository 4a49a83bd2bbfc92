// Proofs of life without the application's help: SO_KEEPALIVE, and reminders of first words.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "core/base/clock.h"
#include "core/runtime/service_thread.h"

namespace ringsock::rs {

/// Calls `tick` on the service thread once in `interval`, from start() until it says false or stop().
class Keepalive : public std::enable_shared_from_this<Keepalive> {
 public:
  Keepalive(Nanos interval, std::function<bool()> tick) : interval_(interval), tick_(std::move(tick)) {}
  /// Errors: those of ServiceThread::schedule().
  Status start();
  /// `tick` does not run after return.
  void stop();

 private:
  Status schedule_next();
  void run();

  const Nanos interval_;
  const std::function<bool()> tick_;
  std::mutex lock_;
  bool stopped_ = false;
  runtime::ServiceThread::Id timer_ = 0;
};

}  // namespace ringsock::rs
