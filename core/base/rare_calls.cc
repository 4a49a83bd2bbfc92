#include "core/base/rare_calls.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <linux/netlink.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>

#include "core/base/at_fork.h"
#include "core/base/filter_program.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/base/process_state.h"
#include "core/base/rare_call_table.h"
#include "core/base/seccomp_probe.h"
#include "core/base/unique_fd.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef NETLINK_SOCK_DIAG
#define NETLINK_SOCK_DIAG 4
#endif
#define RINGSOCK_SO_PASSRIGHTS 83  // of <asm-generic/socket.h>, which Debian 12 does not have
#ifndef __WALL
#define __WALL 0x40000000
#endif
#ifdef SYS_unlink
#define RINGSOCK_SYS_UNLINK SYS_unlink
#define RINGSOCK_UNLINK_ARGUMENTS (0, 0, 0, 0, 0, 0)
#else
#define RINGSOCK_SYS_UNLINK SYS_unlinkat
#define RINGSOCK_UNLINK_ARGUMENTS (AT_FDCWD, 0, 0, 0, 0, 0)
#endif
#ifndef SYS_newfstatat
#define SYS_newfstatat SYS_fstatat64
#endif

namespace ringsock {

namespace {

constexpr std::array<long, 6> six(long a, long b, long c, long d, long e, long f) { return {a, b, c, d, e, f}; }

using Need = RareCallRow::Need;
constexpr RareCallRow kRows[] = {
#define RARE_CALL(name, need, number, expected, arguments) {#name, Need::need, number, expected, six arguments},
#include "core/base/rare_calls.def"
#undef RARE_CALL
};
constexpr std::size_t kRareCalls = std::size(kRows);
static_assert(kRareCalls <= kMostRareCalls);

/// A bit for each call that may not be made.
class Denied {
 public:
  void add(std::size_t call) { bits_[call / 64].fetch_or(std::uint64_t{1} << (call % 64), std::memory_order_relaxed); }
  [[nodiscard]] bool has(std::size_t call) const {
    return ((bits_[call / 64].load(std::memory_order_relaxed) >> (call % 64)) & 1) != 0;
  }

