#include "core/verbs/handles.h"

#include "core/base/log.h"
#include "core/verbs/device.h"

namespace ringsock::verbs {

Result<Flow> create_flow(Device& device, ibv_qp& qp, ibv_flow_attr& attr) {
  ibv_flow* flow = ibv_create_flow(&qp, &attr);
  if (flow == nullptr) return Error::last("ibv_create_flow");
  return Flow(device, flow);
}

Status start_raw_packet_qp(Device& device, ibv_qp& qp) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  if (Status init = device.modify_qp(qp, attr, IBV_QP_STATE | IBV_QP_PORT); !init) return init;
  attr.qp_state = IBV_QPS_RTR;
  if (Status ready = device.modify_qp(qp, attr, IBV_QP_STATE); !ready) return ready;
  attr.qp_state = IBV_QPS_RTS;
  return device.modify_qp(qp, attr, IBV_QP_STATE);
}

namespace detail {

int destroy(Device& device, ibv_pd* object) { return device.dealloc_pd(object); }
int destroy(Device& device, ibv_mr* object) { return device.dereg_mr(object); }
int destroy(Device& device, ibv_comp_channel* object) { return device.destroy_comp_channel(object); }
int destroy(Device& device, ibv_cq* object) { return device.destroy_cq(object); }
int destroy(Device& device, ibv_srq* object) { return device.destroy_srq(object); }
int destroy(Device& device, ibv_qp* object) { return device.destroy_qp(object); }
int destroy(Device& device, ibv_ah* object) { return device.destroy_ah(object); }
int destroy(Device&, ibv_flow* object) { return ibv_destroy_flow(object); }

void report_teardown_failure(int error) { log_warn("verbs teardown: error %d, an object outlives its parent", error); }

}  // namespace detail
}  // namespace ringsock::verbs
