#include "core/base/raised_limit.h"

#include <pthread.h>

#include <atomic>
#include <cerrno>

#include "core/base/at_fork.h"
#include "core/base/mutex.h"
#include "core/base/process_state.h"
#include "core/base/rare_calls.h"

namespace ringsock {
namespace {

struct LimitRaiser {
  static constexpr ProcessPart kPart = ProcessPart::limit_raiser;
  /// Without it a second thread would take the raised limit for the program's, and restore that.
  Mutex lock;
  std::atomic<pthread_t> thread{};
};

LimitRaiser& raiser() { return process_state<LimitRaiser>(); }

[[gnu::constructor]] void start() { hold_across_fork(raiser().lock); }

}  // namespace

RaisedLimit::RaisedLimit() : is_inner_(raiser().thread.load(std::memory_order_relaxed) == ::pthread_self()) {
  if (is_inner_) {
    is_raised_ = true;
    return;
  }
  const int saved_errno = errno;
  if (is_permitted(RareCall::raise_limit)) {
    raiser().lock.lock();
    if (::getrlimit(RLIMIT_NOFILE, &before_) == 0 && before_.rlim_cur < before_.rlim_max) {
      const rlimit raised{before_.rlim_max, before_.rlim_max};
      is_raised_ = ::setrlimit(RLIMIT_NOFILE, &raised) == 0;
    }
    if (is_raised_) {
      raiser().thread.store(::pthread_self(), std::memory_order_relaxed);
    } else {
      raiser().lock.unlock();
    }
  }
  errno = saved_errno;
}

RaisedLimit::~RaisedLimit() {
  if (!is_raised_ || is_inner_) return;
  const int saved_errno = errno;
  ::setrlimit(RLIMIT_NOFILE, &before_);
  raiser().thread.store({}, std::memory_order_relaxed);
  raiser().lock.unlock();
  errno = saved_errno;
}

}  // namespace ringsock
