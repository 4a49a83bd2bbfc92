// Who hears of what a ring has delivered.
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

/// Those who must hear that something came for them. They are told without the ring's lock, so each is held until then.
class Told {
 public:
  Told() = default;  // the places are not initialised: most polls tell nobody
  Told(const Told&) = delete;
  Told& operator=(const Told&) = delete;
  ~Told() {
    for (std::size_t i = 0; i < count_; ++i) endpoints_[i]->drop_ref();
    if (more_) [[unlikely]] {
      for (runtime::Endpoint* const one : *more_) one->drop_ref();
    }
  }

  /// Under the ring's lock.
  void add(runtime::Endpoint& endpoint) {
    // Looked at under the ring's lock, which arm() takes too: who is not watched by now looks again before he sleeps.
    if (!endpoint.is_watched()) return;
    const auto end = endpoints_.begin() + static_cast<std::ptrdiff_t>(count_);
    if (std::find(endpoints_.begin(), end, &endpoint) != end) return;
    if (count_ == endpoints_.size()) [[unlikely]]
      return add_more(endpoint);
    // A socket leaves the ring before it is destroyed, so it is there; but it may be about to go.
    if (endpoint.try_add_ref()) endpoints_[count_++] = &endpoint;
  }
  void tell() const {
    for (std::size_t i = 0; i < count_; ++i) endpoints_[i]->notify_watchers(EPOLLIN);
    if (more_) [[unlikely]] {
      for (runtime::Endpoint* const one : *more_) one->notify_watchers(EPOLLIN);
    }
  }

 private:
  void add_more(runtime::Endpoint& endpoint) {
    try {
      if (!more_) more_ = std::make_unique<std::vector<runtime::Endpoint*>>();
      if (std::find(more_->begin(), more_->end(), &endpoint) != more_->end()) return;
      more_->reserve(more_->size() + 1);
    } catch (const std::bad_alloc&) {
      return;  // hears of the next one, or sees it when it looks
    }
    if (endpoint.try_add_ref()) more_->push_back(&endpoint);
  }
  std::unique_ptr<std::vector<runtime::Endpoint*>> more_;  ///< of a burst, or a datagram to a group
  std::array<runtime::Endpoint*, 64> endpoints_;
  std::size_t count_ = 0;
};

}  // namespace ringsock::ethernet
