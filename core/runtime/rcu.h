// liburcu's bulletproof flavour, inlined: a read-side section costs two thread-local stores, threads need not register.
#pragma once

#include <urcu/tls-compat.h>

#include <atomic>

// liburcu declares its per-thread pointer as C++ thread_local, which makes every access call a wrapper function that
// could construct it, and from a shared library also __tls_get_addr(). It is a plain pointer of a library that is
// loaded together with ours, so it is declared as such here.
#undef URCU_TLS_STORAGE_CLASS
#define URCU_TLS_STORAGE_CLASS __attribute__((tls_model("initial-exec"))) __thread
#include <urcu/static/urcu-bp.h>
#undef URCU_TLS_STORAGE_CLASS
#define URCU_TLS_STORAGE_CLASS thread_local

#if defined(__SANITIZE_THREAD__)
#define RINGSOCK_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RINGSOCK_TSAN 1
#endif
#endif
#ifdef RINGSOCK_TSAN
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

namespace ringsock::runtime {

/// This thread's counter, which the grace period watches: its low half counts nested sections. Through a pointer to its
/// type, not by urcu_bp_reader::ctr: liburcu does not give the structure the alignment that it declares, and UBSan
/// knows.
inline std::atomic_ref<unsigned long> rcu_reader_counter() {
  // The pointer is not null, because rcu_read_enter() has registered the thread.
  // NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker)
  return std::atomic_ref(*reinterpret_cast<unsigned long*>(urcu_bp_reader));
}

/// Registers a thread that has had no section yet. In a child that was made without our fork handlers liburcu's lock
/// and list of readers must not be touched. They are not needed there, because no endpoint is destroyed.
void rcu_register_reader();

/// Begins a read-side section; may be nested. Never sleep, and never call rcu_wait_for_readers(), inside one.
inline void rcu_read_enter() {
  if (!urcu_bp_reader) rcu_register_reader();
  const auto counter = rcu_reader_counter();
  const unsigned long value = counter.load(std::memory_order_relaxed);
  if (value & URCU_BP_GP_CTR_NEST_MASK) {
    counter.store(value + URCU_BP_GP_COUNT, std::memory_order_relaxed);
  } else {
    counter.store(CMM_LOAD_SHARED(urcu_bp_gp.ctr), std::memory_order_relaxed);
    urcu_bp_smp_mb_slave();
  }
}
inline void rcu_read_leave() {
#ifdef RINGSOCK_TSAN
  // TSan does not see that the grace period orders what readers did before what comes after it.
  __tsan_release(&urcu_bp_gp);
#endif
  const auto counter = rcu_reader_counter();
  const unsigned long value = counter.load(std::memory_order_relaxed);
  urcu_bp_smp_mb_slave();
  counter.store(value - URCU_BP_GP_COUNT, std::memory_order_relaxed);
}
/// Returns when every section that was open at the call has ended. It waits for a thread that was preempted inside a
/// section in steps of 10 ms. errno is kept.
void rcu_wait_for_readers();
/// Returns, without sleeping, whether all of them have ended or end within some microseconds.
bool rcu_readers_are_gone();

/// Lets liburcu use membarrier(2), which a filter refused when it was loaded, so that readers need no fences. Call it
/// before the first section of this process, while it has only one thread.
void rcu_use_membarrier();
/// Called when membarrier(2) will no longer be permitted: readers use fences from now on.
void rcu_forgo_membarrier();

/// Called around fork(2). Calls may be nested: only the outermost count.
void rcu_before_fork();
void rcu_after_fork_in_parent();
void rcu_after_fork_in_child();

}  // namespace ringsock::runtime
