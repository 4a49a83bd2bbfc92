#include "librsocket/cm_events.h"

#include <cerrno>
#include <mutex>
#include <span>
#include <utility>

#include "core/base/abandon.h"
#include "core/base/log.h"
#include "core/runtime/service_thread.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

using verbs::CmEventType;

bool CmEvents::waits_for_peer(runtime::Endpoint& listener) {
  const std::lock_guard guard(core_.setup_lock);
  if (!watch_ || is_peer_decided()) return false;
  half_open_listener_ = runtime::Ref::share(listener);
  return true;
}

bool CmEvents::is_peer_decided() const {
  return is_confirmed() || core_.connection->ends().failure() != 0 || core_.connection->ends().peer_disconnected();
}

Status CmEvents::accept_request(verbs::CmEvent& event) {
  const auto peer = wire::parse_rs_connect(event.data());
  if (!peer) return peer.error();
  const auto overflow = wire::find_rs_overflow(event.data());
  QueueSettings queues = socket_.options().queues();
  if (!overflow) queues.receive_overflow = 0;
  auto connection = Connection::create(*event.request, queues);
  if (!connection) return connection.error();
  if (event.request->device().traits().works_in_background) (*connection)->requests().hold();
  if (Status started = (*connection)->start(*peer, overflow); !started) return started.error();
  (*connection)->overflow().note(OverflowAreas::Acceptance::awaited);
  const wire::RsConnectMore data = (*connection)->connect_data();
  verbs::ConnectionParameters parameters = event.parameters;
  parameters.private_data = data.bytes();
  if (Status accepted = event.request->accept(parameters); !accepted) return accepted.error();
  core_.id = std::move(event.request);
  core_.connection = *std::move(connection);
  set_connected();
  watch();
  return ok();
}

Status CmEvents::become_accepted(verbs::CmEvent& event) {
  const std::lock_guard guard(core_.setup_lock);
  if (core_.state() != State::initial) return Error{EINVAL, "accept: in use"};
  if (Status accepted = accept_request(event); !accepted) return accepted;
  core_.connection->overflow().note(OverflowAreas::Acceptance::done);
  core_.describe();
  runtime::process_statistics.count_accepted(core_.path());
  return ok();
}

void CmEvents::stop_serving() {
  std::shared_ptr<CmWatch> watch;
  {
    std::lock_guard guard(core_.setup_lock);
    watch = std::move(watch_);
  }
  if (watch) watch->stop();
}

void CmEvents::set_connected() {
  core_.connection->open_overflow(core_.id->other_user());
  core_.connection->receiving().begin_announcing();
  socket_.numbers().take_over_number();
  socket_.transfer().corking().mark();
  core_.set_state(State::connected);
  core_.endpoint.note_activity();
  socket_.proofs_of_life().start();
}

bool CmEvents::take() {
  bool changed = false;
  while (auto event = core_.id->next_event()) changed |= take_one(*event);
  return changed;
}

bool CmEvents::take_one(const verbs::CmEvent& event) {
  switch (event.type) {
    case CmEventType::established: {
      peer_confirmed_.store(true, std::memory_order_release);
      core_.connection->established();
      const std::unique_lock reading(core_.receive_lock, std::try_to_lock);
      if (reading) core_.connection->receiving().announce_if_due();
      return true;
    }
    case CmEventType::disconnected:
      // Where the queue pair reports the end, it does so in order with the data.
      if (!core_.id->device().traits().works_in_background) return false;
      core_.connection->poll();
      core_.connection->ends().peer_left();
      return true;
    case CmEventType::device_removal:
    case CmEventType::connect_error:
    case CmEventType::unreachable:
      core_.connection->ends().fail(event.status != 0 ? event.status : ECONNRESET);
      return true;
    default: return false;
  }
}

void CmEvents::watch() {
  if (!core_.id->device().traits().works_in_background || watch_) return;
  watch_ = std::make_shared<CmWatch>(core_.id->event_fd(), [this] { serve(); });
  if (Status watched = watch_->start(); !watched) {
    log_debug("a connection is looked after by its application only: %s", watched.error().where);
    watch_.reset();
  }
}

void CmEvents::serve() {
  if (!core_.endpoint.try_add_ref()) return;  // the destructor waits for us
  const runtime::Ref self(&core_.endpoint);
  runtime::Ref listener;
  {
    const std::lock_guard guard(core_.setup_lock);
    if (core_.state() == State::connecting) {
      socket_.connector().drive();
    } else if (core_.is_connected() && take()) {
      core_.endpoint.note_activity(EPOLLIN);
    }
    if (core_.is_connected() && is_peer_decided()) listener = std::move(half_open_listener_);
  }
  if (core_.is_connected()) socket_.progress().poll();
  core_.endpoint.notify_watchers();
  if (listener.get() != nullptr) stream_of(*listener).listener().half_open_changed();
}

void CmEvents::drop_connection() {
  core_.connection.reset();
  if (!watch_) return core_.id.reset();
  // The watch may be calling us and waiting for our lock, so it is stopped on the service thread, where no other
  // callback is running.
  auto leave = [watch = std::move(watch_), id = std::shared_ptr(std::move(core_.id))] { watch->stop(); };
  watch_.reset();
  if (auto timer = runtime::service_thread().schedule(Nanos::zero(), leave); !timer) {
    log_warn("a failed connection stays: %s", timer.error().where);
    new auto(std::move(leave));
  }
}

void CmEvents::forget_watch() { abandon(watch_); }

}  // namespace ringsock::rs
