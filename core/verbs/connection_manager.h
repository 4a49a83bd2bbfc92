// The interface of connection managers, modelled on rdma_cm(7), which both devices implement.
#pragma once

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <array>
#include <climits>
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
  unreachable,  ///< no answer came in time; status ETIMEDOUT
  rejected,     ///< no socket listens, or the listener refused; status ECONNREFUSED
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
  /// Of a connect_request: the new endpoint, to accept() or reject(). Dropping it rejects.
  std::unique_ptr<ConnectionId> request;
  ConnectionParameters
      parameters;  ///< connect_request, established; private_data is `private_data` below, not set here
  std::array<std::byte, kMaxReplyPrivateData> private_data{};
  std::size_t private_data_bytes = 0;
  // Of established, with PortSpace::udp: the destination of sends (rdma_ud_param)
  std::uint32_t remote_qpn = 0;
  std::uint32_t remote_qkey = 0;
  ibv_ah_attr ah_attr{};

  [[nodiscard]] std::span<const std::byte> data() const { return std::span(private_data).first(private_data_bytes); }
};

/// The memory of a connection that its peer may write.
struct ReceiveBytes {
  ReceiveBytes(std::size_t all, std::size_t quiet_tail = 0) : bytes(all), quiet(quiet_tail) {}
  std::size_t bytes;  ///< may be 0
  /// Bytes at the end, whole pages, that the embedded device does not let work requests reach: the peer writes there
  /// through RcExtensions::peer_memory() only. So the peer, to whom the pages are charged that it is the first to
  /// touch, decides itself how many these are.
  std::size_t quiet;
};

/// A queue pair for one connection, and the memory that its peer may write. Members are destroyed in reverse order,
/// also by assignment: the registration before the queue pair that holds the memory.
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
  Mr receive_mr;  ///< local and remote write, covers all of `receive_memory`
  /// Zeroed, aligned to 64 bytes; lives as long as `qp`. Larger than was asked for where its quiet end needs whole
  /// pages.
  std::span<std::byte> receive_memory;
};

/// One endpoint of the connection manager: rdma_cm_id with an event queue of its own.
/// Threads: calls on one id are serialised by the caller; different ids are independent.
class ConnectionId {
 public:
  /// Ends the connection; the peer sees `disconnected`. The queue pair should be destroyed first.
  virtual ~ConnectionId() = default;

  virtual Device& device() = 0;
  /// Provides a kernel TCP (UDP) socket. A device that reserves the kernel's port of the same number binds this socket
  /// instead of making one. Call it before bind() and resolve_addr(). The caller keeps the descriptor, which must
  /// outlive the id.
  virtual void share_port_with(int /*kernel_socket*/) {}
  /// Tells that the caller has another way to the destination. A connection that is not established `patience` after
  /// connect() is then `unreachable`, and a peer that is not proven to own the destination is refused. Call it before
  /// resolve_addr(). A later call with no patience gives the connect up unless the peer has answered; a peer that
  /// answers after that finds the connection closed. Ignored by a device whose network has time-outs and proofs of its
  /// own.
  virtual void have_other_way(Nanos /*patience*/) {}
  /// rdma_bind_addr(3). Port 0 picks one. Errors: EADDRINUSE, EADDRNOTAVAIL, EACCES, EINVAL when already bound.
  virtual Status bind(const SocketAddress& address) = 0;
  /// Like RDMA_OPTION_ID_REUSEADDR and RDMA_OPTION_ID_AFONLY; before bind().
  virtual void set_reuse_address(bool on) = 0;
  virtual void set_v6_only(bool on) = 0;
  /// Like RDMA_OPTION_ID_TOS; before resolve_addr() or listen(). Ignored by a device whose packets have no traffic
  /// class.
  virtual void set_type_of_service(std::uint8_t /*tos*/) {}
  /// For listen() of the embedded device: takes what a listener needs, but nobody can connect before a further
  /// listen(), which any process may call that has the id by fork(2). Then all of these have the listener. Error:
  /// EOPNOTSUPP.
  static constexpr int kNotYet = INT_MIN;
  /// rdma_listen(3). Errors: EINVAL when not bound, EADDRINUSE.
  virtual Status listen(int backlog) = 0;
  /// Sets a check of the private data of a listener's connect requests. Requests that fail it may be refused early.
  /// This is a hint: the code that takes the request checks again. Call it after listen().
  virtual void check_requests_by(bool (* /*check*/)(std::span<const std::byte>)) {}
  /// rdma_resolve_addr(3) and rdma_resolve_route(3): events addr_resolved or addr_error, route_resolved or route_error.
  virtual Status resolve_addr(const SocketAddress& destination, Nanos timeout) = 0;
  virtual Status resolve_route(Nanos timeout) = 0;
  /// Path records that resolve_route() takes instead of asking for some: struct ibv_path_data[], as rdma_getaddrinfo(3)
  /// gives them (RDMA_OPTION_IB_PATH). They are copied. Ignored by a device without routes.
  virtual void use_route(std::span<const std::byte> /*path_data*/) {}
  /// Returns the resolved route in the same form, empty on a device without routes.
  [[nodiscard]] virtual std::vector<std::byte> route() const { return {}; }
  /// Returns the user of the process at the other end of an established connection on the embedded device, nothing if
  /// it is our own.
  [[nodiscard]] virtual std::optional<uid_t> other_user() const { return std::nullopt; }
  /// rdma_create_qp(3), plus zeroed memory that the peer may RDMA-write once connected.
  /// Returns the queue pair in state INIT, in which receives may be posted. `attr.cap` is updated to the granted
  /// values. Call it after route_resolved, or on the id of a connect_request.
  virtual Result<ConnectionQp> create_qp(ibv_pd& pd, ibv_qp_init_attr& attr, ReceiveBytes receive) = 0;
  /// rdma_connect(3). The event is established (the queue pair is then in RTS), rejected, unreachable or connect_error.
  virtual Status connect(const ConnectionParameters& parameters) = 0;
  /// rdma_accept(3), on the id of a connect_request; the queue pair is in RTS on return, `established` follows.
  virtual Status accept(const ConnectionParameters& parameters) = 0;
  virtual Status reject(std::span<const std::byte> private_data) = 0;
  /// rdma_disconnect(3): the queue pair goes to ERR and flushes; the peer gets `disconnected`.
  virtual Status disconnect() = 0;

