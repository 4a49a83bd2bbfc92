// verbs::Device on a real device.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "core/device/rdma/calls.h"
#include "core/device/rdma/open_context.h"
#include "core/verbs/device.h"
#include "core/verbs/pages.h"

namespace ringsock::rdma {

class RdmaDevices;

/// One open device. Errors and threads as verbs::Device. In a forked child nothing is destroyed, because all objects
/// belong to the parent.
class RdmaDevice final : public verbs::Device {
 public:
  /// Makes a device of an open context. Errors: those of ibv_query_device(3).
  static Result<std::unique_ptr<RdmaDevice>> create(std::shared_ptr<RdmaDevices> devices,
                                                    std::shared_ptr<OpenContext> context);

  ibv_context& context() override { return context_->get(); }
  [[nodiscard]] const char* name() const override { return context_->get().device->name; }
  Result<ibv_device_attr> query_device() override { return attr_; }
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
  /// Asks for less inline data where the device refuses; attr.cap gets the granted values. Raw packet queue pairs
  /// segment where the device can (packet_port.h).
  Result<verbs::Qp> create_qp(ibv_pd& pd, ibv_qp_init_attr& attr) override;
  Status modify_qp(ibv_qp& qp, ibv_qp_attr& attr, int mask) override;
  Status query_qp(ibv_qp& qp, ibv_qp_attr& attr, int mask, ibv_qp_init_attr& init_attr) override;
  Result<verbs::Ah> create_ah(ibv_pd& pd, ibv_ah_attr& attr) override;
  Result<ibv_async_event> get_async_event() override;
  void ack_async_event(ibv_async_event& event) override;
  Result<std::unique_ptr<verbs::ConnectionId>> create_id(verbs::PortSpace space) override;

  int dealloc_pd(ibv_pd* pd) override;
  int dereg_mr(ibv_mr* mr) override;
  int destroy_comp_channel(ibv_comp_channel* channel) override;
  int destroy_cq(ibv_cq* cq) override;
  int destroy_srq(ibv_srq* srq) override;
  int destroy_qp(ibv_qp* qp) override;
  int destroy_ah(ibv_ah* ah) override;

  /// Returns whether the device has ibv_create_flow(3).
  [[nodiscard]] bool has_flow_rules() const { return calls_.has_flow_rules(&context_->get()) != 0; }
  /// Makes completion queues with times, where the device has them. Call it before any object is made.
  void use_for_packets(bool tells_times) { tells_times_ = tells_times; }
  [[nodiscard]] ibv_cq_ex* with_wallclock(ibv_cq& cq) override;
  /// Returns whether new objects can be made.
  [[nodiscard]] bool is_usable() const { return context_->is_usable(); }
  /// Sets the owner, which is told of the queue pair's failure until the queue pair is destroyed or until
  /// forget_owner().
  void set_owner(ibv_qp& qp, QueuePairOwner& owner) { context_->events().enter(qp, owner); }
  /// Removes the owner. `qp` may have been destroyed.
  void forget_owner(ibv_qp* qp, const QueuePairOwner& owner);
  /// Keeps memory until the queue pair is destroyed.
  void keep_until_destroyed(ibv_qp& qp, verbs::Pages pages);

 private:
  RdmaDevice(std::shared_ptr<RdmaDevices> devices, std::shared_ptr<OpenContext> context, const ibv_device_attr& attr);

  ibv_cq* create_timed_cq(int cqe, void* cq_context, ibv_comp_channel* channel, int comp_vector);

  /// Runs a destroy call. Its failure on a removed device is ignored, because the object is gone.
  template <class T>
  int destroy(int (*call)(T*), T* object);

  const std::shared_ptr<RdmaDevices> devices_;
  const std::shared_ptr<OpenContext> context_;
  const ibv_device_attr attr_;
  const Calls& calls_;
  bool tells_times_ = false;
  std::mutex memory_lock_;
  std::unordered_set<ibv_cq*> timed_;
  std::unordered_map<ibv_qp*, verbs::Pages> queue_pair_memory_;
};

}  // namespace ringsock::rdma
