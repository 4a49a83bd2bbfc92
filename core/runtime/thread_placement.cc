#include "core/runtime/thread_placement.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "core/base/unique_fd.h"

namespace ringsock::runtime {

namespace {

struct FreeCpus {
  void operator()(cpu_set_t* cpus) const { CPU_FREE(cpus); }
};

Status enter_cpuset(const std::string& directory) {
  const std::string self = std::to_string(::gettid());
  Status entered = Error{ENOENT, "cpuset"};
  // Of cpusets and version 1 of control groups, of version 2.
  for (const char* const name : {"/tasks", "/cgroup.threads"}) {
    const UniqueFd file(::open((directory + name).c_str(), O_WRONLY | O_CLOEXEC));
    if (!file) {
      entered = Error::last("cpuset: open");
      continue;
    }
    if (::write(file.get(), self.data(), self.size()) == static_cast<ssize_t>(self.size())) return ok();
    return Error::last("cpuset: write");
  }
  return entered;
}

Status run_on(const std::vector<unsigned>& cpus) {
  const std::size_t count = *std::max_element(cpus.begin(), cpus.end()) + std::size_t{1};
  const std::unique_ptr<cpu_set_t, FreeCpus> set(CPU_ALLOC(count));
  if (!set) return Error{ENOMEM, "cpus"};
  const std::size_t bytes = CPU_ALLOC_SIZE(count);
  CPU_ZERO_S(bytes, set.get());
  for (const unsigned cpu : cpus) CPU_SET_S(cpu, bytes, set.get());
  return ::sched_setaffinity(0, bytes, set.get()) == 0 ? ok() : Status(Error::last("sched_setaffinity"));
}

}  // namespace

Status place_this_thread(const ThreadPlacement& placement) {
  if (!placement.cpuset_directory.empty()) {
    if (Status entered = enter_cpuset(placement.cpuset_directory); !entered) return entered;
  }
  return placement.cpus.empty() ? ok() : run_on(placement.cpus);
}

}  // namespace ringsock::runtime
