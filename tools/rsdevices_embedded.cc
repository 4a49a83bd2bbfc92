// The embedded device: which features that it needs the kernel has, and the consequences of missing ones.
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "tools/rsdevices_survey.h"

namespace ringsock::tools {

namespace {

/// The first two numbers of "6.1.0-56-amd64".
using Version = std::pair<unsigned, unsigned>;

Version version_of(const std::string& release) {
  Version out{};
  const char* const end = release.data() + release.size();
  const auto major = std::from_chars(release.data(), end, out.first);
  if (major.ec == std::errc() && major.ptr != end) std::from_chars(major.ptr + 1, end, out.second);
  return out;
}

std::string because(int error) { return std::string(" (") + std::strerror(error) + ")"; }

constexpr const char* kSandbox =
    "Permit it where it is forbidden: the seccomp profile of the container, SystemCallFilter= of the service";

void add_obstacles(const System& system, const Settings& settings, Findings& out) {
  using enum config::DeviceChoice;
  const auto choice = settings.config.device;
  if (choice == rdma || choice == none) {
    out.push_back({"switched-off",
                   settings.device_source + " is \"" + to_string(choice) + "\": the embedded device is not used",
                   "Set it to auto or soft"});
  }
  if (const int error = system.feature_error(KernelFeature::sealed_memfd)) {
    out.push_back({"no-memfd", "memfd_create(2), or sealing its files, fails" + because(error), kSandbox});
  }
  if (const int error = system.feature_error(KernelFeature::unix_sockets)) {
    out.push_back(
        {"no-unix-sockets", "an AF_UNIX socket with an abstract name cannot be made" + because(error), kSandbox});
  }
}

void add_message_costs(const System& system, const Settings&, Findings& out) {
  if (system.feature_error(KernelFeature::membarrier) != 0) {
    out.push_back(
        {"no-membarrier", "membarrier(2) is not to be had: each message costs a memory fence, 5 to 100 ns", kSandbox});
  }
}

constexpr const char* kSlowRiomap = ": riowrite() into memory given to riomap() is a system call each, not one copy";

/// Adds everything that prevents sharing of memory given to riomap(), where sharing is configured.
void add_sharing_costs(const System& system, const Settings& settings, Findings& out) {
  if (settings.config.iomap_share == 0) return;
  if (const int error = system.feature_error(KernelFeature::page_sharing)) {
    out.push_back({"no-page-sharing",
                   "a memfd's pages cannot be put under memory in use" + because(error) + kSlowRiomap,
                   "It needs Linux 5.14 or later, madvise(2) and mremap(2)"});
  } else if (const int refused = system.feature_error(KernelFeature::write_protection)) {
    out.push_back({"no-userfaultfd",
                   "userfaultfd(2) is not to be had" + because(refused) + "; in programs with several threads" +
                       std::string(kSlowRiomap).substr(1),
                   refused == EPERM || refused == EACCES
                       ? "sysctl vm.unprivileged_userfaultfd=1, or give permission on /dev/userfaultfd "
                         "(Linux 6.1), or the capability CAP_SYS_PTRACE"
                       : "It needs a kernel with CONFIG_USERFAULTFD and write protection"});
  }
  if (system.read("/proc/sys/vm/overcommit_memory").value_or("2") == "2") {
    out.push_back(
        {"no-overcommit", std::string("vm.overcommit_memory is 2") + kSlowRiomap, "sysctl vm.overcommit_memory=0"});
  }
  if (system.limit(Limit::file_size)) {
    out.push_back({"file-size-limited", std::string("the size of files is limited (ulimit -f)") + kSlowRiomap,
                   "ulimit -f unlimited"});
  }
}

void add_access_costs(const System& system, const Settings&, Findings& out) {
  const std::string scope = system.read("/proc/sys/kernel/yama/ptrace_scope").value_or("0");
  if (scope != "0") {
    out.push_back(
        {"ptrace-scope",
         "kernel.yama.ptrace_scope is " + scope +
             ": a peer may not write into memory given to riomap() that is not shared with it (small buffers, "
             "the first and last page of large ones); the process that has it must do so, when it calls",
         "If your rules for security permit: sysctl kernel.yama.ptrace_scope=0"});
  } else if (const int error = system.feature_error(KernelFeature::peer_writes)) {
    out.push_back({"no-process-vm",
                   "process_vm_writev(2) fails" + because(error) +
                       ": what a peer writes into memory given to riomap() that is not shared with it, the process "
                       "that has it must carry out, when it calls",
                   kSandbox});
  }
}

void add_user_costs(const System& system, const Settings&, Findings& out) {
  constexpr Version kShowsBoundSockets{6, 8};
  constexpr const char* kDiagnosisModules = "modprobe -a tcp_diag inet_diag unix_diag";
  if (const int error = system.feature_error(KernelFeature::port_names)) {
    out.push_back({"no-unix-diag",
                   "sock_diag(7) does not tell who has a name of AF_UNIX" + because(error) +
                       ": servers that set SO_REUSEADDR, as most do, are reached by kernel TCP only",
                   kDiagnosisModules});
  }
  if (const int error = system.feature_error(KernelFeature::port_owners)) {
    out.push_back(
        {"no-sock-diag",
         "sock_diag(7) does not tell who owns a port" + because(error) +
             ": all connections of programs under librspreload go by kernel TCP, and programs that call librsocket "
             "are connected to those of their own user only",
         kDiagnosisModules});
  } else if (version_of(system.kernel_release()) < kShowsBoundSockets) {
    out.push_back({"kernel-before-6.8",
                   "Linux " + system.kernel_release() +
                       " does not tell who owns a port that nobody listens on: between different users, servers that "
                       "call librsocket are reached by nobody (those under librspreload are)",
                   "Linux 6.8 or later does"});
  }
}

void add_process_costs(const System& system, const Settings&, Findings& out) {
  constexpr std::uint64_t kEnoughDescriptors = 1024;
  constexpr Version kOldest{5, 10};
  if (version_of(system.kernel_release()) < kOldest) {
    out.push_back({"kernel-too-old", "Linux " + system.kernel_release() + " is older than what ringsock is made for",
                   "Linux 5.10 or later"});
  }
  const auto descriptors = system.limit(Limit::descriptors);
  if (descriptors && *descriptors < kEnoughDescriptors) {
    out.push_back({"few-descriptors",
                   "a process may have " + std::to_string(*descriptors) +
                       " descriptors (ulimit -n): less memory is kept for the next connection, short ones cost more",
                   "ulimit -n 1024, or more"});
  }
  if (const int error = system.access_error("/dev/shm")) {
    out.push_back({"no-dev-shm", "/dev/shm cannot be written" + because(error) + ": rsstat will see no process",
                   "mount -t tmpfs -o mode=1777 tmpfs /dev/shm"});
  }
}

}  // namespace

DeviceReport survey_embedded(const System& system, const Settings& settings) {
  DeviceReport out;
  out.name = "embedded";
  out.kind = Kind::soft;
  out.type = "shared memory";
  add_obstacles(system, settings, out.obstacles);
  if (!out.obstacles.empty()) return out;
  for (const auto add : {add_message_costs, add_sharing_costs, add_access_costs, add_user_costs, add_process_costs}) {
    add(system, settings, out.costs);
  }
  return out;
}

Survey survey(const System& system, const Settings& settings) {
  Survey out;
  if (settings.rdma) survey_rdma(system, settings, out);
  if (settings.soft) out.devices.push_back(survey_embedded(system, settings));
  return out;
}

}  // namespace ringsock::tools
