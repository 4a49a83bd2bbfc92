// A listener before, during and after fork(2), where a child gets it without the parts on real devices.
#include <mutex>

#include "core/base/log.h"
#include "librsocket/listener_watch.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

/// In the child. False: nothing of it works here.
bool StreamSocket::keep_shareable_parts() noexcept {
  if (!id_ || id_->unshareable_parts().empty()) return true;
  lacks_parts_ = true;
  if (id_->drop_unshareable_parts()) return true;
  id_.reset();
  return has_other_listener();
}

/// A client must not wait in the parent for ever that this process would take.
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

/// On the service thread, without locks. Those who are dropped are told so; whoever comes finds nobody there, and our
/// preload library and rdma-core's go to the kernel then.
void StreamSocket::end_parts() {
  stop_background();
  std::vector<runtime::Ref> clients;
  {
    const std::lock_guard guard(setup_lock_);
    if (state() != State::listening || !id_ || closed_.load(std::memory_order_relaxed)) return;
    log_info("listener %s: a forked child takes its clients: none by %s any more",
             id_->local_address().to_string().c_str(), id_->unshareable_parts().front()->device().name());
    clients = take_clients_of_parts();
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
    queue->swap(others);
  }
  return clients;
}

}  // namespace ringsock::rs
