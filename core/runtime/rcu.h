// liburcu's bulletproof flavour, inlined: a read-side section costs two thread-local stores, threads need not register.
#pragma once

#include <urcu/tls-compat.h>

// liburcu declares its per-thread pointer as C++ thread_local, which makes every access call a wrapper function that
// could construct it, and from a shared library __tls_get_addr() on top. It is a plain pointer of a library that is
// loaded together with ours: say so.
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

/// Begins a read-side section; may be nested. Never sleep, and never call rcu_wait_for_readers(), inside one.
inline void rcu_read_enter() { _urcu_bp_read_lock(); }
inline void rcu_read_leave() {
#ifdef RINGSOCK_TSAN
  // TSan does not see that the grace period orders what readers did before what comes after it.
  __tsan_release(&urcu_bp_gp);
#endif
  _urcu_bp_read_unlock();
}
/// Returns when every section that was open at the call has ended. Some 10 us; errno is kept.
void rcu_wait_for_readers();

}  // namespace ringsock::runtime
