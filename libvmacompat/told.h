// Who hears of what a ring has delivered.
#pragma once

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "core/runtime/endpoint.h"

namespace ringsock::vma {

/// Those who must hear that something came for them. They are told without the ring's lock, so each is held until then.
class Told {
 public:
  Told() = default;  // the places are not initialised: most polls tell nobody
  Told(const Told&) = delete;
  Told& operator=(const Told&) = delete;
  ~Told() {
    for (std::size_t i = 0; i < count_; ++i) endpoints_[i]->drop_ref();
  }

  /// Under the ring's lock.
  void add(runtime::Endpoint& endpoint) {
    // Looked at under the ring's lock, which arm() takes too: who is not watched by now looks again before he sleeps.
    if (!endpoint.is_watched() || count_ == endpoints_.size()) return;
    const auto end = endpoints_.begin() + static_cast<std::ptrdiff_t>(count_);
    if (std::find(endpoints_.begin(), end, &endpoint) != end) return;
    // A socket leaves the ring before it is destroyed, so it is there; but it may be about to go.
    if (endpoint.try_add_ref()) endpoints_[count_++] = &endpoint;
  }
  void tell() const {
    for (std::size_t i = 0; i < count_; ++i) endpoints_[i]->notify_watchers(EPOLLIN);
  }

 private:
  // A datagram to a group may be for more; those then hear of the next one, or see it when they look.
  std::array<runtime::Endpoint*, 64> endpoints_;
  std::size_t count_ = 0;
};

}  // namespace ringsock::vma
