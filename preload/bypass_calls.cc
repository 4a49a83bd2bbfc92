// syscall(2): where the library does not see the operations on descriptors, the kernel would work on the doorbell
// beneath a ring, so this process's sockets go back to the kernel first (leave_to_kernel()).
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>

#include "core/base/helper_process.h"
#include "preload/async_calls.h"
#include "preload/clone_calls.h"
#include "preload/route.h"
#include "preload/seccomp_calls.h"
#include "preload/system_calls.h"

using namespace ringsock::preload;

RS_INTERCEPT long ringsock_syscall(long number, long first, long second, long third, long fourth, long fifth,
                                   long sixth) asm("syscall");
RS_INTERCEPT long ringsock_syscall(long number, long first, long second, long third, long fourth, long fifth,
                                   long sixth) {
  if (number == SYS_io_uring_setup) [[unlikely]]
    leave_to_kernel("syscall(SYS_io_uring_setup)");
  if (number == SYS_io_submit) [[unlikely]]
    look_at_aio(second, reinterpret_cast<const iocb* const*>(third));
  if (makes_process(number)) [[unlikely]]
    return make_process(number, first, second, third, fourth, fifth, sixth);
  if (number == SYS_seccomp) [[unlikely]]
    before_seccomp(static_cast<unsigned>(first), static_cast<unsigned>(second), reinterpret_cast<const void*>(third));
  if (number == SYS_prctl && first == PR_SET_SECCOMP) [[unlikely]]
    before_prctl_seccomp(static_cast<unsigned long>(second), reinterpret_cast<const void*>(third));
  if (number == SYS_membarrier && hides_membarrier(__builtin_return_address(0))) [[unlikely]] {
    errno = ENOSYS;
    return -1;
  }
  if (const auto ours = carry_system_call(number, {first, second, third, fourth, fifth, sixth})) return *ours;
  const long result = real.syscall(number, first, second, third, fourth, fifth, sixth);
  if (number == SYS_prctl && first == PR_SET_CHILD_SUBREAPER && result == 0) [[unlikely]]
    ringsock::note_subreaper(second != 0);
  return result;
}
