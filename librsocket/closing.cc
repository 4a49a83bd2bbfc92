#include "librsocket/closing.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/runtime/service_thread.h"

namespace ringsock::rs {

namespace {

/// An acknowledgement takes some ten microseconds, which is acceptable for a close.
constexpr Nanos kSpin = std::chrono::microseconds(200);
constexpr Nanos kLookInterval = std::chrono::milliseconds(2);
/// Linux gives an orphaned connection about as long (tcp_orphan_retries).
constexpr Nanos kPatience = std::chrono::seconds(60);
constexpr Nanos kExitPatience = std::chrono::seconds(2);

/// The number of unfinished connections of this process; a forked child has none.
std::atomic<int> unfinished{0};
std::atomic<pid_t> owner{0};

using Socket = std::shared_ptr<runtime::Ref>;

/// Connections of a process without a service thread. Every close(2), and the exit, checks them.
class LeftOver {
 public:
  void add(Socket socket, Nanos end) {
    const std::lock_guard guard(lock_);
    sockets_.emplace_back(std::move(socket), end);
  }
  void look() {
    std::vector<std::pair<Socket, Nanos>> done;  // destroyed without the lock
    const std::lock_guard guard(lock_);
    const auto is_over = [now = monotonic_now()](const auto& one) {
      return (*one.first).get()->is_drained() || now >= one.second;
    };
    const auto over = std::stable_partition(sockets_.begin(), sockets_.end(), std::not_fn(is_over));
    std::move(over, sockets_.end(), std::back_inserter(done));
    sockets_.erase(over, sockets_.end());
    unfinished.fetch_sub(static_cast<int>(done.size()));
  }

 private:
  std::mutex lock_;
  std::vector<std::pair<Socket, Nanos>> sockets_;
};

/// A forked child makes a new one.
std::atomic<LeftOver*> left_over{new LeftOver};

void wait_at_exit() {
  const Nanos end = monotonic_now() + kExitPatience;
  while (owner.load() == ::getpid() && unfinished.load() > 0 && monotonic_now() < end) {
    left_over.load()->look();
    ::usleep(500);
  }
}

void look_later(const Socket& socket, Nanos end) {
  auto look = [socket, end] {
    if ((*socket).get()->is_drained() || monotonic_now() >= end) {
      unfinished.fetch_sub(1);
    } else {
      look_later(socket, end);
    }
  };
  if (!runtime::service_thread().schedule(monotonic_now() + kLookInterval, look)) left_over.load()->add(socket, end);
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
  if (const pid_t before = owner.exchange(::getpid()); before != 0 && before != ::getpid()) {
    unfinished.store(0);
    left_over.store(new LeftOver);  // a thread that the child does not have may have locked the parent's
  }
  left_over.load()->look();
  unfinished.fetch_add(1);
  look_later(std::make_shared<runtime::Ref>(runtime::Ref::share(socket)), start + kPatience);
}

}  // namespace ringsock::rs
