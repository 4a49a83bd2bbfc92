// The views of vma_stats(8), and the block of VMA_STATS_FILE and dump_fd_stats(): pure functions from counters to text.
// Layouts are VMA's (fact sheet 6.1), so that scripts that read them go on.
#pragma once

#include <string>

#include "libvmacompat/statistics/vma_snapshot.h"

namespace ringsock::runtime {

/// What the counters of a snapshot mean.
enum class VmaCounting {
  totals,
  per_second,  ///< differences of two snapshots, a second apart: heads say "/s"
};

/// View 1: a table with two lines, Rx and Tx, per socket, then a line for each way of waiting that was used, then 79
/// dashes.
std::string vma_basic_view(const VmaSnapshot& snapshot, VmaCounting counting);
/// View 2: the same with the packets that wait to be read.
std::string vma_extra_view(const VmaSnapshot& snapshot, VmaCounting counting);
/// View 3: a block per socket, completion queue, ring and pool, with what was active.
std::string vma_full_view(const VmaSnapshot& snapshot, VmaCounting counting);
/// View 4: which sockets are members of which groups.
std::string vma_groups_view(const VmaSnapshot& snapshot);
/// View 5: a line per socket, as netstat(8).
std::string vma_netstat_view(const VmaSnapshot& snapshot);

/// A socket's block of view 3, its rule above included: what VMA_STATS_FILE gets when it closes.
std::string vma_socket_block(const VmaSocketSnapshot& socket, VmaCounting counting);

}  // namespace ringsock::runtime
