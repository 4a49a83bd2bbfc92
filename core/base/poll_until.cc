#include "core/base/poll_until.h"

#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <vector>

#include "core/base/handlers_wait.h"
#include "core/base/libc_calls.h"

namespace ringsock {
namespace {

/// One of the sets of pselect(2), for any descriptor number.
class DescriptorSet {
 public:
  explicit DescriptorSet(int highest) : words_(static_cast<std::size_t>(highest) / kBits + 1) {}
  void add(int fd) { words_[word(fd)] |= bit(fd); }
  [[nodiscard]] bool has(int fd) const { return (words_[word(fd)] & bit(fd)) != 0; }
  unsigned long* data() { return words_.data(); }

 private:
  static constexpr std::size_t kBits = sizeof(unsigned long) * CHAR_BIT;
  static std::size_t word(int fd) { return static_cast<std::size_t>(fd) / kBits; }
  static unsigned long bit(int fd) { return 1UL << static_cast<std::size_t>(fd) % kBits; }
  std::vector<unsigned long> words_;
};

/// The events of poll(2) that stand for the three sets of pselect(2).
constexpr std::array<short, 3> kEventsOfSets{POLLIN, POLLOUT, POLLPRI};
using DescriptorSets = std::array<DescriptorSet, kEventsOfSets.size()>;

int call_pselect(DescriptorSets& sets, int highest, const timespec* left, const sigset_t* mask) {
  timespec limit = left != nullptr ? *left : timespec{};
  const struct {
    const sigset_t* mask;
    std::size_t bytes;
  } signals{mask, _NSIG / CHAR_BIT};
  const auto argument = [](const void* pointer) { return reinterpret_cast<long>(pointer); };
  return static_cast<int>(libc_calls.syscall(SYS_pselect6, highest + 1, argument(sets[0].data()),
                                             argument(sets[1].data()), argument(sets[2].data()),
                                             argument(left != nullptr ? &limit : nullptr), argument(&signals)));
}

/// Does the work of ppoll(2) by pselect(2), which RLIMIT_NOFILE does not limit.
int poll_by_select(std::span<pollfd> fds, const timespec* left, const sigset_t* mask) {
  int highest = 0;
  for (const pollfd& entry : fds) highest = std::max(highest, entry.fd);
  DescriptorSets sets{DescriptorSet(highest), DescriptorSet(highest), DescriptorSet(highest)};
  const auto wants = [](const pollfd& entry, std::size_t set) {
    return entry.fd >= 0 && (entry.events & kEventsOfSets[set]) != 0;
  };
  for (const pollfd& entry : fds) {
    for (std::size_t set = 0; set < sets.size(); ++set) {
      if (wants(entry, set)) sets[set].add(entry.fd);
    }
  }
  const int found = call_pselect(sets, highest, left, mask);
  if (found < 0) return -1;
  int ready = 0;
  for (pollfd& entry : fds) {
    entry.revents = 0;
    for (std::size_t set = 0; found > 0 && set < sets.size(); ++set) {
      if (wants(entry, set) && sets[set].has(entry.fd))
        entry.revents = static_cast<short>(entry.revents | kEventsOfSets[set]);
    }
    if (entry.revents != 0) ++ready;
  }
  return ready;
}

}  // namespace

Result<int> poll_until(std::span<pollfd> fds, Nanos deadline, const sigset_t* mask) {
  const bool for_ever = deadline == Nanos::max();
  const timespec left = to_timespec(for_ever ? deadline : std::max(deadline - monotonic_now(), Nanos::zero()));
  const timespec* const limit = for_ever ? nullptr : &left;
  const BeforeSleep sleep(mask);
  if (sleep.is_interrupted()) return Error{EINTR, "ppoll"};
  const int errno_before = errno;  // a call that goes on after a signal, and succeeds, leaves it as the kernel's does
  // ::ppoll() would be no cancellation point here (libc_wraps.cc).
  int ready = libc_calls.ppoll(fds.data(), fds.size(), limit, sleep.mask());
  // There are more entries than the process may have descriptors (RLIMIT_NOFILE).
  if (ready < 0 && errno == EINVAL) [[unlikely]]
    ready = poll_by_select(fds, limit, sleep.mask());
  const Result<int> answer = ready < 0 ? Result<int>(Error::last("ppoll")) : ready;
  errno = errno_before;
  return answer;
}

}  // namespace ringsock
