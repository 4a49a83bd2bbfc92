// Options for the Ethernet rings of a process.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "core/base/clock.h"
#include "core/verbs/pages.h"

namespace ringsock::ethernet {

/// What a card would call moderation of interrupts: a thread that a ring wakes waits for more packets.
struct Moderation {
  std::uint16_t packets = 0;  ///< only shown: packets that come meanwhile wait in the device's ring
  std::chrono::microseconds period{0};
  bool operator==(const Moderation&) const = default;
};
/// The bounds of moderation that follows the traffic.
struct AdaptiveLimits {
  Nanos interval{};  ///< at which it is set anew; zero: never
  std::uint16_t packets = 560;
  std::chrono::microseconds period{250};
  unsigned wake_ups_per_second = 5000;
};

struct RingSettings {
  unsigned receive_entries = 4096;  ///< posted receives
  unsigned send_entries = 256;
  unsigned sends_per_completion = 64;  ///< number of sends for which the device makes one completion
  unsigned batch = 16;                 ///< most packets taken at a time, at most 16
  bool makes_trains = true;            ///< the datagrams of a burst leave together (bursts.h)
  /// Most packets that the service thread takes at a time when the application takes none; 0: it takes none.
  unsigned most_drained = 10000;
  unsigned prefetch_bytes = 0;       ///< of each packet, loaded into the cache before it is delivered
  unsigned spare_buffers = 16;       ///< taken from the pool at a time, 1 to 16
  unsigned most_inline_bytes = ~0U;  ///< of a packet, in requests to a network card
  Moderation moderation{};
  AdaptiveLimits adaptive{};
};
/// Most entries of a queue.
inline constexpr unsigned kMostRingEntries = 16384;

struct InterfaceOptions {
  bool card_rings = true;   ///< use network cards that have raw packet queue pairs
  bool xdp = false;         ///< use AF_XDP sockets beside the packet socket
  bool huge_pages = false;  ///< put buffers on huge pages if there are any
  std::size_t most_buffers = 200000;
  std::size_t packet_bytes = 0;  ///< of the buffers for received packets; 0: the interface's MTU
  verbs::UserMemory memory{};    ///< where buffers come from; none: mappings
};

struct EthernetOptions {
  InterfaceOptions interface;
  RingSettings ring;
  std::uint32_t longest_packet = 0;   ///< bytes of IP packets that rings send at most; 0: as the path permits
  std::size_t most_rings = 0;         ///< per interface; 0: no limit
  bool ignores_netfilter = false;     ///< rings carry packets that netfilter rules may concern
  const char* netfilter_advice = "";  ///< for the log: how to set ignores_netfilter; begins with a separator
};

}  // namespace ringsock::ethernet
