// Processes and their sockets as rsstat prints them.
#pragma once

#include <string>
#include <vector>

#include "core/runtime/statistics_reader.h"
#include "core/runtime/vma_snapshot.h"

namespace ringsock::tools {

/// Who uses ringsock: processes with rsockets, and those with libvma.
struct Users {
  std::vector<runtime::ProcessSnapshot> processes{};
  std::vector<runtime::VmaSnapshot> vma{};
};

/// A head line per process, a line per socket, and their sum.
std::string statistics_table(const Users& users);

/// Per second, between two looks at the same processes: a line per process that was there both times.
std::string statistics_rates(const Users& before, const Users& now, double seconds);

/// One JSON document; its form is in rsstat(1).
/// @param indent  blanks per level; -1: all in one line
std::string statistics_json(const Users& users, int indent);

}  // namespace ringsock::tools
