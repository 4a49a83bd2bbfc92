#include "core/base/unique_fd.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

namespace ringsock {

namespace {

constexpr rlim_t kHighNumber = 1000;

/// The limit is read once. If it is lowered later, descriptors only lose their high numbers.
int first_high_number() {
  static const int first = [] {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
    return static_cast<int>(std::min(kHighNumber, limit.rlim_cur / 4 * 3));
  }();
  return first;
}

}  // namespace

UniqueFd out_of_the_way(UniqueFd fd) {
  if (!fd) return fd;
  const int saved_errno = errno;
  UniqueFd high(::fcntl(fd.get(), F_DUPFD_CLOEXEC, first_high_number()));
  errno = saved_errno;
  return high ? std::move(high) : std::move(fd);
}

}  // namespace ringsock
