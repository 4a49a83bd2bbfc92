// Serves a connection manager while the application makes no calls.
#pragma once

#include <functional>
#include <memory>

#include "core/base/result.h"
#include "core/runtime/service_thread.h"

namespace ringsock::rs {

/// Calls `serve` on the service thread when `fd` is readable, from start() to stop().
class CmWatch : public std::enable_shared_from_this<CmWatch> {
 public:
  CmWatch(int fd, std::function<void()> serve) : fd_(fd), serve_(std::move(serve)) {}
  /// Errors: those of ServiceThread::watch().
  Status start();
  /// After return `serve` does not run, and the descriptor may be closed. The caller must not hold a lock that `serve`
  /// takes.
  void stop();

 private:
  const int fd_;
  const std::function<void()> serve_;
  runtime::ServiceThread::Id watch_ = 0;
};

}  // namespace ringsock::rs
