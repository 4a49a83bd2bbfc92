#include "librsocket/readiness.h"

#include <algorithm>
#include <mutex>

#include "core/runtime/used_elsewhere.h"
#include "librsocket/stream_api.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

std::uint32_t StreamReadiness::ready() noexcept {
  switch (core_.state()) {
    case State::initial:
    case State::bound: return EPOLLOUT | EPOLLHUP;
    case State::listening: return listening_events();
    case State::connecting: return connecting_events();
    case State::failed: {
      const std::uint32_t error =
          core_.pending_error.load(std::memory_order_acquire) != 0 ? std::uint32_t{EPOLLERR} : 0;
      return error | EPOLLHUP | EPOLLIN | EPOLLRDNORM | EPOLLOUT | EPOLLWRNORM | EPOLLRDHUP;
    }
    case State::connected: return connected_events();
  }
  return 0;
}

std::uint32_t StreamReadiness::listening_events() noexcept {
  if (!socket_.inheritance().claim()) return EPOLLIN | EPOLLRDNORM | EPOLLERR | EPOLLHUP;
  socket_.listener().parts().tell_that_child_listens();
  std::lock_guard guard(core_.setup_lock);
  if (core_.read_shut.load(std::memory_order_acquire)) return EPOLLIN | EPOLLRDNORM | EPOLLRDHUP | EPOLLHUP;
  return socket_.listener().has_client() ? EPOLLIN | EPOLLRDNORM : 0;
}

std::uint32_t StreamReadiness::connecting_events() noexcept {
  bool arms_anew = false;
  {
    std::lock_guard guard(core_.setup_lock);
    arms_anew = socket_.connector().drive_to_new_descriptor();
  }
  if (arms_anew) core_.endpoint.notify_watchers();
  if (core_.state() != State::connecting) return ready();
  Listener::serve_unwatched_listeners();
  return 0;
}

/// Returns whether the readable bytes reach SO_RCVLOWAT, or no more can arrive before they are read.
bool StreamReadiness::has_enough() const noexcept {
  if (core_.connection->receiving().shows_first()) [[unlikely]] {
    StreamCallback& callback = core_.api()->callback();
    return !callback.look() && callback.accepted_bytes() > 0;
  }
  const std::uint64_t readable = core_.connection->receiving().readable();
  return readable >= core_.endpoint.receive_low_mark() ||
         (readable > 0 && core_.connection->receiving().should_be_read());
}

std::uint32_t StreamReadiness::connected_events() noexcept {
  const Inheritance::Turn turn(socket_.inheritance());
  if (!socket_.inheritance().claim()) {
    // The following call uses the kernel, or fails.
    const bool can_follow = socket_.inheritance().can_follow();
    return EPOLLIN | EPOLLRDNORM | EPOLLOUT | EPOLLWRNORM |
           (can_follow ? runtime::kUsedElsewhere : std::uint32_t{EPOLLERR | EPOLLHUP});
  }
  socket_.progress().poll();
  const int failure = core_.connection->ends().failure();
  const bool ended = core_.at_end_of_stream();
  const bool cannot_write =
      core_.write_shut.load(std::memory_order_acquire) || core_.connection->ends().peer_disconnected();
  std::uint32_t events = 0;
  if (has_enough() || ended) events |= EPOLLIN | EPOLLRDNORM;
  if (ended) events |= EPOLLRDHUP;
  if (failure != 0 || cannot_write || core_.connection->sending().is_writable()) events |= EPOLLOUT | EPOLLWRNORM;
  if (failure != 0 || (ended && core_.write_shut.load(std::memory_order_acquire)) ||
      core_.sent_into_the_void.load(std::memory_order_acquire))
    events |= EPOLLHUP;
  const bool untold = failure != 0 && !core_.failure_taken.load(std::memory_order_acquire);
  if (untold || core_.pending_error.load(std::memory_order_acquire) != 0) events |= EPOLLERR;
  if (std::unique_lock reading(core_.receive_lock, std::try_to_lock); reading)
    core_.connection->receiving().announce_if_due();
  return events;
}

