// The connection manager's side of a connection that has been made or answered.
#pragma once

#include <atomic>
#include <memory>

#include "core/base/result.h"
#include "core/runtime/endpoint.h"
#include "core/verbs/connection_manager.h"
#include "librsocket/cm_watch.h"
#include "librsocket/stream_core.h"

namespace ringsock::rs {

/// Answers a client, and takes the connection manager's later events: the peer's confirmation, its end. The service
/// thread takes them where the device needs that. Functions need setup_lock unless they say otherwise.
class CmEvents final : public StreamPart {
 public:
  CmEvents(StreamSocket& socket, StreamCore& core) : StreamPart(socket, core) {}

  /// Makes this new socket the passive end of `event`'s connection. On errors the request is refused.
  Status accept_request(verbs::CmEvent& event);
  /// The same with setup_lock taken, for a socket that the application has already. Error: EINVAL in use.
  Status become_accepted(verbs::CmEvent& event);
  void set_connected();
  /// Takes events of an established connection. Returns true when something has changed for waiting threads.
  bool take();
  /// Makes the service thread serve the connection manager, too, if the device needs that.
  void watch();
  /// Undoes watch(), after which the caller may close the descriptor. Called without locks.
  void stop_serving();
  /// Drops the id and the connection of a failed connect.
  void drop_connection();

  /// Makes `listener` be told of the peer's confirmation. Returns false when it has come already, or cannot be waited
  /// for. Takes setup_lock.
  bool waits_for_peer(runtime::Endpoint& listener);
  /// Returns whether the peer has confirmed an answered connection. Threads: any.
  [[nodiscard]] bool is_confirmed() const { return peer_confirmed_.load(std::memory_order_acquire); }
  /// Returns whether the peer of an answered connection has confirmed it or never will. Threads: any.
  [[nodiscard]] bool is_peer_decided() const;
  /// In a forked child, which does not have the service thread.
  void forget_watch();

 private:
  bool take_one(const verbs::CmEvent& event);
  void serve();  ///< on the service thread, without locks

  std::shared_ptr<CmWatch> watch_;
  runtime::Ref half_open_listener_;          ///< the listener that waits for our peer's confirmation
  std::atomic<bool> peer_confirmed_{false};  ///< by the connection manager
};

}  // namespace ringsock::rs
