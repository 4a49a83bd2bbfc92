// The connection manager's interface, after rdma_cm(7): what both devices offer.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/verbs/device.h"
#include "core/verbs/handles.h"

namespace ringsock::verbs {

inline constexpr std::size_t kMaxRequestPrivateData =
    56;  ///< bytes in a connect request, as on InfiniBand with IP addresses
inline constexpr std::size_t kMaxReplyPrivateData = 196;   ///< bytes in a reply
inline constexpr std::size_t kMaxRejectPrivateData = 148;  ///< bytes in a reject

/// Names are those of enum rdma_cm_event_type without the prefix.
enum class CmEventType {
  addr_resolved,
  addr_error,
  route_resolved,
  route_error,
  connect_request,
  connect_error,
  unreachable,  ///< nobody answered in time; status ETIMEDOUT
  rejected,     ///< nobody listens, or the listener refused; status ECONNREFUSED
  established,
  disconnected,
  device_removal,
};

/// struct rdma_conn_param.
struct ConnectionParameters {
  std::span<const std::byte> private_data;  ///< copied by the call
  std::uint8_t responder_resources = 0;
  std::uint8_t initiator_depth = 0;
  std::uint8_t flow_control = 1;
  std::uint8_t retry_count = 7;
  std::uint8_t rnr_retry_count = 7;  ///< 7: for ever
  std::uint32_t qkey = 0;            ///< PortSpace::udp only
};

class ConnectionId;

struct CmEvent {
  CmEventType type{};
  int status = 0;  ///< errno value for the failures, else 0
  /// connect_request: the new endpoint; accept() or reject() it, dropping it rejects.
  std::unique_ptr<ConnectionId> request;
  ConnectionParameters
      parameters;  ///< connect_request, established; private_data is `private_data` below, not set here
  std::array<std::byte, kMaxReplyPrivateData> private_data{};
  std::size_t private_data_bytes = 0;
  // established, PortSpace::udp: where to send (rdma_ud_param)
  std::uint32_t remote_qpn = 0;
  std::uint32_t remote_qkey = 0;
  ibv_ah_attr ah_attr{};

  [[nodiscard]] std::span<const std::byte> data() const { return std::span(private_data).first(private_data_bytes); }
};

/// A queue pair for one connection, and the memory that its peer may write.
/// Destroyed in reverse, also by assignment: the registration before the queue pair that holds the memory.
struct ConnectionQp {
  ConnectionQp() = default;
  ConnectionQp(ConnectionQp&&) = default;
  ConnectionQp& operator=(ConnectionQp&& other) noexcept {
    receive_mr = std::move(other.receive_mr);
    qp = std::move(other.qp);
    receive_memory = other.receive_memory;
    return *this;
  }

  Qp qp;
  Mr receive_mr;                        ///< local and remote write, covers all of `receive_memory`
  std::span<std::byte> receive_memory;  ///< zeroed, page aligned; lives as long as `qp`
};

/// One endpoint of the connection manager: rdma_cm_id with an event queue of its own.
/// Threads: calls on one id are serialised by the caller; different ids are independent.
class ConnectionId {
 public:
  /// Drops the connection: the peer sees `disconnected`. The queue pair should be destroyed first.
  virtual ~ConnectionId() = default;

