#include "core/runtime/fd_table.h"
#include "core/base/at_fork.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
#endif
#include <urcu/urcu-bp.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "core/base/clock.h"
#include "core/base/process_state.h"
#include "core/base/rare_calls.h"
#include "core/base/sleep_while.h"
#include "core/base/this_thread.h"
#include "core/runtime/reader_barrier.h"
#include "core/runtime/refusing_endpoint.h"
#include "core/runtime/service_thread.h"

namespace ringsock::runtime {

constinit FdTable process_fd_table;

namespace {

/// The counters of all threads that have had a section. liburcu keeps them for ever and gives them to later threads. A
/// counter is zero while no thread has it.
class ReaderCounters {
 public:
  static constexpr ProcessPart kPart = ProcessPart::reader_counters;
  void add(unsigned long* counter) {
    const std::lock_guard guard(lock_);
    const std::size_t count = count_.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < count; ++i) {
      if (counters_[i] == counter) return;
    }
    if (count == counters_.size()) {
      is_full_.store(true, std::memory_order_relaxed);
      return;
    }
    counters_[count] = counter;
    count_.store(count + 1, std::memory_order_release);
  }
  /// Returns whether no thread is inside a section that began before the caller's last barrier.
  [[nodiscard]] bool are_idle() const {
    constexpr int kLooks = 64;
    if (is_full_.load(std::memory_order_relaxed)) return false;
    const std::size_t count = count_.load(std::memory_order_acquire);
    int looks = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::atomic_ref counter(*counters_[i]);
      while ((counter.load(std::memory_order_acquire) & URCU_BP_GP_CTR_NEST_MASK) != 0) {
        if (++looks == kLooks) return false;
        cpu_relax();
      }
    }
    return true;
  }
  void before_fork() { lock_.lock(); }
  void after_fork() { lock_.unlock(); }

 private:
  static constexpr std::size_t kMost = 256;  ///< with more threads at once, callers always wait
  Mutex lock_;
  std::array<unsigned long*, kMost> counters_{};
  std::atomic<std::size_t> count_{0};
  std::atomic<bool> is_full_{false};
};
ReaderCounters& reader_counters() { return process_state<ReaderCounters>(); }

struct FdTableFork {
  static constexpr ProcessPart kPart = ProcessPart::fd_table_fork;
  int depth = 0;  ///< how many times the forking thread holds liburcu's locks
};

/// The endpoints that stand for what cannot be used.
struct Refusing {
  static constexpr ProcessPart kPart = ProcessPart::refusing_endpoints;
  alignas(RefusingEndpoint) std::array<std::byte, sizeof(RefusingEndpoint)> being_closed{};
  alignas(RefusingEndpoint) std::array<std::byte, sizeof(RefusingEndpoint)> parents{};
  std::once_flag is_marked;
  Endpoint* mark = nullptr;  ///< in `being_closed`
};
Refusing& refusing() { return process_state<Refusing>(); }

bool is_single_threaded() {
#if __has_include(<sys/single_threaded.h>)
  return __libc_single_threaded != 0;
#else
  return false;
#endif
}

// The table's lock is taken first: remove() waits for readers without holding it.
void before_fork() {
  process_fd_table.before_fork();
  reader_barrier().before_fork();
  rcu_before_fork();
  reader_counters().before_fork();
}
void after_fork_parent() {
  reader_counters().after_fork();
  rcu_after_fork_in_parent();
  reader_barrier().after_fork();
  process_fd_table.after_fork();
}
void after_fork_child() {
  reader_counters().after_fork();
  rcu_after_fork_in_child();
  reader_barrier().after_fork_in_child();
  process_fd_table.after_fork_in_child();
}

[[gnu::constructor]] void start() {
  reader_counters();
  process_state<FdTableFork>();
  reader_barrier();
  at_fork(ForkStep::descriptor_table, before_fork, after_fork_parent, after_fork_child);
  at_strange_child([] { process_fd_table.leave_to_parent(); });
}

}  // namespace

void rcu_register_reader() {
  if (is_known_process()) [[likely]] {
    urcu_bp_register();
    reader_counters().add(reinterpret_cast<unsigned long*>(urcu_bp_reader));
  } else {
    urcu_bp_reader = reinterpret_cast<struct urcu_bp_reader*>(&this_thread.reader_counter);
  }
}

void rcu_wait_for_readers() {
  // In a child that was made without our fork handlers liburcu's list of readers may be inconsistent: other threads may
  // have been changing it while the kernel copied its pages. No endpoint is destroyed there.
  if (!is_known_process() || is_single_threaded() || rcu_readers_are_gone()) return;
  const int saved_errno = errno;
  urcu_bp_synchronize_rcu();
  errno = saved_errno;
#ifdef RINGSOCK_TSAN
  __tsan_acquire(&urcu_bp_gp);
#endif
}

