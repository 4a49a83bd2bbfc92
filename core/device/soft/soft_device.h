// The embedded device: verbs over shared memory between the processes of one host.
#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <mutex>
#include <span>

#include "core/base/result.h"
#include "core/device/soft/async_events.h"
#include "core/device/soft/cm/silent_ports.h"
#include "core/device/soft/key_table.h"
#include "core/device/soft/verbs_frame.h"
#include "core/verbs/connection_manager.h"
#include "core/verbs/device.h"

namespace ringsock::soft {

inline constexpr const char* kSoftDeviceName = "soft0";
inline constexpr int kMaxSendSge = 32;
inline constexpr int kMaxReceiveSge = 32;
inline constexpr int kMaxQueueEntries = 1 << 17;
inline constexpr int kMaxCqEntries = 1 << 22;
/// Inline payloads are copied inside ibv_post_send() like all others, so nothing bounds them but the length field.
inline constexpr std::uint32_t kMaxInlineBytes = 1U << 30;

/// What of its abilities the device offers. Tests take some away to find what works on other devices, too.
struct SoftAbilities {
  std::uint32_t max_inline_data = kMaxInlineBytes;
  bool write_with_immediate = true;
  bool wakes_through_connection = true;
  bool survives_fork = true;
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

  ibv_context& context() override { return frame_.context(); }
  [[nodiscard]] const char* name() const override { return kSoftDeviceName; }
  [[nodiscard]] std::uint32_t max_inline_data() const override { return abilities_.max_inline_data; }
  [[nodiscard]] bool wakes_through_connection() const override { return abilities_.wakes_through_connection; }
  [[nodiscard]] bool has_write_with_immediate() const override { return abilities_.write_with_immediate; }
  [[nodiscard]] bool survives_fork() const override { return abilities_.survives_fork; }
  [[nodiscard]] bool is_embedded() const override { return true; }
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

  // For the queue pairs of this device.
  [[nodiscard]] KeyTable& keys() { return keys_; }
  [[nodiscard]] AsyncEvents& async_events() { return async_events_; }
  /// For the ids of this device.
  [[nodiscard]] SilentPorts& silent_ports() { return silent_ports_; }
  /// A number no other queue pair of this process has, 24 bits, never 0 or 1.
  std::uint32_t next_qp_num();

 private:
  SoftDevice(UniqueFd async_fd, SoftAbilities abilities);

  const SoftAbilities abilities_;
  VerbsFrame frame_;
  AsyncEvents async_events_;
  KeyTable keys_;
  SilentPorts silent_ports_;
};

/// The device that an object of ours was made from.
SoftDevice& device_of(ibv_context& context);

}  // namespace ringsock::soft
