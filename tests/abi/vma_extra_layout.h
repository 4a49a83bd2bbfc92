// Sizes and offsets of <mellanox/vma_extra.h> on 64-bit hosts, as programs that were built with VMA's header have them.
// Included by a C and a C++ program.
#pragma once

#include <mellanox/vma_extra.h>

#ifdef __cplusplus
#define ASSERT_HERE(condition) static_assert(condition, #condition)
#define ALIGNMENT(type) alignof(type)
#define EMPTY_STRUCT_BYTES 1
#else
#define ASSERT_HERE(condition) _Static_assert(condition, #condition)
#define ALIGNMENT(type) _Alignof(type)
#define EMPTY_STRUCT_BYTES 0
#endif
#define IS_AT(type, member, offset) ASSERT_HERE(offsetof(struct type, member) == (offset))
#define IS_BYTES(type, bytes, alignment) \
  ASSERT_HERE(sizeof(struct type) == (bytes) && ALIGNMENT(struct type) == (alignment))
#define IS_NUMBER(name, value) ASSERT_HERE((unsigned long long)(name) == (value))

// -- the table
IS_BYTES(vma_api_t, 184, 1);  // VMA's has 168
IS_AT(vma_api_t, register_recv_callback, 0);
IS_AT(vma_api_t, recvfrom_zcopy, 8);
IS_AT(vma_api_t, free_packets, 16);
IS_AT(vma_api_t, add_conf_rule, 24);
IS_AT(vma_api_t, thread_offload, 32);
IS_AT(vma_api_t, socketxtreme_poll, 40);
IS_AT(vma_api_t, get_socket_rings_num, 48);
IS_AT(vma_api_t, get_socket_rings_fds, 56);
IS_AT(vma_api_t, get_socket_tx_ring_fd, 64);
IS_AT(vma_api_t, socketxtreme_free_vma_packets, 72);
IS_AT(vma_api_t, socketxtreme_ref_vma_buff, 80);
IS_AT(vma_api_t, socketxtreme_free_vma_buff, 88);
IS_AT(vma_api_t, dump_fd_stats, 96);
IS_AT(vma_api_t, vma_add_ring_profile, 104);
IS_AT(vma_api_t, get_socket_network_header, 112);
IS_AT(vma_api_t, get_ring_direct_descriptors, 120);
IS_AT(vma_api_t, register_memory_on_ring, 128);
IS_AT(vma_api_t, deregister_memory_on_ring, 136);
IS_AT(vma_api_t, vma_modify_ring, 144);
IS_AT(vma_api_t, vma_extra_supported_mask, 152);
IS_AT(vma_api_t, ioctl, 160);
IS_AT(vma_api_t, vma_cyclic_buffer_read, 168);
IS_AT(vma_api_t, get_mem_info, 176);

// -- the table of VMA 8.8.2 to 9.2
IS_BYTES(vma_api_8_9_t, 184, 1);
IS_AT(vma_api_8_9_t, register_recv_callback, 0);
IS_AT(vma_api_8_9_t, recvfrom_zcopy, 8);
IS_AT(vma_api_8_9_t, free_packets, 16);
IS_AT(vma_api_8_9_t, add_conf_rule, 24);
IS_AT(vma_api_8_9_t, thread_offload, 32);
IS_AT(vma_api_8_9_t, socketxtreme_poll, 40);
IS_AT(vma_api_8_9_t, get_socket_rings_num, 48);
IS_AT(vma_api_8_9_t, get_socket_rings_fds, 56);
IS_AT(vma_api_8_9_t, get_socket_tx_ring_fd, 64);
IS_AT(vma_api_8_9_t, socketxtreme_free_vma_packets, 72);
IS_AT(vma_api_8_9_t, socketxtreme_ref_vma_buff, 80);
IS_AT(vma_api_8_9_t, socketxtreme_free_vma_buff, 88);
IS_AT(vma_api_8_9_t, dump_fd_stats, 96);
IS_AT(vma_api_8_9_t, vma_cyclic_buffer_read, 104);
IS_AT(vma_api_8_9_t, vma_add_ring_profile, 112);
IS_AT(vma_api_8_9_t, get_socket_network_header, 120);
IS_AT(vma_api_8_9_t, get_ring_direct_descriptors, 128);
IS_AT(vma_api_8_9_t, register_memory_on_ring, 136);
IS_AT(vma_api_8_9_t, deregister_memory_on_ring, 144);
IS_AT(vma_api_8_9_t, get_mem_info, 152);
IS_AT(vma_api_8_9_t, vma_modify_ring, 160);
IS_AT(vma_api_8_9_t, vma_extra_supported_mask, 168);
IS_AT(vma_api_8_9_t, get_dpcp_devices, 176);

