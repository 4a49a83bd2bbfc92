// The functions of VMA's Extra API (<mellanox/vma_extra.h>) that concern Ethernet rings. Each may be called at any
// time, with any arguments.
#pragma once

#include <mellanox/vma_extra.h>

#include <cstddef>
#include <cstdint>

namespace ringsock::vma::rings {

// profile_members.cc
int vma_add_ring_profile(vma_ring_type_attr* profile, int* key);
/// The same with the numbers of types that VMA 8.8.2 to 9.2 had.
int add_older_ring_profile(vma_ring_type_attr* profile, int* key);

// ring_members.cc: rings of sockets
int get_socket_rings_num(int fd);
int get_socket_rings_fds(int fd, int* ring_fds, int room);
int get_socket_tx_ring_fd(int fd, sockaddr* to, socklen_t length);
int get_socket_network_header(int fd, void* room, std::uint16_t* length);
int vma_modify_ring(vma_modify_ring_attr* wish);

// cyclic_members.cc: cyclic buffers
int vma_cyclic_buffer_read(int fd, vma_completion_cb_t* completion, std::size_t least, std::size_t most, int flags);
int get_mem_info(int fd, void** address, std::size_t* length, std::uint32_t* key);

}  // namespace ringsock::vma::rings
