// The functions of libibverbs, librdmacm and the kernel that real devices use, as a table, which tests replace.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace ringsock::rdma {

/// Each member has the arguments, results and errors of the function of that name (man 3 rdma_create_id,
/// ibv_open_device ...): 0 or a pointer, otherwise -1 or null with errno, or an errno value where the manual says so.
/// The functions of the data path are in the context, where <infiniband/verbs.h> finds them.
struct Calls {
  /// Returns 0, or the errno value with which this process fails to open the file for reading and writing. It really
  /// opens the file, because a control group may refuse what the file's mode permits.
  int (*open_error)(const char* path);
  /// Returns why the two libraries cannot be loaded, in the dynamic linker's words: "FILE: cannot open ...". Empty when
  /// they are loaded.
  std::string (*load_error)();

  int (*fork_init)();
  ibv_device** (*get_device_list)(int* count);
  void (*free_device_list)(ibv_device** list);
  ibv_context* (*open_device)(ibv_device* device);
  int (*close_device)(ibv_context* context);
  int (*query_device)(ibv_context* context, ibv_device_attr* attr);
  int (*query_port)(ibv_context* context, std::uint8_t port, ibv_port_attr* attr);
  ibv_pd* (*alloc_pd)(ibv_context* context);
  int (*dealloc_pd)(ibv_pd* pd);
  ibv_mr* (*reg_mr)(ibv_pd* pd, void* address, std::size_t length, int access);
  int (*dereg_mr)(ibv_mr* mr);
  ibv_comp_channel* (*create_comp_channel)(ibv_context* context);
  int (*destroy_comp_channel)(ibv_comp_channel* channel);
  ibv_cq* (*create_cq)(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel, int comp_vector);
  int (*destroy_cq)(ibv_cq* cq);
  int (*get_cq_event)(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context);
  void (*ack_cq_events)(ibv_cq* cq, unsigned int count);
  ibv_srq* (*create_srq)(ibv_pd* pd, ibv_srq_init_attr* attr);
  int (*modify_srq)(ibv_srq* srq, ibv_srq_attr* attr, int mask);
  int (*query_srq)(ibv_srq* srq, ibv_srq_attr* attr);
  int (*destroy_srq)(ibv_srq* srq);
  ibv_qp* (*create_qp)(ibv_pd* pd, ibv_qp_init_attr* attr);
  int (*modify_qp)(ibv_qp* qp, ibv_qp_attr* attr, int mask);
  int (*query_qp)(ibv_qp* qp, ibv_qp_attr* attr, int mask, ibv_qp_init_attr* init_attr);
  int (*destroy_qp)(ibv_qp* qp);
  ibv_ah* (*create_ah)(ibv_pd* pd, ibv_ah_attr* attr);
  int (*destroy_ah)(ibv_ah* ah);
  int (*get_async_event)(ibv_context* context, ibv_async_event* event);
  void (*ack_async_event)(ibv_async_event* event);

  // Functions for packets. The first returns 1 when the device has ibv_create_flow(3).
  int (*has_flow_rules)(ibv_context* context);
  int (*query_device_ex)(ibv_context* context, ibv_device_attr_ex* attr);
  ssize_t (*query_gid_table)(ibv_context* context, ibv_gid_entry* entries, std::size_t max_entries);
  ibv_cq_ex* (*create_cq_ex)(ibv_context* context, ibv_cq_init_attr_ex* attr);
  ibv_qp* (*create_qp_ex)(ibv_context* context, ibv_qp_init_attr_ex* attr);
  int (*modify_qp_rate_limit)(ibv_qp* qp, ibv_qp_rate_limit_attr* attr);

  rdma_event_channel* (*create_event_channel)();
  void (*destroy_event_channel)(rdma_event_channel* channel);
  int (*create_id)(rdma_event_channel* channel, rdma_cm_id** id, void* context, rdma_port_space space);
  int (*destroy_id)(rdma_cm_id* id);
  int (*migrate_id)(rdma_cm_id* id, rdma_event_channel* channel);
  int (*set_option)(rdma_cm_id* id, int level, int name, void* value, std::size_t length);
  int (*bind_addr)(rdma_cm_id* id, sockaddr* address);
  int (*listen)(rdma_cm_id* id, int backlog);
  int (*resolve_addr)(rdma_cm_id* id, sockaddr* source, sockaddr* destination, int timeout_ms);
  int (*resolve_route)(rdma_cm_id* id, int timeout_ms);
  int (*init_qp_attr)(rdma_cm_id* id, ibv_qp_attr* attr, int* mask);
  int (*connect)(rdma_cm_id* id, rdma_conn_param* parameters);
  int (*establish)(rdma_cm_id* id);
  int (*accept)(rdma_cm_id* id, rdma_conn_param* parameters);
  int (*reject)(rdma_cm_id* id, const void* data, std::uint8_t length);
  int (*disconnect)(rdma_cm_id* id);
  int (*notify)(rdma_cm_id* id, ibv_event_type event);
  int (*get_cm_event)(rdma_event_channel* channel, rdma_cm_event** event);
  int (*ack_cm_event)(rdma_cm_event* event);
};

/// Returns the real functions.
const Calls& real_calls();

}  // namespace ringsock::rdma
