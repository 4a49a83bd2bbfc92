#include "core/runtime/fd_table.h"
#include "core/base/at_fork.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
#endif
#include <urcu/urcu-bp.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <new>

#include "core/base/rare_calls.h"
#include "core/runtime/lost_endpoint.h"

namespace ringsock::runtime {

constinit FdTable process_fd_table;

namespace {

// The table's lock first: remove() waits for readers without holding it.
void before_fork() {
  process_fd_table.before_fork();
  rcu_before_fork();
}
void after_fork_parent() {
  rcu_after_fork_in_parent();
  process_fd_table.after_fork();
}
void after_fork_child() {
  rcu_after_fork_in_child();
  process_fd_table.after_fork();
}

/// How many times it is held; the forking thread's.
constinit int fork_depth = 0;

/// Stands for liburcu's record of a thread where that cannot be had: its counter, which is all that a section uses.
thread_local constinit unsigned long own_reader_counter = 0;

[[gnu::constructor]] void install_fork_handlers() {
  at_fork(before_fork, after_fork_parent, after_fork_child);
  at_strange_child([] { process_fd_table.leave_to_parent(); });
}

}  // namespace

void rcu_register_reader() {
  if (is_known_process()) [[likely]] {
    urcu_bp_register();
  } else {
    urcu_bp_reader = reinterpret_cast<struct urcu_bp_reader*>(&own_reader_counter);
  }
}

void rcu_wait_for_readers() {
  // In a child that was made without our fork handlers liburcu's list of readers is what other threads, in the midst of
  // a grace period, left in each page when the kernel copied it; and no endpoint is destroyed there.
  if (!is_known_process()) return;
#if __has_include(<sys/single_threaded.h>)
  if (__libc_single_threaded != 0) return;
#endif
  const int saved_errno = errno;
  urcu_bp_synchronize_rcu();
  errno = saved_errno;
#ifdef RINGSOCK_TSAN
  __tsan_acquire(&urcu_bp_gp);
#endif
}

void rcu_use_membarrier() {
#if __has_include(<sys/single_threaded.h>)
  if (urcu_bp_has_sys_membarrier != 0 || __libc_single_threaded == 0) return;
  if (!is_permitted(RareCall::membarrier_private)) return;
  if (::syscall(__NR_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0) urcu_bp_has_sys_membarrier = 1;
#endif
}

void rcu_forgo_membarrier() {
  if (urcu_bp_has_sys_membarrier == 0) return;
  urcu_bp_has_sys_membarrier = 0;
  // Sections that began without a fence have passed one when it returns.
  ::syscall(__NR_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
}

void rcu_before_fork() {
  if (fork_depth++ == 0) urcu_bp_before_fork();
}
void rcu_after_fork_in_parent() {
  if (--fork_depth == 0) urcu_bp_after_fork_parent();
}
void rcu_after_fork_in_child() {
  if (--fork_depth == 0) urcu_bp_after_fork_child();
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
    // Zeroed pages are a chunk of null pointers: constructing it would touch every page.
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
    end_.store(std::max(end(), fd == INT_MAX ? fd : fd + 1), std::memory_order_relaxed);
    stale = exchange(**entry, endpoint.release());
  }
  if (stale) {
    rcu_wait_for_readers();
    const Ref last(stale);
    if (!stale->has_descriptors()) stale->close();
  }
  return ok();
}

Ref FdTable::remove(int fd) {
  static_cast<void>(is_known_process());
  Endpoint* endpoint = nullptr;
  {
    const std::lock_guard guard(lock_);
    Entry* const place = entry(fd);
    if (place) endpoint = exchange(*place, nullptr);
  }
  if (!endpoint) return {};
  rcu_wait_for_readers();
  return Ref(endpoint);
}

std::vector<Ref> FdTable::remove(std::span<const int> fds) {
  static_cast<void>(is_known_process());
  std::vector<Ref> removed(fds.size());
  {
    const std::lock_guard guard(lock_);
    for (std::size_t i = 0; i < fds.size(); ++i) {
      if (Entry* const place = entry(fds[i])) removed[i] = Ref(exchange(*place, nullptr));
    }
  }
  rcu_wait_for_readers();
  return removed;
}

void FdTable::leave_to_parent() noexcept {
  new (&lock_) Mutex;
  retired_count_ = 0;
  alignas(LostEndpoint) static std::byte place[sizeof(LostEndpoint)];
  auto* const lost = new (place) LostEndpoint;
  // Never the last descriptor, never the last reference.
  lost->descriptors_.store(1U << 30);
  lost->refs_.store(1U << 30);
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
  std::array<Endpoint*, kMostRetired> ripe{};
  {
    const std::lock_guard guard(lock_);
    Entry* const place = entry(fd);
    Endpoint* const endpoint = place ? exchange(*place, nullptr) : nullptr;
    if (!endpoint) return false;
    if (retired_count_ == kMostRetired) {
      ripe = retired_;
      retired_count_ = 0;
    }
    retired_[retired_count_++] = endpoint;
  }
  if (ripe[0]) {
    rcu_wait_for_readers();
    for (Endpoint* endpoint : ripe) endpoint->drop_ref();
  }
  return true;
}

}  // namespace ringsock::runtime
