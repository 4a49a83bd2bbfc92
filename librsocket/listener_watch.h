// A listener that is served while its application is busy elsewhere. For librsocket's listener files.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/result.h"
#include "core/runtime/service_thread.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

/// Answers a listener's clients when its application is busy elsewhere (listen(2): a connection is established whether
/// or not accept(2) is being called). An application that accepts all the time never needs it, and is not disturbed: an
/// event only starts a timer, and only if nobody has called accept() when that runs out, the service thread does it.
///
/// While other processes have the listener, too, a client must not be kept from the one that would take it. So only the
/// parts that no other process has (verbs::ConnectionId::unshareable_parts()) are served then, and once another process
/// takes clients, these parts end.
class StreamSocket::ListenerWatch : public std::enable_shared_from_this<ListenerWatch> {
 public:
  explicit ListenerWatch(StreamSocket& socket) : socket_(socket) {}

  /// @param fd  readable when the listener has work. Errors: those of ServiceThread::watch().
  Status start(int fd);
  /// No callback runs after return, but for the one that calls. Not with the socket's locks held: a callback may be
  /// waiting for them.
  void stop();
  /// This process has the listener for itself, perhaps since a moment ago.
  void is_alone() {
    if (waits_to_be_alone_.load(std::memory_order_relaxed) && waits_to_be_alone_.exchange(false)) resume();
  }
  /// accept() has made room in a queue that was full.
  void room_again() {
    if (waits_for_room_.exchange(false)) resume();
  }
  /// Clients of such parts wait to be accepted: looks now and then whether another process has begun to listen, which
  /// cannot accept them.
  void look_later();

 private:
  // On the service thread, but for resume().
  void on_event();
  void wait_for_application();
  void on_patience_over();
  void resume();
  void watch_parts();
  void on_part_event();
  void on_part_patience_over();
  void resume_parts();
  void on_look();

  StreamSocket& socket_;
  std::mutex lock_;
  bool stopped_ = false;
  runtime::ServiceThread::Id watch_ = 0;
  std::vector<runtime::ServiceThread::Id> part_watches_;
  std::atomic<runtime::ServiceThread::Id> timer_{0};
  std::atomic<runtime::ServiceThread::Id> part_timer_{0};
  std::atomic<runtime::ServiceThread::Id> look_timer_{0};
  std::uint64_t calls_before_ = 0;  ///< the service thread's
  std::atomic<bool> waits_for_room_{false};
  std::atomic<bool> waits_to_be_alone_{false};
  bool parts_paused_ = false;  ///< the service thread's
  bool looks_ = false;         ///< a look is to come
};

}  // namespace ringsock::rs
