#include "libvmacompat/extra_api/extra_api.h"

#include <mellanox/vma_extra.h>

#include <cstring>

#include "core/base/process_state.h"
#include "libvmacompat/extra_api/members.h"

namespace ringsock::vma {

namespace {

/// Functions that do what VMA's do. The others answer that they are not there.
constexpr std::uint64_t kWorking = VMA_EXTRA_API_ADD_CONF_RULE | VMA_EXTRA_API_THREAD_OFFLOAD |
                                   VMA_EXTRA_API_DUMP_FD_STATS | VMA_EXTRA_API_GET_SOCKET_RINGS_NUM |
                                   VMA_EXTRA_API_GET_SOCKET_RINGS_FDS | VMA_EXTRA_API_GET_SOCKET_TX_RING_FD |
                                   VMA_EXTRA_API_GET_SOCKET_NETWORK_HEADER | VMA_EXTRA_API_ADD_RING_PROFILE |
                                   VMA_EXTRA_API_MODIFY_RING | VMA_EXTRA_API_IOCTL;

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
                      .vma_extra_supported_mask = kWorking,
                      .ioctl = extra::ioctl};
};

}  // namespace

bool answer_library_option(int level, int name, void* value, socklen_t* length) {
  if (level != SOL_SOCKET || name != SO_VMA_GET_API || *length < sizeof(void*)) return false;
  void* const table = &process_state<Table>().functions;
  std::memcpy(value, &table, sizeof(void*));
  *length = sizeof(void*);
  return true;
}

}  // namespace ringsock::vma
