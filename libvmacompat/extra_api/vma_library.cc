#include "libvmacompat/extra_api/vma_library.h"

#include <mellanox/vma_extra.h>

#include <algorithm>
#include <cerrno>

#include "libvmacompat/extra_api/members.h"
#include "libvmacompat/process/statistics_requests.h"
#include "libvmacompat/process/vma_process.h"

// recvfrom(2) of the preload library, by the name that the linker does not send to libc (preload/route.h).
extern "C" decltype(recvfrom) ringsock_recvfrom;

namespace ringsock::vma {

namespace {

/// Functions that do what VMA's do, beside those of all libraries.
constexpr std::uint64_t kWorking = VMA_EXTRA_API_GET_SOCKET_RINGS_NUM | VMA_EXTRA_API_GET_SOCKET_RINGS_FDS |
                                   VMA_EXTRA_API_GET_SOCKET_TX_RING_FD | VMA_EXTRA_API_GET_SOCKET_NETWORK_HEADER |
                                   VMA_EXTRA_API_CYCLIC_BUFFER_READ | VMA_EXTRA_API_ADD_RING_PROFILE |
                                   VMA_EXTRA_API_GET_MEM_INFO | VMA_EXTRA_API_MODIFY_RING | VMA_EXTRA_API_IOCTL;

class VmaLibrary final : public ApiLibrary {
 public:
  void add_members(vma_api_t& table) const override {
    table.get_socket_rings_num = rings::get_socket_rings_num;
    table.get_socket_rings_fds = rings::get_socket_rings_fds;
    table.get_socket_tx_ring_fd = rings::get_socket_tx_ring_fd;
    table.vma_add_ring_profile = rings::vma_add_ring_profile;
    table.get_socket_network_header = rings::get_socket_network_header;
    table.vma_modify_ring = rings::vma_modify_ring;
    table.vma_cyclic_buffer_read = rings::vma_cyclic_buffer_read;
    table.get_mem_info = rings::get_mem_info;
    table.vma_extra_supported_mask |= kWorking;
  }
  bool has_events() const override { return process().config.socketxtreme; }
  RingSettings ring_settings() const override {
    return {.logic = static_cast<runtime::RingLogic>(process().config.ring_allocation_logic_rx),
            .most_rings = process().config.ring_limit_per_interface};
  }
  bool has_ring_profile(std::uint32_t key) const override { return process().profiles.find(key).has_value(); }
  void warn(const char* text) const override { process().log.write(config::VmaLogLevel::warning, text); }
  bool has_older_layout() const override { return process().config.extra_api_layout == "8.9"; }
  int add_older_ring_profile(vma_ring_type_attr* profile, int* key) const override {
    return rings::add_older_ring_profile(profile, key);
  }

  Status add_rule(const std::string& line) const override {
    const auto report = [](const std::string& text) { process().log.write(config::VmaLogLevel::error, text); };
    return process().rules().add(line, report);
  }
  Status offload_thread(pthread_t thread, bool on) const override { return process().threads.set(thread, on); }
  Status dump_sockets(int fd, int level) const override {
    using config::VmaLogLevel;
    const int known = std::clamp(level, static_cast<int>(VmaLogLevel::none), static_cast<int>(VmaLogLevel::all));
    if (vma::dump_sockets(fd, static_cast<VmaLogLevel>(known))) return ok();
    return Error{EINVAL, "dump_fd_stats: there are no sockets yet"};
  }
  Status use_memory(const verbs::UserMemory& memory) const override {
    return process().use_memory(memory.allocate != nullptr ? memory : process().memory());
  }

  bool has_moving_connections() const override { return process().config.tcp_rings != 0; }
  ssize_t receive_by_kernel(int fd, void* room, std::size_t bytes, int flags, sockaddr* from,
                            socklen_t* from_length) const override {
    return ringsock_recvfrom(fd, room, bytes, flags, from, from_length);
  }
};

}  // namespace

const ApiLibrary& vma_library() {
  static constexpr VmaLibrary kLibrary;
  return kLibrary;
}

}  // namespace ringsock::vma
