// Serves a listener while its application is busy elsewhere.
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
/// or not accept(2) is being called). An application that keeps calling accept() is not disturbed: an event only starts
/// a timer, and the service thread answers only if accept() was not called before the timer expires. The timer runs the
/// longer, the more often it was started in vain.
///
/// An application that forked a process with the listener, and has called neither accept() nor its relatives yet, may
/// have left the clients to a program which that process executed. These clients are not answered, and go by the
/// kernel.
///
/// While other processes also have the listener, a client must remain available to the process that would accept it. So
/// only the parts that no other process has (verbs::ConnectionId::unshareable_parts()) are served then. These parts end
/// once another process accepts clients.
class ListenerWatch : public std::enable_shared_from_this<ListenerWatch> {
 public:
  explicit ListenerWatch(StreamSocket& socket) : socket_(socket) {}

  /// @param fd  readable when the listener has work. Errors: those of ServiceThread::watch().
  Status start(int fd);
  /// After return no callback runs, except a calling one. The caller must not hold the socket's locks, because a
  /// callback may be waiting for them.
  void stop();
  /// Called when no other process has the listener (any more).
  void is_alone() {
    if (waits_to_be_alone_.load(std::memory_order_relaxed) && waits_to_be_alone_.exchange(false)) resume();
  }
  /// Called when accept() has made room in a full queue.
  void room_again() {
    if (waits_for_room_.exchange(false)) resume();
  }
  /// Called when the application calls accept().
  void is_accepted() {
    if (waits_for_accept_.load(std::memory_order_relaxed) && waits_for_accept_.exchange(false)) resume();
  }
  /// Called while clients of such parts wait to be accepted: checks regularly whether another process, which cannot
  /// accept them, has begun to listen.
  void look_later();

 private:
  // Called on the service thread, except resume().
  void on_event();
  [[nodiscard]] bool may_be_left_to_a_program() const;
  void leave_until_accept();
  bool wait_for_application();
  void on_patience_over();
  bool serve_clients();
  void serve_parts(bool take_in);
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
  // The service thread's
  std::uint64_t calls_before_ = 0;
  Nanos patience_{};  ///< of the last timer
  Nanos resumed_at_ = Nanos::min();
  std::atomic<bool> waits_for_room_{false};
  std::atomic<bool> waits_to_be_alone_{false};
  std::atomic<bool> waits_for_accept_{false};
  bool parts_paused_ = false;  ///< the service thread's
  bool looks_ = false;         ///< a look is scheduled
};

}  // namespace ringsock::rs
