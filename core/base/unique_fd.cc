#include "core/base/unique_fd.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "core/base/own_duplicate.h"
#include "core/base/process_state.h"

namespace ringsock {

namespace {

constexpr rlim_t kHighNumber = 1000;
constexpr int kBehindStreams = STDERR_FILENO + 1;

struct HighNumbers {
  static constexpr ProcessPart kPart = ProcessPart::high_numbers;
  std::atomic<int> first{-1};
};

[[gnu::constructor]] void start() { process_state<HighNumbers>(); }

/// The limit is read once. If it is lowered later, descriptors only lose their high numbers.
int first_high_number() {
  std::atomic<int>& first = process_state<HighNumbers>().first;
  if (const int known = first.load(std::memory_order_relaxed); known >= 0) return known;
  rlimit limit{};
  const bool has_limit = ::getrlimit(RLIMIT_NOFILE, &limit) == 0;
  const int high = has_limit ? static_cast<int>(std::min(kHighNumber, limit.rlim_cur / 4 * 3)) : 0;
  const int found = std::max(kBehindStreams, high);
  first.store(found, std::memory_order_relaxed);
  return found;
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
