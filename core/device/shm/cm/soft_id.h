// The embedded device's ConnectionId.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>

#include "core/device/common/device_context.h"
#include "core/device/shm/cm/acceptor.h"
#include "core/device/shm/cm/active_side.h"
#include "core/device/shm/cm/cm_wire.h"
#include "core/device/shm/cm/connector.h"
#include "core/device/shm/cm/id_link.h"
#include "core/device/shm/cm/peer_segment.h"
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
  void share_port_with(int kernel_socket) override { port_.share_with(kernel_socket); }
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
  Status adopt_descriptor(int fd) override { return link_.adopt(fd); }
  void abandon(bool give_away) override;
  void take_over() override;
  void withdraw_memory() override;
  [[nodiscard]] bool has_waiting(bool (*is_wanted)(std::uint32_t)) const override;
  [[nodiscard]] std::optional<Nanos> next_deadline() const override;
  [[nodiscard]] SocketAddress local_address() const override { return local_address_; }
  [[nodiscard]] SocketAddress peer_address() const override { return peer_address_; }

 private:
  enum class State {
    idle,  ///< perhaps bound
    listening,
    addr_resolved,
    route_resolved,
    connecting,  ///< ActiveSide::stage() tells how far
    requested,   ///< passive, before accept() or reject()
    established,
    closed,
  };

  Result<verbs::ConnectionQp> create_rc(ibv_pd& pd, ibv_qp_init_attr& attr, verbs::ReceiveBytes receive);
  // soft_id_events.cc
  [[nodiscard]] verbs::CmEvent complete(DueEvent due);
  void work();
  void look_at_packets();
  Result<verbs::CmEvent> next_request();
  void follow_active_side();
  void on_peer_gone();
  void establish();

  SoftIdHost host_;
  verbs::PortSpace space_;
  const SoftIdLimits limits_;
  State state_ = State::idle;
  const bool is_accepting_ = false;  ///< made for a request
  PortReservation::Options options_;
  PortReservation port_;
  SocketAddress local_address_;
  SocketAddress peer_address_;
  DueEvents due_;

  std::unique_ptr<Acceptor> acceptor_;
  ibv_qp* qp_ = nullptr;                     ///< the caller's, alive while the connection is used
  std::unique_ptr<ConnectRequest> request_;  ///< of the passive side, until its answer was reported
  PeerIdentity peer_;                        ///< of the active side: once its end was reported
  bool accepted_by_listening_process_ = false;
  PeerSegment peer_segment_;

  IdLink link_;
  std::unique_ptr<ActiveSide> active_;  ///< from the first use until its end was reported
};

/// Makes an endpoint of the embedded device's connection manager. The device must outlive it.
std::unique_ptr<verbs::ConnectionId> make_soft_id(SoftIdHost host, verbs::PortSpace space);

}  // namespace ringsock::soft
