// What libvma counts, as it was at one moment: what vma_stats shows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/socket_address.h"

namespace ringsock::runtime {

/// What went one way, through the rings or through the kernel.
struct VmaFlow {
  std::uint64_t packets = 0;
  std::uint64_t bytes = 0;
  std::uint64_t eagains = 0;  ///< calls that had to wait
  std::uint64_t errors = 0;
};

/// One socket. Counters are since its beginning, or rates.
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
  std::vector<SocketAddress> groups{};  ///< that it is a member of; ports do not count
  int rx_thread = 0;                    ///< that received last; 0: none
  int tx_thread = 0;
  bool is_left_to_netfilter = false;  ///< rules are why the kernel carries what rings would
  std::uint64_t ring_user_id_rx = 0;  ///< 0: none
  std::uint64_t ring_user_id_tx = 0;

  VmaFlow rx{}, rx_os{}, tx{}, tx_os{};
  std::uint64_t tx_dummies = 0;
  std::uint64_t retransmits = 0;
  std::uint64_t poll_hits = 0, poll_misses = 0;
  std::uint64_t rx_migrations = 0, tx_migrations = 0;

  std::uint64_t ready_packets_dropped = 0, ready_bytes_dropped = 0;

  // Waiting to be read, or sent: as it is, never a rate.
  std::uint64_t ready_packets = 0, ready_bytes = 0, ready_byte_limit = 0;
  std::uint64_t zero_copy_packets = 0;  ///< that the program holds
  std::uint64_t tx_ready_bytes = 0;
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
  std::uint64_t tx_joined = 0, tx_trains = 0;  ///< datagrams that left together, and how often
  std::uint64_t tx_dropped = 0;
  std::uint64_t interrupts_requested = 0, interrupts_received = 0;
  std::uint64_t moderation_packets = 0, moderation_period_us = 0;
};

struct VmaPoolSnapshot {
  bool is_rx = true;
  std::uint64_t buffers = 0;
  std::uint64_t no_buffers = 0;  ///< times that there was none
};

/// One process.
struct VmaSnapshot {
  int pid = 0;
  std::string program{};
  std::int64_t started_ns = 0;  ///< CLOCK_REALTIME of the first socket
  unsigned unsettled = 0;       ///< sockets left out because their entry was being changed
  std::vector<VmaSocketSnapshot> sockets{};
  std::vector<VmaIomuxSnapshot> iomux{};
  std::vector<VmaCqSnapshot> cqs{};
  std::vector<VmaRingSnapshot> rings{};
  std::vector<VmaPoolSnapshot> pools{};
};

/// What happened between two snapshots of a process, per second. What is no counter is as it was in the second one. A
/// socket that was not there before, or a counter that was set to zero meanwhile, counts from zero.
/// @param seconds  between the two, above 0
VmaSnapshot vma_rates(const VmaSnapshot& before, const VmaSnapshot& after, double seconds);

}  // namespace ringsock::runtime
