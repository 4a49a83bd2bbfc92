/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The Extra API of VMA as libvma of ringsock has it: its functions are reached by a table of pointers. Binary
 * compatible with <mellanox/vma_extra.h> of VMA 9.3.0 to 9.8.84, on 64-bit hosts. Cyclic buffers, which VMA had up to
 * 9.2, are behind that table; VMA_EXTRA_API_LAYOUT=8.9 has the table of VMA 8.8.2 to 9.2 instead.
 *
 * Each function returns -1 and errno when it fails, unless its comment says otherwise. All of them may be called at any
 * time and with any descriptor. libvma(7) has the details.
 */
#ifndef MELLANOX_VMA_EXTRA_H
#define MELLANOX_VMA_EXTRA_H

#include <netinet/in.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Flags of recvfrom_zcopy(). */
enum {
  MSG_VMA_ZCOPY_FORCE = 0x01000000, /* in: fail rather than copy */
  MSG_VMA_ZCOPY = 0x00040000        /* out: the buffer has a vma_packets_t */
};
/* Flag of send(2) and the like: run the path of a send, and send nothing. */
#define VMA_SND_FLAGS_DUMMY MSG_SYN

/* Options of level SOL_SOCKET. */
enum {
  SO_VMA_GET_API = 2800,          /* get, descriptor -1: struct vma_api_t*; see vma_get_api() */
  SO_VMA_USER_DATA = 2801,        /* set, get: void* */
  SO_VMA_RING_ALLOC_LOGIC = 2810, /* set: struct vma_ring_alloc_logic_attr */
  SO_VMA_RING_USER_MEMORY = 2811, /* set: struct iovec */
  SO_VMA_FLOW_TAG = 2820,         /* set, get: uint32_t */
  SO_VMA_SHUTDOWN_RX = 2821       /* set: rings bring nothing more; the kernel's socket receives */
};

/* Control data of ioctl(): struct vma_cmsg_ioctl_user_alloc_t. */
enum { CMSG_VMA_IOCTL_USER_ALLOC = 2900 };
enum { VMA_IOCTL_USER_ALLOC_FLAG_TX = 1 << 0, VMA_IOCTL_USER_ALLOC_FLAG_RX = 1 << 1 };

/* The pools of the library get their memory by these functions. */
#pragma pack(push, 1)
struct vma_cmsg_ioctl_user_alloc_t {
  uint8_t flags;
  void* (*memalloc)(size_t size);
  void (*memfree)(void* memory);
};
#pragma pack(pop)

/* Answers of a receive callback. */
typedef enum vma_recv_callback_retval_t {
  VMA_PACKET_DROP, /* the library may use the buffer again */
  VMA_PACKET_RECV, /* the packet is queued for the socket */
  VMA_PACKET_HOLD  /* the application has the packet until free_packets() */
} vma_recv_callback_retval_t;

/* Events of socketxtreme_poll(), beside those of epoll(7). */
typedef enum vma_socketxtreme_events_t {
  VMA_SOCKETXTREME_PACKET = (1ULL << 32),
  VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED = (1ULL << 33)
} vma_socketxtreme_events_t;

/* A part of a packet. */
struct vma_buff_t {
  struct vma_buff_t* next;
  void* payload;
  uint16_t len;
};

struct vma_packet_desc_t {
  size_t num_bufs;
  uint16_t total_len;
  struct vma_buff_t* buff_lst;
  struct timespec hw_timestamp;
};

struct vma_completion_t {
  struct vma_packet_desc_t packet;
  uint64_t events;
  uint64_t user_data; /* SO_VMA_USER_DATA, or the descriptor */
  struct sockaddr_in src;
  int listen_fd;
};

#pragma pack(push, 1)
/* One packet of recvfrom_zcopy(). The next one begins behind the last of its parts. */
struct vma_packet_t {
  void* packet_id;
  size_t sz_iov;
  struct iovec iov[];
};

struct vma_packets_t {
  size_t n_packet_num;
  struct vma_packet_t pkts[];
};

