#include "core/base/close_elsewhere.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <new>
#include <utility>

#include "core/base/mutex.h"
#include "core/base/own_threads.h"
#include "core/base/process_state.h"
#include "core/base/signals_blocked.h"

namespace ringsock {

namespace {

constexpr std::size_t kBusyAbove = 16;

/// The state of one process. A forked child makes a new one, whose lock is free and whose threads are the child's.
struct Closers {
  pid_t owner;
  Mutex lock;
  std::deque<UniqueFd> waiting;
  unsigned threads = 0;
  std::size_t closing = 0;
};

struct ClosersOfProcess {
  static constexpr ProcessPart kPart = ProcessPart::closers;
  std::atomic<Closers*> current{nullptr};
};

[[gnu::constructor]] void start() { process_state<ClosersOfProcess>(); }

Closers& closers() {
  std::atomic<Closers*>& current = process_state<ClosersOfProcess>().current;
  Closers* found = current.load(std::memory_order_acquire);
  const pid_t self = ::getpid();
  if (found != nullptr && found->owner == self) return *found;
  auto* fresh = new Closers{.owner = self, .lock = {}, .waiting = {}};
  // Another thread may have stored its object first; that one is used then.
  if (current.compare_exchange_strong(found, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *found;
}

UniqueFd next_of(Closers& all, bool after_one) {
  const std::lock_guard guard(all.lock);
  if (after_one) --all.closing;
  if (all.waiting.empty()) {
    --all.threads;
    return {};
  }
  UniqueFd out = std::move(all.waiting.front());
  all.waiting.pop_front();
  return out;
}

void* close_in_line(void* of) {
  const OwnThread own;
  Closers& all = *static_cast<Closers*>(of);
  for (UniqueFd fd = next_of(all, false); fd; fd = next_of(all, true)) fd.reset();
  return nullptr;
}

bool start_thread(Closers& all) {
  const SignalsBlocked blocked;
  pthread_attr_t attributes;
  if (::pthread_attr_init(&attributes) != 0) return false;
  ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread{};
  const bool started = ::pthread_create(&thread, &attributes, close_in_line, &all) == 0;
  ::pthread_attr_destroy(&attributes);
  return started;
}

}  // namespace

void close_elsewhere(UniqueFd fd) noexcept {
  if (!fd) return;
  Closers& all = closers();
  {
    const std::lock_guard guard(all.lock);
    all.waiting.push_back(std::move(fd));
    ++all.closing;
    if (all.threads == kMaxClosers) return;
    ++all.threads;
  }
  if (start_thread(all)) return;
  // The descriptor stays open and queued until a thread can be started: the caller must not wait here.
  const std::lock_guard guard(all.lock);
  --all.threads;
}

std::size_t closing_elsewhere() noexcept {
  Closers& all = closers();
  const std::lock_guard guard(all.lock);
  return all.closing;
}

bool closers_are_busy() noexcept { return closing_elsewhere() > kBusyAbove; }

}  // namespace ringsock
