// An event channel of the connection manager, and the handling of descriptors that librdmacm and libibverbs open.
#pragma once

#include <rdma/rdma_cma.h>

#include <utility>

#include "core/base/result.h"
#include "core/device/rdma/calls.h"

namespace ringsock::rdma {

/// Moves a descriptor that one of the libraries has opened and keeps in `fd` to a high number, and makes it
/// non-blocking. `fd` gets the new number.
void adopt_descriptor(int& fd);

/// Owns a channel. Moves only.
class EventChannel {
 public:
  /// Opens a channel. Errors: EMFILE, ENFILE, ENOMEM, ENODEV, EACCES.
  static Result<EventChannel> create(const Calls& calls);
  EventChannel() = default;
  EventChannel(EventChannel&& other) noexcept
      : calls_(other.calls_), channel_(std::exchange(other.channel_, nullptr)) {}
  EventChannel& operator=(EventChannel&& other) noexcept {
    std::swap(calls_, other.calls_);
    std::swap(channel_, other.channel_);
    return *this;
  }
  ~EventChannel() {
    if (channel_ != nullptr) calls_->destroy_event_channel(channel_);
  }

  explicit operator bool() const { return channel_ != nullptr; }
  [[nodiscard]] rdma_event_channel* get() const { return channel_; }
  [[nodiscard]] int fd() const { return channel_->fd; }

 private:
  EventChannel(const Calls& calls, rdma_event_channel* channel) : calls_(&calls), channel_(channel) {}

  const Calls* calls_ = nullptr;
  rdma_event_channel* channel_ = nullptr;
};

}  // namespace ringsock::rdma
