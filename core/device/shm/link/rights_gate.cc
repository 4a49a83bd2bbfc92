#include "core/device/shm/link/rights_gate.h"

#include <sys/socket.h>

#include <atomic>
#include <cerrno>

#include "core/base/rare_calls.h"

namespace ringsock::soft {

namespace {

constexpr int kPassRights = 83;  // SO_PASSRIGHTS of <asm-generic/socket.h>, which Debian 12 does not have

std::atomic<bool> found{false};

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
  if (done != found.load(std::memory_order_relaxed)) found.store(done, std::memory_order_relaxed);
  return done;
}

void open_rights_gate(int socket) { set_gate(socket, 1); }

bool has_rights_gate() { return found.load(std::memory_order_relaxed); }

bool is_rights_gate_shut(int socket) {
  const int saved_errno = errno;
  int open = 1;
  socklen_t length = sizeof open;
  const bool answered = ::getsockopt(socket, SOL_SOCKET, kPassRights, &open, &length) == 0;
  errno = saved_errno;
  return answered && open == 0;
}

}  // namespace ringsock::soft
