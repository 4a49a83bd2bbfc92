// The statistics page of a process with libvma: its layout in shared memory.
//
//     /dev/shm/ringsock-vma.UID.NAMESPACE.PID.XXXXXX      mode 0600; DIRECTORY/vmastat.PID is a link to it
//       0       VmaPageHeader   the process, requests of vma_stats(8), buffer pools
//       4096    VmaRingSlot     kVmaRings slots
//       ...     VmaIomuxSlot    select(2), poll(2), then kVmaEpollSets slots
//       ...     VmaSocketSlot   as many as VMA_STATS_FD_NUM says
//
// The file is sparse: slots that were never used have no memory. It is not in the directory that VMA_STATS_SHMEM_DIR
// names, which may be on a disk, where a counter would sometimes wait for its page to be written out.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/statistics/statistics_page.h"

namespace ringsock::runtime {

inline constexpr char kVmaPagePrefix[] = "ringsock-vma.";
inline constexpr char kVmaLinkPrefix[] = "vmastat.";

/// Counters of a socket, in cache lines of eight: one line for the receiver, one for what the ring's poller and the
/// receiver share, two for the sender.
enum class VmaSocketCount : std::size_t {
  rx_packets,
  rx_bytes,
  rx_eagains,
  rx_errors,
  rx_os_packets,
  rx_os_bytes,
  rx_os_eagains,
  rx_os_errors,
  poll_hits,
  poll_misses,
  rx_migrations,
  ready_packets_dropped,
  ready_bytes_dropped,
  rx_out_of_order,  ///< TCP segments that arrived ahead of others
  tx_packets = 16,
  tx_bytes,
  tx_eagains,
  tx_errors,
  tx_os_packets,
  tx_os_bytes,
  tx_os_eagains,
  tx_os_errors,
  tx_dummies,
  retransmits,
  tx_migrations,
  tx_paced,        ///< datagrams that left under a rate
  tx_paced_waits,  ///< times that the sender had to wait for that
  tx_time_outs,    ///< of TCP's retransmission timer
  tx_reorderings,  ///< times that TCP took segments for lost that had been overtaken
};
inline constexpr std::size_t kVmaSocketCounts = 32;

/// Present values of a socket, and maxima.
enum class VmaSocketLevel : std::size_t {
  ready_packets,
  ready_bytes,
  ready_byte_limit,
  zero_copy_packets,
  ready_packets_max,
  ready_bytes_max,
  rx_thread,
  tcp_rttvar_us,
  tx_thread = 8,
  tx_ready_bytes,
  left_to_netfilter,  ///< 1: netfilter rules are the reason why the kernel receives or sends
  tx_rate_kbps,       ///< SO_MAX_PACING_RATE; 0: none
  tcp_state,          ///< TCP_ESTABLISHED and so on; 0: not TCP on a ring
  tcp_rtt_us,
  tcp_cwnd,       ///< bytes
  tcp_in_flight,  ///< bytes
};
inline constexpr std::size_t kVmaSocketLevels = 16;

inline constexpr std::size_t kVmaGroups = 8;

struct VmaSocketIdentity {
  std::atomic<std::uint32_t> finished;  ///< page_parts.h: change_identity()
  std::int32_t fd;                      ///< -1: the slot is free
  std::uint64_t inode;
  std::uint8_t is_tcp, is_offloaded, is_blocking, multicast_loop;  ///< 0 or 1
  std::uint32_t groups_used;
  std::uint64_t ring_user_id_rx, ring_user_id_tx;
  SlotAddress local, peer, multicast_interface;
  std::array<SlotAddress, kVmaGroups> groups;
  std::uint32_t reserved;
  std::atomic<std::uint32_t> begun;
};

struct VmaSocketSlot {
  alignas(64) VmaSocketIdentity identity;
  alignas(64) std::array<Counter, kVmaSocketCounts> counts;
  std::array<Counter, kVmaSocketLevels> levels;
  std::array<Counter, kVmaSocketCounts> zero;  ///< the counts at the last reset by vma_stats(8), which writes them

  Counter& operator[](VmaSocketCount which) { return counts[static_cast<std::size_t>(which)]; }
  Counter& operator[](VmaSocketLevel which) { return levels[static_cast<std::size_t>(which)]; }
};
static_assert(sizeof(VmaSocketSlot) % 64 == 0);

/// The first cache line is the receiver's, the second the sender's.
enum class VmaRingCount : std::size_t {
  rx_packets,
  rx_bytes,
  rx_dropped,            ///< there was no buffer, or no socket took the packet
  device_drops,          ///< the device's queue was full; updated on request
  interrupts_requested,  ///< sleeps
  interrupts_received,   ///< wake-ups
  tx_packets = 8,
  tx_bytes,
  retransmits,
  tx_joined,   ///< datagrams of bursts that left together with others
  tx_trains,   ///< sends that carried them
  tx_dropped,  ///< the device had no room; updated on request
};
inline constexpr std::size_t kVmaRingCounts = 16;

enum class VmaRingLevel : std::size_t {
  queue_length,  ///< completions taken and not yet delivered
  drained_max,   ///< most packets taken at a time
  buffers,       ///< of the ring: posted and spare ones
  moderation_packets,
  moderation_period_us,
};
inline constexpr std::size_t kVmaRingLevels = 8;

struct VmaRingSlot {
  alignas(64) std::atomic<std::uint32_t> used;  ///< 0 or 1
  std::uint32_t ifindex;
  alignas(64) std::array<Counter, kVmaRingCounts> counts;
  std::array<Counter, kVmaRingLevels> levels;
  std::array<Counter, kVmaRingCounts> zero;

