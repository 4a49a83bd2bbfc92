// The embedded device's ConnectionId.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "core/base/mutex.h"
#include "core/device/soft/cm/acceptor.h"
#include "core/device/soft/cm/cm_wire.h"
#include "core/device/soft/cm/connector.h"
#include "core/device/soft/cm/link_inbox.h"
#include "core/device/soft/cm/port_reservation.h"
#include "core/device/soft/soft_device.h"
#include "core/device/soft/strangers.h"
#include "core/verbs/connection_manager.h"

namespace ringsock::soft {

/// Tunables; tests shorten them.
struct SoftIdLimits {
  ConnectTimes connect;
  Acceptor::Limits accept;
};

/// One endpoint: idle, a listener, an active or a passive side. The packets of its link arrive in a LinkInbox from any
/// thread; everything else happens inside the caller's calls.
class SoftId final : public verbs::ConnectionId {
 public:
  SoftId(SoftDevice& device, verbs::PortSpace space, SoftIdLimits limits);
  /// The id of a connect request.
  SoftId(SoftDevice& device, IncomingRequest incoming, SoftIdLimits limits);
  ~SoftId() override;

  verbs::Device& device() override { return device_; }
  void share_port_with(int kernel_socket) override;
  void have_other_way(Nanos patience) override;
  Status bind(const SocketAddress& address) override;
  void set_reuse_address(bool on) override { options_.reuse_address = on; }
  void set_v6_only(bool on) override { options_.v6_only = on; }
  Status listen(int backlog) override;
  void check_requests_by(bool (*check)(std::span<const std::byte>)) override;
  Status resolve_addr(const SocketAddress& destination, Nanos timeout) override;
  Status resolve_route(Nanos timeout) override;
  Result<verbs::ConnectionQp> create_qp(ibv_pd& pd, ibv_qp_init_attr& attr, std::size_t receive_bytes) override;
  Status connect(const verbs::ConnectionParameters& parameters) override;
  Status accept(const verbs::ConnectionParameters& parameters) override;
  Status reject(std::span<const std::byte> private_data) override;
  Status disconnect() override;
  Result<verbs::CmEvent> next_event() override;
  [[nodiscard]] int event_fd() const override;
  [[nodiscard]] QueueFds queue_fds() const override;
  Status move_to_descriptor(int fd) override;
  void abandon(bool give_away) override;
  void take_over() override;
  void withdraw_memory() override;
  [[nodiscard]] std::optional<Nanos> next_deadline() const override;
  [[nodiscard]] SocketAddress local_address() const override;
  [[nodiscard]] SocketAddress peer_address() const override { return peer_address_; }

 private:
  enum class State {
    idle,  ///< perhaps bound
    listening,
    addr_resolved,
    route_resolved,
    connecting,  ///< the listener's backlog is full
    awaiting_reply,
    awaiting_memory,  ///< the reply is here, and names memory that the peer was asked to pass
    requested,        ///< passive, before accept() or reject()
    established,
    closed,
  };

  // soft_id_events.cc
  void post(verbs::CmEventType type, int status = 0);
  Status work();
  void work_connect();
  Status work_listener();
  void work_link();
  void on_packet(LinkInbox::Packet packet);
  void on_reply(LinkInbox::Packet packet);
  [[nodiscard]] bool is_answered_by_our_own_namespace() const;
  void on_udp_reply(const ConnectReply& reply);
  void on_memory(PassedFd memory);
  void finish_connect(UniqueFd memfd);
  Status attach(UniqueFd memfd);
  Result<std::shared_ptr<MappedSegment>> map_peers(UniqueFd memfd, const MemoryName& name, std::uint64_t own_bytes,
                                                   std::optional<PeerProcess> maker);
  Status charge_peer(std::uint64_t bytes, std::uint64_t own_bytes);
  [[nodiscard]] std::uint64_t limit_for_peer(std::uint64_t own_bytes) const;
  Status take_requesters_memory(std::uint64_t own_bytes);
  void on_reject(const LinkInbox::Packet& packet);
  void on_peer_gone();
  void fail_connect(int error);
  void establish();

  Result<SocketAddress> choose_source(const SocketAddress& target);
  Result<verbs::ConnectionQp> create_rc(ibv_pd& pd, ibv_qp_init_attr& attr, std::size_t receive_bytes);
  Result<verbs::ConnectionQp> create_ud(ibv_pd& pd, ibv_qp_init_attr& attr);
  Connector& connector();
  void connect_early();
  void remember_silence(int error);
  Status send_request(Connector::Connected connected);
  void drop_link();
  [[nodiscard]] std::shared_ptr<Link> link_with_descriptor() const;

  SoftDevice& device_;
  verbs::PortSpace space_;
  SoftIdLimits limits_;
  State state_ = State::idle;
  Unproven unproven_ = Unproven::accept;
  PortReservation::Options options_;
  PortReservation port_;
  SocketAddress local_address_;
  SocketAddress peer_address_;
  std::deque<verbs::CmEvent> events_;

  std::unique_ptr<Acceptor> acceptor_;
  std::optional<Connector> connector_;
  std::optional<Connector::Connected> connected_early_;  ///< before connect(), so that create_qp() knows the peer
  std::optional<PeerProcess> segment_peer_;              ///< the process that the queue pair's segment is kept for
  ConnectRequest request_;                               ///< ours on the active side, the peer's on the passive one
  ConnectReply reply_;                                   ///< awaiting_memory
  PeerIdentity peer_;
  std::optional<UserCharge> charge_;  ///< what the peer's memory takes of its user's budget
  bool accepted_by_listening_process_ = false;
  Nanos reply_deadline_{};
  ibv_qp* qp_ = nullptr;  ///< the caller's, alive while the connection is used
  /// The queue pair's completion channel holds the link.
  bool channel_wakes_us_ = false;
  std::shared_ptr<MappedSegment> peer_segment_;
  UniqueFd peer_memfd_;               ///< requested, before create_qp(): where peer_segment_ comes from
  std::unique_ptr<LinkInbox> inbox_;  ///< the link's manager, so it outlives the link's use of it
  std::shared_ptr<Link> link_;
  std::weak_ptr<Link> dropped_link_;  ///< only the queue pair has it any more, and its descriptor is still in use
};

/// A new endpoint of the embedded device's connection manager. `device` must outlive it.
std::unique_ptr<verbs::ConnectionId> make_soft_id(SoftDevice& device, verbs::PortSpace space);

}  // namespace ringsock::soft
