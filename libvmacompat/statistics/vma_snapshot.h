// A snapshot of what libvma counts, as vma_stats(8) shows it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/socket_address.h"

namespace ringsock::runtime {

/// Traffic in one direction, through rings or through the kernel.
struct VmaFlow {
  std::uint64_t packets = 0;
  std::uint64_t bytes = 0;
  std::uint64_t eagains = 0;  ///< calls that had to wait
  std::uint64_t errors = 0;
};

/// One socket. Its counters are totals, or rates.
struct VmaSocketSnapshot {
  int fd = -1;
  std::uint64_t inode = 0;  ///< of the kernel's socket
  bool is_tcp = false;
  bool is_offloaded = false;
  bool is_blocking = true;
  bool multicast_loop = true;
  SocketAddress multicast_interface{};
  std::string tcp_state{};  ///< "LISTEN"; empty for UDP
  SocketAddress local{};
  SocketAddress peer{};                 ///< unspecified: not connected
  std::vector<SocketAddress> groups{};  ///< groups of which it is a member; the ports are unused
  int rx_thread = 0;                    ///< thread that received last; 0: none
  int tx_thread = 0;
  bool is_left_to_netfilter = false;  ///< netfilter rules are the reason why the kernel receives or sends
  std::uint64_t ring_user_id_rx = 0;  ///< 0: none
  std::uint64_t ring_user_id_tx = 0;

  VmaFlow rx{}, rx_os{}, tx{}, tx_os{};
  std::uint64_t tx_dummies = 0;
  std::uint64_t tx_paced = 0, tx_paced_waits = 0;  ///< datagrams that left under a rate, and waits for that
  std::uint64_t retransmits = 0;
  std::uint64_t tx_time_outs = 0, tx_reorderings = 0, rx_out_of_order = 0;  ///< of TCP
  std::uint64_t poll_hits = 0, poll_misses = 0;
  std::uint64_t rx_migrations = 0, tx_migrations = 0;

  std::uint64_t ready_packets_dropped = 0, ready_bytes_dropped = 0;

  // TCP on a ring: present values, never rates.
  std::uint64_t tcp_rtt_us = 0, tcp_rttvar_us = 0;
  std::uint64_t tcp_cwnd = 0, tcp_in_flight = 0;  ///< bytes

  // Waiting to be read or sent: present values, never rates.
  std::uint64_t ready_packets = 0, ready_bytes = 0, ready_byte_limit = 0;
  std::uint64_t zero_copy_packets = 0;  ///< held by the program
  std::uint64_t tx_ready_bytes = 0;
  std::uint64_t tx_rate_kbps = 0;  ///< SO_MAX_PACING_RATE; 0: none
  std::uint64_t ready_packets_max = 0, ready_bytes_max = 0;
};

/// select(2), poll(2), or one epoll set.
struct VmaIomuxSnapshot {
  std::string name{};  ///< "select", "poll", "epoll[5]"
  std::uint64_t os_ready = 0, offloaded_ready = 0;
  std::uint64_t timeouts = 0, errors = 0;
  std::uint64_t poll_hits = 0, poll_misses = 0;
  unsigned polling_cpu_percent = 0;
};

struct VmaCqSnapshot {
  std::uint64_t packets_dropped = 0;
  std::uint64_t queue_length = 0;
  std::uint64_t drained_max = 0;
  std::uint64_t buffers = 0;
};

struct VmaRingSnapshot {
  std::uint64_t tx_packets = 0, tx_bytes = 0;
  std::uint64_t rx_packets = 0, rx_bytes = 0;
  std::uint64_t retransmits = 0;
  std::uint64_t tx_joined = 0, tx_trains = 0;  ///< datagrams that left together, and the number of sends
  std::uint64_t tx_dropped = 0;
  std::uint64_t interrupts_requested = 0, interrupts_received = 0;
  std::uint64_t moderation_packets = 0, moderation_period_us = 0;
};

struct VmaPoolSnapshot {
  bool is_rx = true;
  std::uint64_t buffers = 0;
  std::uint64_t no_buffers = 0;  ///< how often there was none
};

/// One process.
struct VmaSnapshot {
  int pid = 0;
  std::string program{};
  std::int64_t started_ns = 0;  ///< CLOCK_REALTIME of the first socket
  unsigned unsettled = 0;       ///< sockets left out because their entry was changing
  std::vector<VmaSocketSnapshot> sockets{};
  std::vector<VmaIomuxSnapshot> iomux{};
  std::vector<VmaCqSnapshot> cqs{};
  std::vector<VmaRingSnapshot> rings{};
  std::vector<VmaPoolSnapshot> pools{};
};

/// Returns what happened between two snapshots of a process, per second. Values that are no counters are those of
/// `after`. A socket that is not in `before`, or a counter that was reset meanwhile, counts from zero.
/// @param seconds  the time between the two, above 0
VmaSnapshot vma_rates(const VmaSnapshot& before, const VmaSnapshot& after, double seconds);

}  // namespace ringsock::runtime
