/* Steering for rings of packet sockets. take_into_ring() is the socket filter of one ring. A packet socket sees a frame
   before tc does, on the same CPU and in the same softirq, with nothing in between. So the filter notes for this CPU
   whether its ring takes the frame, and keep_from_kernel(), at tc ingress, drops a frame that a ring has taken. Thus
   each unicast packet goes either to a ring or to the kernel, even while rules change. Multicast and broadcast go to
   the kernel, too; a packet that a ring has taken is marked, so that a socket that has it from the ring can refuse the
   kernel's copy.
   The note is also there from before the filter looks the flow up until the frame is in the ring. So a process that has
   removed a flow knows from the notes of all CPUs when its last frame is in the ring (frames_under_way.h). */
#include "core/device/packet/steering/flow_lookup.bpf.inc"

#define ETHERNET_BYTES 14
#define PROTOCOL_FRAGMENT 44 /* the fragment header of IPv6 */
/* The time for which a packet's identification is not used again. */
#define REUSE_NS 1000000000ULL
/* enum values of <linux/if_packet.h> */
#define TO_US 0
#define TO_ALL 1
#define TO_GROUP 2

#define TAKE 0xffffffff
#define LEAVE 0
/* TCX_NEXT and TC_ACT_UNSPEC: the next program decides. */
#define TC_NEXT (-1)
#define TC_DROP 2

const volatile struct filter_settings settings = {};

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct taken_by);
} taken SEC(".maps");

static __always_inline int read_headers(struct __sk_buff* frame, struct flow_key* key) {
  struct ports ports;
  __u32 ports_at;
  if (frame->protocol == bpf_htons(ETHERTYPE_IPV4)) {
    struct ipv4_header ip;
    if (bpf_skb_load_bytes(frame, ETHERNET_BYTES, &ip, sizeof ip) < 0 || !read_ipv4(&ip, key)) return 0;
    ports_at = ETHERNET_BYTES + (ip.version_and_words & 15) * 4;
  } else if (frame->protocol == bpf_htons(ETHERTYPE_IPV6)) {
    struct ipv6_header ip;
    if (bpf_skb_load_bytes(frame, ETHERNET_BYTES, &ip, sizeof ip) < 0 || !read_ipv6(&ip, key)) return 0;
    ports_at = ETHERNET_BYTES + sizeof ip;
  } else {
    return 0;
  }
  if (bpf_skb_load_bytes(frame, ports_at, &ports, sizeof ports) < 0) return 0;
  key->source_port = ports.source;
  key->destination_port = ports.destination;
  /* The kernel has removed the tag; id 0 carries a priority only, and is no VLAN. */
  if (frame->vlan_present) key->vlan = frame->vlan_tci & 0xfff;
  return 1;
}

/* The owner, ring or kernel, of a packet whose first fragment has come. */
struct fragment_name {
  __u32 source[4], destination[4];
  __u32 identification;
  __u32 family;
};
struct fragment_owner {
  __u64 since_ns;
  __u64 is_ring;
};
struct {
  __uint(type, BPF_MAP_TYPE_LRU_HASH);
  __uint(max_entries, 2048);
  __type(key, struct fragment_name);
  __type(value, struct fragment_owner);
} fragments SEC(".maps");

struct fragment_header {
  __u8 next_header, reserved;
  __u16 offset_and_more;
  __u32 identification;
};

/* Returns 1 for the first fragment of a UDP packet, and sets the packet's `key`; 0 for a later one; -1 otherwise. */
static __always_inline int read_fragment(struct __sk_buff* frame, struct fragment_name* name, struct flow_key* key) {
  struct ports ports;
  __u32 ports_at;
  if (frame->protocol == bpf_htons(ETHERTYPE_IPV4)) {
    struct ipv4_header ip;
    if (bpf_skb_load_bytes(frame, ETHERNET_BYTES, &ip, sizeof ip) < 0 || ip.version_and_words >> 4 != 4) return -1;
    if ((ip.version_and_words & 15) < 5 || ip.protocol != PROTOCOL_UDP || !(ip.fragment & bpf_htons(0x3fff))) return -1;
    name->family = key->family = 4;
    name->identification = ip.identification;
    name->source[0] = key->source[0] = ip.source;
    name->destination[0] = key->destination[0] = ip.destination;
    if (ip.fragment & bpf_htons(0x1fff)) return 0;
    ports_at = ETHERNET_BYTES + (ip.version_and_words & 15) * 4;
  } else if (frame->protocol == bpf_htons(ETHERTYPE_IPV6)) {
    struct ipv6_header ip;
    struct fragment_header fragment;
    if (bpf_skb_load_bytes(frame, ETHERNET_BYTES, &ip, sizeof ip) < 0 || ip.next_header != PROTOCOL_FRAGMENT) return -1;
    if (bpf_skb_load_bytes(frame, ETHERNET_BYTES + sizeof ip, &fragment, sizeof fragment) < 0) return -1;
    if (fragment.next_header != PROTOCOL_UDP) return -1;
    name->family = key->family = 6;
    name->identification = fragment.identification;
    __builtin_memcpy(name->source, ip.source, sizeof name->source);
    __builtin_memcpy(name->destination, ip.destination, sizeof name->destination);
    __builtin_memcpy(key->source, ip.source, sizeof key->source);
    __builtin_memcpy(key->destination, ip.destination, sizeof key->destination);
    if (fragment.offset_and_more & bpf_htons(0xfff8)) return 0;
    ports_at = ETHERNET_BYTES + sizeof ip + sizeof fragment;
  } else {
    return -1;
  }
  if (bpf_skb_load_bytes(frame, ports_at, &ports, sizeof ports) < 0) return -1;
  key->protocol = PROTOCOL_UDP;
  key->source_port = ports.source;
  key->destination_port = ports.destination;
  if (frame->vlan_present) key->vlan = frame->vlan_tci & 0xfff;
  return 1;
}

