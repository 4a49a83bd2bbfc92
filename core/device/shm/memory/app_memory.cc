#include "core/device/shm/memory/app_memory.h"

#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string_view>
#include <vector>

#include "core/base/own_threads.h"
#include "core/base/process_state.h"
#include "core/device/shm/memory/address_space.h"
#include "core/device/shm/memory/page_swap.h"
#include "core/device/shm/memory/shared_pages.h"

namespace ringsock::soft {

namespace {

/// For smaller memory the exchange probably costs more than it saves.
constexpr std::uint64_t kMinBytes = 8 * kPageBytes;
/// For larger memory the temporary second copy may exceed the machine's memory.
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;

struct RegisteredMemory {
  static constexpr ProcessPart kPart = ProcessPart::registered_memory;
  std::atomic<bool> is_shared{false};
  std::vector<const AppMemory*> all;  ///< SharedPages::lock() must be held
};

[[gnu::constructor]] void start() { process_state<RegisteredMemory>(); }

/// Returns whether a peer of the same user may read all of this process's memory, so that sharing whole pages reveals
/// nothing more.
bool peers_see_everything() { return read_sysctl("/proc/sys/kernel/yama/ptrace_scope").value_or(0) == 0; }

/// Returns whether the exchange is safe for the process: the kernel would not refuse it half way or kill the process
/// for it.
bool process_may_share() {
  rlimit file_size{};
  constexpr long kNeverOvercommit = 2;  // private pages are counted then, and mmap(2) may fail half way
  return ::prctl(PR_GET_DUMPABLE) == 1 && ::getrlimit(RLIMIT_FSIZE, &file_size) == 0 &&
         file_size.rlim_cur == RLIM_INFINITY &&
         read_sysctl("/proc/sys/vm/overcommit_memory").value_or(kNeverOvercommit) != kNeverOvercommit;
}

/// Returns whether the area has no attribute that a memfd's pages cannot have (locked, huge, not for children), and
/// only page tables refer to its pages.
bool has_ordinary_attributes(const MemoryArea& area) {
  constexpr std::string_view kOrdinary = " rd wr mr mw me ac nr sd hg nh ";
  const std::string_view flags = area.flags;
  if (area.permissions != "rw-p" || area.protection_key != 0) return false;
  std::size_t at = 0;
  for (; at + 4 <= flags.size(); at += 3) {
    if (kOrdinary.find(flags.substr(at, 4)) == std::string_view::npos) return false;
  }
  return at != 0;
}

bool is_anonymous(const MemoryArea& area) {
  // The second case is memory that was shared before and is private again.
  return area.inode == 0 || area.name.starts_with(SharedPages::kNameInMaps);
}

/// Returns whether [start, end) can be exchanged: it has no hole and is no stack.
bool can_exchange(std::uint64_t start, std::uint64_t end) {
  const int here = 0;
  const auto stack = reinterpret_cast<std::uint64_t>(&here);
  std::uint64_t at = start;
  for (const MemoryArea& area : areas_between(start, end, AreaDetail::smaps)) {
    const bool holds_stack = (area.start <= stack && stack < area.end) || area.name.starts_with("[stack");
    if (area.start > at || holds_stack || !is_anonymous(area) || !has_ordinary_attributes(area)) return false;
    at = area.end;
  }
  return at >= end;
}

}  // namespace

void share_application_memory(bool enabled) {
  process_state<RegisteredMemory>().is_shared.store(enabled, std::memory_order_relaxed);
}

AppMemory::AppMemory(void* address, std::size_t length, bool share)
    : start_(reinterpret_cast<std::uint64_t>(address)), end_(start_ + length) {
  const std::lock_guard guard(SharedPages::lock());
  auto& registered = process_state<RegisteredMemory>();
  // Peers write into registered memory that is not shared, and unlike writes of our threads theirs cannot be held up.
  const bool written_by_peers = std::ranges::any_of(registered.all, [this](const AppMemory* other) {
    return !other->pages_ && other->start_ < end_ && start_ < other->end_;
  });
  registered.all.push_back(this);
  if (!share || length < kMinBytes || length > kMaxBytes || written_by_peers ||
      !registered.is_shared.load(std::memory_order_relaxed))
    return;
  pages_ = SharedPages::find(start_, end_);
  if (pages_ || !process_may_share()) return;
  const auto counts = process_counts();
  if (!counts || counts->pinned_kib != 0 || counts->locked_kib != 0) return;
  const bool outwards = peers_see_everything();
  const std::uint64_t start = (outwards ? start_ : start_ + kPageBytes - 1) & ~(kPageBytes - 1);
  const std::uint64_t end = (outwards ? end_ + kPageBytes - 1 : end_) & ~(kPageBytes - 1);
  if (!can_exchange(start, end)) return;
  const bool alone = counts->threads <= 1 + static_cast<unsigned long>(OwnThread::count());
  pages_ = SharedPages::put_under(start, end - start, alone ? OtherWriters::none : OtherWriters::threads);
}

AppMemory::~AppMemory() {
  const std::lock_guard guard(SharedPages::lock());
  std::erase(process_state<RegisteredMemory>().all, this);
  pages_.reset();
}

SharedPlace AppMemory::place() const { return pages_ ? pages_->place() : SharedPlace{}; }

}  // namespace ringsock::soft
