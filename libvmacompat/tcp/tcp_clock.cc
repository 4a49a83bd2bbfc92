#include "libvmacompat/tcp/tcp_clock.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "core/base/at_fork.h"
#include "core/ethernet/ring.h"
#include "core/runtime/service_thread.h"
#include "libvmacompat/tcp/tcp_socket.h"

namespace ringsock::vma {

namespace {
constexpr Nanos kPeriod = std::chrono::milliseconds(10);
/// Shorter than the least time after which a peer repeats what was not acknowledged.
constexpr Nanos kQuietPeriod = std::chrono::milliseconds(100);
constexpr int kQuietAfter = 50;
constexpr unsigned kMostBatches = 64;
}  // namespace

TcpClock::TcpClock() : generation_(fork_generation()) { hold_across_fork(lock_); }

TcpClock& tcp_clock() { return process_state<TcpClock>(); }

/// A forked child has the parent's entries, but no service thread.
void TcpClock::forget_parents() {
  if (std::exchange(generation_, fork_generation()) == fork_generation()) return;
  sockets_.clear();
  is_scheduled_ = false;
}

/// Called without the lock, because the service thread has locks of its own.
bool TcpClock::schedule(Nanos period) {
  if (runtime::service_thread().schedule(monotonic_now() + period, [] { tcp_clock().tick(); })) return true;
  const std::lock_guard guard(lock_);
  is_scheduled_ = false;
  return false;
}

bool TcpClock::enter(TcpSocket& socket) {
  {
    const std::lock_guard guard(lock_);
    forget_parents();
    quiet_ = 0;
    sockets_.push_back(&socket);
    if (std::exchange(is_scheduled_, true)) return true;
  }
  if (schedule(kPeriod)) return true;
  leave(socket);
  return false;
}

void TcpClock::leave(TcpSocket& socket) {
  const std::lock_guard guard(lock_);
  std::erase(sockets_, &socket);
}

void TcpClock::tick() {
  std::vector<runtime::Ref> present;
  {
    const std::lock_guard guard(lock_);
    is_scheduled_ = false;
    for (TcpSocket* const socket : sockets_) {
      if (socket->try_add_ref()) present.emplace_back(socket);
    }
  }
  bool is_quiet = true;
  const Nanos now = monotonic_now();
  std::map<std::shared_ptr<ethernet::Ring>, bool> rings;  // whether the application looks at them
  for (const runtime::Ref& one : present) {
    auto& socket = static_cast<TcpSocket&>(*one);
    const bool was_used = socket.look(now);
    if (RingUser* const user = ring_user_of(socket))
      for (auto& ring : user->api().receiving_rings()) rings[std::move(ring)] |= was_used;
    is_quiet &= !was_used;
  }
  for (const auto& [ring, is_used] : rings) {
    for (unsigned i = 0; !is_used && i < kMostBatches && ring->poll(nullptr) == ethernet::Ring::Look::some; ++i)
      is_quiet = false;
  }
  Nanos period = kPeriod;
  {
    const std::lock_guard guard(lock_);
    quiet_ = is_quiet ? quiet_ + 1 : 0;
    if (quiet_ > kQuietAfter) period = kQuietPeriod;
    if (sockets_.empty() || std::exchange(is_scheduled_, true)) return;
  }
  schedule(period);
}

}  // namespace ringsock::vma
