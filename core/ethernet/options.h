// How a process has its Ethernet rings.
#pragma once

#include <cstddef>

namespace ringsock::ethernet {

struct RingSettings {
  unsigned receive_entries = 4096;  ///< posted receives
  unsigned send_entries = 256;
  unsigned sends_per_completion = 64;  ///< how often a device tells that it has sent
  unsigned batch = 16;                 ///< packets taken at a time, at most 16
  bool makes_trains = true;            ///< datagrams of a burst leave together (bursts.h)
  /// Most packets that the service thread takes at a time when nobody else takes any; 0: it takes none.
  unsigned most_drained = 10000;
};
/// What a queue can have at most.
inline constexpr unsigned kMostRingEntries = 16384;

struct InterfaceOptions {
  bool card_rings = true;   ///< of network cards that have raw packet queue pairs
  bool xdp = false;         ///< AF_XDP sockets beside the packet socket
  bool huge_pages = false;  ///< buffers in slabs that are put on huge pages where there are any
  std::size_t most_buffers = 200000;
};

struct EthernetOptions {
  InterfaceOptions interface;
  RingSettings ring;
  std::size_t most_rings = 0;         ///< of an interface; 0: as many as are asked for
  bool ignores_netfilter = false;     ///< rings carry what rules of netfilter may concern
  const char* netfilter_advice = "";  ///< for the log: how to have that; begins with a separator
};

}  // namespace ringsock::ethernet
