#include "librsocket/progress.h"

#include <cerrno>
#include <memory>
#include <mutex>
#include <utility>

#include "core/runtime/service_thread.h"
#include "librsocket/idle_connection.h"
#include "librsocket/stream_api.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

int Progress::look_for_error() {
  look_for_reset();
  return core_.take_error();
}

void Progress::look_for_reset() {
  const Inheritance::Turn turn(socket_.inheritance());
  look_if_alone();
  // A connect(2) in the background may have finished.
  if (core_.state() == State::connecting) static_cast<void>(socket_.readiness().ready());
  if (!core_.is_connected() || core_.is_suspended() || core_.connection->ends().failure() != 0) return;
  {
    const std::lock_guard guard(core_.setup_lock);
    socket_.cm_events().take();
  }
  poll();
  core_.endpoint.notify_watchers();
}

Status Progress::require_connected(int error_if_not) {
  if (core_.is_connected()) return ok();
  if (core_.state() == State::connecting) {
    {
      std::lock_guard guard(core_.setup_lock);
      socket_.connector().drive();
    }
    if (core_.is_connected()) return ok();
    if (core_.state() == State::connecting) return Error{EAGAIN, "rsocket: connecting"};
  }
  if (core_.state() == State::failed) {
    if (const int error = core_.take_error()) return Error{error, "rsocket: connect"};
  }
  return Error{error_if_not, "rsocket: not connected"};
}

void Progress::note_changes() {
  if (core_.connection->ends().is_flushed()) [[unlikely]]
    ask_why_flushed();
  if (core_.connection->ends().failure() != 0) [[unlikely]]
    hang_up();
  // An epoll set that is added later looks by itself.
  if (!core_.endpoint.is_watched()) return;
  // As in TCP, room is a new event only if something was sent, or refused, since room was last reported.
  const std::uint32_t posted = core_.connection->sending().posted();
  const bool was_refused =
      wants_room_.load(std::memory_order_relaxed) && wants_room_.exchange(false, std::memory_order_relaxed);
  if (posted == posted_when_told_.load(std::memory_order_relaxed) && !was_refused) {
    core_.endpoint.note_activity(EPOLLIN);
  } else {
    posted_when_told_.store(posted, std::memory_order_relaxed);
    core_.endpoint.note_activity();
  }
  core_.endpoint.notify_watchers();
}

/// A thread that polls before the poll in here finds out makes room that is seen here; one that polls later sees the
/// wish. Both have the connection's poll_lock in between. While the peer gives the empty overflow area's pages back a
/// send is refused, and there is no room, although nothing is unread.
void Progress::note_short_send() {
  if (!core_.endpoint.is_watched()) return;
  if (StreamApi* const api = core_.api()) [[unlikely]]
    api->events().expect_room();
  wants_room_.store(true, std::memory_order_relaxed);
  poll();
  if (!core_.connection->sending().is_writable() || !wants_room_.exchange(false, std::memory_order_relaxed)) return;
  core_.endpoint.note_activity(EPOLLOUT);
  core_.endpoint.notify_watchers(EPOLLOUT);
}

/// Disconnects a connection that is dead here, so that the peer does not wait for ever.
void Progress::hang_up() {
  if (hung_up_.exchange(true, std::memory_order_acq_rel)) return;
  const std::lock_guard guard(core_.setup_lock);
  [[maybe_unused]] const Status gone = core_.id->disconnect();
}

/// Asks the connection manager for the reason of a flush. Its event may not have arrived yet, or another thread, which
/// has our lock, may be taking it.
void Progress::ask_why_flushed() {
  constexpr Nanos kPatience = std::chrono::seconds(1);
  const std::lock_guard guard(core_.setup_lock);
  socket_.cm_events().take();
  if (!core_.connection->ends().is_flushed() || std::exchange(asked_why_flushed_, true)) return;
  auto give_up = [self = std::make_shared<runtime::Ref>(runtime::Ref::share(core_.endpoint))] {
    StreamSocket& socket = stream_of(**self);
    Connection& connection = *socket.core().connection;
    if (!connection.ends().is_flushed()) return;
    connection.ends().fail(ECONNRESET);
    socket.endpoint().note_activity();
    socket.endpoint().notify_watchers();
  };
  if (auto timer = runtime::service_thread().schedule(monotonic_now() + kPatience, give_up); !timer) {
    core_.connection->ends().fail(ECONNRESET);
  }
}

/// A device checks its peers once in a number of polls, which a reader that reads rarely and never sleeps would not
/// reach for long.
bool Progress::look_closely_if_read_seldom() {
  constexpr int kPolls = 32;
  if (!is_time_for_close_look()) return false;
  for (int i = 0; i < kPolls; ++i) poll();
  return true;
}

bool Progress::is_time_for_close_look() {
  if (!has_not_looked_for_long()) return false;
  looked_closely_at_.store(ticks(), std::memory_order_relaxed);
  return true;
}

void Progress::look_if_alone() noexcept {
  if (!core_.is_connected()) return;
  const Inheritance::Turn turn(socket_.inheritance());
  Inheritance& inheritance = socket_.inheritance();
  const bool takes_from_nobody = !inheritance.is_shared() || has_peer_left(core_, inheritance);
  if (inheritance.is_ours() || (takes_from_nobody && inheritance.claim())) poll();
}

void Progress::look_for_sender() {
  if (is_time_for_close_look()) {
    look_for_reset();
  } else {
    poll();
  }
}

}  // namespace ringsock::rs