bool rcu_readers_are_gone() {
  const int saved_errno = errno;
  reader_barrier().execute();
  const bool are_gone = reader_counters().are_idle();
  // Orders the readers' loads before what follows, on machines with weak memory ordering.
  if (are_gone) std::atomic_thread_fence(std::memory_order_seq_cst);
  errno = saved_errno;
#ifdef RINGSOCK_TSAN
  __tsan_acquire(&urcu_bp_gp);
#endif
  return are_gone;
}

void rcu_use_membarrier() {
#if __has_include(<sys/single_threaded.h>)
  if (urcu_bp_has_sys_membarrier != 0 || __libc_single_threaded == 0) return;
  if (!is_permitted(RareCall::membarrier_private)) return;
  if (::syscall(__NR_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0) urcu_bp_has_sys_membarrier = 1;
#endif
}

void rcu_forgo_membarrier() { reader_barrier().forgo_membarrier(); }

void rcu_before_fork() {
  if (process_state<FdTableFork>().depth++ == 0) urcu_bp_before_fork();
}
void rcu_after_fork_in_parent() {
  if (--process_state<FdTableFork>().depth == 0) urcu_bp_after_fork_parent();
}
void rcu_after_fork_in_child() {
  if (--process_state<FdTableFork>().depth == 0) urcu_bp_after_fork_child();
}

Result<FdTable::Entry*> FdTable::make_entry(int fd) {
  if (fd < 0) return Error{EBADF, "descriptor table"};
  const auto number = static_cast<std::size_t>(fd);
  std::atomic<Chunk*>& slot = chunks_[number >> kChunkBits];
  if (number >= kChunkSize && !slot.load(std::memory_order_relaxed)) {
    const int saved_errno = errno;
    void* memory =
        ::mmap(nullptr, sizeof(Chunk), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    errno = saved_errno;
    if (memory == MAP_FAILED) return Error{ENOMEM, "descriptor table"};
    // Zeroed pages are a valid chunk of null pointers; constructing it would touch every page.
    static_assert(std::is_trivially_destructible_v<Chunk> && sizeof(Entry) == sizeof(void*));
    slot.store(static_cast<Chunk*>(memory), std::memory_order_release);
    chunks_end_ = std::max(chunks_end_, (number >> kChunkBits) + 1);
  }
  return entry(fd);
}

Endpoint* FdTable::exchange(Entry& entry, Endpoint* endpoint) {
  if (endpoint) endpoint->descriptors_.fetch_add(1, std::memory_order_relaxed);
  Endpoint* old = entry.exchange(endpoint, std::memory_order_acq_rel);
  if (old) old->descriptors_.fetch_sub(1, std::memory_order_acq_rel);
  return old;
}

Status FdTable::insert(int fd, Ref endpoint) {
  if (!is_known_process()) return Error{EIO, "descriptor table: a child that was made without fork(3)"};
  watch_for_strange_children();
  Endpoint* stale = nullptr;
  {
    const std::lock_guard guard(lock_);
    Result<Entry*> entry = make_entry(fd);
    if (!entry) return entry.error();
    own_numbers().remove(fd);
    end_.store(std::max(end(), fd == INT_MAX ? fd : fd + 1), std::memory_order_relaxed);
    stale = exchange(**entry, endpoint.release());
  }
  if (stale && stale != being_closed()) {
    rcu_wait_for_readers();
    end_stale(fd, Ref(stale));
  }
  return ok();
}

void FdTable::drop_stale_entry(int fd) noexcept {
  const int saved_errno = errno;
  end_close(fd);
  if (Ref stale = remove(fd)) end_stale(fd, std::move(stale));
  errno = saved_errno;
}

void FdTable::end_stale(int fd, Ref endpoint) noexcept {
  endpoint->descriptor_vanished(fd);
  if (!endpoint->has_descriptors()) endpoint->retire();
}

Ref FdTable::remove(int fd) { return take(fd, false); }
Ref FdTable::begin_close(int fd) { return take(fd, true); }

/// Under lock_.
void FdTable::clear_mark(Entry* place) noexcept {
  if (place != nullptr && place->load(std::memory_order_relaxed) == being_closed()) exchange(*place, nullptr);
}

void FdTable::end_close(int fd) noexcept {
  const std::lock_guard guard(lock_);
  clear_mark(entry(fd));
}

bool FdTable::wait_for_close(int fd) const noexcept {
  constexpr Nanos kPatience = std::chrono::milliseconds(100);
  constexpr Nanos kBetweenLooks = std::chrono::microseconds(20);
  const Entry* const place = entry(fd);
  const auto is_marked = [place] { return place->load(std::memory_order_acquire) == being_closed(); };
  if (place == nullptr) return true;
  for (int looks = 0; looks < 100 && is_marked(); ++looks) ::sched_yield();
  sleep_while(is_marked, kPatience, kBetweenLooks);
  return !is_marked();
}

/// Takes the endpoint out of `place`. Null when there is none, or another thread is closing the number. Under lock_.
Endpoint* FdTable::take_locked(Entry* place, bool is_marked) {
  Endpoint* const endpoint = place ? place->load(std::memory_order_relaxed) : nullptr;
  if (endpoint == nullptr || endpoint == being_closed()) return nullptr;
  return exchange(*place, is_marked ? being_closed() : nullptr);
}

Ref FdTable::take(int fd, bool is_marked) {
  // A child that was made without our fork handlers has its parent's list of readers, and none of their threads.
  const bool has_readers = is_known_process() && !is_single_threaded();
  Ref mine;
  Retired retired;
  {
    const std::lock_guard guard(lock_);
    Endpoint* const endpoint = take_locked(entry(fd), is_marked && has_readers);
    if (!endpoint) return {};
    if (!has_readers) return Ref(endpoint);
    mine = Ref::share(*endpoint);
    retired = std::exchange(retired_, {});
    if (retired.count == kMostRetired)
      retired_.add(*endpoint);
    else
      retired.add(*endpoint);
  }
  if (rcu_readers_are_gone()) {
    retired.drop();
  } else {
    put_back(retired);
  }
  return mine;
}

/// Threads that close would wait for readers without a CPU, one after the other: the service thread does it for all.
void FdTable::put_back(Retired& retired) {
  {
    const std::lock_guard guard(lock_);
    while (retired.count > 0 && retired_.count < kMostRetired) retired_.add(*retired.endpoints[--retired.count]);
  }
  if (retired.count > 0) {
    rcu_wait_for_readers();
    retired.drop();
  }
  constexpr Nanos kSoon = std::chrono::milliseconds(1);
  if (is_reclaim_due_.exchange(true)) return;
  // Another table than the process's may end before a timer does.
  const bool may_leave = this == &process_fd_table;
  if (!may_leave || !service_thread().schedule(monotonic_now() + kSoon, [] { process_fd_table.reclaim(); })) reclaim();
}

void FdTable::reclaim() {
  is_reclaim_due_.store(false);
  Retired retired;
  {
    const std::lock_guard guard(lock_);
    retired = std::exchange(retired_, {});
  }
  rcu_wait_for_readers();
  retired.drop();
}

std::vector<Ref> FdTable::begin_close(std::span<const int> fds) {
  const bool has_readers = is_known_process() && !is_single_threaded();
  std::vector<Ref> removed(fds.size());
  {
    const std::lock_guard guard(lock_);
    for (std::size_t i = 0; i < fds.size(); ++i) removed[i] = Ref(take_locked(entry(fds[i]), has_readers));
  }
  rcu_wait_for_readers();
  return removed;
}

Endpoint* FdTable::make_refusing(void* place, Error why) noexcept {
  Endpoint* const made = new (place) RefusingEndpoint(why);
  // Never the last descriptor, never the last reference.
  made->descriptors_.store(kManyDescriptors);
  made->references.set(kManyDescriptors);
  return made;
}

Endpoint* FdTable::being_closed() noexcept {
  Refusing& all = refusing();
  // Two threads may close their first descriptors at once.
  std::call_once(all.is_marked, [&all] {
    all.mark = make_refusing(all.being_closed.data(), {EBADF, "the descriptor is being closed"});
    all.mark->is_closed_.store(true);  // nobody watches it
  });
  return all.mark;
}

/// Threads that were closing numbers exist only in the parent.
void FdTable::after_fork_in_child() {
  is_reclaim_due_.store(false, std::memory_order_relaxed);
  for (int fd = 0; fd < end() && being_closed()->descriptors_.load() > kManyDescriptors; ++fd) clear_mark(entry(fd));
  lock_.unlock();
}

void FdTable::leave_to_parent() noexcept {
  new (&lock_) Mutex;
  retired_ = {};
  Endpoint* const lost = make_refusing(refusing().parents.data(),
                                       {EIO, "the connection is the parent's: this process was made without fork(3)"});
  for (std::size_t i = 0; i == 0 || i < chunks_end_; ++i) {
    Chunk* const chunk = i == 0 ? &first_ : chunks_[i].load(std::memory_order_relaxed);
    if (chunk == nullptr) continue;
    for (Entry& entry : chunk->entries) {
      const Endpoint* const endpoint = entry.load(std::memory_order_relaxed);
      if (endpoint != nullptr) {
        entry.store(endpoint->is_kernels_too() ? nullptr : lost, std::memory_order_relaxed);
      }
    }
  }
}

bool FdTable::let_go(int fd) {
  static_cast<void>(is_known_process());
  Retired ripe;
  {
    const std::lock_guard guard(lock_);
    Endpoint* const endpoint = take_locked(entry(fd), false);
    if (!endpoint) return false;
    if (retired_.count == kMostRetired) ripe = std::exchange(retired_, {});
    retired_.add(*endpoint);
  }
  if (ripe.count > 0) {
    rcu_wait_for_readers();
    ripe.drop();
  }
  return true;
}

}  // namespace ringsock::runtime
