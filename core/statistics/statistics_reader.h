// Reads other processes' statistics pages, for rsstat(1). The owner of a page can write anything there, so all of it is
// checked.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/statistics/statistics.h"
#include "core/statistics/statistics_page.h"

namespace ringsock::runtime {

/// One socket, as it was when the page was read.
struct SocketSnapshot {
  SocketDescription description;
  CounterSums counters;
};

struct ProcessSnapshot {
  std::uint32_t pid = 0;
  std::string program;  ///< printable characters
  std::int64_t started_ns = 0;
  std::array<std::uint64_t, kSocketPaths> connected{};
  std::array<std::uint64_t, kSocketPaths> accepted{};
  std::array<std::uint64_t, kKernelReasons> kernel{};
  std::array<std::uint64_t, kRefusals> refused{};
  std::vector<SocketSnapshot> sockets;
  CounterSums others;      ///< of sockets beyond what a page can list, and of waiting for many
  CounterSums total;       ///< of all sockets, past and present
  unsigned unsettled = 0;  ///< sockets left out because their entry was being changed
};

/// Error: EPROTO when it is no page of this version, or truncated.
Result<ProcessSnapshot> parse_statistics_page(std::span<const std::byte> bytes);

/// Reads the page `name` in the directory. Leaves out a socket whose entry keeps changing.
/// Errors: those of open(2) and read(2); EPERM when it is no regular file of the user that its name says; EFBIG;
/// EPROTO; ESRCH when the process that its name says has not mapped it (any more).
Result<ProcessSnapshot> read_statistics_file(int directory, const char* name);

/// Reads the pages of all living processes, ordered by pid: those of this user, for root those of all users. Removes
/// files of dead processes.
/// @param refused  gets a line for each file that looks like a page and is none.
std::vector<ProcessSnapshot> read_all_statistics(const char* directory, std::vector<std::string>& refused);

}  // namespace ringsock::runtime
