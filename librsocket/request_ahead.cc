#include "librsocket/request_ahead.h"

#include <cerrno>
#include <new>
#include <utility>

namespace ringsock::rs {

namespace {
/// Returns whether the client has given up.
bool has_left(const verbs::CmEvent& event) { return static_cast<bool>(event.request->next_event()); }
}  // namespace

bool RequestAhead::has_client() {
  if (event_ && has_left(*event_)) refuse();
  return event_ != nullptr;
}

bool RequestAhead::look(verbs::ConnectionId& listener) noexcept try {
  if (has_client()) return true;
  auto place = std::make_unique<verbs::CmEvent>();
  auto event = listener.next_event();
  if (!event) return event.error().code != EAGAIN;
  if (event->type != verbs::CmEventType::connect_request) return false;
  *place = *std::move(event);
  event_ = std::move(place);
  is_there_.store(true, std::memory_order_relaxed);
  return true;
} catch (const std::bad_alloc&) {
  return true;
}

Result<verbs::CmEvent> RequestAhead::next(verbs::ConnectionId& listener) {
  if (!has_client()) return listener.next_event();
  const std::unique_ptr<verbs::CmEvent> event = take();
  return std::move(*event);
}

void RequestAhead::leave_to_parent() {
  const std::unique_ptr<verbs::CmEvent> event = take();
  if (event) event->request->abandon(false);
}

}  // namespace ringsock::rs
