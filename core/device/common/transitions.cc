#include "core/device/common/transitions.h"

#include <algorithm>
#include <cerrno>

namespace ringsock::soft {

namespace {

constexpr Transition kOfAllTypes[] = {
    {IBV_QPS_INIT, IBV_QPS_INIT, 0}, {IBV_QPS_RTS, IBV_QPS_RTS, 0}, {IBV_QPS_RTS, IBV_QPS_SQD, 0},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0},   {IBV_QPS_SQD, IBV_QPS_RTS, 0},
};

const Transition* find(std::span<const Transition> table, ibv_qp_state from, ibv_qp_state to) {
  const auto found =
      std::ranges::find_if(table, [&](const Transition& known) { return known.from == from && known.to == to; });
  return found != table.end() ? &*found : nullptr;
}

}  // namespace

Status check_transition(std::span<const Transition> of_type, ibv_qp_state from, const ibv_qp_attr& attr, int mask) {
  if ((mask & IBV_QP_CUR_STATE) != 0 && attr.cur_qp_state != from) return Error{EINVAL, "modify_qp: current state"};
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attr.qp_state : from;
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return ok();
  const Transition* allowed = find(of_type, from, to);
  if (allowed == nullptr) allowed = find(kOfAllTypes, from, to);
  if (allowed == nullptr) return Error{EINVAL, "modify_qp: transition"};
  if ((mask & allowed->required) != allowed->required) return Error{EINVAL, "modify_qp: attributes"};
  return ok();
}

}  // namespace ringsock::soft
