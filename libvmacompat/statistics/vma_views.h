// Formats the views of vma_stats(8), and the block of VMA_STATS_FILE and dump_fd_stats(). The layouts are those of VMA,
// so that scripts that read them go on working.
#pragma once

#include <string>

#include "libvmacompat/statistics/vma_snapshot.h"

namespace ringsock::runtime {

/// The meaning of a snapshot's counters.
enum class VmaCounting {
  totals,
  per_second,  ///< differences of two snapshots a second apart; titles end with "/s"
};

/// View 1: a table with two lines per socket, Rx and Tx, then a line for each of select(2), poll(2) and epoll sets that
/// was used, then 79 dashes.
std::string vma_basic_view(const VmaSnapshot& snapshot, VmaCounting counting);
/// View 2: view 1 with the packets that wait to be read.
std::string vma_extra_view(const VmaSnapshot& snapshot, VmaCounting counting);
/// View 3: a block for each socket, completion queue, ring and pool, without counters that are 0.
std::string vma_full_view(const VmaSnapshot& snapshot, VmaCounting counting);
/// View 4: which sockets are members of which groups.
std::string vma_groups_view(const VmaSnapshot& snapshot);
/// View 5: a line per socket, as netstat(8) shows it.
std::string vma_netstat_view(const VmaSnapshot& snapshot);

/// A socket's block of view 3 with the rule above it. VMA_STATS_FILE gets it when the socket closes.
std::string vma_socket_block(const VmaSocketSnapshot& socket, VmaCounting counting);

}  // namespace ringsock::runtime
