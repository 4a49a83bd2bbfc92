// The names of statistics files, and who may take whose away.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace ringsock::runtime {

/// What a file's name says: "ringsock.UID.NAMESPACE.PID.XXXXXX".
struct StatisticsName {
  uid_t uid;
  std::uint64_t pid_namespace;  ///< inode of /proc/self/ns/pid, within which `pid` means something
  pid_t pid;
};
std::optional<StatisticsName> parse_statistics_name(std::string_view name);

/// That of the calling process; 0 when /proc is missing.
std::uint64_t own_pid_namespace();

/// A new empty file of this process, 0600, and its path. Errors: those of open(2).
struct StatisticsFile {
  UniqueFd fd;
  std::array<char, 64> path;
};
Result<StatisticsFile> create_statistics_file();

/// Removes files of this user whose processes are no more, and those of earlier programs of this process other than
/// `keep` (a path). Files of others, and what is no regular file, stay.
void remove_stale_statistics(std::string_view keep);

}  // namespace ringsock::runtime
