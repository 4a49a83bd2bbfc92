#include "core/device/shm/link/rights_gate.h"

#include <sys/socket.h>

#include <atomic>
#include <cerrno>

#include "core/base/process_state.h"
#include "core/base/rare_calls.h"

namespace ringsock::soft {

namespace {

constexpr int kPassRights = 83;  // SO_PASSRIGHTS of <asm-generic/socket.h>, which Debian 12 does not have

struct RightsGate {
  static constexpr ProcessPart kPart = ProcessPart::rights_gate;
  std::atomic<bool> is_there{false};
};

[[gnu::constructor]] void start() { process_state<RightsGate>(); }

bool set_gate(int socket, int open) {
  if (!is_permitted(RareCall::pass_rights)) return false;
  const int saved_errno = errno;
  const bool done = ::setsockopt(socket, SOL_SOCKET, kPassRights, &open, sizeof open) == 0;
  errno = saved_errno;
  return done;
}

}  // namespace

bool shut_rights_gate(int socket) {
  const bool done = set_gate(socket, 0);
  std::atomic<bool>& is_there = process_state<RightsGate>().is_there;
  if (done != is_there.load(std::memory_order_relaxed)) is_there.store(done, std::memory_order_relaxed);
  return done;
}

void open_rights_gate(int socket) { set_gate(socket, 1); }

bool has_rights_gate() { return process_state<RightsGate>().is_there.load(std::memory_order_relaxed); }

bool is_rights_gate_shut(int socket) {
  const int saved_errno = errno;
  int open = 1;
  socklen_t length = sizeof open;
  const bool answered = ::getsockopt(socket, SOL_SOCKET, kPassRights, &open, &length) == 0;
  errno = saved_errno;
  return answered && open == 0;
}

}  // namespace ringsock::soft
