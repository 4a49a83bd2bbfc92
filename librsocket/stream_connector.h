// Binding, and the active end of a connection that is being made.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/verbs/connection_manager.h"
#include "librsocket/stream_core.h"

namespace ringsock::rs {

/// Has the connection manager's id made, bound and connected. The public functions of the first group take setup_lock;
/// the others, and what is private, need it.
class Connector final : public StreamPart {
 public:
  Connector(StreamSocket& socket, StreamCore& core) : StreamPart(socket, core) {}

  Status bind(const sockaddr* address, socklen_t length);
  Status connect(const sockaddr* address, socklen_t length);
  /// Takes the answer of a connect that is under way, or makes it fail: ConnectionId::have_other_way().
  void give_up();
  /// The same after the listener has had some time: one that answers at the moment when its client gives up accepts a
  /// client that has gone. Takes setup_lock.
  void give_up_after(Nanos patience);
  /// Leaves a bound socket that does not listen yet bound only on devices that survive fork(2). Returns false when
  /// there is none.
  bool leave_unshareable_devices();

  Status bind_locked(const SocketAddress& address);
  /// Takes the events of a connect that is under way. Once connected, the queue pair's completions report the same as
  /// events would, but in order with the data.
  void drive();
  /// Returns true when the connection manager's descriptor has changed, so that sleeping threads must arm anew.
  [[nodiscard]] bool drive_to_new_descriptor();

  /// Makes a connect by a ring fail after `patience`, because there is another way. Call it before connect().
  void have_other_way(Nanos patience) { patience_ = patience; }
  /// Returns whether a kernel socket beside it connects, and takes clients, too.
  [[nodiscard]] bool has_other_way() const noexcept { return patience_.has_value(); }
  /// Returns order_stamp() of connect(2), 0 for a socket that was accepted.
  [[nodiscard]] std::uint32_t stamp() const { return stamp_; }

 private:
  bool drive_to_end(bool give_up);
  Result<SocketAddress> usable_address(const sockaddr* address, socklen_t length) const;
  Status make_id_towards(const SocketAddress& destination);
  Status prepare_id(Result<std::unique_ptr<verbs::ConnectionId>> id);
  /// Connects without waiting. Errors: EINPROGRESS and EALREADY while under way.
  Status connect_at_once(const sockaddr* address, socklen_t length);
  Status go_on_connecting();
  Status owed_answer();
  Status start_connect(const SocketAddress& destination);
  void handle_cm_event(verbs::CmEvent& event);
  void send_connect_request();
  void finish_connect(const verbs::CmEvent& event);
  void fail_connect(int error);

  std::uint32_t stamp_ = 0;
  /// connect() has returned EINPROGRESS. As in Linux, the first call after success returns 0, later ones EISCONN.
  bool owes_connect_answer_ = false;
  std::optional<Nanos> patience_;
};

}  // namespace ringsock::rs
