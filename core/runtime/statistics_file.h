// The names of statistics files, and who may take whose away.
#pragma once

#include <dirent.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/runtime/statistics_page.h"

namespace ringsock::runtime {

bool is_process_there(pid_t pid);

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};
using Directory = std::unique_ptr<DIR, CloseDirectory>;

/// What a file's name says: "ringsock.UID.NAMESPACE.PID.XXXXXX"; libvma's pages begin with another word.
struct StatisticsName {
  uid_t uid;
  std::uint64_t pid_namespace;  ///< inode of /proc/self/ns/pid, within which `pid` means something
  pid_t pid;
};
std::optional<StatisticsName> parse_statistics_name(std::string_view name, std::string_view prefix = kStatisticsPrefix);

/// That of the calling process; 0 when /proc is missing.
std::uint64_t own_pid_namespace();

/// A new empty file of this process, 0600, and its path. Errors: those of open(2); EFBIG when `bytes` are more than the
/// process may write: growing the file would be answered with SIGXFSZ.
struct StatisticsFile {
  UniqueFd fd;
  std::array<char, 64> path;
};
Result<StatisticsFile> create_statistics_file(std::size_t bytes, std::string_view prefix = kStatisticsPrefix);

/// `bytes` of zeroed memory of this process alone, that cost nothing until they are touched; null: there is none.
void* map_private_statistics(std::size_t bytes);
/// Puts the file in the place of private memory, with the contents of the first `used` bytes, and room for `ready`.
bool show_statistics(void* memory, std::size_t bytes, std::size_t used, std::size_t ready, int file);
/// Room in the file for bytes [begin, end) of shown memory. Touching a page that the file system has no room for would
/// be SIGBUS; this says so instead.
bool reserve_statistics(void* memory, std::size_t begin, std::size_t end);

/// Somebody else's file `name` in the directory, checked to be a regular one of the user and in the memory of the
/// process that the name says. Errors: those of open(2); EINVAL another name; EPERM not its owner's; EFBIG beyond
/// `most_bytes`; ESRCH the process does not have it in its memory (any more).
struct OpenStatistics {
  UniqueFd fd;
  StatisticsName name;
  std::size_t bytes;
};
Result<OpenStatistics> open_statistics(int directory, const char* name, std::string_view prefix, std::size_t most_bytes,
                                       int access);
/// The first `bytes`, or fewer when it is cut off meanwhile. Errors: those of read(2).
Result<std::vector<std::byte>> read_statistics(int file, std::size_t bytes);

/// Removes files of this user whose processes are no more, and those of earlier programs of this process other than
/// `keep` (a path). Files of others, and what is no regular file, stay.
void remove_stale_statistics(std::string_view keep, std::string_view prefix = kStatisticsPrefix);

}  // namespace ringsock::runtime
