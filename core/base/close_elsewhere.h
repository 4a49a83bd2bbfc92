// Closing descriptors whose close(2) may block.
#pragma once

#include <cstddef>
#include <utility>

#include "core/base/unique_fd.h"

namespace ringsock {

/// Closes the descriptor in a thread of its own: close(2) of a descriptor that a stranger passed may take as long as
/// the stranger likes (a TCP socket with SO_LINGER, a file of a FUSE file system, a socket in whose queue such
/// descriptors lie). Threads are started when needed, kMaxClosers at most; while all of them are stuck, further
/// descriptors stay open in a queue. Descriptors that were queued at a fork(2) stay open in the child. Threads: any,
/// but not from a signal handler.
void close_elsewhere(UniqueFd fd) noexcept;

inline constexpr unsigned kMaxClosers = 4;
/// Returns the number of descriptors that were handed over and are not closed yet.
std::size_t closing_elsewhere() noexcept;
/// Returns whether so many closes are stuck that no more descriptors should be accepted that may have to be closed
/// here.
bool closers_are_busy() noexcept;

/// Owns a descriptor that another process passed, of whatever kind. Its destructor does not wait for the close.
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
  /// Gives up ownership, once the descriptor is known to be harmless.
  [[nodiscard]] UniqueFd take() { return std::move(fd_); }

 private:
  UniqueFd fd_;
};

}  // namespace ringsock
