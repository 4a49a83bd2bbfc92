/* What the BPF programs and the process that loads them tell each other. C, without any system header but types. */
#ifndef RINGSOCK_FLOW_KEY_H
#define RINGSOCK_FLOW_KEY_H

#include <linux/types.h>

#define RINGSOCK_MAX_RINGS 256
#define RINGSOCK_RING_WORDS (RINGSOCK_MAX_RINGS / 64)
#define RINGSOCK_MAX_FLOWS 16384
/* A page, or several where pages are large. */
#define RINGSOCK_ALARM_BYTES 65536

/* One rule, as a key of the map of flows. Source address and port are zero in a rule for packets from anybody.
   Unicast packets have one ring: the key's `ring` is zero, the value tells it. Multicast and broadcast may go to many:
   the ring is part of the key. */
struct flow_key {
  __u32 destination[4]; /* network order; IPv4: the first word, the others zero */
  __u32 source[4];
  __u16 destination_port; /* network order */
  __u16 source_port;
  __u16 vlan; /* 0: no tag */
  __u8 protocol;
  __u8 family; /* 4 or 6 */
  __u32 ring;  /* number of the ring, 1.., or 0 */
};

/* The only entry of the map of hints: spares look-ups. */
struct flow_hints {
  __u32 exact_flows; /* how many rules have a source */
};

/* What one ring's filter is told when it is loaded. */
struct filter_settings {
  __u32 ring;
  __u32 takes_udp_segments; /* datagrams that were put together; without it they are the kernel's */
};

/* Queues of an interface that have AF_XDP sockets, at most. */
#define RINGSOCK_MAX_XDP_QUEUES 64

/* The only entry of the map that tells what the program at the driver takes: frames to one ring. */
struct xdp_target {
  __u32 ring; /* 0: nothing */
  __u32 max_bytes;
  __u8 mac[6]; /* of the interface */
  __u8 unused[2];
};

/* The only entry of the map by which a ring's reader and the program that fills the ring tell each other how they get
   on. The program raises an alarm when it has put in `alarm_after` since it last saw that the reader takes some. */
struct ring_backlog {
  /* Written by the reader. */
  __u32 attended;    /* changes while frames are taken, now and then */
  __u32 alarm_after; /* 0: no alarms */
  __u32 unused[14];  /* a cache line of its own */
  /* Written by the program. */
  __u32 seen; /* `attended`, last */
  __u32 count;
};

/* The only entry, per CPU, of the map of what was taken: bit n of the words is ring n + 1. */
struct taken_by {
  __u64 rings[RINGSOCK_RING_WORDS];  /* instead of the kernel */
  __u64 copies[RINGSOCK_RING_WORDS]; /* beside the kernel */
};

/* What a packet that a ring took beside the kernel carries as tc_index, for socket filters of kernel sockets. */
#define RINGSOCK_COPY_MARK 0x5273

#endif
