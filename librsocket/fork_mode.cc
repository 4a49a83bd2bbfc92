#include "librsocket/fork_mode.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/base/log.h"
#include "core/base/process_state.h"

namespace ringsock::rs {

namespace {

/// The file that carries the locks. Descendants inherit it. It stays open.
struct Locks {
  int fd = -1;
  ino_t inode = 0;
  dev_t device = 0;
};

Locks make_locks() {
  UniqueFd memory = out_of_the_way(UniqueFd(::memfd_create("ringsock-fork-mode", MFD_CLOEXEC)));
  struct stat about {};
  if (!memory || ::fstat(memory.get(), &about) != 0) {
    log_info("fork mode: without turns: %s", std::strerror(errno));
    return {};
  }
  return {memory.release(), about.st_ino, about.st_dev};
}

bool is_wanted() {
  const char* const text = ::secure_getenv("RDMAV_FORK_SAFE");
  return text != nullptr && std::strtol(text, nullptr, 10) != 0;
}

struct ForkMode {
  static constexpr ProcessPart kPart = ProcessPart::fork_mode;
  ForkMode() = default;
  ForkMode(const ForkMode&) = delete;
  ForkMode& operator=(const ForkMode&) = delete;
  ~ForkMode() { const UniqueFd closed(locks.fd); }

  const bool is_on = is_wanted();
  const Locks locks = is_on ? make_locks() : Locks{};
};

const Locks& locks() { return process_state<ForkMode>().locks; }

/// Returns whether the number is still that file's: the application may have closed it, and opened another file.
bool is_ours(const Locks& locks) {
  struct stat about {};
  return ::fstat(locks.fd, &about) == 0 && about.st_ino == locks.inode && about.st_dev == locks.device;
}

/// Returns false when another process has the lock.
bool set_lock(const Locks& locks, short type, std::uint16_t port) {
  struct flock one {};
  one.l_type = type;
  one.l_whence = SEEK_SET;
  one.l_start = port;
  one.l_len = 1;
  return ::fcntl(locks.fd, F_SETLK, &one) == 0 || (errno != EAGAIN && errno != EACCES);
}

}  // namespace

bool is_fork_mode() { return process_state<ForkMode>().is_on; }

void prepare_fork_mode() { process_state<ForkMode>(); }

bool ForkSection::try_enter(std::uint16_t port) {
  if (inside_) return true;
  const int saved_errno = errno;
  if (is_ours(locks())) {
    if (!set_lock(locks(), F_WRLCK, port)) {
      errno = saved_errno;
      return false;
    }
    locked_ = port;
  }
  errno = saved_errno;
  inside_ = true;
  return true;
}

void ForkSection::leave() {
  if (!std::exchange(inside_, false)) return;
  const int saved_errno = errno;
  const auto port = std::exchange(locked_, std::nullopt);
  if (port && is_ours(locks())) set_lock(locks(), F_UNLCK, *port);
  errno = saved_errno;
}

}  // namespace ringsock::rs
