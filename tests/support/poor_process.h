// Processes that get no thread, or that have closed every descriptor they do not know.
#pragma once

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <initializer_list>
#include <vector>

namespace ringsock::testing {

/// From now on this process gets no threads: a seccomp filter answers ENOSYS to clone3(2), and EAGAIN to clone(2) of
/// threads. False: it could not be set.
inline bool deny_threads() {
  constexpr auto number = static_cast<unsigned>(offsetof(seccomp_data, nr));
  constexpr auto flags = static_cast<unsigned>(offsetof(seccomp_data, args));  // low half: little-endian
  std::array<sock_filter, 8> filter{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, number),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 4, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 2),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, flags),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 2, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
  }};
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/// From now on this process is killed for every system call that is not among these. False: it could not be set.
inline bool allow_only(std::initializer_list<long> calls) {
  constexpr auto number = static_cast<unsigned>(offsetof(seccomp_data, nr));
  std::vector<sock_filter> filter{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, number)};
  for (const long call : calls) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/// A user that nobody else is, who may have one thread. False: this process is not root.
inline bool become_lonely_user() {
  const auto uid = static_cast<uid_t>(1'000'000 + ::getpid());
  const rlimit one{1, 1};
  return ::setgid(uid) == 0 && ::setuid(uid) == 0 && ::setrlimit(RLIMIT_NPROC, &one) == 0;
}

/// By a system call, which no library sees.
inline void close_behind_all_backs(unsigned first) { ::syscall(SYS_close_range, first, ~0U, 0); }

}  // namespace ringsock::testing
