// A listener before, during and after fork(2). A child gets it without the parts on real devices.
#include <list>
#include <mutex>
#include <vector>

#include "core/base/log.h"
#include "librsocket/listener_watch.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

bool ListenerParts::keep_shareable() noexcept {
  if (!core_.id || core_.id->unshareable_parts().empty()) return true;
  lacks_parts_ = true;
  if (core_.id->drop_unshareable_parts()) return true;
  core_.id.reset();
  return socket_.connector().has_other_way();
}

void ListenerParts::tell_that_child_listens() noexcept {
  if (!lacks_parts_) return;
  if (FamilyRecord* const family = socket_.inheritance().family()) {
    family->child_listens.store(true, std::memory_order_relaxed);
  }
}

std::vector<int> ListenerParts::descriptors() {
  const std::lock_guard guard(core_.setup_lock);
  std::vector<int> fds;
  if (core_.state() != State::listening || !core_.id) return fds;
  for (const verbs::ConnectionId* part : core_.id->unshareable_parts()) fds.push_back(part->event_fd());
  return fds;
}

bool ListenerParts::may_keep_clients_from_others() const {
  return !lacks_parts_ && core_.id && !core_.id->unshareable_parts().empty();
}

bool ListenerParts::does_child_listen() const {
  const FamilyRecord* const family = socket_.inheritance().family();
  return family != nullptr && !lacks_parts_ && family->child_listens.load(std::memory_order_relaxed);
}

ListenerParts::Outcome ListenerParts::serve(bool take_in) {
  bool full = false;
  bool ends = false;
  {
    const std::lock_guard guard(core_.setup_lock);
    if (core_.state() != State::listening || !core_.id) return Outcome::ended;
    ends = does_child_listen();
    if (!ends) full = socket_.listener().serve_parts(take_in);
  }
  if (ends) {
    end();
    return Outcome::ended;
  }
  core_.endpoint.notify_watchers(EPOLLIN);
  return full ? Outcome::full : Outcome::room;
}

/// Clients that are dropped get a refusal. Later clients find no listener;
/// our preload library and rdma-core's then use the kernel.
void ListenerParts::end() {
  socket_.stop_background();
  Clients clients;
  {
    const std::lock_guard guard(core_.setup_lock);
    if (core_.state() != State::listening || !core_.id || core_.closed.load(std::memory_order_relaxed)) return;
    log_info("listener %s: a forked child takes its clients: none by %s any more",
             core_.id->local_address().to_string().c_str(), core_.id->unshareable_parts().front()->device().name());
    clients = socket_.listener().take_clients_of_parts();
    socket_.listener().forget_queue_fd();
    if (!core_.id->drop_unshareable_parts()) core_.id.reset();
    if (core_.id) socket_.listener().start_watch();
    core_.endpoint.note_activity();
  }
  core_.endpoint.notify_watchers();
}

bool Listener::serve_parts(bool take_in) {
  if (take_in) {
    for (verbs::ConnectionId* part : core_.id->unshareable_parts()) take_in_clients(*part, backlog_);
  }
  if (!accept_queue_.empty() && watch_) watch_->look_later();
  return accept_queue_.size() >= backlog_;
}

Clients Listener::take_clients_of_parts() {
  Clients clients;
  for (auto* queue : {&accept_queue_, &half_open_}) {
    for (std::size_t left = queue->size(); left > 0; --left) {
      Clients client = queue->take_front();
      if (stream_of(*client.front()).core().id->device().traits().survives_fork) {
        queue->push_back(std::move(client));
      } else {
        clients.splice(clients.end(), client);
      }
    }
  }
  return clients;
}

}  // namespace ringsock::rs
