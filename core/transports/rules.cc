#include "core/transports/rules.h"

#include <atomic>
#include <cerrno>
#include <memory>
#include <new>
#include <vector>

#include "core/base/at_fork.h"
#include "core/base/log.h"
#include "core/base/process_state.h"
#include "core/config/config_directory.h"
#include "core/config/preload_rules.h"
#include "core/config/vma_rules.h"
#include "core/extra_api/thread_offload.h"
#include "core/runtime/fd_table.h"
#include "core/transports/chosen_socket.h"

namespace ringsock::transports {

namespace {

struct Offloading {
  static constexpr ProcessPart kPart = ProcessPart::offloading;
  std::atomic<bool> has_ended{false};
  vma::ThreadOffload threads;
  std::atomic<config::VmaRules*> added{nullptr};  ///< by the program; never destroyed
};
Offloading& offloading() { return process_state<Offloading>(); }

struct ProcessRules {
  static constexpr ProcessPart kPart = ProcessPart::rules;
  config::PreloadRules all =
      config::PreloadRules::load(config::config_directory(), program_invocation_short_name, config::report_as_warning);
};
/// Reads them at the first call.
const config::PreloadRules& rules() { return process_state<ProcessRules>().all; }

[[gnu::constructor]] void start() { hold_across_fork(offloading().threads.lock()); }

/// Returns the rules that the program adds. Errors: std::bad_alloc.
config::VmaRules& added_rules() {
  std::atomic<config::VmaRules*>& place = offloading().added;
  if (config::VmaRules* const known = place.load(std::memory_order_acquire)) return *known;
  auto made = std::make_unique<config::VmaRules>(program_invocation_short_name, config::kDefaultVmaApplicationId);
  config::VmaRules* known = nullptr;
  return place.compare_exchange_strong(known, made.get(), std::memory_order_acq_rel) ? *made.release() : *known;
}

bool is_left_to_us(const SocketAddress& address, config::VmaRole role) {
  const config::VmaRules* const added = offloading().added.load(std::memory_order_acquire);
  return added == nullptr || added->decide(role, address) != config::VmaTransport::os;
}

}  // namespace

bool is_offloading() { return !offloading().has_ended.load(std::memory_order_relaxed); }

bool permits_socket(int domain, int type, int protocol) {
  return offloading().threads.of_caller().value_or(true) && !rules().process_is_off() &&
         rules().for_socket(domain, type, protocol) == config::PreloadAction::rdma;
}

bool permits_address(int domain, const SocketAddress& address, config::VmaRole role) {
  return is_offloading() && is_left_to_us(address, role) &&
         rules().for_address(domain, address) == config::PreloadAction::rdma;
}

bool permits_datagrams(int domain, const SocketAddress& address, config::VmaRole role) {
  return is_offloading() && is_left_to_us(address, role) &&
         rules().for_address(domain, address, SOCK_DGRAM, IPPROTO_UDP) == config::PreloadAction::rdma;
}

Status add_rule(const std::string& line) {
  return added_rules().add(line, [](const std::string& text) { log_error("%s", text.c_str()); });
}

Status offload_thread(pthread_t thread, bool on) { return offloading().threads.set(thread, on); }

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
