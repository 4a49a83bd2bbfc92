#include "core/extra_api/extra_api.h"

#include <mellanox/vma_extra.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>

#include "core/base/process_state.h"
#include "core/extra_api/members.h"

namespace ringsock::vma {

namespace {

/// Functions that do what VMA's do in every library. A library adds those that it brings.
constexpr std::uint64_t kWorking = VMA_EXTRA_API_REGISTER_RECV_CALLBACK | VMA_EXTRA_API_RECVFROM_ZCOPY |
                                   VMA_EXTRA_API_FREE_PACKETS | VMA_EXTRA_API_ADD_CONF_RULE |
                                   VMA_EXTRA_API_THREAD_OFFLOAD | VMA_EXTRA_API_DUMP_FD_STATS;

/// Those that need VMA_SOCKETXTREME. Without it a library may have rings of its own.
constexpr std::uint64_t kEvents = VMA_EXTRA_API_SOCKETXTREME_POLL | VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_PACKETS |
                                  VMA_EXTRA_API_SOCKETXTREME_REF_VMA_BUFF | VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_BUFF |
                                  VMA_EXTRA_API_GET_SOCKET_RINGS_NUM | VMA_EXTRA_API_GET_SOCKET_RINGS_FDS;

constexpr vma_api_t kOfAllLibraries{.register_recv_callback = extra::register_recv_callback,
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
                                    .ioctl = extra::ioctl,
                                    .vma_cyclic_buffer_read = extra::vma_cyclic_buffer_read,
                                    .get_mem_info = extra::get_mem_info};

int get_dpcp_devices(std::uintptr_t*, std::size_t*) {
  errno = EOPNOTSUPP;
  return -1;
}

int add_older_ring_profile(vma_ring_type_attr* profile, int* key) {
  return library_of_extra_api().add_older_ring_profile(profile, key);
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
          .vma_add_ring_profile = add_older_ring_profile,
          .get_socket_network_header = now.get_socket_network_header,
          .get_ring_direct_descriptors = now.get_ring_direct_descriptors,
          .register_memory_on_ring = now.register_memory_on_ring,
          .deregister_memory_on_ring = now.deregister_memory_on_ring,
          .get_mem_info = now.get_mem_info,
          .vma_modify_ring = now.vma_modify_ring,
          .vma_extra_supported_mask = now.vma_extra_supported_mask & ~std::uint64_t{VMA_EXTRA_API_IOCTL},
          .get_dpcp_devices = get_dpcp_devices};
}

vma_api_t completed_table() {
  vma_api_t out = kOfAllLibraries;
  if (library_of_extra_api().has_events()) out.vma_extra_supported_mask |= kEvents;
  library_of_extra_api().add_members(out);
  return out;
}

/// The program may write to its table.
struct Tables {
  vma_api_t functions = completed_table();
  vma_api_8_9_t older = older_of(functions);
};

struct ExtraApi {
  static constexpr ProcessPart kPart = ProcessPart::extra_api;
  std::atomic<const ApiLibrary*> library{nullptr};  ///< completes the table
  std::atomic<Tables*> tables{nullptr};             ///< never destroyed
};

ExtraApi& extra_api() { return process_state<ExtraApi>(); }

/// Makes them at the first call. Errors: std::bad_alloc.
Tables& tables() {
  std::atomic<Tables*>& place = extra_api().tables;
  if (Tables* const known = place.load(std::memory_order_acquire)) return *known;
  auto made = std::make_unique<Tables>();
  Tables* known = nullptr;
  return place.compare_exchange_strong(known, made.get(), std::memory_order_acq_rel) ? *made.release() : *known;
}

}  // namespace

void prefer_for_extra_api(const ApiLibrary& library) { extra_api().library.store(&library, std::memory_order_release); }

void offer_for_extra_api(const ApiLibrary& library) {
  const ApiLibrary* nobody = nullptr;
  extra_api().library.compare_exchange_strong(nobody, &library, std::memory_order_acq_rel);
}

const ApiLibrary* known_library_of_extra_api() { return extra_api().library.load(std::memory_order_acquire); }
const ApiLibrary& library_of_extra_api() { return *known_library_of_extra_api(); }

bool answer_library_option(const ApiLibrary& library, int level, int name, void* value, socklen_t* length) try {
  if (level != SOL_SOCKET || name != SO_VMA_GET_API || *length < sizeof(void*)) return false;
  offer_for_extra_api(library);
  Tables& all = tables();
  const bool is_older = library_of_extra_api().has_older_layout();
  void* const table = is_older ? static_cast<void*>(&all.older) : &all.functions;
  std::memcpy(value, &table, sizeof(void*));
  *length = sizeof(void*);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

}  // namespace ringsock::vma
