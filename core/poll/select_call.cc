// select(2) in terms of poll(2).
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/own_numbers.h"
#include "core/poll/poll_set.h"
#include "core/poll/process_waits.h"
#include "core/poll/sleeper.h"
#include "core/poll/wait.h"
#include "core/runtime/fd_table.h"

namespace ringsock::runtime {

namespace {

// The conditions that Linux counts as readable, writable and exceptional.
constexpr int kReadable = POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR | POLLNVAL;
constexpr int kWritable = POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR | POLLNVAL;
constexpr int kExceptional = POLLPRI | POLLNVAL;

/// The caller's `nfds` bits, which may exceed FD_SETSIZE, where the type fd_set ends.
class DescriptorBits {
 public:
  explicit DescriptorBits(fd_set* set) : words_(reinterpret_cast<fd_mask*>(set)) {}
  [[nodiscard]] bool has(int fd) const { return words_ && (words_[fd / NFDBITS] & bit(fd)) != 0; }
  void clear(int fd) const { words_[fd / NFDBITS] &= ~bit(fd); }

 private:
  static fd_mask bit(int fd) { return static_cast<fd_mask>(1UL << (fd % NFDBITS)); }
  fd_mask* words_;
};

/// Returns whether the application has a descriptor of that number.
bool is_applications(int fd) { return !own_numbers().holds(fd) && ::fcntl(fd, F_GETFD) >= 0; }

/// Returns one more than the application's highest number below `end`, at least FD_SETSIZE. 9 ns for each number.
int end_by_poll(int end) {
  constexpr int kAtOnce = 256;
  std::array<pollfd, kAtOnce> entries;
  for (; end > FD_SETSIZE; end -= std::min(end - FD_SETSIZE, kAtOnce)) {
    const int first = std::max(FD_SETSIZE, end - kAtOnce);
    for (int fd = first; fd < end; ++fd) entries[static_cast<std::size_t>(fd - first)] = {fd, 0, 0};
    if (::poll(entries.data(), static_cast<nfds_t>(end - first), 0) < 0) continue;
    for (int fd = end; fd-- > first;) {
      const bool is_open = (entries[static_cast<std::size_t>(fd - first)].revents & POLLNVAL) == 0;
      if (is_open && !own_numbers().holds(fd)) return fd + 1;
    }
  }
  return FD_SETSIZE;
}

/// Returns one more than the application's highest number, at least FD_SETSIZE; nothing: /proc cannot be read.
std::optional<int> end_by_proc() {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir("/proc/self/fd"), &::closedir);
  if (!directory) return std::nullopt;
  int end = FD_SETSIZE;
  while (const dirent* const entry = ::readdir(directory.get())) {
    const int fd = std::atoi(entry->d_name);
    if (!own_numbers().holds(fd) && fd != ::dirfd(directory.get())) end = std::max(end, fd + 1);
  }
  return end;
}

/// Returns how many of the bits the kernel would look at in a process without the library: no more than its descriptor
/// table has, and programs rely on it (select(getdtablesize(), ...) with ordinary sets). The table's size is a power of
/// two beyond the highest number.
int bits_without_library(int nfds) {
  constexpr int kFewEnough = 4'096;  // /proc takes longer
  if (is_applications(nfds - 1)) return nfds;
  const auto read = nfds > kFewEnough ? end_by_proc() : std::nullopt;
  const int end = read ? *read : end_by_poll(nfds);
  return std::min(nfds, static_cast<int>(std::bit_ceil(static_cast<unsigned>(end))));
}

class SelectCall {
 public:
  SelectCall(int nfds, fd_set* readable, fd_set* writable, fd_set* exceptional)
      : readable_(readable), writable_(writable), exceptional_(exceptional) {
    for (int fd = 0; fd < nfds; ++fd) {
      int events = 0;
      if (readable_.has(fd)) events |= POLLIN | POLLRDNORM | POLLRDBAND;
      if (writable_.has(fd)) events |= POLLOUT | POLLWRNORM | POLLWRBAND;
      if (exceptional_.has(fd)) events |= POLLPRI;
      if (events == 0) continue;
      entries_.push_back({fd, static_cast<short>(events), 0});
      has_ours_ = has_ours_ || fd_table().find(fd);
    }
  }
  [[nodiscard]] bool has_ours() const { return has_ours_; }
  std::span<pollfd> entries() { return entries_; }

