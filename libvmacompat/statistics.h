// What vma_stats(8) asks of the process, and the file of VMA_STATS_FILE.
#pragma once

#include "libvmacompat/statistics/vma_statistics.h"

namespace ringsock::vma {

/// From now on the service thread does what vma_stats asks. Harmless when it does already; where it cannot, vma_stats
/// only looks.
void follow_statistics_requests();

/// Appends the socket's block to VMA_STATS_FILE, if there is to be one.
void write_statistics_file(const runtime::VmaSocketSlot& slot);

}  // namespace ringsock::vma