  /// Returns the oldest event. Never blocks. It does the protocol's work, so call it when event_fd() is readable and
  /// when next_deadline() has passed. Events that a call causes at once (addr_resolved of the embedded device) are
  /// queued without event_fd() becoming readable, so call it also after each call and before sleeping. Errors: EAGAIN
  /// no event; EMFILE, ENFILE, ENOMEM, as for accept(2), when a listener cannot accept a connection, which leaves it
  /// readable.
  virtual Result<CmEvent> next_event() = 0;
  /// Returns a descriptor that is readable when next_event() has work. -1 when the id has nothing to wait for, or when
  /// the completion channel of its connected queue pair also wakes for this id's events. May change with each call on
  /// the id.
  [[nodiscard]] virtual int event_fd() const = 0;
  /// Returns the time (CLOCK_MONOTONIC) at which next_event() must be called even if event_fd() is not readable.
  [[nodiscard]] virtual std::optional<Nanos> next_deadline() const = 0;

  /// Moves the descriptor of an established connection, or of one that has ended since, to the number `fd`. The file
  /// that was open there is closed, the connection owns the number, and event_fd() returns it. Errors: EOPNOTSUPP,
  /// EINVAL never established; those of dup3(2).
  virtual Status move_to_descriptor(int /*fd*/) { return Error{EOPNOTSUPP, "connection id: descriptor"}; }
  /// Replaces the connection's descriptor, whose number refers to another file by now, with the duplicate `fd`, which
  /// the connection then owns.
  /// Errors: EOPNOTSUPP, EINVAL never established.
  virtual Status adopt_descriptor(int /*fd*/) { return Error{EOPNOTSUPP, "connection id: descriptor"}; }
  /// Leaves the connection to another process that has a copy of it by fork(2). Neither the peer nor that process sees
  /// what happens to this copy any more, including its queue pair and the id's destructor.
  /// @param give_away the caller closes the descriptor
  virtual void abandon(bool /*give_away*/) {}
  /// Makes this process, after a fork(2), the one that uses the connection: the peer's accesses to registered memory
  /// then affect this process's memory.
  virtual void take_over() {}
  /// Called when another process uses the connection. On return the peer does not access this process's memory and
  /// cannot start to.
  virtual void withdraw_memory() {}
  /// Returns whether a message has come that no process has taken, of whose immediate data `is_wanted` is true. For a
  /// process that has the connection and does not use it: nothing changes. Always false where that cannot be told.
  /// Threads: the only one of its process.
  [[nodiscard]] virtual bool has_waiting(bool (* /*is_wanted*/)(std::uint32_t immediate)) const { return false; }
  /// The descriptors of a listener that came by fork(2), used instead of event_fd(): `shared` is readable when a client
  /// waits for any of the processes, `own` when only this process has work. -1: no such distinction.
  struct QueueFds {
    int shared = -1;
    int own = -1;
  };
  [[nodiscard]] virtual QueueFds queue_fds() const { return {}; }
  /// Returns the parts of a listener on devices that do not survive fork(2). They stay with the process that made them,
  /// until drop_unshareable_parts().
  virtual std::vector<ConnectionId*> unshareable_parts() {
    return device().traits().survives_fork ? std::vector<ConnectionId*>{} : std::vector<ConnectionId*>{this};
  }
  /// Drops these parts. Their waiting clients are refused, unless this is a child, whose parent goes on.
  /// @return false when no part would be left; nothing is dropped then
  virtual bool drop_unshareable_parts() { return device().traits().survives_fork; }
  /// Ends a listener that came by fork(2) in all processes: no client can connect to it any more. Clients in its queue
  /// remain.
  virtual void end_for_all() {}
  [[nodiscard]] virtual SocketAddress local_address() const = 0;
  [[nodiscard]] virtual SocketAddress peer_address() const = 0;
};

}  // namespace ringsock::verbs