enum share { NOTHING, ALL, COPY };

/* Only the first fragment has ports, so it decides the owner of the packet. Fragments that come before it go to both
   ring and kernel; the one that does not get the first fragment drops the others after a time. */
static __always_inline enum share share_of_fragment(struct __sk_buff* frame, __u32 this_ring) {
  struct fragment_name name = {};
  struct flow_key key = {};
  const int is_first = read_fragment(frame, &name, &key);
  if (is_first < 0) return NOTHING;
  const __u64 now_ns = bpf_ktime_get_ns();
  if (!is_first) {
    const struct fragment_owner* owner = bpf_map_lookup_elem(&fragments, &name);
    if (!owner || now_ns - owner->since_ns > REUSE_NS) return COPY;
    return owner->is_ring ? ALL : NOTHING;
  }
  key.ring = frame->pkt_type == TO_US ? 0 : this_ring;
  const struct fragment_owner owner = {.since_ns = now_ns, .is_ring = find_ring(&key) == this_ring};
  /* If the owner cannot be stored, the other fragments go to both. */
  bpf_map_update_elem(&fragments, &name, &owner, BPF_ANY);
  return owner.is_ring ? ALL : NOTHING;
}

static __always_inline void write_bit(__u64* words, __u32 bit, int value) {
  const __u64 mask = 1ULL << (bit % 64);
  if (value)
    words[bit / 64] |= mask;
  else
    words[bit / 64] &= ~mask;
}

SEC("socket")
int take_into_ring(struct __sk_buff* frame) {
  const __u32 only = 0;
  const __u32 this_ring = settings.ring, bit = this_ring - 1;
  struct flow_key key = {};
  int mine = 0, copied = 0;
  struct taken_by* by = bpf_map_lookup_elem(&taken, &only);
  if (!by || bit >= RINGSOCK_MAX_RINGS) return LEAVE;
  if (frame->pkt_type <= TO_GROUP) {
    write_bit(by->rings, bit, 1);
    /* A full barrier: when a process does not see the bit, this look-up sees that the process has removed its flow. */
    __sync_fetch_and_add(&by->barrier, 1);
    if (!read_headers(frame, &key)) {
      const enum share share = share_of_fragment(frame, this_ring);
      mine = share == ALL;
      copied = share == COPY;
    } else if (settings.takes_udp_segments || key.protocol != PROTOCOL_UDP || frame->gso_size == 0) {
      key.ring = frame->pkt_type == TO_US ? 0 : this_ring;
      mine = find_ring(&key) == this_ring;
    }
  }
  /* Always written, because bits of this CPU's last frame must not apply to this one. Multicast and broadcast also have
     receivers other than the ring. */
  write_bit(by->rings, bit, mine && frame->pkt_type == TO_US);
  write_bit(by->copies, bit, mine && frame->pkt_type != TO_US);
  if (!mine && !copied) return LEAVE;
  count_taken(frame->len);
  return TAKE;
}

SEC("tc")
int keep_from_kernel(struct __sk_buff* frame) {
  const __u32 only = 0;
  struct taken_by* by = bpf_map_lookup_elem(&taken, &only);
  __u64 any = 0, copied = 0;
  if (!by) return TC_NEXT;
#pragma unroll
  for (int i = 0; i < RINGSOCK_RING_WORDS; ++i) {
    any |= by->rings[i];
    copied |= by->copies[i];
    by->rings[i] = by->copies[i] = 0;
  }
  if (copied) frame->tc_index = RINGSOCK_COPY_MARK;
  return any ? TC_DROP : TC_NEXT;
}

char license_text[] SEC("license") = "Dual BSD/GPL";