// -- packets
IS_BYTES(vma_cmsg_ioctl_user_alloc_t, 17, 1);
IS_AT(vma_cmsg_ioctl_user_alloc_t, flags, 0);
IS_AT(vma_cmsg_ioctl_user_alloc_t, memalloc, 1);
IS_AT(vma_cmsg_ioctl_user_alloc_t, memfree, 9);
IS_BYTES(vma_buff_t, 24, 8);
IS_AT(vma_buff_t, next, 0);
IS_AT(vma_buff_t, payload, 8);
IS_AT(vma_buff_t, len, 16);
IS_BYTES(vma_packet_desc_t, 40, 8);
IS_AT(vma_packet_desc_t, num_bufs, 0);
IS_AT(vma_packet_desc_t, total_len, 8);
IS_AT(vma_packet_desc_t, buff_lst, 16);
IS_AT(vma_packet_desc_t, hw_timestamp, 24);
IS_BYTES(vma_completion_t, 80, 8);
IS_AT(vma_completion_t, packet, 0);
IS_AT(vma_completion_t, events, 40);
IS_AT(vma_completion_t, user_data, 48);
IS_AT(vma_completion_t, src, 56);
IS_AT(vma_completion_t, listen_fd, 72);
IS_BYTES(vma_packet_t, 16, 1);
IS_AT(vma_packet_t, packet_id, 0);
IS_AT(vma_packet_t, sz_iov, 8);
IS_AT(vma_packet_t, iov, 16);
IS_BYTES(vma_packets_t, 8, 1);
IS_AT(vma_packets_t, n_packet_num, 0);
IS_AT(vma_packets_t, pkts, 8);
IS_BYTES(vma_info_t, 80, 1);
IS_AT(vma_info_t, struct_sz, 0);
IS_AT(vma_info_t, packet_id, 8);
IS_AT(vma_info_t, src, 16);
IS_AT(vma_info_t, dst, 24);
IS_AT(vma_info_t, payload_sz, 32);
IS_AT(vma_info_t, socket_ready_queue_pkt_count, 40);
IS_AT(vma_info_t, socket_ready_queue_byte_count, 44);
IS_AT(vma_info_t, hw_timestamp, 48);
IS_AT(vma_info_t, sw_timestamp, 64);

// -- rings
IS_BYTES(vma_rate_limit_t, 12, 4);
IS_AT(vma_rate_limit_t, rate, 0);
IS_AT(vma_rate_limit_t, max_burst_sz, 4);
IS_AT(vma_rate_limit_t, typical_pkt_sz, 8);
IS_BYTES(vma_ring_alloc_logic_attr, 20, 4);
IS_AT(vma_ring_alloc_logic_attr, comp_mask, 0);
IS_AT(vma_ring_alloc_logic_attr, ring_alloc_logic, 4);
IS_AT(vma_ring_alloc_logic_attr, ring_profile_key, 8);
IS_AT(vma_ring_alloc_logic_attr, user_id, 12);
IS_BYTES(vma_cq_moderation_attr, 8, 4);
IS_AT(vma_cq_moderation_attr, cq_moderation_count, 0);
IS_AT(vma_cq_moderation_attr, cq_moderation_period_usec, 4);
ASSERT_HERE(sizeof(struct vma_cq_arm_attr) == EMPTY_STRUCT_BYTES);
IS_BYTES(vma_modify_ring_attr, 16, 4);
IS_AT(vma_modify_ring_attr, comp_bit_mask, 0);
IS_AT(vma_modify_ring_attr, ring_fd, 4);
IS_AT(vma_modify_ring_attr, cq_moderation, 8);
IS_AT(vma_modify_ring_attr, cq_arm, 8);
IS_BYTES(vma_packet_queue_ring_attr, 4, 4);
IS_BYTES(vma_external_mem_attr, 4, 4);
IS_BYTES(vma_ring_type_attr, 24, 4);  // from VMA 9.3.0 on 12, which suffice for the types that are there
IS_AT(vma_ring_type_attr, comp_mask, 0);
IS_AT(vma_ring_type_attr, ring_type, 4);
IS_AT(vma_ring_type_attr, ring_cyclicb, 8);
IS_AT(vma_ring_type_attr, ring_pktq, 8);
IS_AT(vma_ring_type_attr, ring_ext, 8);
ASSERT_HERE(sizeof(vma_ring_profile_key) == 4);
IS_BYTES(vma_cyclic_buffer_ring_attr, 16, 4);
IS_AT(vma_cyclic_buffer_ring_attr, comp_mask, 0);
IS_AT(vma_cyclic_buffer_ring_attr, num, 4);
IS_AT(vma_cyclic_buffer_ring_attr, stride_bytes, 8);
IS_AT(vma_cyclic_buffer_ring_attr, hdr_bytes, 10);
IS_AT(vma_cyclic_buffer_ring_attr, packet_receive_mode, 12);
IS_BYTES(vma_completion_cb_t, 64, 8);
IS_AT(vma_completion_cb_t, comp_mask, 0);
IS_AT(vma_completion_cb_t, payload_ptr, 8);
IS_AT(vma_completion_cb_t, payload_length, 16);
IS_AT(vma_completion_cb_t, packets, 24);
IS_AT(vma_completion_cb_t, usr_hdr_ptr, 32);
IS_AT(vma_completion_cb_t, usr_hdr_ptr_length, 40);
IS_AT(vma_completion_cb_t, hw_timestamp, 48);

