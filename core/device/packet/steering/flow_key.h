/* Data shared by the BPF programs and the process that loads them: plain C that needs only <linux/types.h>. */
#ifndef RINGSOCK_FLOW_KEY_H
#define RINGSOCK_FLOW_KEY_H

#include <linux/types.h>

#define RINGSOCK_MAX_RINGS 256
#define RINGSOCK_RING_WORDS (RINGSOCK_MAX_RINGS / 64)
#define RINGSOCK_MAX_FLOWS 16384
/* Must be a multiple of the page size: fits for pages of up to 64 KiB. */
#define RINGSOCK_ALARM_BYTES 65536

/* One rule, as a key of the map of flows. In a rule for packets from any source, source address and port are zero.
   Unicast packets go to one ring: `ring` is zero in the key, and the value is the ring. Multicast and broadcast may go
   to several rings, so the ring is part of the key. */
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

/* The only entry of the map of hints, which saves look-ups. */
struct flow_hints {
  __u32 exact_flows; /* the number of rules with a source */
};

/* The constants of one ring's filter, set when it is loaded. */
struct filter_settings {
  __u32 ring;
  __u32 takes_udp_segments; /* takes merged datagrams; 0: they are left to the kernel */
};

/* The most queues of an interface that have AF_XDP sockets. */
#define RINGSOCK_MAX_XDP_QUEUES 64

/* The only entry of the map that says which frames the program at the driver takes: those for one ring. */
struct xdp_target {
  __u32 ring; /* 0: nothing */
  __u32 max_bytes;
  __u8 mac[6]; /* of the interface */
  __u8 unused[2];
};

/* The only entry of the map that a ring's reader and the program that fills the ring share. The program raises an alarm
   when it has counted `alarm_after` since it last saw that the reader takes frames. */
struct ring_backlog {
  /* Written by the reader. */
  __u32 attended;    /* changes from time to time while frames are taken */
  __u32 alarm_after; /* 0: no alarms */
  __u32 unused[14];  /* a cache line of its own */
  /* Written by the program. */
  __u32 seen; /* the last value of `attended` */
  __u32 count;
};

/* The only entry, per CPU, of the map that says which rings have taken the frame, or may take it: bit n of the words is
   ring n + 1. */
struct taken_by {
  __u64 rings[RINGSOCK_RING_WORDS];  /* instead of the kernel */
  __u64 copies[RINGSOCK_RING_WORDS]; /* beside the kernel */
  __u64 barrier;                     /* of no meaning: to add to it is a full barrier */
};

/* tc_index of a packet that the kernel also gets after a ring has taken it; for filters of kernel sockets. */
#define RINGSOCK_COPY_MARK 0x5273

#endif
