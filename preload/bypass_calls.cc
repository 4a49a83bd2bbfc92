// Calls that announce operations on descriptors which libc's functions never see: io_uring and AIO. The kernel would
// work on the doorbell beneath a ring, so before the first of them this process's sockets go back to the kernel.
#include <dlfcn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <new>
#include <vector>

#include "preload/clone_calls.h"
#include "preload/offload.h"
#include "preload/route.h"
#include "preload/seccomp_calls.h"
#include "preload/system_calls.h"

namespace ringsock::preload {

void leave_to_kernel(const char* why) noexcept {
  const int saved_errno = errno;
  stop_offloading(why);
  try {
    std::vector<runtime::Ref> sockets;
    fd_table().for_each([&](int, runtime::Endpoint& endpoint) { sockets.push_back(runtime::Ref::share(endpoint)); });
    for (const runtime::Ref& socket : sockets) {
      if (auto* const dual = dynamic_cast<DualSocket*>(&*socket)) dual->give_up_ring();
    }
  } catch (const std::bad_alloc&) {
  }
  errno = saved_errno;
}

namespace {

/// A function of liburing or libaio, which may be loaded where RTLD_NEXT does not look. Null when it is not.
void* find(const char* name) {
  if (void* const found = ::dlsym(RTLD_NEXT, name)) return found;
  for (const char* library : {"liburing.so.2", "liburing.so.1", "libaio.so.1", "libaio.so.1t64"}) {
    void* const handle = ::dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr) continue;
    void* const found = ::dlsym(handle, name);
    ::dlclose(handle);
    if (found != nullptr) return found;
  }
  return nullptr;
}

template <class... Arguments>
int set_up(const char* name, Arguments... arguments) {
  leave_to_kernel(name);
  auto* const call = reinterpret_cast<int (*)(Arguments...)>(find(name));
  return call != nullptr ? call(arguments...) : -ENOSYS;
}

}  // namespace
}  // namespace ringsock::preload

using namespace ringsock::preload;

RS_INTERCEPT long ringsock_syscall(long number, long first, long second, long third, long fourth, long fifth,
                                   long sixth) asm("syscall");
RS_INTERCEPT long ringsock_syscall(long number, long first, long second, long third, long fourth, long fifth,
                                   long sixth) {
  if (number == SYS_io_uring_setup) [[unlikely]]
    leave_to_kernel("syscall(SYS_io_uring_setup)");
  if (number == SYS_io_setup) [[unlikely]]
    leave_to_kernel("syscall(SYS_io_setup)");
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
  return real.syscall(number, first, second, third, fourth, fifth, sixth);
}

RS_INTERCEPT int io_uring_setup(unsigned entries, void* parameters) { return set_up(__func__, entries, parameters); }
RS_INTERCEPT int io_uring_queue_init(unsigned entries, void* ring, unsigned flags) {
  return set_up(__func__, entries, ring, flags);
}
RS_INTERCEPT int io_uring_queue_init_params(unsigned entries, void* ring, void* parameters) {
  return set_up(__func__, entries, ring, parameters);
}
RS_INTERCEPT int io_uring_queue_init_mem(unsigned entries, void* ring, void* parameters, void* memory, size_t size) {
  return set_up(__func__, entries, ring, parameters, memory, size);
}
RS_INTERCEPT int io_setup(int events, void* context) { return set_up(__func__, events, context); }
RS_INTERCEPT int io_queue_init(int events, void* context) { return set_up(__func__, events, context); }
