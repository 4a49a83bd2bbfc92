// setuid(2) and its like, and capset(2), in a process that has threads of the library.
//
// The kernel gives each thread its own credentials. libc repeats setuid(2) in all threads, and aborts the program when
// the answers differ (nptl(7)). A program with one thread may change that thread's capabilities by capset(2) and then
// change its user. In the service thread, which has other capabilities, the call fails. So the service thread is ended
// before such a call and started again afterwards: a new thread gets the credentials of the one that starts it. Where
// the capabilities are the same, libc's way is right, and it needs no new thread.
#include "preload/credential_calls.h"

#include <grp.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>

#include "core/base/own_threads.h"
#include "core/base/rare_calls.h"
#include "core/runtime/service_thread.h"
#include "preload/route.h"

namespace ringsock::preload {
namespace {

using Capabilities = std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3>;

/// Returns the capabilities of a thread, 0 for the calling one, or nothing when they cannot be read.
std::optional<Capabilities> capabilities_of(pid_t thread) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, thread};
  Capabilities found{};
  if (real.syscall(SYS_capget, reinterpret_cast<long>(&header), reinterpret_cast<long>(found.data()), 0, 0, 0, 0) != 0)
    return std::nullopt;
  return found;
}

bool are_same(const Capabilities& one, const Capabilities& other) {
  for (std::size_t i = 0; i < one.size(); ++i) {
    if (one[i].effective != other[i].effective || one[i].permitted != other[i].permitted ||
        one[i].inheritable != other[i].inheritable)
      return false;
  }
  return true;
}

/// Returns whether a call may have another answer in the service thread than in the calling one.
bool service_thread_differs() {
  const pid_t thread = runtime::service_thread().thread_number();
  if (thread == 0 || !is_permitted(RareCall::capget)) return false;
  if (thread == runtime::ServiceThread::kStarting) return true;  // unknown
  const auto ours = capabilities_of(thread);
  const auto callers = capabilities_of(0);
  return ours && callers && !are_same(*ours, *callers);
}

/// Carries out libc's call `libcs()`, or `kernels()`, the system call for the calling thread alone.
int change_ids(auto libcs, auto kernels) {
  const int saved_errno = errno;
  const bool differs = service_thread_differs();
  errno = saved_errno;
  if (!differs) return libcs();
  const runtime::WithoutServiceThread resting;
  // Other threads of the library end soon. Meanwhile libc would ask them, too.
  const bool is_alone = OwnThread::count() > 0 && !has_other_threads();
  errno = saved_errno;
  return is_alone ? static_cast<int>(kernels()) : libcs();
}

long system_call(long number, long first, long second = 0, long third = 0) {
  return real.syscall(number, first, second, third, 0, 0, 0);
}

/// Carries out a capset(2). The threads of the library must not keep what a program with one thread has given up.
long set_capabilities(auto call) {
  if (runtime::service_thread().thread_number() == 0) return call();
  const int saved_errno = errno;
  const bool is_alone = !has_other_threads();
  errno = saved_errno;
  if (!is_alone) return call();
  const runtime::WithoutServiceThread resting;
  errno = saved_errno;
  return call();
}

}  // namespace

long capset_by_number(const std::array<long, 6>& arguments) {
  return set_capabilities([&] { return system_call(SYS_capset, arguments[0], arguments[1]); });
}

}  // namespace ringsock::preload

using namespace ringsock::preload;

RS_INTERCEPT int setuid(uid_t user) noexcept {
  return change_ids([=] { return real.setuid(user); }, [=] { return system_call(SYS_setuid, user); });
}
RS_INTERCEPT int setgid(gid_t group) noexcept {
  return change_ids([=] { return real.setgid(group); }, [=] { return system_call(SYS_setgid, group); });
}
RS_INTERCEPT int seteuid(uid_t effective) noexcept {
  return change_ids([=] { return real.seteuid(effective); },
                    [=] { return system_call(SYS_setresuid, -1, effective, -1); });
}
RS_INTERCEPT int setegid(gid_t effective) noexcept {
  return change_ids([=] { return real.setegid(effective); },
                    [=] { return system_call(SYS_setresgid, -1, effective, -1); });
}
RS_INTERCEPT int setreuid(uid_t user, uid_t effective) noexcept {
  return change_ids([=] { return real.setreuid(user, effective); },
                    [=] { return system_call(SYS_setreuid, user, effective); });
}
RS_INTERCEPT int setregid(gid_t group, gid_t effective) noexcept {
  return change_ids([=] { return real.setregid(group, effective); },
                    [=] { return system_call(SYS_setregid, group, effective); });
}
RS_INTERCEPT int setresuid(uid_t user, uid_t effective, uid_t saved) noexcept {
  return change_ids([=] { return real.setresuid(user, effective, saved); },
                    [=] { return system_call(SYS_setresuid, user, effective, saved); });
}
RS_INTERCEPT int setresgid(gid_t group, gid_t effective, gid_t saved) noexcept {
  return change_ids([=] { return real.setresgid(group, effective, saved); },
                    [=] { return system_call(SYS_setresgid, group, effective, saved); });
}
RS_INTERCEPT int setgroups(size_t count, const gid_t* groups) noexcept {
  return change_ids(
      [=] { return real.setgroups(count, groups); },
      [=] { return system_call(SYS_setgroups, static_cast<long>(count), reinterpret_cast<long>(groups)); });
}
// libc reads the groups of the user and calls its own setgroups().
RS_INTERCEPT int initgroups(const char* user, gid_t group) {
  const auto libcs = [=] { return real.initgroups(user, group); };
  return change_ids(libcs, libcs);
}
RS_INTERCEPT int capset(__user_cap_header_struct* header, const __user_cap_data_struct* data) {
  return static_cast<int>(set_capabilities([=] { return real.capset(header, data); }));
}
