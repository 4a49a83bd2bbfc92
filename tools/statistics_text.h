// Formats processes and their sockets for rsstat.
#pragma once

#include <string>
#include <vector>

#include "core/statistics/statistics_reader.h"
#include "libvmacompat/statistics/vma_snapshot.h"

namespace ringsock::tools {

/// The users of ringsock: processes with rsockets, and processes with libvma.
struct Users {
  std::vector<runtime::ProcessSnapshot> processes{};
  std::vector<runtime::VmaSnapshot> vma{};
};

/// Returns a heading for each process, a line for each socket, and their sum.
std::string statistics_table(const Users& users);

/// Returns the rates per second between two snapshots: a line for each process that is in both.
std::string statistics_rates(const Users& before, const Users& now, double seconds);

/// Returns a JSON document, described in rsstat(1).
/// @param indent  blanks per level; -1: all in one line
std::string statistics_json(const Users& users, int indent);

}  // namespace ringsock::tools
