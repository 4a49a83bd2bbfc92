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

#include "core/base/process_state.h"
#include "core/runtime/service_thread.h"

namespace ringsock::rs {

namespace {

/// An acknowledgement takes some ten microseconds, which is acceptable for a close.
constexpr Nanos kSpin = std::chrono::microseconds(200);
constexpr Nanos kLookInterval = std::chrono::milliseconds(2);
/// Linux gives an orphaned connection about as long (tcp_orphan_retries).
constexpr Nanos kPatience = std::chrono::seconds(60);
constexpr Nanos kExitPatience = std::chrono::seconds(2);

using Socket = std::shared_ptr<runtime::Ref>;

/// Connections of a process without a service thread. Every close(2), and the exit, checks them.
class LeftOver {
 public:
  void add(Socket socket, Nanos end) {
    const std::lock_guard guard(lock_);
    sockets_.emplace_back(std::move(socket), end);
  }
  /// Returns how many have ended since the last look.
  int look() {
    std::vector<std::pair<Socket, Nanos>> done;  // destroyed without the lock
    const std::lock_guard guard(lock_);
    const auto is_over = [now = monotonic_now()](const auto& one) {
      return (*one.first).get()->is_drained() || now >= one.second;
    };
    const auto over = std::stable_partition(sockets_.begin(), sockets_.end(), std::not_fn(is_over));
    std::move(over, sockets_.end(), std::back_inserter(done));
    sockets_.erase(over, sockets_.end());
    return static_cast<int>(done.size());
  }

 private:
  std::mutex lock_;
  std::vector<std::pair<Socket, Nanos>> sockets_;
};

struct Closings {
  static constexpr ProcessPart kPart = ProcessPart::closings;
  void look() { unfinished.fetch_sub(left_over.load()->look()); }
  /// Begins anew in a forked child.
  void belong_to_this_process() {
    if (const pid_t before = owner.exchange(::getpid()); before != 0 && before != ::getpid()) {
      unfinished.store(0);
      left_over.store(new LeftOver);  // a thread that the child does not have may have locked the parent's
    }
  }

  std::atomic<int> unfinished{0};  ///< the number of unfinished connections of this process
  std::atomic<pid_t> owner{0};
  LeftOver first_left_over;
  std::atomic<LeftOver*> left_over{&first_left_over};  ///< a forked child makes a new one
};
Closings& closings() { return process_state<Closings>(); }

void wait_at_exit() {
  const Nanos end = monotonic_now() + kExitPatience;
  Closings& all = closings();
  while (all.owner.load() == ::getpid() && all.unfinished.load() > 0 && monotonic_now() < end) {
    all.look();
    ::usleep(500);
  }
}

void look_later(const Socket& socket, Nanos end) {
  auto look = [socket, end] {
    if ((*socket).get()->is_drained() || monotonic_now() >= end) {
      closings().unfinished.fetch_sub(1);
    } else {
      look_later(socket, end);
    }
  };
  if (!runtime::service_thread().schedule(monotonic_now() + kLookInterval, look))
    closings().left_over.load()->add(socket, end);
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
  Closings& all = closings();
  all.belong_to_this_process();
  all.look();
  all.unfinished.fetch_add(1);
  look_later(std::make_shared<runtime::Ref>(runtime::Ref::share(socket)), start + kPatience);
}

}  // namespace ringsock::rs
