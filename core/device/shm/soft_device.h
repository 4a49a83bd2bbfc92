// The embedded device: verbs over shared memory between the processes of one host.
#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <mutex>
#include <span>

#include "core/base/result.h"
#include "core/device/common/device_context.h"
#include "core/device/shm/cm/soft_id.h"
#include "core/device/shm/names/silent_ports.h"
#include "core/device/shm/queue/queue_limits.h"
#include "core/verbs/connection_manager.h"
#include "core/verbs/device.h"

namespace ringsock::soft {

inline constexpr const char* kSoftDeviceName = "soft0";

/// The abilities that the device offers. Tests remove some to check what works on devices without them.
struct SoftAbilities {
  std::uint32_t max_inline_data = kMaxInlineBytes;
  bool write_with_immediate = true;
  bool wakes_through_connection = true;
  bool survives_fork = true;
  bool async_events = true;  ///< false: uses no descriptor for them, and drops them
};

/// One open embedded device. Objects made from it must be destroyed before it.
/// Threads: as verbs::Device.
class SoftDevice final : public verbs::Device {
 public:
  /// Errors: EMFILE, ENFILE, ENOMEM.
  static Result<std::unique_ptr<SoftDevice>> open(SoftAbilities abilities = {});
  ~SoftDevice() override;
  SoftDevice(const SoftDevice&) = delete;
  SoftDevice& operator=(const SoftDevice&) = delete;

  ibv_context& context() override { return shared_.context(); }
  [[nodiscard]] const char* name() const override { return kSoftDeviceName; }
  Result<ibv_device_attr> query_device() override;
  Result<ibv_port_attr> query_port(std::uint8_t port) override;

  Result<verbs::Pd> alloc_pd() override;
  Result<verbs::Mr> reg_mr(ibv_pd& pd, void* address, std::size_t length, int access) override;
  Result<verbs::CompChannel> create_comp_channel() override;
  Result<verbs::Cq> create_cq(int cqe, void* cq_context, ibv_comp_channel* channel, int comp_vector) override;
  Result<ibv_cq*> get_cq_event(ibv_comp_channel& channel) override;
  void ack_cq_events(ibv_cq& cq, unsigned int count) override;
  Result<verbs::Srq> create_srq(ibv_pd& pd, ibv_srq_init_attr& attr) override;
  Status modify_srq(ibv_srq& srq, ibv_srq_attr& attr, int mask) override;
  Status query_srq(ibv_srq& srq, ibv_srq_attr& attr) override;
  Result<verbs::Qp> create_qp(ibv_pd& pd, ibv_qp_init_attr& attr) override;
  Status modify_qp(ibv_qp& qp, ibv_qp_attr& attr, int mask) override;
  Status query_qp(ibv_qp& qp, ibv_qp_attr& attr, int mask, ibv_qp_init_attr& init_attr) override;
  Result<verbs::Ah> create_ah(ibv_pd& pd, ibv_ah_attr& attr) override;
  Result<ibv_async_event> get_async_event() override;
  void ack_async_event(ibv_async_event& event) override;
  /// ibv_req_notify_cq(cq, 0) on each, with one heavy barrier for all of them.
  void arm(std::span<ibv_cq* const> cqs) override;

  [[nodiscard]] bool may_have_listener(verbs::PortSpace space, const SocketAddress& destination) override;
  [[nodiscard]] bool was_silent(verbs::PortSpace space, const SocketAddress& destination) override;
  Result<std::unique_ptr<verbs::ConnectionId>> create_id(verbs::PortSpace space) override;

  int dealloc_pd(ibv_pd* pd) override;
  int dereg_mr(ibv_mr* mr) override;
  int destroy_comp_channel(ibv_comp_channel* channel) override;
  int destroy_cq(ibv_cq* cq) override;
  int destroy_srq(ibv_srq* srq) override;
  int destroy_qp(ibv_qp* qp) override;
  int destroy_ah(ibv_ah* ah) override;

  // For tests that make queue pairs and ids themselves.
  [[nodiscard]] DeviceContext& shared() { return shared_; }
  [[nodiscard]] SoftIdHost id_host() { return {shared_, silent_ports_}; }

 private:
  SoftDevice(UniqueFd async_fd, SoftAbilities abilities);

  DeviceContext shared_;
  SilentPorts silent_ports_;
};

}  // namespace ringsock::soft
