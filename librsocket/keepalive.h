// Proofs of life without calls of the application: SO_KEEPALIVE, and repetitions after the first message.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "core/base/clock.h"
#include "core/runtime/service_thread.h"

namespace ringsock::rs {

/// Calls `tick` on the service thread once in `interval`, from start() until it returns false or stop() is called.
class Keepalive : public std::enable_shared_from_this<Keepalive> {
 public:
  Keepalive(Nanos interval, std::function<bool()> tick) : interval_(interval), tick_(std::move(tick)) {}
  /// Errors: those of ServiceThread::schedule().
  Status start();
  /// After return `tick` does not run.
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
