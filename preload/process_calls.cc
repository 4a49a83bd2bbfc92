// Processes: what becomes of our sockets when one is made or ends.
#include <sys/syscall.h>
#include <unistd.h>

#include "core/runtime/fork_registry.h"
#include "librsocket/family_record.h"
#include "preload/route.h"

using namespace ringsock;
using namespace ringsock::preload;

extern "C" {

/// Where vfork() goes on. A child that shares our memory would close our sockets, not its copies; it gets a copy of the
/// memory, too, where there are any.
__attribute__((visibility("hidden"), used)) pid_t (*ringsock_vfork_target())() {
  return runtime::fork_registry().is_empty() ? real.vfork : &::fork;
}

}  // extern "C"

// libc's vfork() returns twice to its caller's frame, so it must be jumped to.
#if defined(__x86_64__)
asm(R"(
  .text
  .globl vfork
  .type vfork, @function
vfork:
  .cfi_startproc
  endbr64
  subq $8, %rsp
  .cfi_adjust_cfa_offset 8
  call ringsock_vfork_target
  addq $8, %rsp
  .cfi_adjust_cfa_offset -8
  jmp *%rax
  .cfi_endproc
  .size vfork, . - vfork
  .globl __vfork
  .set __vfork, vfork
)");
#else
RS_INTERCEPT pid_t vfork() noexcept { return ::fork(); }
RS_INTERCEPT pid_t __vfork() { return ::fork(); }
#endif

RS_INTERCEPT void _exit(int status) {
  rs::leave_families();
  real._exit(status);
  __builtin_unreachable();
}
RS_INTERCEPT void _Exit(int status) noexcept { ::_exit(status); }