 private:
  std::array<std::atomic<std::uint64_t>, kMostRareCalls / 64> bits_{};
};

/// What is known of the filter of this process.
struct SeccompFilter {
  static constexpr ProcessPart kPart = ProcessPart::seccomp_filter;
  Denied denied;
  std::atomic<bool> rings_are_denied{false};
  std::atomic<bool> ethernet_is_denied{false};
  std::atomic<bool> is_known{false};
  std::atomic<int> at_start{-1};  ///< a Filter, -1 before it is read
  Mutex learning;
};

SeccompFilter& filter() { return process_state<SeccompFilter>(); }

bool ends_rings(const RareCallRow& row, Verdict verdict) {
  if (row.need == Need::spare || row.need == Need::ethernet || verdict == Verdict::allowed) return false;
  return row.need == Need::ring || verdict != Verdict::refused;
}

/// Returns the first denied call without which there is no ring, or null.
const char* first_missing(const Verdicts& verdicts) {
  for (std::size_t i = 0; i < kRareCalls; ++i) {
    if (ends_rings(kRows[i], verdicts[i])) return kRows[i].name;
  }
  return nullptr;
}

void forbid(const Verdicts& verdicts) {
  for (std::size_t i = 0; i < kRareCalls; ++i) {
    if (verdicts[i] == Verdict::allowed) continue;
    filter().denied.add(i);
    if (kRows[i].need == Need::ethernet && verdicts[i] != Verdict::refused) {
      filter().ethernet_is_denied.store(true, std::memory_order_relaxed);
    }
  }
  if (first_missing(verdicts) != nullptr) filter().rings_are_denied.store(true, std::memory_order_relaxed);
}

void deny_everything() {
  for (std::size_t i = 0; i < kRareCalls; ++i) filter().denied.add(i);
  filter().rings_are_denied.store(true, std::memory_order_relaxed);
}

enum class Filter { none, there, not_known };

/// Uses only calls that the start of any program makes, because a filter may kill for prctl(2).
Filter read_filter_state() {
  const UniqueFd status(::open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  if (!status) return Filter::not_known;
  std::array<char, 8192> text;
  const ssize_t length = ::read(status.get(), text.data(), text.size());
  if (length <= 0) return Filter::not_known;
  const std::string_view all(text.data(), static_cast<std::size_t>(length));
  const auto place = all.find("\nSeccomp:\t");
  // A kernel whose status file lacks the line has no filters.
  if (place == std::string_view::npos) return Filter::none;
  return all.substr(place + 10, 1) == "0" ? Filter::none : Filter::there;
}

Filter filter_at_start() {
  std::atomic<int>& known = filter().at_start;
  if (const int value = known.load(std::memory_order_relaxed); value >= 0) return static_cast<Filter>(value);
  const int saved_errno = errno;
  const Filter found = read_filter_state();
  errno = saved_errno;
  known.store(static_cast<int>(found), std::memory_order_relaxed);
  return found;
}

/// Returns what RINGSOCK_SECCOMP says: true to allow all calls, false to deny them, nothing to probe.
std::optional<bool> wish() {
  const char* const text = ::secure_getenv("RINGSOCK_SECCOMP");
  if (text == nullptr || std::strcmp(text, "probe") == 0) return std::nullopt;
  if (std::strcmp(text, "allow") == 0) return true;
  if (std::strcmp(text, "deny") == 0) return false;
  log_warn("RINGSOCK_SECCOMP: \"%s\" is none of probe, allow, deny; \"probe\" is used", text);
  return std::nullopt;
}

void learn_locked() {
  const auto wanted = wish();
  if (wanted && *wanted) return;
  if (wanted) {
    deny_everything();
    log_info("RINGSOCK_SECCOMP=deny: sockets stay with the kernel");
    return;
  }
  // A filter that this process installed, and that ended rings, may also kill for an attempt to probe the filter before
  // it.
  if (filter_at_start() == Filter::none || filter().rings_are_denied.load(std::memory_order_relaxed)) return;
  const Verdicts verdicts = probe_seccomp_filter(kRows);
  forbid(verdicts);
  if (const char* const missing = first_missing(verdicts)) {
    log_info("a seccomp filter forbids %s: sockets stay with the kernel", missing);
  }
}

[[gnu::constructor]] void let_nobody_be_copied_while_learning() { hold_across_fork(filter().learning); }

void learn() {
  const std::lock_guard guard(filter().learning);
  if (filter().is_known.load(std::memory_order_relaxed)) return;
  const int saved_errno = errno;
  learn_locked();
  errno = saved_errno;
  filter().is_known.store(true, std::memory_order_release);
}

void ensure_known() {
  if (!filter().is_known.load(std::memory_order_acquire)) [[unlikely]]
    learn();
}

}  // namespace

std::span<const RareCallRow> rare_call_rows() { return kRows; }

bool is_permitted(RareCall call) noexcept {
  if (filter().rings_are_denied.load(std::memory_order_relaxed) && !filter().is_known.load(std::memory_order_acquire))
    return false;
  ensure_known();
  return !filter().denied.has(static_cast<std::size_t>(call));
}

bool is_known_forbidden(RareCall call) noexcept { return filter().denied.has(static_cast<std::size_t>(call)); }

bool are_rings_permitted() noexcept {
  if (filter().rings_are_denied.load(std::memory_order_relaxed)) return false;
  ensure_known();
  return !filter().rings_are_denied.load(std::memory_order_relaxed);
}

bool are_ethernet_rings_permitted() noexcept {
  return are_rings_permitted() && !filter().ethernet_is_denied.load(std::memory_order_relaxed);
}

bool is_statistics_file_permitted() noexcept {
  // A filter that forbids rings may also forbid the calls that the file needs.
  if (!are_rings_permitted()) return false;
  using enum RareCall;
  for (const RareCall call : {fallocate, pwrite64, getdents64, unlink, unlinkat, newfstatat, kill, madvise_populate}) {
    if (!is_permitted(call)) return false;
  }
  return true;
}

bool began_with_filter() noexcept { return filter_at_start() != Filter::none; }

FilterForecast::FilterForecast(const sock_filter* program, std::size_t length) noexcept {
  filter_at_start();  // called while it still shows the state before this filter
  verdicts_.fill(Verdict::killed);
  for (std::size_t i = 0; program != nullptr && i < kRareCalls; ++i) {
    verdicts_[i] = verdict_of({program, length}, kRows[i]);
  }
  missing_ = first_missing(verdicts_);
  if (missing_ == nullptr && !permits(RareCall::membarrier_private)) missing_ = "membarrier";
  if (missing_ == nullptr && !permits(RareCall::pass_rights)) missing_ = "setsockopt";
}

bool FilterForecast::permits(RareCall call) const noexcept {
  return verdicts_[static_cast<std::size_t>(call)] == Verdict::allowed;
}

void FilterForecast::come_true() const noexcept {
  forbid(verdicts_);
  if (missing_ != nullptr) filter().rings_are_denied.store(true, std::memory_order_relaxed);
}

}  // namespace ringsock
