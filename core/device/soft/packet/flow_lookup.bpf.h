/* Look-up of a packet's flow, for all BPF programs here. */
#ifndef RINGSOCK_FLOW_LOOKUP_BPF_H
#define RINGSOCK_FLOW_LOOKUP_BPF_H

#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "core/device/soft/packet/flow_key.h"

#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_IPV6 0x86dd
#define PROTOCOL_TCP 6
#define PROTOCOL_UDP 17

struct ipv4_header {
  __u8 version_and_words, tos;
  __u16 total_bytes, identification, fragment;
  __u8 ttl, protocol;
  __u16 checksum;
  __u32 source, destination;
};

struct ipv6_header {
  __u32 version_class_flow;
  __u16 payload_bytes;
  __u8 next_header, hop_limit;
  __u32 source[4], destination[4];
};

struct ports {
  __u16 source, destination;
};

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, RINGSOCK_MAX_FLOWS);
  __type(key, struct flow_key);
  __type(value, __u32);
} flows SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct flow_hints);
} hints SEC(".maps");

static __always_inline int is_carried(__u8 protocol) { return protocol == PROTOCOL_TCP || protocol == PROTOCOL_UDP; }

/* Fills in `key`. Fragments have no ports, or only the first has: they are the kernel's. */
static __always_inline int read_ipv4(const struct ipv4_header* ip, struct flow_key* key) {
  if (ip->version_and_words >> 4 != 4 || (ip->version_and_words & 15) < 5) return 0;
  /* A length of zero: longer than 64 KiB. */
  if (ip->fragment & bpf_htons(0x3fff) || ip->total_bytes == 0) return 0;
  key->family = 4;
  key->protocol = ip->protocol;
  key->source[0] = ip->source;
  key->destination[0] = ip->destination;
  return is_carried(ip->protocol);
}

static __always_inline int read_ipv6(const struct ipv6_header* ip, struct flow_key* key) {
  if (ip->payload_bytes == 0) return 0;
  key->family = 6;
  key->protocol = ip->next_header;
  __builtin_memcpy(key->source, ip->source, sizeof key->source);
  __builtin_memcpy(key->destination, ip->destination, sizeof key->destination);
  return is_carried(ip->next_header);
}

/* The ring that a complete key, whose `ring` is zero for unicast, leads to; 0: the kernel's. Rules with a source go
   first. */
static __always_inline __u32 find_ring(struct flow_key* key) {
  const __u32 only = 0;
  const struct flow_hints* hint = bpf_map_lookup_elem(&hints, &only);
  const __u32* ring;
  if (hint && hint->exact_flows) {
    ring = bpf_map_lookup_elem(&flows, key);
    if (ring) return *ring;
  }
  __builtin_memset(key->source, 0, sizeof key->source);
  key->source_port = 0;
  ring = bpf_map_lookup_elem(&flows, key);
  return ring ? *ring : 0;
}

#endif
