// A device that this process has opened.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <mutex>

#include "core/base/result.h"
#include "core/device/rdma/async_events.h"
#include "core/device/rdma/calls.h"

namespace ringsock::rdma {

/// Calls `serve` on a thread of its own whenever `fd` is readable or broken, as long as the object that it returns
/// lives: the object's destructor waits for a call that runs, unless it is within one. Null: that is not possible.
using Watcher = std::function<std::shared_ptr<void>(int fd, std::function<void()> serve)>;

/// A context of our own, closed with its last user.
class OpenContext : public std::enable_shared_from_this<OpenContext> {
 public:
  /// @param watch  looks after the device's events; none: nobody does
  /// Errors: those of ibv_open_device(3), e.g. EACCES.
  static Result<std::shared_ptr<OpenContext>> open(const Calls& calls, ibv_device& device, const Watcher& watch);
  OpenContext(const OpenContext&) = delete;
  OpenContext& operator=(const OpenContext&) = delete;
  ~OpenContext();

  [[nodiscard]] ibv_context& get() const { return *context_; }
  /// The kernel's objects belong to the process that opened the device: a forked child must not touch them.
  [[nodiscard]] bool is_ours() const;
  /// Whether new objects can be made: it is ours, and has not failed.
  [[nodiscard]] bool is_usable() const { return is_ours() && !events_.device_has_failed(); }
  [[nodiscard]] AsyncEvents& events() { return events_; }

 private:
  OpenContext(const Calls& calls, ibv_context& context);
  void start_watching(const Watcher& watch);
  void take_events();

  const Calls& calls_;
  ibv_context* const context_;
  const pid_t owner_;
  AsyncEvents events_;
  std::mutex watch_lock_;
  std::shared_ptr<void> watch_;
};

}  // namespace ringsock::rdma