/* What a receive callback is told of a packet. */
struct vma_info_t {
  size_t struct_sz;
  void* packet_id;
  struct sockaddr_in* src;
  struct sockaddr_in* dst;
  size_t payload_sz;
  uint32_t socket_ready_queue_pkt_count;
  uint32_t socket_ready_queue_byte_count;
  struct timespec hw_timestamp;
  struct timespec sw_timestamp;
};
#pragma pack(pop)

/* The other form of SO_MAX_PACING_RATE. */
struct vma_rate_limit_t {
  uint32_t rate;           /* kbit/s */
  uint32_t max_burst_sz;   /* bytes */
  uint16_t typical_pkt_sz; /* bytes */
};

/* Which sockets share a ring. */
typedef enum ring_logic_t {
  RING_LOGIC_PER_INTERFACE = 0,
  RING_LOGIC_PER_IP = 1,
  RING_LOGIC_PER_SOCKET = 10,
  RING_LOGIC_PER_USER_ID = 11,
  RING_LOGIC_PER_THREAD = 20,
  RING_LOGIC_PER_CORE = 30,
  RING_LOGIC_PER_CORE_ATTACH_THREADS = 31,
  RING_LOGIC_LAST
} ring_logic_t;

/* Fields of vma_ring_alloc_logic_attr that count. */
typedef enum vma_ring_alloc_logic_attr_comp_mask {
  VMA_RING_ALLOC_MASK_RING_PROFILE_KEY = (1 << 0),
  VMA_RING_ALLOC_MASK_RING_USER_ID = (1 << 1),
  VMA_RING_ALLOC_MASK_RING_INGRESS = (1 << 2),
  VMA_RING_ALLOC_MASK_RING_ENGRESS = (1 << 3)
} vma_ring_alloc_logic_attr_comp_mask;

struct vma_ring_alloc_logic_attr {
  uint32_t comp_mask;
  ring_logic_t ring_alloc_logic;
  uint32_t ring_profile_key;
  uint32_t user_id;
  uint32_t ingress : 1; /* for receiving */
  uint32_t engress : 1; /* for sending */
  uint32_t reserved : 30;
};

struct vma_cq_moderation_attr {
  uint32_t cq_moderation_count;
  uint32_t cq_moderation_period_usec;
};

struct vma_cq_arm_attr {
#ifdef __cplusplus
  char nothing; /* an empty structure of C++ has this size, too */
#endif
};

typedef enum vma_modify_ring_mask {
  VMA_MODIFY_RING_CQ_MODERATION = (1 << 0),
  VMA_MODIFY_RING_CQ_ARM = (1 << 1)
} vma_modify_ring_mask;

struct vma_modify_ring_attr {
  uint32_t comp_bit_mask;
  int ring_fd;
  union {
    struct vma_cq_moderation_attr cq_moderation;
    struct vma_cq_arm_attr cq_arm;
  };
};

/* Profiles of rings. */
typedef int vma_ring_profile_key;
typedef enum vma_ring_type {
  VMA_RING_PACKET,
  VMA_RING_EXTERNAL_MEM,
  VMA_RING_CYCLIC_BUFFER /* in VMA 8.8.2 to 9.2 it is 1, and VMA_RING_EXTERNAL_MEM is 2 */
} vma_ring_type;
typedef enum vma_ring_type_attr_mask { VMA_RING_ATTR_LAST } vma_ring_type_attr_mask;

struct vma_packet_queue_ring_attr {
  uint32_t comp_mask;
};

struct vma_external_mem_attr {
  uint32_t comp_mask;
};

/* Fields of vma_cyclic_buffer_ring_attr that count. */
typedef enum vma_cb_ring_attr_mask {
  VMA_CB_HDR_BYTE = (1 << 0),    /* hdr_bytes */
  VMA_CB_EXTERNAL_MEM = (1 << 1) /* the buffer is the memory of SO_VMA_RING_USER_MEMORY */
} vma_cb_ring_attr_mask;

