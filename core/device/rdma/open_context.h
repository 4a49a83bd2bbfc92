// A device that this process has opened.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <mutex>

#include "core/base/result.h"
#include "core/device/rdma/calls.h"
#include "core/device/rdma/device_events.h"

namespace ringsock::rdma {

/// Calls `serve` on another thread whenever `fd` is readable or broken, as long as the returned object exists. The
/// object's destructor waits for a running call, unless called from it. Returns null when that is not possible.
using Watcher = std::function<std::shared_ptr<void>(int fd, std::function<void()> serve)>;

/// A context that its last user closes.
class OpenContext : public std::enable_shared_from_this<OpenContext> {
 public:
  /// @param watch serves the device's events; empty: they are not served
  /// Errors: those of ibv_open_device(3), e.g. EACCES.
  static Result<std::shared_ptr<OpenContext>> open(const Calls& calls, ibv_device& device, const Watcher& watch);
  OpenContext(const OpenContext&) = delete;
  OpenContext& operator=(const OpenContext&) = delete;
  ~OpenContext();

  [[nodiscard]] ibv_context& get() const { return *context_; }
  /// Returns whether this process opened the device. A forked child must not use the kernel's objects, which belong to
  /// its parent.
  [[nodiscard]] bool is_ours() const;
  /// Returns whether new objects can be made: this process opened the device, and it has not failed.
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
