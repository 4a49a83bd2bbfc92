// Processes and their sockets as rsstat prints them.
#pragma once

#include <string>
#include <vector>

#include "core/runtime/statistics_reader.h"

namespace ringsock::tools {

/// A head line per process, a line per socket, and their sum.
std::string statistics_table(const std::vector<runtime::ProcessSnapshot>& processes);

/// Per second, between two looks at the same processes: a line per process that was there both times.
std::string statistics_rates(const std::vector<runtime::ProcessSnapshot>& before,
                             const std::vector<runtime::ProcessSnapshot>& now, double seconds);

/// One JSON document; its form is in rsstat(1).
/// @param indent  blanks per level; -1: all in one line
std::string statistics_json(const std::vector<runtime::ProcessSnapshot>& processes, int indent);

}  // namespace ringsock::tools
