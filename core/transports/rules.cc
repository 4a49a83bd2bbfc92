#include "core/transports/rules.h"

#include <atomic>
#include <cerrno>
#include <new>
#include <vector>

#include "core/base/log.h"
#include "core/base/process_state.h"
#include "core/config/config_directory.h"
#include "core/config/preload_rules.h"
#include "core/runtime/fd_table.h"
#include "core/transports/chosen_socket.h"

namespace ringsock::transports {

namespace {

struct Offloading {
  static constexpr ProcessPart kPart = ProcessPart::offloading;
  std::atomic<bool> has_ended{false};
};
Offloading& offloading() { return process_state<Offloading>(); }

struct ProcessRules {
  static constexpr ProcessPart kPart = ProcessPart::rules;
  config::PreloadRules all =
      config::PreloadRules::load(config::config_directory(), program_invocation_short_name, config::report_as_warning);
};
/// Reads them at the first call.
const config::PreloadRules& rules() { return process_state<ProcessRules>().all; }

[[gnu::constructor]] void start() { offloading(); }

}  // namespace

bool is_offloading() { return !offloading().has_ended.load(std::memory_order_relaxed); }

bool permits_socket(int domain, int type, int protocol) {
  return !rules().process_is_off() && rules().for_socket(domain, type, protocol) == config::PreloadAction::rdma;
}

bool permits_address(int domain, const SocketAddress& address) {
  return is_offloading() && rules().for_address(domain, address) == config::PreloadAction::rdma;
}

bool permits_datagrams(int domain, const SocketAddress& address) {
  return is_offloading() &&
         rules().for_address(domain, address, SOCK_DGRAM, IPPROTO_UDP) == config::PreloadAction::rdma;
}

void stop_offloading(const char* why) {
  if (!offloading().has_ended.exchange(true)) log_info("new sockets stay with the kernel: %s", why);
}

void leave_to_kernel(const char* why) noexcept {
  const int saved_errno = errno;
  stop_offloading(why);
  try {
    std::vector<runtime::Ref> sockets;
    runtime::fd_table().for_each(
        [&](int, runtime::Endpoint& endpoint) { sockets.push_back(runtime::Ref::share(endpoint)); });
    for (const runtime::Ref& socket : sockets) {
      if (auto* const chosen = socket->as_chosen_socket()) chosen->give_up_way();
    }
  } catch (const std::bad_alloc&) {
  }
  errno = saved_errno;
}

}  // namespace ringsock::transports