  Counter& operator[](VmaRingCount which) { return counts[static_cast<std::size_t>(which)]; }
  Counter& operator[](VmaRingLevel which) { return levels[static_cast<std::size_t>(which)]; }
};
static_assert(sizeof(VmaRingSlot) % 64 == 0);

/// Counters of select(2), poll(2) or an epoll set.
enum class VmaIomuxCount : std::size_t {
  os_ready,         ///< kernel descriptors that were reported
  offloaded_ready,  ///< sockets on rings that were reported
  timeouts,
  errors,
  poll_hits,    ///< calls that found a socket without sleeping
  poll_misses,  ///< calls that slept
};
inline constexpr std::size_t kVmaIomuxCounts = 6;

struct VmaIomuxSlot {
  alignas(64) std::atomic<std::uint32_t> used;  ///< 0 or 1
  std::int32_t epoll_fd;                        ///< valid for epoll sets
  std::array<Counter, kVmaIomuxCounts> counts;
  std::atomic<std::uint32_t> polling_percent;  ///< of the time of the thread that was here last; where it is measured
  alignas(64) std::array<Counter, kVmaIomuxCounts> zero;

  Counter& operator[](VmaIomuxCount which) { return counts[static_cast<std::size_t>(which)]; }
};

/// Updated on request.
struct VmaPoolSlot {
  std::atomic<std::uint32_t> used;
  std::atomic<std::uint32_t> is_rx;
  Counter buffers;     ///< all buffers of the pool
  Counter no_buffers;  ///< how often there was none
  Counter zero;        ///< no_buffers at the last reset by vma_stats(8)
};

/// Requests. vma_stats(8) writes each field by one write(2), and `asked` last. The process notices that its file was
/// written, applies what has changed, and then sets `done` to the value of `asked` that it has read.
struct VmaControls {
  std::atomic<std::uint32_t> asked;
  std::atomic<std::uint32_t> done;
  std::atomic<std::int32_t> log_level;    ///< VmaLogLevel, or kVmaUnchanged
  std::atomic<std::int32_t> log_details;  ///< 0..3, or kVmaUnchanged
  std::atomic<std::int32_t> dump_fd;      ///< descriptor whose counters to log; 0: all; kVmaUnchanged: none
  std::atomic<std::int32_t> dump_level;   ///< VmaLogLevel
  std::atomic<std::int32_t> trace_fd;     ///< descriptor whose segments to log; kVmaUnchanged: none
  std::atomic<std::int32_t> trace_segments;
};
inline constexpr std::int32_t kVmaUnchanged = -100;
inline constexpr std::int32_t kVmaTraced = 1000, kVmaMostTraced = 100'000;  ///< segments of a trace

inline constexpr std::size_t kVmaPools = 16;

struct VmaPageHeader {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t socket_slot_bytes;
  std::uint32_t ring_slot_bytes;
  std::uint32_t pid;
  std::uint32_t sockets;                                ///< slots in the file
  std::atomic<std::uint32_t> sockets_used, rings_used;  ///< slots from here on have never been used
  std::uint32_t reserved;
  std::int64_t started_ns;       ///< CLOCK_REALTIME of the first socket
  std::array<char, 64> program;  ///< ends with a zero
  VmaControls controls;
  std::array<VmaPoolSlot, kVmaPools> pools;
};
static_assert(sizeof(VmaPageHeader) <= 4096);

inline constexpr std::array<char, 8> kVmaMagic{'R', 'I', 'N', 'G', 'S', 'V', 'M', 'A'};
inline constexpr std::uint32_t kVmaPageVersion = 4;
inline constexpr std::size_t kVmaHeaderBytes = 4096;
inline constexpr std::uint32_t kVmaRings = 64;
inline constexpr std::uint32_t kVmaMostSockets = 1024;
inline constexpr std::size_t kVmaSelectSlot = 0, kVmaPollSlot = 1, kVmaFirstEpollSlot = 2, kVmaEpollSets = 32;
inline constexpr std::size_t kVmaIomuxSlots = kVmaFirstEpollSlot + kVmaEpollSets;
inline constexpr std::size_t kVmaIomuxOffset = kVmaHeaderBytes + kVmaRings * sizeof(VmaRingSlot);
inline constexpr std::size_t kVmaSocketsOffset = kVmaIomuxOffset + kVmaIomuxSlots * sizeof(VmaIomuxSlot);
inline constexpr std::size_t vma_page_bytes(std::uint32_t sockets) {
  return kVmaSocketsOffset + sockets * sizeof(VmaSocketSlot);
}

}  // namespace ringsock::runtime
