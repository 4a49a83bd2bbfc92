#include "core/verbs/handles.h"

#include "core/base/log.h"
#include "core/verbs/device.h"

namespace ringsock::verbs::detail {

int destroy(Device& device, ibv_pd* object) { return device.dealloc_pd(object); }
int destroy(Device& device, ibv_mr* object) { return device.dereg_mr(object); }
int destroy(Device& device, ibv_comp_channel* object) { return device.destroy_comp_channel(object); }
int destroy(Device& device, ibv_cq* object) { return device.destroy_cq(object); }
int destroy(Device& device, ibv_srq* object) { return device.destroy_srq(object); }
int destroy(Device& device, ibv_qp* object) { return device.destroy_qp(object); }
int destroy(Device& device, ibv_ah* object) { return device.destroy_ah(object); }

void report_teardown_failure(int error) { log_warn("verbs teardown: error %d, an object outlives its parent", error); }

}  // namespace ringsock::verbs::detail