/* What is at the beginning of each stride. */
typedef enum vma_packet_receive_mode {
  RAW_PACKET,            /* the frame, from Ethernet on */
  STRIP_NETWORK_HDRS,    /* the payload */
  SEPERATE_NETWORK_HDRS, /* the payload; the network headers are in the area of headers */
  PADDED_PACKET          /* the frame, with zeros up to the next stride */
} vma_packet_receive_mode;

/* A socket with such a ring has a buffer of `num` datagrams, each in a stride of its own. */
struct vma_cyclic_buffer_ring_attr {
  uint32_t comp_mask;
  uint32_t num;
  uint16_t stride_bytes;
  uint16_t hdr_bytes; /* the first bytes of the payload are in the area of headers, too, and not in the stride */
  vma_packet_receive_mode packet_receive_mode;
};

/* Of types but VMA_RING_CYCLIC_BUFFER only the first 12 bytes are read. */
struct vma_ring_type_attr {
  uint32_t comp_mask;
  vma_ring_type ring_type;
  union {
    struct vma_cyclic_buffer_ring_attr ring_cyclicb;
    struct vma_packet_queue_ring_attr ring_pktq;
    struct vma_external_mem_attr ring_ext;
  };
};

/* Fields of vma_completion_cb_t that count. */
typedef enum vma_cb_completion_mask { VMA_CB_MASK_TIMESTAMP = (1 << 0) } vma_cb_completion_mask;

/* What vma_cyclic_buffer_read() has found: datagrams in a row. */
struct vma_completion_cb_t {
  uint32_t comp_mask;    /* in: what is wanted; out: what there is */
  void* payload_ptr;     /* the first stride */
  size_t payload_length; /* of all strides, in bytes */
  size_t packets;
  void* usr_hdr_ptr; /* the headers of the first one; NULL: they are not separated */
  size_t usr_hdr_ptr_length;
  struct timespec hw_timestamp; /* of the first one */
};

/* Queues of a card's ring in memory. */
typedef enum mlx_hw_device_cap { VMA_HW_PP_EN = (1 << 0), VMA_HW_PP_BURST_EN = (1 << 3) } mlx_hw_device_cap;
typedef enum vma_mlx_hw_valid_data_mask { DATA_VALID_DEV, DATA_VALID_SQ, DATA_VALID_RQ } vma_mlx_hw_valid_data_mask;

struct dev_data {
  uint32_t vendor_id;
  uint32_t vendor_part_id;
  uint32_t device_cap;
};

struct hw_cq_data {
  void* buf;
  volatile uint32_t* dbrec;
  uint32_t cq_size;
  uint32_t cqe_size;
  uint32_t cqn;
  void* uar;
  uint32_t* cons_idx;
};

struct hw_wq_data {
  void* buf;
  uint32_t wqe_cnt;
  uint32_t stride;
  volatile uint32_t* dbrec;
  struct hw_cq_data cq_data;
};

struct hw_rq_data {
  struct hw_wq_data wq_data;
  uint32_t* head;
  uint32_t* tail;
};

struct hw_sq_data {
  struct hw_wq_data wq_data;
  uint32_t sq_num;
  struct {
    void* reg;
    uint32_t size;
    uint32_t offset;
  } bf;
};

struct vma_mlx_hw_device_data {
  uint32_t valid_mask;
  struct dev_data dev_data;
  struct hw_sq_data sq_data;
  struct hw_rq_data rq_data;
};

/* Called for each packet that a ring brings to the socket. */
typedef vma_recv_callback_retval_t (*vma_recv_callback_t)(int fd, size_t sz_iov, struct iovec iov[],
                                                          struct vma_info_t* vma_info, void* context);

