// Members of the Extra API that concern rings of network cards, as they answer in a library that has none, or for
// descriptors that are no sockets on such rings. Each checks its arguments first, as where it works.
#include <fcntl.h>

#include "core/base/user_memory.h"
#include "core/extra_api/api_call.h"
#include "core/extra_api/members.h"
#include "core/runtime/fd_table.h"

namespace ringsock::vma::extra {

namespace {

/// Returns whether the library carries it as a stream.
bool is_stream(int fd) {
  const runtime::FdTable::Lookup socket = runtime::fd_table().find(fd);
  return socket && !socket->is_datagram() && socket->as_epoll_set() == nullptr;
}

int fails(int code) {
  return api_call([code]() -> Result<int> { return Error{code, "the Extra API: not there"}; });
}
int fails_if(bool is_bad, int code) { return fails(is_bad ? EINVAL : code); }

}  // namespace

int get_socket_tx_ring_fd(int fd, sockaddr*, socklen_t) {
  return api_call([&]() -> Result<int> { return Error{is_stream(fd) ? ENOSYS : EINVAL, "get_socket_tx_ring_fd"}; });
}

int get_socket_network_header(int fd, void*, std::uint16_t* length) {
  return api_call([&]() -> Result<int> {
    const bool is_bad = length == nullptr || !are_writable(length) || ::fcntl(fd, F_GETFD) < 0;
    return Error{is_bad ? EINVAL : ENOTCONN, "get_socket_network_header"};
  });
}

int vma_modify_ring(vma_modify_ring_attr* wish) { return fails_if(wish == nullptr, EBADFD); }
int vma_add_ring_profile(vma_ring_type_attr* profile, int* key) {
  return fails_if(profile == nullptr || key == nullptr, EOPNOTSUPP);
}

int vma_cyclic_buffer_read(int, vma_completion_cb_t* completion, std::size_t least, std::size_t most, int) {
  return fails_if(completion == nullptr || most == 0 || least > most, EOPNOTSUPP);
}
int get_mem_info(int, void** address, std::size_t* length, std::uint32_t* key) {
  return fails_if(address == nullptr || length == nullptr || key == nullptr, EOPNOTSUPP);
}

int get_ring_direct_descriptors(int, vma_mlx_hw_device_data* data) { return fails_if(data == nullptr, EOPNOTSUPP); }
int register_memory_on_ring(int, void*, std::size_t, std::uint32_t* key) {
  return fails_if(key == nullptr, EOPNOTSUPP);
}
int deregister_memory_on_ring(int, void*, std::size_t) { return fails(EOPNOTSUPP); }

}  // namespace ringsock::vma::extra