// -- queues of cards
IS_BYTES(dev_data, 12, 4);
IS_AT(dev_data, vendor_id, 0);
IS_AT(dev_data, vendor_part_id, 4);
IS_AT(dev_data, device_cap, 8);
IS_BYTES(hw_cq_data, 48, 8);
IS_AT(hw_cq_data, buf, 0);
IS_AT(hw_cq_data, dbrec, 8);
IS_AT(hw_cq_data, cq_size, 16);
IS_AT(hw_cq_data, cqe_size, 20);
IS_AT(hw_cq_data, cqn, 24);
IS_AT(hw_cq_data, uar, 32);
IS_AT(hw_cq_data, cons_idx, 40);
IS_BYTES(hw_wq_data, 72, 8);
IS_AT(hw_wq_data, buf, 0);
IS_AT(hw_wq_data, wqe_cnt, 8);
IS_AT(hw_wq_data, stride, 12);
IS_AT(hw_wq_data, dbrec, 16);
IS_AT(hw_wq_data, cq_data, 24);
IS_BYTES(hw_rq_data, 88, 8);
IS_AT(hw_rq_data, wq_data, 0);
IS_AT(hw_rq_data, head, 72);
IS_AT(hw_rq_data, tail, 80);
IS_BYTES(hw_sq_data, 96, 8);
IS_AT(hw_sq_data, wq_data, 0);
IS_AT(hw_sq_data, sq_num, 72);
IS_AT(hw_sq_data, bf.reg, 80);
IS_AT(hw_sq_data, bf.size, 88);
IS_AT(hw_sq_data, bf.offset, 92);
IS_BYTES(vma_mlx_hw_device_data, 200, 8);
IS_AT(vma_mlx_hw_device_data, valid_mask, 0);
IS_AT(vma_mlx_hw_device_data, dev_data, 4);
IS_AT(vma_mlx_hw_device_data, sq_data, 16);
IS_AT(vma_mlx_hw_device_data, rq_data, 112);

