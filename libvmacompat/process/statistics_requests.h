// Serves the requests of vma_stats(8), and writes the file of VMA_STATS_FILE.
#pragma once

#include "libvmacompat/statistics/vma_statistics.h"

namespace ringsock::vma {

/// Has the service thread serve the requests of vma_stats. May be called again. When it fails, vma_stats can only read.
void follow_statistics_requests();

/// Appends the socket's block to VMA_STATS_FILE, if one is configured.
void write_statistics_file(const runtime::VmaSocketSlot& slot);

}  // namespace ringsock::vma