/* Bits of vma_extra_supported_mask: functions that work. */
typedef enum vma_extra_api_mask {
  VMA_EXTRA_API_REGISTER_RECV_CALLBACK = (1 << 0),
  VMA_EXTRA_API_RECVFROM_ZCOPY = (1 << 1),
  VMA_EXTRA_API_FREE_PACKETS = (1 << 2),
  VMA_EXTRA_API_ADD_CONF_RULE = (1 << 3),
  VMA_EXTRA_API_THREAD_OFFLOAD = (1 << 4),
  VMA_EXTRA_API_DUMP_FD_STATS = (1 << 5),
  VMA_EXTRA_API_SOCKETXTREME_POLL = (1 << 6),
  VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_PACKETS = (1 << 7),
  VMA_EXTRA_API_SOCKETXTREME_REF_VMA_BUFF = (1 << 8),
  VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_BUFF = (1 << 9),
  VMA_EXTRA_API_GET_SOCKET_RINGS_NUM = (1 << 10),
  VMA_EXTRA_API_GET_SOCKET_RINGS_FDS = (1 << 11),
  VMA_EXTRA_API_GET_SOCKET_TX_RING_FD = (1 << 12),
  VMA_EXTRA_API_GET_SOCKET_NETWORK_HEADER = (1 << 13),
  VMA_EXTRA_API_GET_RING_DIRECT_DESCRIPTORS = (1 << 14),
  VMA_EXTRA_API_CYCLIC_BUFFER_READ = (1 << 15),
  VMA_EXTRA_API_ADD_RING_PROFILE = (1 << 16),
  VMA_EXTRA_API_REGISTER_MEMORY_ON_RING = (1 << 17),
  VMA_EXTRA_API_DEREGISTER_MEMORY_ON_RING = (1 << 18),
  VMA_EXTRA_API_GET_MEM_INFO = (1 << 19),
  VMA_EXTRA_API_MODIFY_RING = (1 << 20),
  VMA_EXTRA_API_IOCTL = (1 << 21)
} vma_extra_api_mask;

#pragma pack(push, 1)
struct vma_api_t {
  /* Has `callback` called for each packet of `s`; NULL: no more. */
  int (*register_recv_callback)(int s, vma_recv_callback_t callback, void* context);
  /* Receives packets without copying: `buf` gets a vma_packets_t when MSG_VMA_ZCOPY is set in *flags afterwards. */
  int (*recvfrom_zcopy)(int s, void* buf, size_t len, int* flags, struct sockaddr* from, socklen_t* fromlen);
  /* Gives packets back that recvfrom_zcopy() returned, or a callback held. */
  int (*free_packets)(int s, struct vma_packet_t* pkts, size_t count);
  /* Adds a line of libvma.conf(5) in front of all rules. Returns 0, or 1 for a wrong line. */
  int (*add_conf_rule)(const char* config_line);
  /* Decides whether sockets that the thread makes from now on may use rings. */
  int (*thread_offload)(int offload, pthread_t tid);
  /* Returns how many completions of the ring it has filled in. Never blocks. */
  int (*socketxtreme_poll)(int fd, struct vma_completion_t* completions, unsigned int ncompletions, int flags);
  /* Returns the number of rings by which the socket receives; 0: none. */
  int (*get_socket_rings_num)(int fd);
  /* Fills in their descriptors, which can be polled. Returns how many. */
  int (*get_socket_rings_fds)(int fd, int* ring_fds, int ring_fds_sz);
  /* Returns the descriptor of the ring by which datagrams to `to` leave. */
  int (*get_socket_tx_ring_fd)(int sock_fd, struct sockaddr* to, socklen_t tolen);
  int (*socketxtreme_free_vma_packets)(struct vma_packet_desc_t* packets, int num);
  int (*socketxtreme_ref_vma_buff)(struct vma_buff_t* buff);
  int (*socketxtreme_free_vma_buff)(struct vma_buff_t* buff);
  /* Writes the socket's statistics to the log; 0: those of all sockets. */
  int (*dump_fd_stats)(int fd, int log_level);
  /* Stores a profile and fills in its key. */
  int (*vma_add_ring_profile)(struct vma_ring_type_attr* profile, int* key);
  /* Copies the headers of the connected socket's packets, from Ethernet on. NULL: only fills in their length. */
  int (*get_socket_network_header)(int fd, void* ptr, uint16_t* len);
  int (*get_ring_direct_descriptors)(int fd, struct vma_mlx_hw_device_data* data);
  int (*register_memory_on_ring)(int fd, void* addr, size_t length, uint32_t* key);
  int (*deregister_memory_on_ring)(int fd, void* addr, size_t length);
  /* Sets how seldom a ring wakes threads. */
  int (*vma_modify_ring)(struct vma_modify_ring_attr* mr_data);
  /* Bits of vma_extra_api_mask. */
  uint64_t vma_extra_supported_mask;
  /* Takes requests in the form of control data: CMSG_VMA_IOCTL_USER_ALLOC. */
  int (*ioctl)(void* cmsg_hdr, size_t cmsg_len);

