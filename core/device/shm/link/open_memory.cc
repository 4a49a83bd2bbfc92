#include "core/device/shm/link/open_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cstdio>

namespace ringsock::soft {

Result<UniqueFd> open_memory_of(pid_t process, std::uint32_t descriptor, std::uint64_t inode) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%u", process, descriptor);
  const UniqueFd found(::open(path, O_PATH | O_CLOEXEC));
  if (!found) return Error::last("peer's memory: open");
  struct stat status {};
  struct statfs filesystem {};
  if (::fstat(found.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_ino != inode ||
      ::fstatfs(found.get(), &filesystem) != 0 || filesystem.f_type != TMPFS_MAGIC) {
    return Error{EPROTO, "peer's memory: not the file it said"};
  }
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", found.get());
  // Without O_NONBLOCK a lease of its owner (fcntl(2), F_SETLEASE) would delay us.
  UniqueFd file(::open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!file) return Error::last("peer's memory: open");
  return file;
}

}  // namespace ringsock::soft