// -- numbers
IS_NUMBER(MSG_VMA_ZCOPY_FORCE, 0x01000000);
IS_NUMBER(MSG_VMA_ZCOPY, 0x00040000);
IS_NUMBER(VMA_SND_FLAGS_DUMMY, 0x400);
IS_NUMBER(SO_VMA_GET_API, 2800);
IS_NUMBER(SO_VMA_USER_DATA, 2801);
IS_NUMBER(SO_VMA_RING_ALLOC_LOGIC, 2810);
IS_NUMBER(SO_VMA_RING_USER_MEMORY, 2811);
IS_NUMBER(SO_VMA_FLOW_TAG, 2820);
IS_NUMBER(SO_VMA_SHUTDOWN_RX, 2821);
IS_NUMBER(CMSG_VMA_IOCTL_USER_ALLOC, 2900);
IS_NUMBER(VMA_IOCTL_USER_ALLOC_FLAG_TX, 1);
IS_NUMBER(VMA_IOCTL_USER_ALLOC_FLAG_RX, 2);
IS_NUMBER(VMA_PACKET_DROP, 0);
IS_NUMBER(VMA_PACKET_RECV, 1);
IS_NUMBER(VMA_PACKET_HOLD, 2);
ASSERT_HERE(sizeof(vma_recv_callback_retval_t) == 4);
IS_NUMBER(VMA_SOCKETXTREME_PACKET, 1ULL << 32);
IS_NUMBER(VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED, 1ULL << 33);
ASSERT_HERE(sizeof(vma_socketxtreme_events_t) == 8);
IS_NUMBER(RING_LOGIC_PER_INTERFACE, 0);
IS_NUMBER(RING_LOGIC_PER_IP, 1);
IS_NUMBER(RING_LOGIC_PER_SOCKET, 10);
IS_NUMBER(RING_LOGIC_PER_USER_ID, 11);
IS_NUMBER(RING_LOGIC_PER_THREAD, 20);
IS_NUMBER(RING_LOGIC_PER_CORE, 30);
IS_NUMBER(RING_LOGIC_PER_CORE_ATTACH_THREADS, 31);
IS_NUMBER(RING_LOGIC_LAST, 32);
IS_NUMBER(VMA_RING_ALLOC_MASK_RING_PROFILE_KEY, 1);
IS_NUMBER(VMA_RING_ALLOC_MASK_RING_USER_ID, 2);
IS_NUMBER(VMA_RING_ALLOC_MASK_RING_INGRESS, 4);
IS_NUMBER(VMA_RING_ALLOC_MASK_RING_ENGRESS, 8);
IS_NUMBER(VMA_MODIFY_RING_CQ_MODERATION, 1);
IS_NUMBER(VMA_MODIFY_RING_CQ_ARM, 2);
IS_NUMBER(VMA_RING_PACKET, 0);
IS_NUMBER(VMA_RING_EXTERNAL_MEM, 1);
IS_NUMBER(VMA_RING_CYCLIC_BUFFER, 2);
IS_NUMBER(VMA_CB_HDR_BYTE, 1);
IS_NUMBER(VMA_CB_EXTERNAL_MEM, 2);
IS_NUMBER(VMA_CB_MASK_TIMESTAMP, 1);
IS_NUMBER(RAW_PACKET, 0);
IS_NUMBER(STRIP_NETWORK_HDRS, 1);
IS_NUMBER(SEPERATE_NETWORK_HDRS, 2);
IS_NUMBER(PADDED_PACKET, 3);
IS_NUMBER(VMA_RING_ATTR_LAST, 0);
IS_NUMBER(VMA_HW_PP_EN, 1);
IS_NUMBER(VMA_HW_PP_BURST_EN, 8);
IS_NUMBER(DATA_VALID_DEV, 0);
IS_NUMBER(DATA_VALID_SQ, 1);
IS_NUMBER(DATA_VALID_RQ, 2);
IS_NUMBER(VMA_EXTRA_API_REGISTER_RECV_CALLBACK, 1 << 0);
IS_NUMBER(VMA_EXTRA_API_RECVFROM_ZCOPY, 1 << 1);
IS_NUMBER(VMA_EXTRA_API_FREE_PACKETS, 1 << 2);
IS_NUMBER(VMA_EXTRA_API_ADD_CONF_RULE, 1 << 3);
IS_NUMBER(VMA_EXTRA_API_THREAD_OFFLOAD, 1 << 4);
IS_NUMBER(VMA_EXTRA_API_DUMP_FD_STATS, 1 << 5);
IS_NUMBER(VMA_EXTRA_API_SOCKETXTREME_POLL, 1 << 6);
IS_NUMBER(VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_PACKETS, 1 << 7);
IS_NUMBER(VMA_EXTRA_API_SOCKETXTREME_REF_VMA_BUFF, 1 << 8);
IS_NUMBER(VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_BUFF, 1 << 9);
IS_NUMBER(VMA_EXTRA_API_GET_SOCKET_RINGS_NUM, 1 << 10);
IS_NUMBER(VMA_EXTRA_API_GET_SOCKET_RINGS_FDS, 1 << 11);
IS_NUMBER(VMA_EXTRA_API_GET_SOCKET_TX_RING_FD, 1 << 12);
IS_NUMBER(VMA_EXTRA_API_GET_SOCKET_NETWORK_HEADER, 1 << 13);
IS_NUMBER(VMA_EXTRA_API_GET_RING_DIRECT_DESCRIPTORS, 1 << 14);
IS_NUMBER(VMA_EXTRA_API_CYCLIC_BUFFER_READ, 1 << 15);
IS_NUMBER(VMA_EXTRA_API_ADD_RING_PROFILE, 1 << 16);
IS_NUMBER(VMA_EXTRA_API_REGISTER_MEMORY_ON_RING, 1 << 17);
IS_NUMBER(VMA_EXTRA_API_DEREGISTER_MEMORY_ON_RING, 1 << 18);
IS_NUMBER(VMA_EXTRA_API_GET_MEM_INFO, 1 << 19);
IS_NUMBER(VMA_EXTRA_API_MODIFY_RING, 1 << 20);
IS_NUMBER(VMA_EXTRA_API_IOCTL, 1 << 21);
ASSERT_HERE(sizeof(vma_extra_api_mask) == 4);
