// Endpoints whose watchers must be told of delivered packets.
#pragma once

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <vector>

#include "core/runtime/endpoint.h"

namespace ringsock::ethernet {

/// The endpoints that have received something. Their watchers are told without the ring's lock, so each endpoint is
/// referenced until then.
class Told {
 public:
  Told() = default;  // does not initialise the array, because most polls tell nobody
  Told(const Told&) = delete;
  Told& operator=(const Told&) = delete;
  ~Told() {
    for (std::size_t i = 0; i < count_; ++i) endpoints_[i]->drop_ref();
    if (more_) [[unlikely]] {
      for (runtime::Endpoint* const one : *more_) one->drop_ref();
    }
  }

  /// Called under the ring's lock.
  void add(runtime::Endpoint& endpoint) {
    // arm() takes the ring's lock, too. So an endpoint without watchers at this point is polled again before its thread
    // sleeps.
    if (!endpoint.is_watched()) return;
    const auto end = endpoints_.begin() + static_cast<std::ptrdiff_t>(count_);
    if (std::find(endpoints_.begin(), end, &endpoint) != end) return;
    if (count_ == endpoints_.size()) [[unlikely]]
      return add_more(endpoint);
    // A socket leaves the ring before it is destroyed, so the object exists; but its last reference may be gone.
    if (endpoint.try_add_ref()) endpoints_[count_++] = &endpoint;
  }
  void tell() const {
    for (std::size_t i = 0; i < count_; ++i) tell(*endpoints_[i]);
    if (more_) [[unlikely]] {
      for (runtime::Endpoint* const one : *more_) tell(*one);
    }
  }

 private:
  /// A packet for a stream may also be an acknowledgement, after which there is room for more to send.
  static void tell(runtime::Endpoint& endpoint) {
    endpoint.notify_watchers(endpoint.is_datagram() ? EPOLLIN : EPOLLIN | EPOLLOUT);
  }
  void add_more(runtime::Endpoint& endpoint) {
    try {
      if (!more_) more_ = std::make_unique<std::vector<runtime::Endpoint*>>();
      if (std::find(more_->begin(), more_->end(), &endpoint) != more_->end()) return;
      more_->reserve(more_->size() + 1);
    } catch (const std::bad_alloc&) {
      return;  // the watchers hear of the next packet, or see this one when they poll
    }
    if (endpoint.try_add_ref()) more_->push_back(&endpoint);
  }
  std::unique_ptr<std::vector<runtime::Endpoint*>> more_;  ///< used for bursts, and for datagrams to groups
  std::array<runtime::Endpoint*, 64> endpoints_;
  std::size_t count_ = 0;
};

}  // namespace ringsock::ethernet
