#include "librsocket/rsocket_process.h"

#include <sys/epoll.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "core/base/at_fork.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/config/config_directory.h"
#include "core/device/rdma/rdma_provider.h"
#include "core/device/shm/memory/app_memory.h"
#include "core/device/shm/soft_provider.h"
#include "core/poll/spin_policy.h"
#include "core/runtime/service_thread.h"
#include "core/runtime/shared_page.h"
#include "core/statistics/statistics.h"

namespace ringsock::rs {

namespace {

constinit std::atomic<bool> shares_ports_with_kernel{false};
// Not a static object of a function: a process that is forked while another thread makes it would wait for that thread.
constinit std::atomic<Process*> instance{nullptr};
constinit Mutex making;
[[gnu::constructor]] void keep_whole() { hold_across_fork(making); }

config::RsocketConfig load_config() {
  return config::load_rsocket_config(config::config_directory(), config::environment_overrides(),
                                     config::report_as_warning);
}

void apply_log_level() {
  const char* text = ::secure_getenv("RINGSOCK_LOG");
  if (text == nullptr) return;
  constexpr const char* kNames[] = {"none", "error", "warn", "info", "debug"};
  for (int level = 0; level < 5; ++level) {
    if (std::strcmp(text, kNames[level]) == 0) {
      set_log_level(static_cast<LogLevel>(level));
      return;
    }
  }
  log_warn("RINGSOCK_LOG: \"%s\" is none of none, error, warn, info, debug; \"warn\" is used", text);
}

void apply_statistics_wish() {
  const char* text = ::secure_getenv("RINGSOCK_STATS");
  runtime::process_statistics.set_print_at_exit(text != nullptr && std::strcmp(text, "1") == 0);
}

/// For tests only: gives the embedded device the abilities of other devices, so that librsocket's code for those can be
/// tested everywhere.
soft::SoftAbilities soft_abilities() {
  const char* text = ::secure_getenv("RINGSOCK_TEST_SOFT_LIKE");
  // Asynchronous events are not needed: completions report a failed connection.
  if (text == nullptr) return {.async_events = false};
  const bool iwarp = std::strcmp(text, "iwarp") == 0;
  return {.max_inline_data = iwarp ? 4u : 64u,
          .write_with_immediate = !iwarp,
          .wakes_through_connection = false,
          .survives_fork = std::strcmp(text, "unforkable") != 0,
          .async_events = false};
}

class DeviceWatch {
 public:
  explicit DeviceWatch(runtime::ServiceThread::Id watch) : watch_(watch) {}
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;
  ~DeviceWatch() { runtime::service_thread().unwatch(watch_); }

 private:
  const runtime::ServiceThread::Id watch_;
};

/// rdma::Watcher on the service thread.
std::shared_ptr<void> watch_device(int fd, std::function<void()> serve) {
  auto watch = runtime::service_thread().watch(fd, EPOLLIN, [serve = std::move(serve)](std::uint32_t) { serve(); });
  if (!watch) return nullptr;
  return std::make_shared<DeviceWatch>(*watch);
}

std::vector<std::unique_ptr<verbs::DeviceProvider>> providers(config::DeviceChoice choice) {
  std::vector<std::unique_ptr<verbs::DeviceProvider>> all;
  const bool required = choice == config::DeviceChoice::rdma;
  all.push_back(rdma::make_rdma_provider(
      {.watch = watch_device, .required = required, .iwarp = required || !shares_ports_with_kernel.load()}));
  all.push_back(soft::make_soft_provider(soft_abilities()));
  return all;
}

verbs::AllowedDevices allowed(config::DeviceChoice choice) {
  using enum config::DeviceChoice;
  return {.rdma = choice == automatic || choice == rdma, .soft = choice == automatic || choice == soft};
}

void make_instance() {
  apply_log_level();
  apply_statistics_wish();
  instance.store(new Process(load_config()), std::memory_order_release);
}

[[gnu::constructor]] void keep_devices_whole() {
  const auto before = [] {
    Process* const made = instance.load(std::memory_order_acquire);
    if (made == nullptr) return;
    made->is_held_by_fork = true;
    made->registry.before_fork();
  };
  const auto after = [] {
    // Another thread may have made it since the handler before the fork ran.
    Process* const made = instance.load(std::memory_order_acquire);
    if (made != nullptr && std::exchange(made->is_held_by_fork, false)) made->registry.after_fork();
  };
  at_fork(ForkStep::devices, before, after, after);
}

}  // namespace

Process::Process(config::RsocketConfig settings) : Process(settings, providers(settings.device)) {
  short_connections.survive_fork();
  soft::share_application_memory(config.iomap_share != 0);
  runtime::set_spin_policy({.polling_time = std::chrono::microseconds(config.polling_time)});
}

Process::Process(config::RsocketConfig settings, std::vector<std::unique_ptr<verbs::DeviceProvider>> devices)
    : config(settings), registry(std::move(devices), allowed(settings.device)) {}

void Process::share_counts() noexcept {
  if (shared_counts_) return;
  const std::shared_ptr<void> piece = runtime::shared_piece(sizeof(ServerCounts));
  if (!piece) return;  // each process counts for itself
  auto* const shared = ::new (piece.get()) ServerCounts;
  shared->accepted.store(own_counts_.accepted.load(std::memory_order_relaxed), std::memory_order_relaxed);
  shared->handed_over.store(own_counts_.handed_over.load(std::memory_order_relaxed), std::memory_order_relaxed);
  shared_counts_ = {piece, shared};
  counts.store(shared, std::memory_order_release);
}

void share_ports_with_kernel() { shares_ports_with_kernel.store(true); }

Process& process() {
  if (Process* const made = instance.load(std::memory_order_acquire)) [[likely]]
    return *made;
  const std::lock_guard guard(making);
  if (instance.load(std::memory_order_relaxed) == nullptr) make_instance();
  return *instance.load(std::memory_order_relaxed);
}

bool is_under_ring(int fd) noexcept { return soft::is_link(fd); }

}  // namespace ringsock::rs
