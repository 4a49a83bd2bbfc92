#include "core/base/user_memory.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/base/clock.h"
#include "core/base/process_state.h"

namespace ringsock {

namespace {

/// A test takes 0.1 to 0.25 us, under some hypervisors 2 us. After the first ones, tests take half a percent of the
/// time, or a few percent there.
constexpr int kFirstLooks = 1024;
constexpr int kLooksPerPeriod = 100;
constexpr Nanos kPeriod{10'000'000};
constexpr std::uint64_t kPeriodTicks = 1 << 24;  // 4 to 16 ms

struct PageLooks {
  static constexpr ProcessPart kPart = ProcessPart::page_looks;
  std::atomic<int> left{kFirstLooks};
  std::atomic<std::uint64_t> period_began{0};  ///< in ticks, or nanoseconds where there are none
};

[[gnu::constructor]] void start() { process_state<PageLooks>(); }

/// The clock of the periods is read once for each page that is not known, so it is the cheapest there is.
bool is_period_over(std::atomic<std::uint64_t>& began) {
  std::uint64_t now = ticks();
  std::uint64_t length = kPeriodTicks;
  if (now == 0) {
    now = static_cast<std::uint64_t>(monotonic_now().count());
    length = static_cast<std::uint64_t>(kPeriod.count());
  }
  if (now - began.load(std::memory_order_relaxed) < length) return false;
  began.store(now, std::memory_order_relaxed);
  return true;
}

bool may_look() {
  auto& [looks_left, period_began] = process_state<PageLooks>();
  if (looks_left.load(std::memory_order_relaxed) > 0) {
    looks_left.fetch_sub(1, std::memory_order_relaxed);
    return true;
  }
  if (!is_period_over(period_began)) return false;
  looks_left.store(kLooksPerPeriod, std::memory_order_relaxed);
  return true;
}

/// Uses rt_sigprocmask(2): the kernel reads the new mask before it finds that `how` is invalid.
bool is_page_readable(std::uintptr_t page) {
  constexpr long kNoSuchWay = -1;
  constexpr long kKernelSetBytes = 8;
  const int saved_errno = errno;
  const bool is_bad = ::syscall(SYS_rt_sigprocmask, kNoSuchWay, page, nullptr, kKernelSetBytes) != 0 && errno == EFAULT;
  errno = saved_errno;
  return !is_bad;
}

bool is_page_writable(std::uintptr_t page) { return is_word_writable(reinterpret_cast<std::byte*>(page)); }

}  // namespace

constinit KnownMemory known_memory{KnownPages(is_page_readable), KnownPages(is_page_writable)};

bool is_word_writable(std::byte* application) noexcept {
  const int saved_errno = errno;
  // The kernel carries out an atomic "or 0" there. At worst it wakes a waiter, which futexes may do without a reason.
  std::uint32_t nobody_waits_here = 0;
  const int or_nothing = FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_EQ, 0x7FF);
  const bool done = ::syscall(SYS_futex, &nobody_waits_here, FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 0, nullptr,
                              application, or_nothing) >= 0;
  errno = saved_errno;
  return done;
}

bool KnownPages::look(std::uintptr_t end) noexcept {
  // No process can have the first page or the kernel's half of the address space, so they need no test.
  if (end <= kPageMask || static_cast<std::intptr_t>(end) < 0) return false;
  if (!may_look()) return true;
  if (!is_there_(end - kPageMask)) {
    process_state<PageLooks>().left.fetch_add(
        1, std::memory_order_relaxed);  // gives the test back, so that a bad address is always found
    return false;
  }
  place(end).store(end, std::memory_order_relaxed);
  return true;
}

std::size_t KnownPages::find(const void* address, std::size_t length) noexcept {
  constexpr int kMostPages = 16;
  if (length == 0) return 0;
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  std::uintptr_t end = first | kPageMask;
  for (int i = 0; i < kMostPages; ++i, end += kPageMask + 1) {
    if (place(end).load(std::memory_order_relaxed) != end && !look(end)) {
      const std::uintptr_t bad_page = end - kPageMask;
      return bad_page <= first ? 0 : bad_page - first;
    }
    if (length - 1 <= end - first) return length;
  }
  return length;
}

}  // namespace ringsock
