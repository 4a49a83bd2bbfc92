#include "librsocket/closing.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <utility>

#include "core/base/log.h"
#include "core/runtime/service_thread.h"

namespace ringsock::rs {

namespace {

/// An acknowledgement takes some ten microseconds; whoever closes does not mind that.
constexpr Nanos kSpin = std::chrono::microseconds(200);
constexpr Nanos kLookInterval = std::chrono::milliseconds(2);
/// Linux gives an orphaned connection about as long (tcp_orphan_retries).
constexpr Nanos kPatience = std::chrono::seconds(60);
constexpr Nanos kExitPatience = std::chrono::seconds(2);

/// How many there are, and in which process: a forked child has none.
std::atomic<int> unfinished{0};
std::atomic<pid_t> owner{0};

void wait_at_exit() {
  const Nanos end = monotonic_now() + kExitPatience;
  while (owner.load() == ::getpid() && unfinished.load() > 0 && monotonic_now() < end) ::usleep(500);
}

void look_later(const std::shared_ptr<runtime::Ref>& socket, Nanos end) {
  auto look = [socket, end] {
    if ((*socket).get()->is_drained() || monotonic_now() >= end) {
      unfinished.fetch_sub(1);
    } else {
      look_later(socket, end);
    }
  };
  if (auto timer = runtime::service_thread().schedule(monotonic_now() + kLookInterval, look); !timer) {
    log_warn("close: what is under way is lost: %s", timer.error().where);
    unfinished.fetch_sub(1);
  }
}

}  // namespace

void finish_in_background(runtime::Endpoint& socket) {
  const Nanos start = monotonic_now();
  do {
    if (socket.is_drained()) return;
    cpu_relax();
  } while (monotonic_now() - start < kSpin);
  static const int registered = std::atexit(wait_at_exit);
  (void)registered;
  if (owner.exchange(::getpid()) != ::getpid()) unfinished.store(0);
  unfinished.fetch_add(1);
  look_later(std::make_shared<runtime::Ref>(runtime::Ref::share(socket)), start + kPatience);
}

}  // namespace ringsock::rs