  virtual Device& device() = 0;
  /// A device that reserves the kernel's port of the same number binds this kernel TCP (UDP) socket for it instead of
  /// making one of its own. Before bind() and resolve_addr(). The descriptor stays the caller's and outlives the id.
  virtual void share_port_with(int /*kernel_socket*/) {}
  /// The caller has another way to the destination: a connection that is not established `patience` after connect()
  /// is `unreachable`, and a peer that is not proven to be the destination's is refused. Before resolve_addr(). Ignored
  /// by a device whose network has times, and proofs, of its own.
  virtual void have_other_way(Nanos /*patience*/) {}
  /// rdma_bind_addr(3). Port 0 picks one. Errors: EADDRINUSE, EADDRNOTAVAIL, EACCES, EINVAL when already bound.
  virtual Status bind(const SocketAddress& address) = 0;
  /// Like RDMA_OPTION_ID_REUSEADDR and RDMA_OPTION_ID_AFONLY; before bind().
  virtual void set_reuse_address(bool on) = 0;
  virtual void set_v6_only(bool on) = 0;
  /// rdma_listen(3). Errors: EINVAL when not bound, EADDRINUSE.
  virtual Status listen(int backlog) = 0;
  /// What a listener's connect requests must carry as private data: others may be refused before they cost anything. A
  /// hint: who takes the request looks again. After listen().
  virtual void check_requests_by(bool (* /*check*/)(std::span<const std::byte>)) {}
  /// rdma_resolve_addr(3) and rdma_resolve_route(3): events addr_resolved or addr_error, route_resolved or route_error.
  virtual Status resolve_addr(const SocketAddress& destination, Nanos timeout) = 0;
  virtual Status resolve_route(Nanos timeout) = 0;
  /// Path records that resolve_route() takes instead of asking for some: struct ibv_path_data[], as rdma_getaddrinfo(3)
  /// gives them (RDMA_OPTION_IB_PATH). Kept. Ignored by a device without routes.
  virtual void use_route(std::span<const std::byte> /*path_data*/) {}
  /// The route that was resolved, in the same form; empty on a device without routes.
  [[nodiscard]] virtual std::vector<std::byte> route() const { return {}; }
  /// rdma_create_qp(3), plus `receive_bytes` (may be 0) of zeroed memory that the peer may RDMA-write once connected.
  /// The queue pair comes back in state INIT, receives may be posted. `attr.cap` is updated to what was granted. After
  /// route_resolved, or on the id of a connect_request.
  virtual Result<ConnectionQp> create_qp(ibv_pd& pd, ibv_qp_init_attr& attr, std::size_t receive_bytes) = 0;
  /// rdma_connect(3). Later: established (the queue pair is then in RTS), rejected, unreachable or connect_error.
  virtual Status connect(const ConnectionParameters& parameters) = 0;
  /// rdma_accept(3), on the id of a connect_request; the queue pair is in RTS on return, `established` follows.
  virtual Status accept(const ConnectionParameters& parameters) = 0;
  virtual Status reject(std::span<const std::byte> private_data) = 0;
  /// rdma_disconnect(3): the queue pair goes to ERR and flushes; the peer gets `disconnected`.
  virtual Status disconnect() = 0;

  /// The oldest event, or EAGAIN. A listener that cannot take a connection in: EMFILE, ENFILE, ENOMEM as accept(2); it
  /// stays readable. Never blocks. Does the protocol's work, so call it when event_fd() is readable and when
  /// next_deadline() has passed. Events that a call causes at once (addr_resolved of the embedded device) wait here
  /// without event_fd() becoming readable: look here after each call before sleeping.
  virtual Result<CmEvent> next_event() = 0;
  /// Readable when next_event() has work. -1 when the id has nothing to wait for, or when the completion channel of its
  /// connected queue pair wakes for this id's events too. May change after each call on the id.
  [[nodiscard]] virtual int event_fd() const = 0;
  /// When next_event() wants to be called although event_fd() stays quiet (CLOCK_MONOTONIC).
  [[nodiscard]] virtual std::optional<Nanos> next_deadline() const = 0;

  /// Moves the descriptor of an established connection, or of one that has ended since, to the number `fd`: what was
  /// open there is closed, and the number belongs to the connection from now on; event_fd() is then `fd`. Errors:
  /// EOPNOTSUPP, EINVAL never established; those of dup3(2).
  virtual Status move_to_descriptor(int /*fd*/) { return Error{EOPNOTSUPP, "connection id: descriptor"}; }
  /// Another process goes on with a copy of this connection, which came by fork(2): nothing that happens to this one,
  /// its queue pair and the id's destructor included, is seen by the peer or that process any more.
  /// @param give_away  its descriptor is closed by the caller.
  virtual void abandon(bool /*give_away*/) {}
  /// Since a fork(2) this process is the one that uses the connection: what the peer does to registered memory is done
  /// to this process's.
  virtual void take_over() {}
  /// Another process uses it: on return the peer is not in this process's memory, and will not be.
  virtual void withdraw_memory() {}
  /// Of a listener that came by fork(2), in place of event_fd(): where clients wait for whichever process takes one,
  /// and what only this process has work at. -1: there is no such distinction.
  struct QueueFds {
    int shared = -1;
    int own = -1;
  };
  [[nodiscard]] virtual QueueFds queue_fds() const { return {}; }
  /// Of a listener, fork(2) leaves a child what is on devices that survive it. These are the others, which stay with
  /// the process that made them; they live until drop_unshareable_parts().
  virtual std::vector<ConnectionId*> unshareable_parts() {
    return device().survives_fork() ? std::vector<ConnectionId*>{} : std::vector<ConnectionId*>{this};
  }
  /// Drops them: who waits for an answer there is refused, unless this is a child, whose parent goes on.
  /// @return false: nothing would be left, so nothing was done.
  virtual bool drop_unshareable_parts() { return device().survives_fork(); }
  [[nodiscard]] virtual SocketAddress local_address() const = 0;
  [[nodiscard]] virtual SocketAddress peer_address() const = 0;
};

}  // namespace ringsock::verbs
