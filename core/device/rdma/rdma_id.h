// ConnectionId over RDMA CM.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/device/rdma/event_channel.h"
#include "core/device/rdma/id_options.h"
#include "core/device/rdma/id_queue_pair.h"
#include "core/device/rdma/rdma_devices.h"
#include "core/verbs/connection_manager.h"

namespace ringsock::rdma {

/// One rdma_cm_id with its own event channel, so that events of other connections do not delay it. The queue pair is
/// not managed by librdmacm (IdQueuePair).
class RdmaId final : public verbs::ConnectionId, private QueuePairOwner {
 public:
  /// `front` is used as the device until RDMA CM has chosen one. Errors: EOPNOTSUPP for datagrams; those of
  /// rdma_create_id(3).
  static Result<std::unique_ptr<verbs::ConnectionId>> create(std::shared_ptr<RdmaDevices> devices, RdmaDevice& front,
                                                             verbs::PortSpace space);
  ~RdmaId() override;
  RdmaId(const RdmaId&) = delete;
  RdmaId& operator=(const RdmaId&) = delete;

  verbs::Device& device() override { return *device_; }
  Status bind(const SocketAddress& address) override;
  void set_reuse_address(bool on) override { options_.reuse_address(on); }
  void set_v6_only(bool on) override { options_.v6_only(on); }
  void set_type_of_service(std::uint8_t tos) override { options_.type_of_service(tos); }
  Status listen(int backlog) override;
  Status resolve_addr(const SocketAddress& destination, Nanos timeout) override;
  Status resolve_route(Nanos timeout) override;
  void use_route(std::span<const std::byte> path_data) override { route_.assign(path_data.begin(), path_data.end()); }
  [[nodiscard]] std::vector<std::byte> route() const override;
  Result<verbs::ConnectionQp> create_qp(ibv_pd& pd, ibv_qp_init_attr& attr, verbs::ReceiveBytes receive) override;
  Status connect(const verbs::ConnectionParameters& parameters) override;
  Status accept(const verbs::ConnectionParameters& parameters) override;
  Status reject(std::span<const std::byte> private_data) override;
  Status disconnect() override;

  Result<verbs::CmEvent> next_event() override;
  [[nodiscard]] int event_fd() const override { return channel_.fd(); }
  [[nodiscard]] std::optional<Nanos> next_deadline() const override { return std::nullopt; }
  void abandon(bool /*give_away*/) override { abandoned_ = true; }
  [[nodiscard]] SocketAddress local_address() const override;
  [[nodiscard]] SocketAddress peer_address() const override;

 private:
  RdmaId(std::shared_ptr<RdmaDevices> devices, RdmaDevice& device, EventChannel channel, rdma_cm_id* id);

  [[nodiscard]] const Calls& calls() const { return devices_->calls(); }
  Status call_failed_or_ok(int result, const char* where) const;
  /// Called when RDMA CM has bound the id to a device: uses the RdmaDevice of that name from then on.
  Status learn_device();

  rdma_conn_param request_parameters(const verbs::ConnectionParameters& parameters) const;
  /// Returns the number of bytes before the private data of a request that belong to the connection manager but that
  /// this library has to write.
  [[nodiscard]] std::size_t request_header_bytes() const;

  // rdma_id_events.cc
  void queue_pair_failed(ibv_qp& qp, int error) override;
  void peer_has_sent() override;
  Result<verbs::CmEvent> take(rdma_cm_event& raw);
  [[nodiscard]] Result<verbs::CmEvent> translate(const rdma_cm_event& raw) const;
  Result<verbs::CmEvent> on_request(verbs::CmEvent event, rdma_cm_id* id);
  Result<verbs::CmEvent> on_address(verbs::CmEvent event);
  Result<verbs::CmEvent> on_response(verbs::CmEvent event);
  Result<verbs::CmEvent> on_established(verbs::CmEvent event);
  Result<verbs::CmEvent> on_disconnected(verbs::CmEvent event);
  std::unique_ptr<RdmaId> adopt_request(rdma_cm_id* id);

  const std::shared_ptr<RdmaDevices> devices_;
  RdmaDevice* device_;
  EventChannel channel_;
  EventChannel spare_channel_;  ///< of a listener: for its next client
  rdma_cm_id* const id_;
  const pid_t owner_;
  IdOptions options_;
  IdQueuePair qp_;
  std::vector<std::byte> route_;  ///< set by the caller; empty: must be resolved
  bool listening_ = false;
  bool established_ = false;
  bool ended_ = false;  ///< disconnected or removed; it has been reported, and is not reported again
  bool abandoned_ = false;
  /// The error with which the device gave up the queue pair, until next_event() reports it. Any thread sets it.
  std::atomic<int> device_error_{0};
};

}  // namespace ringsock::rdma
