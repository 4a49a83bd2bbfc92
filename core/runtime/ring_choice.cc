#include "core/runtime/ring_choice.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "core/base/mutex.h"
#include "core/base/process_state.h"
#include "core/base/this_thread.h"
#include "core/base/thread_id.h"

namespace ringsock::runtime {

namespace {

constexpr int kLooksBeforeMoving = 20;

/// Counts the threads that are bound to each CPU.
class AttachedThreads {
 public:
  static constexpr ProcessPart kPart = ProcessPart::attached_threads;
  /// Binds the calling thread to the CPU with the fewest bound threads, among those that it may use. Returns -1 when
  /// that fails.
  int attach() {
    cpu_set_t allowed;
    if (::pthread_getaffinity_np(::pthread_self(), sizeof allowed, &allowed) != 0) return -1;
    const std::lock_guard guard(lock_);
    int best = -1;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &allowed) && (best < 0 || count(cpu) < count(best))) best = cpu;
    }
    if (best < 0) return -1;
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(best, &only);
    if (::pthread_setaffinity_np(::pthread_self(), sizeof only, &only) != 0) return -1;
    ++count(best);
    return best;
  }
  void leave(int cpu) {
    const std::lock_guard guard(lock_);
    --count(cpu);
  }

 private:
  int& count(int cpu) { return counts_[static_cast<std::size_t>(cpu)]; }

  Mutex lock_;
  std::array<int, CPU_SETSIZE> counts_{};
};

AttachedThreads& attached_threads() { return process_state<AttachedThreads>(); }

/// Returns the CPU that the calling thread is bound to, now if it was not before; -1: it cannot be bound.
int bound_cpu() {
  BoundCpu* const bound = this_thread.bound_cpu.get();
  if (bound == nullptr) return -1;
  if (bound->give_back == nullptr) {
    bound->cpu = attached_threads().attach();
    bound->give_back = [](int cpu) { attached_threads().leave(cpu); };
  }
  return bound->cpu;
}

std::uint64_t current_cpu() { return static_cast<std::uint64_t>(std::max(::sched_getcpu(), 0)); }

/// Returns the thread or CPU of the caller.
std::uint64_t place_of(RingLogic logic) {
  if (logic == RingLogic::per_thread) return this_thread_id();
  if (logic == RingLogic::per_core_attach_threads) {
    if (const int cpu = bound_cpu(); cpu >= 0) return static_cast<std::uint64_t>(cpu);
  }
  return current_cpu();
}

/// Returns the 16 bytes of an address, IPv4's in mapped form.
std::array<std::uint64_t, 2> bytes_of(const SocketAddress& address) {
  std::array<std::uint64_t, 2> out{};
  const SocketAddress mapped = address.mapped();
  std::memcpy(out.data(), &mapped.in6().sin6_addr, sizeof out);
  return out;
}

}  // namespace

bool is_ring_logic(std::uint32_t number) {
  switch (static_cast<RingLogic>(number)) {
    case RingLogic::per_interface:
    case RingLogic::per_ip:
    case RingLogic::per_socket:
    case RingLogic::per_user_id:
    case RingLogic::per_thread:
    case RingLogic::per_core:
    case RingLogic::per_core_attach_threads: return true;
  }
  return false;
}

bool RingKey::is_lasting() const {
  return logic != RingLogic::per_socket && logic != RingLogic::per_user_id && logic != RingLogic::per_thread;
}

void RingChoice::set(RingLogic logic, std::uint64_t user_id) {
  logic_ = logic;
  user_id_ = user_id;
  forget_place();
}

void RingChoice::move_here() {
  if (logic_ >= RingLogic::per_thread) place_ = place_of(logic_);
  has_place_ = true;
  seen_ = 0;
}

RingKey RingChoice::key(const SocketAddress& local) {
  switch (logic_) {
    case RingLogic::per_interface: return {};
    case RingLogic::per_ip: return {logic_, bytes_of(local)};
    case RingLogic::per_socket: return {logic_, {socket_id_, 0}};
    case RingLogic::per_user_id: return {logic_, {user_id_, 0}};
    case RingLogic::per_thread:
    case RingLogic::per_core:
    case RingLogic::per_core_attach_threads: break;
  }
  if (!has_place_) move_here();
  return {logic_, {place_, 0}};
}

bool RingChoice::look() {
  const std::uint64_t place = place_of(logic_);
  if (place == place_) {
    seen_ = 0;
    return false;
  }
  seen_ = place == candidate_ ? seen_ + 1 : 1;
  candidate_ = place;
  if (seen_ < kLooksBeforeMoving) return false;
  seen_ = 0;
  return true;
}

}  // namespace ringsock::runtime
