// The functions of VMA's Extra API (<mellanox/vma_extra.h>) that are the same in all libraries. Each may be called at
// any time, with any arguments.
#pragma once

#include <mellanox/vma_extra.h>

#include <cstddef>
#include <cstdint>

namespace ringsock::vma::extra {

// process_members.cc: what concerns the process
int add_conf_rule(const char* line);
int thread_offload(int offload, pthread_t thread);
int dump_fd_stats(int fd, int log_level);
int ioctl(void* control, std::size_t length);

// packet_members.cc: packets in buffers of the rings
int register_recv_callback(int fd, vma_recv_callback_t callback, void* context);
int recvfrom_zcopy(int fd, void* room, std::size_t bytes, int* flags, sockaddr* from, socklen_t* from_length);
int free_packets(int fd, vma_packet_t* packets, std::size_t count);

// ring_members.cc: the ring of a socket
int get_socket_rings_num(int fd);
int get_socket_rings_fds(int fd, int* ring_fds, int room);

// event_members.cc: SocketXtreme
int socketxtreme_poll(int ring_fd, vma_completion_t* completions, unsigned int count, int flags);
int socketxtreme_free_vma_packets(vma_packet_desc_t* packets, int count);
int socketxtreme_ref_vma_buff(vma_buff_t* buffer);
int socketxtreme_free_vma_buff(vma_buff_t* buffer);

// absent_members.cc: what a library may bring, as it answers without
int get_socket_tx_ring_fd(int fd, sockaddr* to, socklen_t length);
int get_socket_network_header(int fd, void* room, std::uint16_t* length);
int vma_modify_ring(vma_modify_ring_attr* wish);
int vma_add_ring_profile(vma_ring_type_attr* profile, int* key);
int vma_cyclic_buffer_read(int fd, vma_completion_cb_t* completion, std::size_t least, std::size_t most, int flags);
int get_mem_info(int fd, void** address, std::size_t* length, std::uint32_t* key);
// No ring of ours puts queues of a network card into the program's hands.
int get_ring_direct_descriptors(int ring_fd, vma_mlx_hw_device_data* data);
int register_memory_on_ring(int ring_fd, void* address, std::size_t length, std::uint32_t* key);
int deregister_memory_on_ring(int ring_fd, void* address, std::size_t length);

}  // namespace ringsock::vma::extra
