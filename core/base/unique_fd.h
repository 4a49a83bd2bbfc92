// A file descriptor with one owner.
#pragma once

#include <unistd.h>

#include <utility>

#include "core/base/own_numbers.h"

namespace ringsock {

/// Owns one descriptor (or none, -1) and closes it once. Moves only.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  [[nodiscard]] int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  [[nodiscard]] int release() {
    own_numbers().remove(fd_);
    return std::exchange(fd_, -1);
  }
  void reset(int fd = -1) {
    // close(2) on Linux frees the number even when it reports EINTR, so it is never repeated.
    if (fd_ >= 0) {
      own_numbers().remove(fd_);
      ::close(fd_);
    }
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

/// Moves a descriptor that the application does not know to a high number, so that the application's own numbers stay
/// as low as without the library: programs keep arrays by number, and select(2) ends at 1024. Numbers above a small
/// RLIMIT_NOFILE are the best, because the application can use all below; otherwise numbers beyond 1000 or three
/// quarters of the limit. The result is close-on-exec and in own_numbers. Costs two system calls, or six above the
/// limit. Returns the descriptor unchanged when no high number is free.
UniqueFd out_of_the_way(UniqueFd fd);

}  // namespace ringsock
