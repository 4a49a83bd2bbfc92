// The states of a queue pair, and what a change from one to another needs.
#pragma once

#include <infiniband/verbs.h>

#include <span>

#include "core/base/result.h"

namespace ringsock::soft {

struct Transition {
  ibv_qp_state from, to;
  int required;  ///< IBV_QP_* bits
};

/// Checks ibv_modify_qp(3) for a queue pair in the state `from`. A change to IBV_QPS_RESET or IBV_QPS_ERR is always
/// permitted, and so is one within INIT, and within and between RTS and SQD. Errors: EINVAL.
/// @param of_type  what else the type of queue pair permits
Status check_transition(std::span<const Transition> of_type, ibv_qp_state from, const ibv_qp_attr& attr, int mask);

}  // namespace ringsock::soft
