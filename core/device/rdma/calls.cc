#include "core/device/rdma/calls.h"

#include <fcntl.h>

#include <cerrno>

#include "core/base/late_library.h"
#include "core/base/unique_fd.h"

namespace ringsock::rdma {

namespace {

// Loaded only where there are RDMA devices, by programs that have sockets, because they load four more libraries.
constexpr LateLibrary verbs_library{"libibverbs.so.1"};
constexpr LateLibrary cm_library{"librdmacm.so.1"};

#define VERBS(name) late<verbs_library, #name, decltype(::name)>
#define CM(name) late<cm_library, #name, decltype(::name)>

std::string load_error() {
  std::string error = verbs_library.load_error();
  return error.empty() ? cm_library.load_error() : error;
}

int open_error(const char* path) {
  const UniqueFd fd(::open(path, O_RDWR | O_CLOEXEC));
  return fd ? 0 : errno;
}

}  // namespace

// Inline functions in <infiniband/verbs.h> call these by name. The symbol map keeps these definitions local to the
// core.
extern "C" {
int ibv_query_device(ibv_context* context, ibv_device_attr* attr) { return VERBS(ibv_query_device)(context, attr); }
int(ibv_query_port)(ibv_context* context, std::uint8_t port, _compat_ibv_port_attr* attr) {
  return late<verbs_library, "ibv_query_port", int(ibv_context*, std::uint8_t, _compat_ibv_port_attr*)>(context, port,
                                                                                                        attr);
}
ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, std::size_t max_entries, std::uint32_t flags,
                             std::size_t entry_size) {
  return VERBS(_ibv_query_gid_table)(context, entries, max_entries, flags, entry_size);
}
ibv_mr*(ibv_reg_mr)(ibv_pd* pd, void* address, std::size_t length, int access) {
  return late<verbs_library, "ibv_reg_mr", ibv_mr*(ibv_pd*, void*, std::size_t, int)>(pd, address, length, access);
}
ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova, unsigned access) {
  return VERBS(ibv_reg_mr_iova2)(pd, address, length, iova, access);
}
ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel, int vector) {
  return VERBS(ibv_create_cq)(context, cqe, cq_context, channel, vector);
}
ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) { return VERBS(ibv_create_qp)(pd, attr); }
}

const Calls& real_calls() {
  static const Calls calls{
      .open_error = open_error,
      .load_error = load_error,
      .fork_init = VERBS(ibv_fork_init),
      .get_device_list = VERBS(ibv_get_device_list),
      .free_device_list = VERBS(ibv_free_device_list),
      .open_device = VERBS(ibv_open_device),
      .close_device = VERBS(ibv_close_device),
      .query_device = VERBS(ibv_query_device),
      // Macros of the header.
      .query_port = [](ibv_context* context, std::uint8_t port,
                       ibv_port_attr* attr) { return ibv_query_port(context, port, attr); },
      .alloc_pd = VERBS(ibv_alloc_pd),
      .dealloc_pd = VERBS(ibv_dealloc_pd),
      .reg_mr = [](ibv_pd* pd, void* address, std::size_t length,
                   int access) { return ibv_reg_mr(pd, address, length, access); },
      .dereg_mr = VERBS(ibv_dereg_mr),
      .create_comp_channel = VERBS(ibv_create_comp_channel),
      .destroy_comp_channel = VERBS(ibv_destroy_comp_channel),
      .create_cq = VERBS(ibv_create_cq),
      .destroy_cq = VERBS(ibv_destroy_cq),
      .get_cq_event = VERBS(ibv_get_cq_event),
      .ack_cq_events = VERBS(ibv_ack_cq_events),
      .create_srq = VERBS(ibv_create_srq),
      .modify_srq = VERBS(ibv_modify_srq),
      .query_srq = VERBS(ibv_query_srq),
      .destroy_srq = VERBS(ibv_destroy_srq),
      .create_qp = VERBS(ibv_create_qp),
      .modify_qp = VERBS(ibv_modify_qp),
      .query_qp = VERBS(ibv_query_qp),
      .destroy_qp = VERBS(ibv_destroy_qp),
      .create_ah = VERBS(ibv_create_ah),
      .destroy_ah = VERBS(ibv_destroy_ah),
      .get_async_event = VERBS(ibv_get_async_event),
      .ack_async_event = VERBS(ibv_ack_async_event),
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
      .create_event_channel = CM(rdma_create_event_channel),
      .destroy_event_channel = CM(rdma_destroy_event_channel),
      .create_id = CM(rdma_create_id),
      .destroy_id = CM(rdma_destroy_id),
      .migrate_id = CM(rdma_migrate_id),
      .set_option = CM(rdma_set_option),
      .bind_addr = CM(rdma_bind_addr),
      .listen = CM(rdma_listen),
      .resolve_addr = CM(rdma_resolve_addr),
      .resolve_route = CM(rdma_resolve_route),
      .init_qp_attr = CM(rdma_init_qp_attr),
      .connect = CM(rdma_connect),
      .establish = CM(rdma_establish),
      .accept = CM(rdma_accept),
      .reject = CM(rdma_reject),
      .disconnect = CM(rdma_disconnect),
      .notify = CM(rdma_notify),
      .get_cm_event = CM(rdma_get_cm_event),
      .ack_cm_event = CM(rdma_ack_cm_event),
  };
  return calls;
}

}  // namespace ringsock::rdma
