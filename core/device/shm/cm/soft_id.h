// The embedded device's ConnectionId.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>

#include "core/base/mutex.h"
#include "core/device/common/device_context.h"
#include "core/device/shm/cm/acceptor.h"
#include "core/device/shm/cm/cm_wire.h"
#include "core/device/shm/cm/connector.h"
#include "core/device/shm/cm/link_inbox.h"
#include "core/device/shm/link/strangers.h"
#include "core/device/shm/names/port_reservation.h"
#include "core/device/shm/names/silent_ports.h"
#include "core/verbs/connection_manager.h"

namespace ringsock::soft {

/// The parts of the device that ids use.
struct SoftIdHost {
  DeviceContext& context;
  SilentPorts& silent_ports;
};

/// Tunables; tests shorten them.
struct SoftIdLimits {
  ConnectTimes connect;
  Acceptor::Limits accept;
};

struct DueEvent {
  verbs::CmEventType type{};
  int status = 0;
};
/// The oldest first. Takes no memory: by the time of an event the peer has its answer, and the event must come.
class DueEvents {
 public:
  [[nodiscard]] bool is_empty() const { return count_ == 0; }
  /// Drops the event where there is no room, which only a caller meets that never asks for events.
  void add(verbs::CmEventType type, int status = 0);
  DueEvent take();

 private:
  std::array<DueEvent, 4> events_{};
  std::size_t count_ = 0;
};

/// One endpoint: idle, a listener, an active or a passive side. Any thread may put packets of its link into a
/// LinkInbox; all other work is done within the caller's calls.
class SoftId final : public verbs::ConnectionId {
 public:
  SoftId(SoftIdHost host, verbs::PortSpace space, SoftIdLimits limits);
  /// Makes the id of a connect request.
  SoftId(SoftIdHost host, IncomingRequest incoming, SoftIdLimits limits);
  ~SoftId() override;

  verbs::Device& device() override { return host_.context.device(); }
  void share_port_with(int kernel_socket) override;
  void have_other_way(Nanos patience) override;
  Status bind(const SocketAddress& address) override;
  void set_reuse_address(bool on) override { options_.reuse_address = on; }
  void set_v6_only(bool on) override { options_.v6_only = on; }
  Status listen(int backlog) override;
  void check_requests_by(bool (*check)(std::span<const std::byte>)) override;
  Status resolve_addr(const SocketAddress& destination, Nanos timeout) override;
  Status resolve_route(Nanos timeout) override;
  [[nodiscard]] std::optional<uid_t> other_user() const override;
  Result<verbs::ConnectionQp> create_qp(ibv_pd& pd, ibv_qp_init_attr& attr, verbs::ReceiveBytes receive) override;
  Status connect(const verbs::ConnectionParameters& parameters) override;
  Status accept(const verbs::ConnectionParameters& parameters) override;
  Status reject(std::span<const std::byte> private_data) override;
  Status disconnect() override;
  Result<verbs::CmEvent> next_event() override;
  [[nodiscard]] int event_fd() const override;
  [[nodiscard]] QueueFds queue_fds() const override;
  void end_for_all() override {
    if (acceptor_) acceptor_->end_for_all();
  }
  Status move_to_descriptor(int fd) override;
  Status adopt_descriptor(int fd) override;
  void abandon(bool give_away) override;
  void take_over() override;
  void withdraw_memory() override;
  [[nodiscard]] bool has_waiting(bool (*is_wanted)(std::uint32_t)) const override;
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
    awaiting_memory,  ///< the reply has arrived and names memory that the peer was asked to pass
    requested,        ///< passive, before accept() or reject()
    established,
    closed,
  };

  // soft_id_events.cc
  [[nodiscard]] verbs::CmEvent complete(DueEvent due) const;
  void work();
  void work_connect();
  Result<verbs::CmEvent> next_request();
  bool is_spinning_on_reply();
  void work_link();
  void on_packet(LinkInbox::Packet packet);
  void on_reply(LinkInbox::Packet packet);
  [[nodiscard]] bool is_answered_by_our_own_namespace() const;
  bool meets_expected_accepter();
  void on_udp_reply(const ConnectReply& reply);
  void on_memory(PassedFd memory);
  void finish_connect(UniqueFd memfd);
  Status attach(UniqueFd memfd);
  /// The memory that a queue pair of ours needs on both sides together without quiet memory, and the latter on ours.
  struct OwnNeeds {
    std::uint64_t bytes;
    std::uint64_t quiet;
  };
  Result<std::shared_ptr<MappedSegment>> map_peers(UniqueFd memfd, const MemoryName& name, OwnNeeds own,
                                                   std::optional<PeerProcess> maker);
  Status charge_peer(std::uint64_t bytes, std::uint64_t own_bytes);
  Status take_requesters_memory(OwnNeeds own);
  void on_reject(const LinkInbox::Packet& packet);
  void on_peer_gone();
  void fail_connect(int error);
  void establish();

  Result<SocketAddress> choose_source(const SocketAddress& target);
  Result<verbs::ConnectionQp> create_rc(ibv_pd& pd, ibv_qp_init_attr& attr, verbs::ReceiveBytes receive);
  Result<verbs::ConnectionQp> create_ud(ibv_pd& pd, ibv_qp_init_attr& attr);
  Connector& connector();
  void connect_early();
  void remember_silence(int error);
  Status send_request(Connector::Connected connected);
  void drop_link();
  [[nodiscard]] std::shared_ptr<Link> link_with_descriptor() const;

  SoftIdHost host_;
  verbs::PortSpace space_;
  SoftIdLimits limits_;
  State state_ = State::idle;
  const bool is_accepting_ = false;  ///< made for a request
  Unproven unproven_ = Unproven::accept;
  PortReservation::Options options_;
  PortReservation port_;
  SocketAddress local_address_;
  SocketAddress peer_address_;
  DueEvents due_;

  std::unique_ptr<Acceptor> acceptor_;
  std::optional<Connector> connector_;
  std::optional<Connector::Connected> connected_early_;  ///< made before connect(), so that create_qp() knows the peer
  std::optional<PeerProcess> listener_;                  ///< the listener that the queue pair was made for
  std::optional<PeerProcess> segment_peer_;              ///< the processes that the queue pair's segment is kept for
  ConnectRequest request_;                               ///< ours on the active side, the peer's on the passive one
  ConnectReply reply_;                                   ///< the peer's, on the active side
  PeerIdentity peer_;
  std::optional<UserCharge> charge_;  ///< for the peer's memory
  bool accepted_by_listening_process_ = false;
  Nanos reply_deadline_{};
  std::uint64_t looked_for_reply_at_ = 0;  ///< ticks()
  ibv_qp* qp_ = nullptr;                   ///< the caller's, alive while the connection is used
  /// The queue pair's completion channel holds the link.
  bool channel_wakes_us_ = false;
  std::shared_ptr<MappedSegment> peer_segment_;
  UniqueFd peer_memfd_;               ///< in state requested, before create_qp(): the source of peer_segment_
  std::unique_ptr<LinkInbox> inbox_;  ///< the link's manager, so it outlives the link's use of it
  std::shared_ptr<Link> link_;
  std::weak_ptr<Link> dropped_link_;  ///< now owned by the queue pair alone; its descriptor is still in use
};

/// Makes an endpoint of the embedded device's connection manager. The device must outlive it.
std::unique_ptr<verbs::ConnectionId> make_soft_id(SoftIdHost host, verbs::PortSpace space);

}  // namespace ringsock::soft
