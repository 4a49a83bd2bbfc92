// The names of statistics files, and the rules for removing them.
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
#include "core/statistics/statistics_page.h"

namespace ringsock::runtime {

bool is_process_there(pid_t pid);

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};
using Directory = std::unique_ptr<DIR, CloseDirectory>;

/// The parts of a file's name "ringsock.UID.NAMESPACE.PID.XXXXXX"; names of libvma's pages begin with another word.
struct StatisticsName {
  uid_t uid;
  std::uint64_t pid_namespace;  ///< inode of /proc/self/ns/pid, within which `pid` means something
  pid_t pid;
};
std::optional<StatisticsName> parse_statistics_name(std::string_view name, std::string_view prefix = kStatisticsPrefix);

/// Returns the namespace of the calling process, 0 when /proc is missing.
std::uint64_t own_pid_namespace();

/// Makes a new empty file of this process, mode 0600. Errors: those of open(2); EFBIG when the process may not write
/// `bytes`, where growing the file would cause SIGXFSZ.
struct StatisticsFile {
  UniqueFd fd;
  std::array<char, 64> path;
};
Result<StatisticsFile> create_statistics_file(std::size_t bytes, std::string_view prefix = kStatisticsPrefix);

/// Maps `bytes` of zeroed private memory, which costs nothing until it is touched. Returns null when there is none.
void* map_private_statistics(std::size_t bytes);
/// Maps the file in place of private memory, with the contents of the first `used` bytes and room for `ready` bytes.
bool show_statistics(void* memory, std::size_t bytes, std::size_t used, std::size_t ready, int file);
/// Puts private memory, which starts with `used` bytes that are not zero, in place of `memory`, which other processes
/// have, too. Called in a child of fork(2), which has one thread. Makes no call that a filter is known to forbid.
void replace_statistics(void* memory, std::size_t bytes, void* fresh, std::size_t used);
/// Reserves room in the file for bytes [begin, end) of published memory. Returns false where touching a page would
/// cause SIGBUS because the file system is full.
bool reserve_statistics(void* memory, std::size_t begin, std::size_t end);

/// Opens another process's file `name` in the directory. Checks that it is a regular file of the user and mapped by the
/// process that the name says. Errors: those of open(2); EINVAL another name; EPERM another owner; EFBIG beyond
/// `most_bytes`; EBUSY the process may be about to map it; ESRCH the process has not mapped it (any more).
struct OpenStatistics {
  UniqueFd fd;
  StatisticsName name;
  std::size_t bytes;
};
Result<OpenStatistics> open_statistics(int directory, const char* name, std::string_view prefix, std::size_t most_bytes,
                                       int access);
/// Reads the first `bytes`, or fewer when the file is truncated meanwhile. Errors: those of read(2).
Result<std::vector<std::byte>> read_statistics(int file, std::size_t bytes);

/// Removes files of this user whose processes have ended, and files of earlier programs of this process except `keep`
/// (a path). Leaves files of other users, and whatever is no regular file.
void remove_stale_statistics(std::string_view keep, std::string_view prefix = kStatisticsPrefix);

}  // namespace ringsock::runtime
