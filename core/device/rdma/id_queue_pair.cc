#include "core/device/rdma/id_queue_pair.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace ringsock::rdma {

namespace {

/// The time after which a peer that found no posted receive tries again: InfiniBand's code for 0.64 ms. The kernel uses
/// 0, which means 655 ms.
constexpr std::uint8_t kMinRnrTimer = 12;
/// Soft-RoCE treats 7, the largest value, as unlimited.
constexpr std::uint8_t kMostRetries = 6;

}  // namespace

IdQueuePair::IdQueuePair(const Calls& calls, rdma_cm_id* id) : calls_(calls), id_(id), process_(::getpid()) {}

void IdQueuePair::leave() {
  if (std::exchange(is_owned_, false)) device_->forget_owner(qp_, *owner_);
}

Status IdQueuePair::use(ibv_qp& qp, RdmaDevice& device, QueuePairOwner& owner) {
  qp_ = &qp;
  device_ = &device;
  owner_ = &owner;
  if (Status ready = to_init(); !ready) {
    qp_ = nullptr;
    return ready;
  }
  device_->set_owner(*qp_, owner);
  is_owned_ = true;
  return ok();
}

Result<int> IdQueuePair::attributes_for(ibv_qp_state state, ibv_qp_attr& attr) {
  attr = {};
  attr.qp_state = state;
  int mask = 0;
  if (calls_.init_qp_attr(id_, &attr, &mask) != 0) return Error::last("rdma_init_qp_attr");
  return mask;
}

Status IdQueuePair::to_init() {
  ibv_qp_attr attr;
  auto mask = attributes_for(IBV_QPS_INIT, attr);
  if (!mask) return mask.error();
  return device_->modify_qp(*qp_, attr, *mask);
}

Status IdQueuePair::to_ready(const verbs::ConnectionParameters* parameters) {
  // The kernel's iWARP connection manager moves the queue pair itself.
  if (!device_->traits().has_write_with_immediate) return ok();
  // Repeated, because the active side's first attributes were made without the connection and did not permit the peer
  // to write.
  if (Status again = to_init(); !again) return again;
  ibv_qp_attr attr;
  auto mask = attributes_for(IBV_QPS_RTR, attr);
  if (!mask) return mask.error();
  attr.min_rnr_timer = kMinRnrTimer;
  if (parameters != nullptr) attr.max_dest_rd_atomic = parameters->responder_resources;
  if (Status moved = device_->modify_qp(*qp_, attr, *mask | IBV_QP_MIN_RNR_TIMER); !moved) return moved;
  mask = attributes_for(IBV_QPS_RTS, attr);
  if (!mask) return mask.error();
  if (parameters != nullptr) attr.max_rd_atomic = parameters->initiator_depth;
  attr.retry_cnt = std::min(attr.retry_cnt, kMostRetries);
  return device_->modify_qp(*qp_, attr, *mask);
}

void IdQueuePair::to_error() {
  if (qp_ == nullptr || ::getpid() != process_) return;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  // A removed device refuses, and flushes by itself.
  [[maybe_unused]] const Status moved = device_->modify_qp(*qp_, attr, IBV_QP_STATE);
}

}  // namespace ringsock::rdma
