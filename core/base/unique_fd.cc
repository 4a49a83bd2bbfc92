#include "core/base/unique_fd.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

#include "core/base/own_duplicate.h"

namespace ringsock {

namespace {

constexpr rlim_t kHighNumber = 1000;
constexpr int kBehindStreams = STDERR_FILENO + 1;

/// The limit is read once. If it is lowered later, descriptors only lose their high numbers.
int first_high_number() {
  static const int first = [] {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kBehindStreams;
    return std::max(kBehindStreams, static_cast<int>(std::min(kHighNumber, limit.rlim_cur / 4 * 3)));
  }();
  return first;
}

/// @return  -1, with errno
int duplicate(int fd, int lowest) { return ::fcntl(fd, F_DUPFD_CLOEXEC, lowest); }

}  // namespace

UniqueFd own_duplicate(int fd) {
  const int saved_errno = errno;
  int copy = duplicate(fd, first_high_number());
  if (copy < 0 && errno != EBADF) copy = duplicate(fd, kBehindStreams);
  if (copy < 0) return {};
  errno = saved_errno;
  return UniqueFd(copy);
}

UniqueFd out_of_the_way(UniqueFd fd) {
  if (!fd) return fd;
  const int saved_errno = errno;
  UniqueFd high(duplicate(fd.get(), first_high_number()));
  errno = saved_errno;
  return high ? std::move(high) : std::move(fd);
}

}  // namespace ringsock
