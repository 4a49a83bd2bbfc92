// Options for the Ethernet rings of a process.
#pragma once

#include <cstddef>

#include "core/verbs/pages.h"

namespace ringsock::ethernet {

struct RingSettings {
  unsigned receive_entries = 4096;  ///< posted receives
  unsigned send_entries = 256;
  unsigned sends_per_completion = 64;  ///< number of sends for which the device makes one completion
  unsigned batch = 16;                 ///< most packets taken at a time, at most 16
  bool makes_trains = true;            ///< the datagrams of a burst leave together (bursts.h)
  /// Most packets that the service thread takes at a time when the application takes none; 0: it takes none.
  unsigned most_drained = 10000;
};
/// Most entries of a queue.
inline constexpr unsigned kMostRingEntries = 16384;

struct InterfaceOptions {
  bool card_rings = true;   ///< use network cards that have raw packet queue pairs
  bool xdp = false;         ///< use AF_XDP sockets beside the packet socket
  bool huge_pages = false;  ///< put buffers on huge pages if there are any
  std::size_t most_buffers = 200000;
  verbs::UserMemory memory{};  ///< where buffers come from; none: mappings
};

struct EthernetOptions {
  InterfaceOptions interface;
  RingSettings ring;
  std::size_t most_rings = 0;         ///< per interface; 0: no limit
  bool ignores_netfilter = false;     ///< rings carry packets that netfilter rules may concern
  const char* netfilter_advice = "";  ///< for the log: how to set ignores_netfilter; begins with a separator
};

}  // namespace ringsock::ethernet
