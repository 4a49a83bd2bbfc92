// A request that a listener has taken from its queue before anybody accepts it.
#pragma once

#include <atomic>
#include <memory>

#include "core/base/result.h"
#include "core/verbs/connection_manager.h"

namespace ringsock::rs {

/// The next client of a listener for which others wait, too: the thread that the client's connect(2) has woken looks
/// whether the request has come, and leaves it here until accept(2) is called. The client has no answer before. So it
/// goes by the kernel when this process ends, or when nobody accepts it within its patience. The listener's lock must
/// be held, but for empty().
class RequestAhead {
 public:
  [[nodiscard]] bool empty() const { return !is_there_.load(std::memory_order_acquire); }
  /// Returns whether there is a request whose client still waits. Refuses one whose client has given up.
  bool has_client();
  /// Returns whether next() has something to report, a request or an error.
  bool look(verbs::ConnectionId& listener) noexcept;
  /// The listener's next event, as ConnectionId::next_event().
  Result<verbs::CmEvent> next(verbs::ConnectionId& listener);
  /// Refuses the request.
  void refuse() { take().reset(); }
  /// Called in a forked child.
  void leave_to_parent();

 private:
  std::unique_ptr<verbs::CmEvent> take() {
    is_there_.store(false, std::memory_order_release);
    return std::move(event_);
  }

  std::unique_ptr<verbs::CmEvent> event_;
  std::atomic<bool> is_there_{false};
};

}  // namespace ringsock::rs