/// A thread asks before it sleeps, and so does the work that is due, which is done here.
Nanos StreamReadiness::deadline() noexcept {
  const Nanos others = core_.deadline.load(std::memory_order_relaxed);
  if (!core_.is_connected()) return others;
  OverflowAreas& overflow = core_.connection->overflow();
  if (overflow.gives_back_at() == Nanos::max()) return others;
  if (const Nanos now = monotonic_now(); now >= overflow.gives_back_at()) {
    constexpr Nanos kBusy = std::chrono::milliseconds(10);
    const Inheritance::Turn turn(socket_.inheritance());
    if (!socket_.inheritance().is_ours()) {
      overflow.leave_charges();
      return others;
    }
    const std::unique_lock sending(core_.send_lock, std::try_to_lock);
    const std::unique_lock reading(core_.receive_lock, std::try_to_lock);
    sending&& reading ? core_.connection->receiving().give_back() : overflow.give_back_at(now + kBusy);
  }
  return std::min(others, overflow.gives_back_at());
}

bool StreamReadiness::has_peer_ended() const noexcept {
  return (!core_.is_suspended() || socket_.inheritance().was_last_user()) &&
         (core_.connection->ends().peer_disconnected() || core_.connection->ends().failure() != 0);
}

void StreamReadiness::look_for_end() noexcept {
  if (!core_.is_connected()) return;
  const Inheritance::Turn turn(socket_.inheritance());
  // ready(), which the caller calls next, would claim it, too.
  if (socket_.inheritance().claim()) socket_.progress().look_closely_if_read_seldom();
}

runtime::WaitFds StreamReadiness::arm() noexcept {
  runtime::WaitFds fds;
  if (core_.is_connected()) {
    fds.fd[0] = core_.connection->arm();
    if (core_.connection->completions().must_look_again()) [[unlikely]]
      core_.endpoint.notify_watchers();
    if (core_.connection_owns_fd.load(std::memory_order_acquire)) {
      // After the peer's end no event comes, but the descriptor stays readable for ever.
      fds.fd[1] = has_peer_ended() ? -1 : core_.fd.load();
      return fds;
    }
  }
  std::lock_guard guard(core_.setup_lock);
  if (!core_.id) return fds;
  fds.fd[1] = core_.id->event_fd();
  if (core_.state() == State::listening) socket_.listener().arm_turns(fds);
  return fds;
}

// The peer's end is noticed by the descriptor of arm(), listed or not.
runtime::Listable* StreamReadiness::listable() noexcept {
  const bool can_be = core_.is_connected() && core_.connection_owns_fd.load(std::memory_order_acquire) &&
                      !core_.read_shut.load(std::memory_order_acquire);
  return can_be ? &core_.connection->listing() : nullptr;
}

void StreamReadiness::woken() noexcept {
  // ready(), which the caller calls next, takes the events of a connect or of a listener.
  const Inheritance::Turn turn(socket_.inheritance());
  if (!core_.is_connected() || !socket_.inheritance().claim()) return;
  core_.statistics.count_wakeup();
  core_.connection->woken();
  bool changed = false;
  {
    std::lock_guard guard(core_.setup_lock);
    changed = socket_.cm_events().take();
    if (changed) core_.endpoint.note_activity(EPOLLIN);
  }
  if (changed) core_.endpoint.notify_watchers();
}

std::uint32_t StreamReadiness::arrival_stamp() noexcept {
  if (!core_.is_connected()) return 0;
  const std::uint32_t stamp = core_.connection->arrival_stamp();
  return stamp != 0 ? stamp : socket_.connector().stamp();
}

std::uint64_t StreamReadiness::taken_in_turns() const noexcept {
  return core_.state() == State::listening ? socket_.listener().turns() : 0;
}

void StreamReadiness::expect_turns() noexcept { socket_.listener().accept_turns.note_exclusive(); }

}  // namespace ringsock::rs
