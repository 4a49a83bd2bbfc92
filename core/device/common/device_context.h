// The parts of a software device that its objects use.
#pragma once

#include <infiniband/verbs.h>

#include <utility>

#include "core/base/unique_fd.h"
#include "core/device/common/async_events.h"
#include "core/device/common/key_table.h"
#include "core/device/common/verbs_frame.h"
#include "core/verbs/device.h"

namespace ringsock::soft {

/// Threads: any.
class DeviceContext {
 public:
  /// @param async_fd  readable while an event waits; empty: the device has no events
  DeviceContext(verbs::Device& device, const char* name, UniqueFd async_fd)
      : device_(device), frame_(device, name, async_fd.get()), async_events_(std::move(async_fd)) {}

  [[nodiscard]] verbs::Device& device() { return device_; }
  [[nodiscard]] verbs_context& operations() { return frame_.operations(); }
  [[nodiscard]] ibv_context& context() { return frame_.context(); }
  [[nodiscard]] AsyncEvents& async_events() { return async_events_; }
  [[nodiscard]] KeyTable& keys() { return keys_; }

 private:
  verbs::Device& device_;
  VerbsFrame frame_;
  AsyncEvents async_events_;
  KeyTable keys_;
};

}  // namespace ringsock::soft
