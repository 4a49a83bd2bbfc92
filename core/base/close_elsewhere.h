// Closing descriptors whose close(2) may block.
#pragma once

#include <cstddef>
#include <utility>

#include "core/base/unique_fd.h"

namespace ringsock {

/// Closes it in a thread where nobody waits: close(2) of what a stranger passed may take as long as the stranger likes
/// (a TCP socket with SO_LINGER, a file of a FUSE file system, a socket in whose queue such descriptors lie). Threads
/// are started when needed, kMaxClosers at most; while all of them are stuck, what comes next waits in line, open. In a
/// forked child what the parent had in line stays open. Threads: any, but not from a signal handler.
void close_elsewhere(UniqueFd fd) noexcept;

inline constexpr unsigned kMaxClosers = 4;
/// Descriptors that were handed over and are not closed yet.
std::size_t closing_elsewhere() noexcept;
/// So many closes are stuck that nothing more should be let in that may have to be closed here.
bool closers_are_busy() noexcept;

/// A descriptor that somebody else passed, of whatever kind: nobody waits for its close.
class PassedFd {
 public:
  PassedFd() = default;
  explicit PassedFd(UniqueFd fd) : fd_(std::move(fd)) {}
  PassedFd(PassedFd&&) = default;
  PassedFd& operator=(PassedFd&& other) noexcept {
    close_elsewhere(std::exchange(fd_, std::move(other.fd_)));
    return *this;
  }
  ~PassedFd() { close_elsewhere(std::move(fd_)); }

  [[nodiscard]] int get() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  /// Once it is known to be harmless.
  [[nodiscard]] UniqueFd take() { return std::move(fd_); }

 private:
  UniqueFd fd_;
};

}  // namespace ringsock
