// seccomp(2) and prctl(PR_SET_SECCOMP): the library must not do afterwards what the filter forbids.
#include "preload/seccomp_calls.h"

#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string_view>

#include "core/base/helper_process.h"
#include "core/base/log.h"
#include "core/base/rare_calls.h"
#include "core/runtime/rcu.h"
#include "core/statistics/statistics.h"
#include "preload/route.h"

namespace ringsock::preload {
namespace {

constexpr std::size_t kPageBytes = 4096;

/// Returns whether these bytes can be read, by a system call that reads them and then refuses its first argument.
bool is_readable(const void* memory, std::size_t bytes) {
  if (is_known_forbidden(RareCall::sigprocmask)) return true;  // forbidden by an earlier filter
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  for (std::uintptr_t at = begin; at < begin + bytes; at = (at / kPageBytes + 1) * kPageBytes) {
    const std::uintptr_t last = std::max<std::uintptr_t>(begin, std::min(at, begin + bytes - 8));
    if (real.syscall(SYS_rt_sigprocmask, -1, static_cast<long>(last), 0, 8, 0, 0) < 0 && errno == EFAULT) return false;
  }
  return true;
}

/// Returns the program, or null when the kernel will report an error.
const sock_fprog* valid_program(const void* arguments) {
  const auto* const program = static_cast<const sock_fprog*>(arguments);
  if (program == nullptr || !is_readable(program, sizeof *program)) return nullptr;
  if (program->len == 0 || program->len > BPF_MAXINSNS || program->filter == nullptr) return nullptr;
  return is_readable(program->filter, program->len * sizeof(sock_filter)) ? program : nullptr;
}

void expect(const FilterForecast& forecast) noexcept {
  const LibraryCall no_handlers;
  const int saved_errno = errno;
  if (const char* const missing = forecast.missing()) {
    log_info("a seccomp filter that is installed now forbids %s: sockets are the kernel's", missing);
    leave_to_kernel("a seccomp filter");
    try {
      transports::give_everything_to_kernel();
    } catch (const std::bad_alloc&) {
    }
  }
  if (!forecast.permits(RareCall::membarrier_private)) runtime::rcu_forgo_membarrier();
  if (!forecast.permits(RareCall::unlink)) runtime::process_statistics.remove_file();
  forecast.come_true();
  errno = saved_errno;
}

void expect_program(const void* arguments) noexcept {
  const int saved_errno = errno;
  const sock_fprog* const program = valid_program(arguments);
  errno = saved_errno;
  if (program != nullptr) expect(FilterForecast(program->filter, program->len));
}

}  // namespace

void before_seccomp(unsigned operation, unsigned flags, const void* arguments) noexcept {
  if (operation == SECCOMP_SET_MODE_FILTER) expect_program(arguments);
  // Other arguments are libseccomp's test for seccomp(2), with flags that this mode does not have.
  if (operation == SECCOMP_SET_MODE_STRICT && flags == 0 && arguments == nullptr) expect(FilterForecast(nullptr, 0));
}

void before_prctl_seccomp(unsigned long mode, const void* program) noexcept {
  if (mode == SECCOMP_MODE_FILTER) expect_program(program);
  if (mode == SECCOMP_MODE_STRICT) expect(FilterForecast(nullptr, 0));
}

bool hides_membarrier(const void* caller) noexcept {
  static constinit std::atomic<const void*> harmless{nullptr};
  if (harmless.load(std::memory_order_relaxed) == caller || !began_with_filter()) return false;
  Dl_info found{};
  const bool is_urcu = ::dladdr(caller, &found) != 0 && found.dli_fname != nullptr &&
                       std::string_view(found.dli_fname).find("liburcu-bp") != std::string_view::npos;
  // When the library has begun to use membarrier(2) (rcu_use_membarrier()), it is known to be permitted.
  if (is_urcu && urcu_bp_has_sys_membarrier == 0) return true;
  harmless.store(caller, std::memory_order_relaxed);
  return false;
}

}  // namespace ringsock::preload

using namespace ringsock::preload;

RS_INTERCEPT int ringsock_prctl(int option, unsigned long second, unsigned long third, unsigned long fourth,
                                unsigned long fifth) asm("prctl");
RS_INTERCEPT int ringsock_prctl(int option, unsigned long second, unsigned long third, unsigned long fourth,
                                unsigned long fifth) {
  if (option == PR_SET_SECCOMP) [[unlikely]]
    before_prctl_seccomp(second, reinterpret_cast<const void*>(third));
  const int result = real.prctl(option, second, third, fourth, fifth);
  if (option == PR_SET_CHILD_SUBREAPER && result == 0) ringsock::note_subreaper(second != 0);
  return result;
}
