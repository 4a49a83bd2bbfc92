#include "preload/offload.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>

#include "core/base/at_fork.h"
#include "core/base/log.h"
#include "core/base/rare_calls.h"
#include "core/config/config_directory.h"
#include "core/config/preload_rules.h"
#include "core/runtime/rcu.h"
#include "core/statistics/statistics.h"
#include "librsocket/process.h"

namespace ringsock::preload {

namespace {

constinit std::atomic<bool> stopped{false};

/// Read at the first call, never destroyed.
const config::PreloadRules& rules() {
  static const auto* const all = new config::PreloadRules(
      config::PreloadRules::load(config::config_directory(), program_invocation_short_name, config::report_as_warning));
  return *all;
}

}  // namespace

namespace {

/// Reads the configuration and begins the statistics.
void ensure_begun() { [[maybe_unused]] static const bool begun = (rs::share_ports_with_kernel(), rs::process(), true); }

/// Returns whether a seccomp filter permits what statistics need: the process id, and reading files when they begin.
bool may_count() {
  using enum RareCall;
  for (const RareCall call : {getpid, fstat, fstat_at, faccessat2}) {
    if (!is_permitted(call)) return false;
  }
  return true;
}

/// Returns whether this process can have rings at all.
bool may_use_rings() {
  if (!is_known_process()) return false;  // made without fork(3): the library's state belongs to its parent
  if (!are_rings_permitted()) {
    if (may_count()) {
      ensure_begun();
      runtime::process_statistics.count_kernel_connected(runtime::KernelReason::filter);
    }
    return false;
  }
  ensure_begun();
  [[maybe_unused]] static const bool quick = (runtime::rcu_use_membarrier(), true);
  return true;
}

}  // namespace

bool may_offload(int domain, int type, int protocol) {
  if (domain != AF_INET && domain != AF_INET6) return false;
  if ((type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) != SOCK_STREAM) return false;
  if (protocol != 0 && protocol != IPPROTO_TCP) return false;
  if (stopped.load(std::memory_order_relaxed) || !may_use_rings()) return false;
  return !rs::process().registry.empty() && !rules().process_is_off() &&
         rules().for_socket(domain, type, IPPROTO_TCP) == config::PreloadAction::rdma;
}

bool may_offload_address(int domain, const SocketAddress& address) {
  return !stopped.load(std::memory_order_relaxed) &&
         rules().for_address(domain, address) == config::PreloadAction::rdma;
}

void stop_offloading(const char* why) {
  if (!stopped.exchange(true)) log_info("new sockets stay with the kernel: %s", why);
}

}  // namespace ringsock::preload
