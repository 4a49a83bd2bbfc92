#include "libvmacompat/process/vma_process.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>

#include "config.h"
#include "core/base/at_fork.h"
#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/unique_fd.h"
#include "core/config/vma_banner.h"
#include "core/poll/process_waits.h"
#include "core/poll/spin_policy.h"
#include "core/runtime/service_thread.h"
#include "libvmacompat/process/signal_handling.h"
#include "libvmacompat/statistics/vma_statistics.h"

namespace ringsock::vma {

namespace {

using config::VmaLogLevel;

/// The duration of a look at a ring that finds nothing.
constexpr Nanos kLook{100};
constexpr Nanos kForEver = std::chrono::hours(24);

/// Returns nothing for a program with more privileges than its caller, which the caller's environment must not steer.
const char* const* trusted_environment() { return ::getauxval(AT_SECURE) != 0 ? nullptr : environ; }

void report_early(const std::string& line) { log_warn("%s", line.c_str()); }

VmaLogLevel as_vma_level(LogLevel level) {
  switch (level) {
    case LogLevel::error: return VmaLogLevel::error;
    case LogLevel::warn: return VmaLogLevel::warning;
    case LogLevel::info:
    case LogLevel::debug: return VmaLogLevel::debug;  // VMA uses its level info for the list of settings
    case LogLevel::none: break;
  }
  return VmaLogLevel::none;
}

Nanos time_of_polls(std::int32_t polls) { return polls < 0 ? kForEver : polls * kLook; }

/// Values from the environment are kept as they are; VMA's defaults are only where adaptive polling begins.
void set_spin_policies(const config::VmaConfig& config) {
  using runtime::WaitFor;
  constexpr std::int32_t kMoreThreadsThanCores = 3;
  const unsigned yielding = config.thread_mode == kMoreThreadsThanCores ? 1 : 0;
  const runtime::SpinPolicy reading{.polling_time = time_of_polls(config.rx_poll),
                                    .adaptive = !config.rx_poll_is_set,
                                    .attempts_per_yield = config.rx_poll_yield != 0 ? config.rx_poll_yield : yielding};
  runtime::SpinPolicy first = reading;
  if (config.rx_poll_init_is_set) {
    first.polling_time = time_of_polls(config.rx_poll_init);
    first.adaptive = false;
  }
  set_spin_policy(WaitFor::operation, reading);
  set_spin_policy(WaitFor::first, first);
  const Nanos polling = config.select_poll < 0 ? kForEver : Nanos(std::chrono::microseconds(config.select_poll));
  set_spin_policy(WaitFor::readiness,
                  {.polling_time = polling, .adaptive = !config.select_poll_is_set, .attempts_per_yield = yielding});
  runtime::KernelLooks& looks = runtime::kernel_looks();
  if (config.select_poll_os_ratio_is_set) looks.set_rounds(config.select_poll_os_ratio);
  if (config.select_skip_os_is_set) looks.set_hits(config.select_skip_os);
}

std::string command_line() {
  const UniqueFd file(::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC));
  std::string text;
  std::array<char, 512> piece;
  for (ssize_t got; file && (got = ::read(file.get(), piece.data(), piece.size())) > 0;)
    text.append(piece.data(), static_cast<std::size_t>(got));
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

std::string time_text() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  std::array<char, 64> text{};
  const std::size_t length = std::strftime(text.data(), text.size(), "%a %b %e %H:%M:%S %Y", &local);
  return {text.data(), length};
}

}  // namespace

Process::Process()
    : config(config::load_vma_config(trusted_environment(), report_early)),
      log(config, monotonic_now()),
      agent(config.vmad_notify_dir) {
  config::report_without_effect(trusted_environment(), config,
                                [this](const std::string& line) { log.write(VmaLogLevel::warning, line); });
  set_spin_policies(config);
  runtime::service_thread().set_placement(
      {.cpus = config::cpus_of(config.internal_thread_affinity), .cpuset_directory = config.internal_thread_cpuset});
  runtime::process_waits().measures_polling.store(config.cpu_usage_stats, std::memory_order_relaxed);
  runtime::vma_statistics.configure(config.stats_shmem_dir, config.stats_fd_num);
}

