#include "core/base/unique_fd.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "core/base/own_duplicate.h"
#include "core/base/process_state.h"
#include "core/base/raised_limit.h"

namespace ringsock {

void OwnNumbers::add(int fd) {
  const auto number = static_cast<unsigned>(fd);
  if (number >= kEnd) return;
  std::atomic<unsigned>& reach = process_parts.own_numbers_reach;
  unsigned known = reach.load(std::memory_order_relaxed);
  while (above(fd) > known && !reach.compare_exchange_weak(known, above(fd), std::memory_order_relaxed)) {
  }
  word(number).fetch_or(bit(number), std::memory_order_relaxed);
}

namespace {

constexpr rlim_t kHighNumber = 1000;
constexpr int kBehindStreams = STDERR_FILENO + 1;
/// The kernel's table of descriptors is as long as the highest number, and fork(2) copies it.
constexpr rlim_t kShortTable = 4096;

struct HighNumbers {
  static constexpr ProcessPart kPart = ProcessPart::high_numbers;
  std::atomic<int> first{-1};
  std::atomic<int> first_below_limit{kBehindStreams};
};

[[gnu::constructor]] void start() {
  process_state<HighNumbers>();
  own_numbers();
}

/// The limit is read once. If it is changed later, descriptors only lose their places.
/// The kernel's table ends at 1024 as long as the numbers from kHighNumber on suffice. A process of threads waits for
/// 8-17 ms when it grows (RCU), but it is not made longer beforehand: select(2) reads and writes as many bits as the
/// table has, programs pass getdtablesize() with an fd_set of 1024, and not every call comes by the library.
const HighNumbers& high_numbers() {
  HighNumbers& numbers = process_state<HighNumbers>();
  if (numbers.first.load(std::memory_order_acquire) >= 0) return numbers;
  rlimit limit{};
  const bool has_limit = ::getrlimit(RLIMIT_NOFILE, &limit) == 0;
  const rlim_t soft = has_limit ? limit.rlim_cur : 0;
  const int below = std::max(kBehindStreams, static_cast<int>(std::min(kHighNumber, soft / 4 * 3)));
  const bool is_above = soft >= kBehindStreams && soft <= kShortTable && soft < limit.rlim_max;
  numbers.first_below_limit.store(below, std::memory_order_relaxed);
  numbers.first.store(is_above ? static_cast<int>(soft) : below, std::memory_order_release);
  return numbers;
}

/// @return  -1, with errno
int duplicate(int fd, int lowest) { return ::fcntl(fd, F_DUPFD_CLOEXEC, lowest); }

/// @return  -1, with errno
int duplicate_high(int fd) {
  const HighNumbers& numbers = high_numbers();
  int copy = duplicate(fd, numbers.first);
  if (copy < 0 && errno == EINVAL) {
    if (const RaisedLimit raised; raised) copy = duplicate(fd, numbers.first);
  }
  if (copy < 0 && errno != EBADF) copy = duplicate(fd, numbers.first_below_limit);
  return copy;
}

UniqueFd own(int fd) {
  own_numbers().add(fd);
  return UniqueFd(fd);
}

}  // namespace

UniqueFd own_duplicate(int fd) {
  const int saved_errno = errno;
  int copy = duplicate_high(fd);
  if (copy < 0 && errno != EBADF) copy = duplicate(fd, kBehindStreams);
  if (copy < 0) return {};
  errno = saved_errno;
  return own(copy);
}

UniqueFd out_of_the_way(UniqueFd fd) {
  if (!fd || own_numbers().holds(fd.get())) return fd;
  const int saved_errno = errno;
  const int high = duplicate_high(fd.get());
  errno = saved_errno;
  return high >= 0 ? own(high) : std::move(fd);
}

}  // namespace ringsock
