#include "core/device/shm/queue/rc_attributes.h"

#include "core/device/common/transitions.h"

namespace ringsock::soft {

namespace {

constexpr Transition kTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC},
};

/// ibv_qp_attr.min_rnr_timer: the codes of the InfiniBand specification.
Nanos rnr_delay(std::uint8_t code) {
  static constexpr std::uint32_t kHundredthsOfMs[32] = {
      65536, 1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,   192,
      256,   384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return Nanos(std::uint64_t{kHundredthsOfMs[code & 31]} * 10'000);
}

}  // namespace

Status RcAttributes::check(const ibv_qp_attr& attr, int mask) const {
  if ((mask & IBV_QP_RNR_RETRY) != 0 && attr.rnr_retry > 7) return Error{EINVAL, "modify_qp: rnr_retry"};
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0 && attr.min_rnr_timer > 31) return Error{EINVAL, "modify_qp: min_rnr_timer"};
  return check_transition(kTransitions, state(), attr, mask);
}

void RcAttributes::store(const ibv_qp_attr& attr, int mask) {
  if ((mask & ~IBV_QP_STATE) == 0) return;
  if (!attr_) attr_ = std::make_unique<ibv_qp_attr>();
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) attr_->qp_access_flags = attr.qp_access_flags;
  if ((mask & IBV_QP_PKEY_INDEX) != 0) attr_->pkey_index = attr.pkey_index;
  if ((mask & IBV_QP_PORT) != 0) attr_->port_num = attr.port_num;
  if ((mask & IBV_QP_AV) != 0) attr_->ah_attr = attr.ah_attr;
  if ((mask & IBV_QP_PATH_MTU) != 0) attr_->path_mtu = attr.path_mtu;
  if ((mask & IBV_QP_TIMEOUT) != 0) attr_->timeout = attr.timeout;
  if ((mask & IBV_QP_RETRY_CNT) != 0) attr_->retry_cnt = attr.retry_cnt;
  if ((mask & IBV_QP_RNR_RETRY) != 0) rnr_retry_ = attr.rnr_retry;
  if ((mask & IBV_QP_RQ_PSN) != 0) attr_->rq_psn = attr.rq_psn;
  if ((mask & IBV_QP_SQ_PSN) != 0) attr_->sq_psn = attr.sq_psn;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0) attr_->max_rd_atomic = attr.max_rd_atomic;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) attr_->max_dest_rd_atomic = attr.max_dest_rd_atomic;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) min_rnr_timer_ = attr.min_rnr_timer;
  if ((mask & IBV_QP_DEST_QPN) != 0) dest_qp_num_ = attr.dest_qp_num;
}

void RcAttributes::store_connection(std::uint32_t peer_qp_num, std::uint8_t rnr_retry_count) {
  dest_qp_num_ = peer_qp_num;
  rnr_retry_ = rnr_retry_count;
}

ibv_qp_attr RcAttributes::all() const {
  ibv_qp_attr attr = attr_ ? *attr_ : ibv_qp_attr{};
  attr.dest_qp_num = dest_qp_num_;
  attr.qp_state = attr.cur_qp_state = state();
  attr.rnr_retry = rnr_retry_;
  attr.min_rnr_timer = min_rnr_timer_;
  return attr;
}

std::optional<Nanos> RcAttributes::patience_for_receive() const {
  constexpr std::uint8_t kForEver = 7;
  if (rnr_retry_ == kForEver) return std::nullopt;
  return rnr_retry_ * rnr_delay(min_rnr_timer_);
}

}  // namespace ringsock::soft