  /* Here VMA's table ends. What follows is there if vma_extra_supported_mask has its bit. */
  /* Reads `min` to `max` datagrams of the cyclic buffer of a socket, or of a ring. */
  int (*vma_cyclic_buffer_read)(int fd, struct vma_completion_cb_t* completion, size_t min, size_t max, int flags);
  /* Fills in where that buffer is, and the key by which the ring's device may access it. */
  int (*get_mem_info)(int fd, void** addr, size_t* length, uint32_t* lkey);
};

/* The table of VMA 8.8.2 to 9.2, for programs that were built with the header of one of them. */
struct vma_api_8_9_t {
  int (*register_recv_callback)(int s, vma_recv_callback_t callback, void* context);
  int (*recvfrom_zcopy)(int s, void* buf, size_t len, int* flags, struct sockaddr* from, socklen_t* fromlen);
  int (*free_packets)(int s, struct vma_packet_t* pkts, size_t count);
  int (*add_conf_rule)(const char* config_line);
  int (*thread_offload)(int offload, pthread_t tid);
  int (*socketxtreme_poll)(int fd, struct vma_completion_t* completions, unsigned int ncompletions, int flags);
  int (*get_socket_rings_num)(int fd);
  int (*get_socket_rings_fds)(int fd, int* ring_fds, int ring_fds_sz);
  int (*get_socket_tx_ring_fd)(int sock_fd, struct sockaddr* to, socklen_t tolen);
  int (*socketxtreme_free_vma_packets)(struct vma_packet_desc_t* packets, int num);
  int (*socketxtreme_ref_vma_buff)(struct vma_buff_t* buff);
  int (*socketxtreme_free_vma_buff)(struct vma_buff_t* buff);
  int (*dump_fd_stats)(int fd, int log_level);
  int (*vma_cyclic_buffer_read)(int fd, struct vma_completion_cb_t* completion, size_t min, size_t max, int flags);
  int (*vma_add_ring_profile)(struct vma_ring_type_attr* profile, int* key);
  int (*get_socket_network_header)(int fd, void* ptr, uint16_t* len);
  int (*get_ring_direct_descriptors)(int fd, struct vma_mlx_hw_device_data* data);
  int (*register_memory_on_ring)(int fd, void* addr, size_t length, uint32_t* key);
  int (*deregister_memory_on_ring)(int fd, void* addr, size_t length);
  int (*get_mem_info)(int fd, void** addr, size_t* length, uint32_t* lkey);
  int (*vma_modify_ring)(struct vma_modify_ring_attr* mr_data);
  uint64_t vma_extra_supported_mask;
  int (*get_dpcp_devices)(uintptr_t* devices, size_t* devices_num); /* 9.0.1 to 9.2; always fails */
};
#pragma pack(pop)

/* Returns the table of the process, or NULL when the library is not there. */
static inline struct vma_api_t* vma_get_api(void) {
  struct vma_api_t* api = NULL;
  socklen_t length = sizeof(api);
  if (getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API, &api, &length) != 0 || length < (socklen_t)sizeof(api)) return NULL;
  return api;
}

#ifdef __cplusplus
}
#endif

#endif
