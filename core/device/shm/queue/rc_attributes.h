// The attributes and the state of an RC queue pair, as ibv_modify_qp(3) sets them.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/base/clock.h"
#include "core/base/result.h"

namespace ringsock::soft {

/// Threads: one at a time, except for state_now().
class RcAttributes {
 public:
  /// @param qp  its field `state` is kept up to date
  explicit RcAttributes(ibv_qp& qp) : qp_(qp) {}

  /// Checks a change against the state diagram of RC queue pairs. Error: EINVAL.
  [[nodiscard]] Status check(const ibv_qp_attr& attr, int mask) const;
  /// Stores what `mask` names, except for the state.
  void store(const ibv_qp_attr& attr, int mask);
  /// Stores what the connection manager has negotiated.
  void store_connection(std::uint32_t peer_qp_num, std::uint8_t rnr_retry_count);
  [[nodiscard]] ibv_qp_attr all() const;

  [[nodiscard]] ibv_qp_state state() const { return qp_.state; }
  [[nodiscard]] ibv_qp_state state_now() const { return state_.load(std::memory_order_relaxed); }
  void set_state(ibv_qp_state to) {
    qp_.state = to;
    state_.store(to, std::memory_order_relaxed);
  }
  /// Returns how long a message waits for a receive of the peer; nothing: for ever.
  [[nodiscard]] std::optional<Nanos> patience_for_receive() const;

 private:
  ibv_qp& qp_;
  std::atomic<ibv_qp_state> state_{IBV_QPS_RESET};  ///< ibv_qp::state
  std::uint8_t rnr_retry_ = 7;
  std::uint8_t min_rnr_timer_ = 12;
  std::uint32_t dest_qp_num_ = 0;
  std::unique_ptr<ibv_qp_attr> attr_;  ///< the others; null until store(), which the connection manager does not call
};

}  // namespace ringsock::soft
