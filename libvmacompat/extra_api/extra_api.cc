#include "libvmacompat/extra_api/extra_api.h"

#include <mellanox/vma_extra.h>

#include <cerrno>
#include <cstring>

#include "core/base/process_state.h"
#include "libvmacompat/extra_api/members.h"
#include "libvmacompat/process/vma_process.h"

namespace ringsock::vma {

namespace {

/// Functions that do what VMA's do. The others answer that they are not there.
constexpr std::uint64_t kWorking =
    VMA_EXTRA_API_REGISTER_RECV_CALLBACK | VMA_EXTRA_API_RECVFROM_ZCOPY | VMA_EXTRA_API_FREE_PACKETS |
    VMA_EXTRA_API_ADD_CONF_RULE | VMA_EXTRA_API_THREAD_OFFLOAD | VMA_EXTRA_API_DUMP_FD_STATS |
    VMA_EXTRA_API_GET_SOCKET_RINGS_NUM | VMA_EXTRA_API_GET_SOCKET_RINGS_FDS | VMA_EXTRA_API_GET_SOCKET_TX_RING_FD |
    VMA_EXTRA_API_GET_SOCKET_NETWORK_HEADER | VMA_EXTRA_API_CYCLIC_BUFFER_READ | VMA_EXTRA_API_ADD_RING_PROFILE |
    VMA_EXTRA_API_GET_MEM_INFO | VMA_EXTRA_API_MODIFY_RING | VMA_EXTRA_API_IOCTL;

/// Those that need VMA_SOCKETXTREME.
constexpr std::uint64_t kEvents = VMA_EXTRA_API_SOCKETXTREME_POLL | VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_PACKETS |
                                  VMA_EXTRA_API_SOCKETXTREME_REF_VMA_BUFF | VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_BUFF;

int get_dpcp_devices(std::uintptr_t*, std::size_t*) {
  errno = EOPNOTSUPP;
  return -1;
}

/// VMA 8.8.2 to 9.2 had no ioctl(), and for some time the bit stood for another function.
vma_api_8_9_t older_of(const vma_api_t& now) {
  return {.register_recv_callback = now.register_recv_callback,
          .recvfrom_zcopy = now.recvfrom_zcopy,
          .free_packets = now.free_packets,
          .add_conf_rule = now.add_conf_rule,
          .thread_offload = now.thread_offload,
          .socketxtreme_poll = now.socketxtreme_poll,
          .get_socket_rings_num = now.get_socket_rings_num,
          .get_socket_rings_fds = now.get_socket_rings_fds,
          .get_socket_tx_ring_fd = now.get_socket_tx_ring_fd,
          .socketxtreme_free_vma_packets = now.socketxtreme_free_vma_packets,
          .socketxtreme_ref_vma_buff = now.socketxtreme_ref_vma_buff,
          .socketxtreme_free_vma_buff = now.socketxtreme_free_vma_buff,
          .dump_fd_stats = now.dump_fd_stats,
          .vma_cyclic_buffer_read = now.vma_cyclic_buffer_read,
          .vma_add_ring_profile = extra::add_older_ring_profile,
          .get_socket_network_header = now.get_socket_network_header,
          .get_ring_direct_descriptors = now.get_ring_direct_descriptors,
          .register_memory_on_ring = now.register_memory_on_ring,
          .deregister_memory_on_ring = now.deregister_memory_on_ring,
          .get_mem_info = now.get_mem_info,
          .vma_modify_ring = now.vma_modify_ring,
          .vma_extra_supported_mask = now.vma_extra_supported_mask & ~std::uint64_t{VMA_EXTRA_API_IOCTL},
          .get_dpcp_devices = get_dpcp_devices};
}

/// The program may write to its table.
struct Table {
  static constexpr ProcessPart kPart = ProcessPart::extra_api;
  vma_api_t functions{.register_recv_callback = extra::register_recv_callback,
                      .recvfrom_zcopy = extra::recvfrom_zcopy,
                      .free_packets = extra::free_packets,
                      .add_conf_rule = extra::add_conf_rule,
                      .thread_offload = extra::thread_offload,
                      .socketxtreme_poll = extra::socketxtreme_poll,
                      .get_socket_rings_num = extra::get_socket_rings_num,
                      .get_socket_rings_fds = extra::get_socket_rings_fds,
                      .get_socket_tx_ring_fd = extra::get_socket_tx_ring_fd,
                      .socketxtreme_free_vma_packets = extra::socketxtreme_free_vma_packets,
                      .socketxtreme_ref_vma_buff = extra::socketxtreme_ref_vma_buff,
                      .socketxtreme_free_vma_buff = extra::socketxtreme_free_vma_buff,
                      .dump_fd_stats = extra::dump_fd_stats,
                      .vma_add_ring_profile = extra::vma_add_ring_profile,
                      .get_socket_network_header = extra::get_socket_network_header,
                      .get_ring_direct_descriptors = extra::get_ring_direct_descriptors,
                      .register_memory_on_ring = extra::register_memory_on_ring,
                      .deregister_memory_on_ring = extra::deregister_memory_on_ring,
                      .vma_modify_ring = extra::vma_modify_ring,
                      .vma_extra_supported_mask = kWorking | (process().config.socketxtreme ? kEvents : 0),
                      .ioctl = extra::ioctl,
                      .vma_cyclic_buffer_read = extra::vma_cyclic_buffer_read,
                      .get_mem_info = extra::get_mem_info};
  vma_api_8_9_t older = older_of(functions);
};

}  // namespace

bool answer_library_option(int level, int name, void* value, socklen_t* length) {
  if (level != SOL_SOCKET || name != SO_VMA_GET_API || *length < sizeof(void*)) return false;
  Table& tables = process_state<Table>();
  const bool is_older = process().config.extra_api_layout == "8.9";
  void* const table = is_older ? static_cast<void*>(&tables.older) : &tables.functions;
  std::memcpy(value, &table, sizeof(void*));
  *length = sizeof(void*);
  return true;
}

}  // namespace ringsock::vma
