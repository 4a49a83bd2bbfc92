// Processes that are made by clone(2), directly or through syscall(2): libc runs no fork handlers for them.
//
// For a child that gets a copy of the process, the library runs its handlers around the call, so connections are as
// after fork(2). A child that would share the memory until it executes a program (CLONE_VM and CLONE_VFORK, in
// implementations of posix_spawn) gets a copy where endpoints exist or may come, as with vfork(), because it would
// close the parent's. Threads are left alone. Before a child that shares the descriptors and not the memory, all
// sockets become the kernel's. Children that are made in other ways (assembly; _Fork(3), which may be called in signal
// handlers, where no lock can be taken) are recognised when they first use a socket (base/at_fork.h).
#include "preload/clone_calls.h"

#include <linux/sched.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstring>
#include <new>

#include "core/base/at_fork.h"
#include "core/base/log.h"
#include "core/base/own_threads.h"
#include "core/runtime/fork_registry.h"
#include "core/runtime/service_thread.h"
#include "preload/route.h"

namespace ringsock::preload {
namespace {

constexpr unsigned long kVmFork = CLONE_VM | CLONE_VFORK;

/// Returns the flags for a child that is to get a copy instead of sharing memory. As with this library's vfork(), the
/// parent does not wait for the child.
unsigned long copying(unsigned long flags) {
  const bool spawns = (flags & kVmFork) == kVmFork && (flags & CLONE_THREAD) == 0;
  return spawns ? flags & ~kVmFork : flags;
}

bool copies_process(unsigned long flags) { return (flags & (CLONE_VM | CLONE_FILES | CLONE_THREAD)) == 0; }

/// Returns whether the child has the descriptors, but not the memory, of this process: what one of them opens or
/// closes, the library would not see in the other one.
bool shares_descriptors_only(unsigned long flags) { return (flags & (CLONE_VM | CLONE_FILES)) == CLONE_FILES; }

/// Makes all sockets the kernel's, now and in future.
void leave_everything_to_kernel(const char* why) noexcept {
  const LibraryCall no_handlers;
  const int saved_errno = errno;
  leave_to_kernel(why);
  try {
    transports::give_everything_to_kernel();
  } catch (const std::bad_alloc&) {
    log_warn("no memory to make connections the kernel's");
  }
  errno = saved_errno;
}
void prepare_to_share(unsigned long flags) noexcept {
  if (shares_descriptors_only(flags)) leave_everything_to_kernel("a process that shares the descriptors");
}

/// Runs the library's fork handlers around `call()`, which copies this process and returns the child's number, or 0 in
/// the child. Runs none when the process has other threads: one of them may hold a lock of the memory allocator, which
/// only libc's fork() releases in the child. No code of this library can run there, and the child finds itself a
/// stranger (base/at_fork.h).
template <class Call>
auto as_fork(Call call) {
  const int saved_errno = errno;
  // libc counts the threads of a process and does not correct the count in such a copy: the child would wait for the
  // service thread in setuid(2).
  const runtime::WithoutServiceThread resting;
  if (has_other_threads()) {
    errno = saved_errno;
    return call();
  }
  run_before_fork();
  errno = saved_errno;
  const auto child = call();
  const int error = errno;
  if (child == 0) {
    run_after_fork_in_child();
  } else {
    run_after_fork_in_parent();
  }
  errno = error;
  return child;
}

/// Uses libc's fork(2) when the flags ask for nothing else, because it also keeps the memory allocator's locks in
/// order.
template <class Call>
long make_copy(unsigned long flags, Call call) {
  return flags == SIGCHLD ? ::fork() : as_fork(call);
}

long by_clone3(const clone_args* arguments, std::size_t length, long (*kernel)(void*, std::size_t)) {
  // A longer structure, of a later kernel, is not understood here.
  clone_args copy{};
  if (arguments == nullptr || length < CLONE_ARGS_SIZE_VER0 || length > sizeof copy)
    return kernel(const_cast<clone_args*>(arguments), length);
  std::memcpy(&copy, arguments, length);
  prepare_to_share(copy.flags);
  if (!copies_process(copy.flags) || copy.stack != 0) return kernel(const_cast<clone_args*>(arguments), length);
  clone_args plain{};
  plain.exit_signal = SIGCHLD;
  if (std::memcmp(&copy, &plain, sizeof copy) == 0) return ::fork();
  return as_fork([&] { return kernel(&copy, length); });
}

/// A child's function, which runs once the child's copy of the library is in order.
struct Body {
  int (*function)(void*);
  void* argument;
};
int run_body(void* pointer) {
  const Body body = *static_cast<const Body*>(pointer);
  run_after_fork_in_child();
  // libc would end this thread only, and the child may have a thread of the library by then.
  ::_exit(body.function(body.argument));
}

using CloneCall = int (*)(int (*)(void*), void*, int, void*, pid_t*, void*, pid_t*);

int clone_ours(CloneCall libcs, int (*function)(void*), void* stack, int flags, void* argument, pid_t* parent,
               void* tls, pid_t* child) {
  const auto wanted = static_cast<unsigned>(flags);
  const auto left = static_cast<unsigned>(copying(wanted));
  prepare_to_share(wanted);
  if (function == nullptr || stack == nullptr || !copies_process(left) || may_share_memory())
    return libcs(function, stack, flags, argument, parent, tls, child);
  if (left == SIGCHLD) {
    const pid_t made = ::fork();
    if (made == 0) ::_exit(function(argument));
    return made;
  }
  const int saved_errno = errno;
  const runtime::WithoutServiceThread resting;
  if (has_other_threads()) {
    errno = saved_errno;
    return libcs(function, stack, static_cast<int>(left), argument, parent, tls, child);
  }
  Body body{function, argument};  // the child has a copy of it
  run_before_fork();
  errno = saved_errno;
  const int made = libcs(run_body, stack, static_cast<int>(left), &body, parent, tls, child);
  const int error = errno;
  run_after_fork_in_parent();
  errno = error;
  return made;
}

}  // namespace

bool may_share_memory() { return runtime::fork_registry().is_empty() && !has_other_threads(); }

bool makes_process(long number) {
  switch (number) {
#ifdef SYS_fork
    case SYS_fork:
#endif
#ifdef SYS_vfork
    case SYS_vfork:
#endif
    case SYS_clone:
    case SYS_clone3: return true;
    default: return false;
  }
}

long make_process(long number, long first, long second, long third, long fourth, long fifth, long sixth) {
  const auto kernel = [=] { return real.syscall(number, first, second, third, fourth, fifth, sixth); };
  if (runtime::fork_registry().is_empty()) return kernel();
  if (number == SYS_clone3) {
    return by_clone3(reinterpret_cast<const clone_args*>(first), static_cast<std::size_t>(second),
                     [](void* arguments, std::size_t length) {
                       return real.syscall(SYS_clone3, reinterpret_cast<long>(arguments), static_cast<long>(length), 0,
                                           0, 0, 0);
                     });
  }
  if (number != SYS_clone) return ::fork();
  const auto flags = static_cast<unsigned long>(first);
  prepare_to_share(flags);
  return copies_process(flags) && second == 0 ? make_copy(flags, kernel) : kernel();
}

namespace {

/// Stops the service thread for the time of the call, if `is_wanted`: the kernel lets only a process with one thread
/// enter another user namespace, and the service thread must have the caller's table of descriptors.
int with_one_thread(bool is_wanted, auto call) {
  if (!is_wanted) return call();
  const runtime::WithoutServiceThread alone;
  return call();
}

}  // namespace

bool prepare_own_descriptors() {
  const bool is_alone = [] {
    const runtime::WithoutServiceThread resting;
    return !has_other_threads();
  }();
  if (!is_alone) leave_everything_to_kernel("threads with descriptors of their own");
  return is_alone;
}

int unshare_in_order(int flags) {
  if ((flags & CLONE_FILES) != 0) static_cast<void>(prepare_own_descriptors());
  const bool is_wanted = (flags & (CLONE_NEWUSER | CLONE_THREAD | CLONE_SIGHAND | CLONE_VM | CLONE_FILES)) != 0;
  return with_one_thread(is_wanted, [=] { return real.unshare(flags); });
}

}  // namespace ringsock::preload

using namespace ringsock::preload;

RS_INTERCEPT int unshare(int flags) { return unshare_in_order(flags); }

RS_INTERCEPT int setns(int fd, int type) {
  return with_one_thread(type == 0 || (type & CLONE_NEWUSER) != 0, [=] { return real.setns(fd, type); });
}

#define CLONE_PARAMETERS \
  int (*function)(void*), void *stack, int flags, void *argument, pid_t *parent, void *tls, pid_t *child
// The last three parameters are variable, but are passed in the same way.
RS_INTERCEPT int ringsock_clone(CLONE_PARAMETERS) asm("clone");
RS_INTERCEPT int ringsock_clone(CLONE_PARAMETERS) {
  return clone_ours(real.clone, function, stack, flags, argument, parent, tls, child);
}
RS_INTERCEPT int ringsock_underscore_clone(CLONE_PARAMETERS) asm("__clone");
RS_INTERCEPT int ringsock_underscore_clone(CLONE_PARAMETERS) {
  return clone_ours(real.__clone, function, stack, flags, argument, parent, tls, child);
}
