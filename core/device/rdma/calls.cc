#include "core/device/rdma/calls.h"

#include <fcntl.h>

#include <cerrno>

#include "core/base/unique_fd.h"

namespace ringsock::rdma {

namespace {
int open_error(const char* path) {
  const UniqueFd fd(::open(path, O_RDWR | O_CLOEXEC));
  return fd ? 0 : errno;
}
}  // namespace

const Calls& real_calls() {
  static const Calls calls{
      .open_error = open_error,
      .fork_init = ::ibv_fork_init,
      .get_device_list = ::ibv_get_device_list,
      .free_device_list = ::ibv_free_device_list,
      .open_device = ::ibv_open_device,
      .close_device = ::ibv_close_device,
      .query_device = ::ibv_query_device,
      // Macros of the header.
      .query_port = [](ibv_context* context, std::uint8_t port,
                       ibv_port_attr* attr) { return ibv_query_port(context, port, attr); },
      .alloc_pd = ::ibv_alloc_pd,
      .dealloc_pd = ::ibv_dealloc_pd,
      .reg_mr = [](ibv_pd* pd, void* address, std::size_t length,
                   int access) { return ibv_reg_mr(pd, address, length, access); },
      .dereg_mr = ::ibv_dereg_mr,
      .create_comp_channel = ::ibv_create_comp_channel,
      .destroy_comp_channel = ::ibv_destroy_comp_channel,
      .create_cq = ::ibv_create_cq,
      .destroy_cq = ::ibv_destroy_cq,
      .get_cq_event = ::ibv_get_cq_event,
      .ack_cq_events = ::ibv_ack_cq_events,
      .create_srq = ::ibv_create_srq,
      .modify_srq = ::ibv_modify_srq,
      .query_srq = ::ibv_query_srq,
      .destroy_srq = ::ibv_destroy_srq,
      .create_qp = ::ibv_create_qp,
      .modify_qp = ::ibv_modify_qp,
      .query_qp = ::ibv_query_qp,
      .destroy_qp = ::ibv_destroy_qp,
      .create_ah = ::ibv_create_ah,
      .destroy_ah = ::ibv_destroy_ah,
      .get_async_event = ::ibv_get_async_event,
      .ack_async_event = ::ibv_ack_async_event,
      .has_flow_rules =
          [](ibv_context* context) { return verbs_get_ctx_op(context, ibv_create_flow) != nullptr ? 1 : 0; },
      .query_device_ex = [](ibv_context* context,
                            ibv_device_attr_ex* attr) { return ibv_query_device_ex(context, nullptr, attr); },
      .query_gid_table = [](ibv_context* context, ibv_gid_entry* entries,
                            std::size_t max_entries) { return ibv_query_gid_table(context, entries, max_entries, 0); },
      .create_cq_ex = [](ibv_context* context, ibv_cq_init_attr_ex* attr) { return ibv_create_cq_ex(context, attr); },
      .create_qp_ex = [](ibv_context* context, ibv_qp_init_attr_ex* attr) { return ibv_create_qp_ex(context, attr); },
      .modify_qp_rate_limit = [](ibv_qp* qp,
                                 ibv_qp_rate_limit_attr* attr) { return ibv_modify_qp_rate_limit(qp, attr); },
      .create_event_channel = ::rdma_create_event_channel,
      .destroy_event_channel = ::rdma_destroy_event_channel,
      .create_id = ::rdma_create_id,
      .destroy_id = ::rdma_destroy_id,
      .migrate_id = ::rdma_migrate_id,
      .set_option = ::rdma_set_option,
      .bind_addr = ::rdma_bind_addr,
      .listen = ::rdma_listen,
      .resolve_addr = ::rdma_resolve_addr,
      .resolve_route = ::rdma_resolve_route,
      .init_qp_attr = ::rdma_init_qp_attr,
      .connect = ::rdma_connect,
      .establish = ::rdma_establish,
      .accept = ::rdma_accept,
      .reject = ::rdma_reject,
      .disconnect = ::rdma_disconnect,
      .notify = ::rdma_notify,
      .get_cm_event = ::rdma_get_cm_event,
      .ack_cm_event = ::rdma_ack_cm_event,
  };
  return calls;
}

}  // namespace ringsock::rdma
