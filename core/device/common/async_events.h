// Asynchronous events of a device: ibv_get_async_event(3).
#pragma once

#include <infiniband/verbs.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace ringsock::soft {

/// A queue of events with an eventfd that is readable while the queue is not empty. Without an eventfd the queue stays
/// empty.
/// Threads: all functions from any thread.
class AsyncEvents {
 public:
  explicit AsyncEvents(UniqueFd fd) : fd_(std::move(fd)) {}

  [[nodiscard]] int fd() const { return fd_.get(); }
  void raise(const ibv_async_event& event);
  /// Takes the oldest event. Error: EAGAIN.
  Result<ibv_async_event> take();
  void acknowledge(const ibv_async_event& event);
  /// Called for an object that is being destroyed: drops its queued events, then sleeps until those that were taken are
  /// acknowledged.
  void forget(const void* element);

 private:
  UniqueFd fd_;
  std::mutex lock_;
  std::condition_variable acknowledged_;
  std::deque<ibv_async_event> waiting_;
  std::unordered_map<const void*, unsigned> unacknowledged_;  ///< by object
};

}  // namespace ringsock::soft