  /// Fills the sets. A number that was closed while the call waited is in all sets, as in the kernel. Errors: EBADF,
  /// with the sets unchanged.
  Result<int> report(bool has_waited) const {
    const auto is_bad = [](const pollfd& entry) { return (entry.revents & POLLNVAL) != 0; };
    if (!has_waited && std::any_of(entries_.begin(), entries_.end(), is_bad)) return Error{EBADF, "select"};
    int bits = 0;
    for (const pollfd& entry : entries_) {
      bits += report_in(readable_, entry, kReadable);
      bits += report_in(writable_, entry, kWritable);
      bits += report_in(exceptional_, entry, kExceptional);
    }
    return bits;
  }
  /// Ignores conditions that select(2) does not report: poll(2) always reports POLLHUP and POLLERR, select(2) only in
  /// some sets. A descriptor with no other condition is not polled again, because such a condition does not end.
  /// @return whether select(2) has something to report.
  bool ignore_what_nobody_asked() {
    bool has_answer = false;
    for (pollfd& entry : entries_) {
      if (is_answer(entry)) {
        has_answer = true;
      } else if (entry.revents != 0) {
        entry.fd = ~entry.fd;
        entry.revents = 0;
      }
    }
    return has_answer;
  }

 private:
  static int number(const pollfd& entry) { return entry.fd < 0 ? ~entry.fd : entry.fd; }
  [[nodiscard]] bool is_answer(const pollfd& entry) const {
    const int fd = number(entry);
    return (entry.revents & POLLNVAL) != 0 || (readable_.has(fd) && (entry.revents & kReadable) != 0) ||
           (writable_.has(fd) && (entry.revents & kWritable) != 0) ||
           (exceptional_.has(fd) && (entry.revents & kExceptional) != 0);
  }
  static int report_in(const DescriptorBits& set, const pollfd& entry, int conditions) {
    const int fd = number(entry);
    if (!set.has(fd)) return 0;
    if ((entry.revents & conditions) != 0) return 1;
    set.clear(fd);
    return 0;
  }

  DescriptorBits readable_;
  DescriptorBits writable_;
  DescriptorBits exceptional_;
  std::vector<pollfd> entries_;
  bool has_ours_ = false;
};

Result<int> select_by_kernel(int nfds, fd_set* readable, fd_set* writable, fd_set* exceptional, Nanos timeout,
                             const sigset_t* mask) {
  const timespec left = to_timespec(timeout);
  const int ready = ::pselect(nfds, readable, writable, exceptional, timeout == Nanos::max() ? nullptr : &left, mask);
  if (ready < 0) return Error::last("pselect");
  return ready;
}

Nanos time_left(Nanos timeout, Nanos deadline) {
  if (timeout == Nanos::zero() || timeout == Nanos::max()) return timeout;
  return std::max(deadline - monotonic_now(), Nanos::zero());
}

Result<int> select_uncounted(int nfds, fd_set* readable, fd_set* writable, fd_set* exceptional, Nanos& timeout,
                             const sigset_t* mask) {
  const int looked_at = nfds > FD_SETSIZE ? bits_without_library(nfds) : nfds;
  const Nanos deadline = timeout == Nanos::zero() ? timeout : deadline_after(timeout);
  SelectCall call(looked_at, readable, writable, exceptional);
  Result<int> answer = 0;
  if (!call.has_ours()) {
    answer = select_by_kernel(looked_at, readable, writable, exceptional, timeout, mask);
  } else {
    bool has_waited = false;
    do {
      answer = poll_uncounted(call.entries(), time_left(timeout, deadline), mask, has_waited);
    } while (answer && *answer > 0 && !call.ignore_what_nobody_asked());
    if (answer) answer = call.report(has_waited);
  }
  timeout = time_left(timeout, deadline);
  return answer;
}

}  // namespace

int select_bits(int nfds) {
  const bool may_be_longer = nfds > FD_SETSIZE && own_numbers().next(0) != OwnNumbers::kEnd;
  return may_be_longer ? bits_without_library(nfds) : nfds;
}

Result<int> select_endpoints(int nfds, fd_set* readable, fd_set* writable, fd_set* exceptional, Nanos& timeout,
                             const sigset_t* mask) {
  if (nfds < 0) return Error{EINVAL, "select"};
  return counted_wait(WaitCounters::kSelect,
                      [&] { return select_uncounted(nfds, readable, writable, exceptional, timeout, mask); });
}

}  // namespace ringsock::runtime
