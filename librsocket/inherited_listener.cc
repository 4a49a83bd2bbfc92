// A listener before, during and after fork(2). A child gets it without the parts on real devices.
#include <mutex>

#include "core/base/log.h"
#include "librsocket/listener_watch.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

/// Called in the child. Returns false when no part works there.
bool StreamSocket::keep_shareable_parts() noexcept {
  if (!id_ || id_->unshareable_parts().empty()) return true;
  lacks_parts_ = true;
  if (id_->drop_unshareable_parts()) return true;
  id_.reset();
  return has_other_listener();
}

/// Tells the parent that this process listens, so that clients that it would take do not wait in the parent for ever.
void StreamSocket::tell_that_child_listens() noexcept {
  if (lacks_parts_ && family() != nullptr) family()->child_listens.store(true, std::memory_order_relaxed);
}

std::vector<int> StreamSocket::unshareable_descriptors() {
  const std::lock_guard guard(setup_lock_);
  std::vector<int> fds;
  if (state() != State::listening || !id_) return fds;
  for (const verbs::ConnectionId* part : id_->unshareable_parts()) fds.push_back(part->event_fd());
  return fds;
}

StreamSocket::Parts StreamSocket::serve_parts(bool take_in) {
  bool full = false;
  bool ends = false;
  {
    const std::lock_guard guard(setup_lock_);
    if (state() != State::listening || !id_) return Parts::ended;
    ends = family() != nullptr && !lacks_parts_ && family()->child_listens.load(std::memory_order_relaxed);
    if (!ends && take_in) {
      for (verbs::ConnectionId* part : id_->unshareable_parts()) take_in_clients(*part, backlog_);
    }
    full = accept_queue_.size() >= backlog_;
    if (!ends && !accept_queue_.empty() && listener_watch_) listener_watch_->look_later();
  }
  if (ends) {
    end_parts();
    return Parts::ended;
  }
  notify_watchers(EPOLLIN);
  return full ? Parts::full : Parts::room;
}

/// Called on the service thread, without locks. Clients that are dropped get a refusal. Later clients find no listener;
/// our preload library and rdma-core's then use the kernel.
void StreamSocket::end_parts() {
  stop_background();
  std::vector<runtime::Ref> clients;
  {
    const std::lock_guard guard(setup_lock_);
    if (state() != State::listening || !id_ || closed_.load(std::memory_order_relaxed)) return;
    log_info("listener %s: a forked child takes its clients: none by %s any more",
             id_->local_address().to_string().c_str(), id_->unshareable_parts().front()->device().name());
    clients = take_clients_of_parts();
    queue_fd_.store(-1, std::memory_order_relaxed);
    if (!id_->drop_unshareable_parts()) id_.reset();
    if (id_) {
      watch_listener();
    }
    note_activity();
  }
  notify_watchers();
}

std::vector<runtime::Ref> StreamSocket::take_clients_of_parts() {
  std::vector<runtime::Ref> clients;
  for (auto* queue : {&accept_queue_, &half_open_}) {
    std::deque<runtime::Ref> others;
    for (runtime::Ref& client : *queue) {
      const bool stays = static_cast<StreamSocket&>(*client).id_->device().survives_fork();
      if (stays) {
        others.push_back(std::move(client));
      } else {
        clients.push_back(std::move(client));
      }
    }
    queue->replace(std::move(others));
  }
  return clients;
}

}  // namespace ringsock::rs
