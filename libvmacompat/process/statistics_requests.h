// Serves the requests of vma_stats(8), and writes the file of VMA_STATS_FILE.
#pragma once

#include "core/config/vma_log_level.h"
#include "libvmacompat/statistics/vma_statistics.h"

namespace ringsock::vma {

/// Has the service thread serve the requests of vma_stats. May be called again. When it fails, vma_stats can only read.
void follow_statistics_requests();

/// Writes the blocks of a descriptor's socket, or of all sockets for 0, to VMA's log. Returns false when the process
/// has no statistics yet.
bool dump_sockets(int fd, config::VmaLogLevel level);

/// Appends the socket's block to VMA_STATS_FILE, if one is configured.
void write_statistics_file(const runtime::VmaSocketSlot& slot);

}  // namespace ringsock::vma
