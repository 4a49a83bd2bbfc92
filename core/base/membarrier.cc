#include "core/base/membarrier.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>

#include "core/base/process_state.h"
#include "core/base/rare_calls.h"

namespace ringsock {

namespace {

struct Scope {
  RareCall permission;
  int registration;
  int barrier;
};
constexpr std::array kScopes{
    Scope{RareCall::membarrier_private, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, MEMBARRIER_CMD_PRIVATE_EXPEDITED},
    Scope{RareCall::membarrier_global, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, MEMBARRIER_CMD_GLOBAL_EXPEDITED},
};

struct Barriers {
  static constexpr ProcessPart kPart = ProcessPart::barriers;
  enum class Registered : std::uint8_t { unknown, yes, no };
  std::array<std::atomic<Registered>, kScopes.size()> registered{};
};

[[gnu::constructor]] void start() { process_state<Barriers>(); }

long membarrier(int command) { return ::syscall(__NR_membarrier, command, 0, 0); }

}  // namespace

bool register_for_barriers(BarrierScope scope) {
  using enum Barriers::Registered;
  const auto which = static_cast<std::size_t>(scope);
  auto& registered = process_state<Barriers>().registered[which];
  auto known = registered.load(std::memory_order_acquire);
  if (known == unknown) {
    const Scope& wanted = kScopes[which];
    known = is_permitted(wanted.permission) && membarrier(wanted.registration) == 0 ? yes : no;
    registered.store(known, std::memory_order_release);
  }
  return known == yes;
}

void run_barrier(BarrierScope scope) {
  const Scope& wanted = kScopes[static_cast<std::size_t>(scope)];
  if (register_for_barriers(scope) && is_permitted(wanted.permission)) membarrier(wanted.barrier);
}

}  // namespace ringsock