void Process::write_banner() const {
  utsname machine{};
  ::uname(&machine);
  const config::VmaBannerFacts facts{
      .version = "9.8.84-1 Release built on " __DATE__ " " __TIME__ " (ringsock " PACKAGE_VERSION ")",
      .git = {},
      .command_line = command_line(),
      .ofed_version = {},
      .current_time = time_text(),
      .pid = std::to_string(::getpid()),
      .architecture = machine.machine,
      .node = machine.nodename};
  for (const auto& line : config::vma_banner(facts)) log.write(line.level, line.text);
  // Most processes of a preloaded shell are short-lived, so the list is made only when it is shown.
  const VmaLogLevel shown = log.enabled(VmaLogLevel::details) ? VmaLogLevel::details : VmaLogLevel::info;
  for (const auto& line : config::vma_parameter_lines(config, shown)) log.write(line.level, line.text);
}

config::VmaRules& Process::rules() {
  std::call_once(rules_once_, [this] {
    auto made = std::make_unique<config::VmaRules>(program_invocation_short_name, config.application_id);
    const config::VmaConfig defaults;
    made->load(config::with_process_id(config.config_file, ::getpid()).c_str(),
               config.config_file != defaults.config_file,
               [this](const std::string& line) { log.write(VmaLogLevel::warning, line); });
    rules_ = std::move(made);
  });
  return *rules_;
}

namespace {

/// A ring, the service thread and the sockets that watch the network take about thirty descriptors. A process with a
/// low limit needs its descriptors itself, and the kernel would never tell it that there are too many.
bool has_descriptors_to_spare() {
  constexpr rlim_t kEnough = 256;
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kEnough;
}

}  // namespace

bool Process::may_use_rings(int type) {
  if (!has_descriptors_to_spare()) {
    if (!has_told_of_low_limit_.exchange(true, std::memory_order_relaxed))
      log.write(VmaLogLevel::warning,
                "sockets are left to the kernel: this process may have less than 256 descriptors");
    return false;
  }
  has_begun_.store(true, std::memory_order_relaxed);
  return threads.of_caller().value_or(config.offloaded_sockets) &&
         rules().decide_socket(type) == config::VmaTransport::vma;
}

Status Process::leaves_rings(const std::string& what) const {
  constexpr std::int32_t kLogError = 1, kFail = 2, kAbort = 3;
  const std::int32_t mode = config.exception_handling;
  const VmaLogLevel level = mode >= kAbort      ? VmaLogLevel::panic
                            : mode >= kLogError ? VmaLogLevel::error
                                                : VmaLogLevel::debug;
  log.write(level,
            what + (mode >= kFail ? ": not supported by rings" : ": not supported by rings, left to the kernel"));
  if (mode == kAbort) std::abort();
  return mode == kFail ? Error{EOPNOTSUPP, "not supported by rings"} : ok();
}

void Process::cannot_start(Error why) const {
  constexpr std::int32_t kExit = -2;
  if (config.exception_handling != kExit) return;
  log.write(VmaLogLevel::error, std::string("no rings: ") + why.where + ": " + std::strerror(why.code) +
                                    ": ends, as VMA_EXCEPTION_HANDLING is -2");
  // The caller holds locks that handlers of exit(3) may want.
  ::_exit(EXIT_FAILURE);
}

Status Process::use_memory(const verbs::UserMemory& memory) {
  if (has_begun_.load(std::memory_order_relaxed)) return Error{EINVAL, "ioctl: too late for an allocator"};
  memory_ = memory;
  return ok();
}

Process& process() { return process_state<Process>(); }

namespace {

[[gnu::constructor]] void start() {
  Process& me = process();
  hold_across_fork(me.threads.lock());
  hold_across_fork(me.profiles.lock());
  hold_across_fork(me.agent.lock());
  set_log_level(LogLevel::debug);
  set_log_sink([](LogLevel level, const char* text) { process().log.write(as_vma_level(level), text); });
  me.write_banner();
  install_signal_handlers(me.config);
}

[[gnu::destructor]] void end() { process().agent.end(); }

}  // namespace

}  // namespace ringsock::vma
