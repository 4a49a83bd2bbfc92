/* Steering for AF_XDP sockets. A frame that the flow map directs to the target's ring, and that fits, goes into the
   socket of the queue that it came by, and nowhere else. All other frames take the ordinary path, where
   packet_steering.bpf.c uses the same map: TCP, groups, tags, fragments, frames in several pieces, queues without a
   socket. */
#include "core/device/packet/steering/flow_lookup.bpf.inc"

#include <bpf/bpf_core_read.h>

struct ethernet_header {
  __u8 destination[6], source[6];
  __u16 type;
};

/* The fields of the kernel's structures that are read; the loader sets the real offsets. */
struct xdp_buff___kernel {
  void* data_hard_start;
  __u32 frame_sz;
} __attribute__((preserve_access_index));
struct skb_shared_info___kernel {
  unsigned short gso_size;
} __attribute__((preserve_access_index));
extern void* bpf_cast_to_kern_ctx(void* context) __ksym;

struct {
  __uint(type, BPF_MAP_TYPE_XSKMAP);
  __uint(max_entries, RINGSOCK_MAX_XDP_QUEUES);
  __type(key, __u32);
  __type(value, __u32);
} sockets SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct xdp_target);
} target SEC(".maps");

static __always_inline int is_for_us(const struct ethernet_header* frame, const struct xdp_target* to) {
  __u8 difference = 0;
#pragma unroll
  for (int i = 0; i < 6; ++i) difference |= frame->destination[i] ^ to->mac[i];
  return difference == 0;
}

static __always_inline int read_headers(struct xdp_md* frame, const struct ethernet_header* ethernet, void* end,
                                        struct flow_key* key) {
  const struct ports* ports;
  if (ethernet->type == bpf_htons(ETHERTYPE_IPV4)) {
    const struct ipv4_header* ip = (const void*)(ethernet + 1);
    ports = (const void*)(ip + 1);
    /* Packets with options take the ordinary path. */
    if ((const void*)(ports + 1) > end || ip->version_and_words != 0x45 || !read_ipv4(ip, key)) return 0;
  } else if (ethernet->type == bpf_htons(ETHERTYPE_IPV6)) {
    const struct ipv6_header* ip = (const void*)(ethernet + 1);
    ports = (const void*)(ip + 1);
    if ((const void*)(ports + 1) > end || !read_ipv6(ip, key)) return 0;
  } else {
    return 0;
  }
  key->source_port = ports->source;
  key->destination_port = ports->destination;
  return key->protocol == PROTOCOL_UDP;
}

/* Writes the time of arrival in front of the frame, where it is copied to the socket's memory. Returns 0 on failure. */
static __always_inline int note_time(struct xdp_md* frame) {
  if (bpf_xdp_adjust_meta(frame, -(int)sizeof(__u64)) != 0) return 0;
  __u64* at = (void*)(long)frame->data_meta;
  if ((void*)(at + 1) > (void*)(long)frame->data) return 0;
  *at = bpf_ktime_get_ns();
  return 1;
}

static __always_inline int take(struct xdp_md* frame) {
  const __u32 only = 0;
  const struct ethernet_header* ethernet = (const void*)(long)frame->data;
  void* end = (void*)(long)frame->data_end;
  const struct xdp_target* to = bpf_map_lookup_elem(&target, &only);
  struct flow_key key = {};
  if (!to || to->ring == 0 || (const void*)(ethernet + 1) > end) return XDP_PASS;
  const __u64 bytes = (__u64)(frame->data_end - frame->data);
  if (bytes > to->max_bytes || bpf_xdp_get_buff_len(frame) != bytes || !is_for_us(ethernet, to)) return XDP_PASS;
  if (!read_headers(frame, ethernet, end, &key) || find_ring(&key) != to->ring) return XDP_PASS;
  if (!note_time(frame)) return XDP_PASS;
  count_taken((__u32)bytes);
  return bpf_redirect_map(&sockets, frame->rx_queue_index, XDP_PASS);
}

SEC("xdp.frags")
int take_at_driver(struct xdp_md* frame) { return take(frame); }

/* Behind the driver, a frame is a packet of the kernel, which may contain several datagrams (UDP_SEGMENT). Only the
   structure behind its data says so. Such frames take the ordinary path. */
SEC("xdp.frags")
int take_behind_driver(struct xdp_md* frame) {
  const struct xdp_buff___kernel* buffer = bpf_cast_to_kern_ctx(frame);
  const __u64 shared_bytes = (bpf_core_type_size(struct skb_shared_info___kernel) + 63) & ~63ULL;
  const struct skb_shared_info___kernel* shared = buffer->data_hard_start + buffer->frame_sz - shared_bytes;
  const unsigned short segment_bytes = BPF_CORE_READ(shared, gso_size);
  return segment_bytes ? XDP_PASS : take(frame);
}

char license_text[] SEC("license") = "Dual BSD/GPL";
