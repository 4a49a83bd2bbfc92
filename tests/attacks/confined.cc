// Runs a program with something taken away, as service managers and sandboxes do.
//
//     confined [--kill CALL | --deny CALL]... [--processes N] [--close-from N] -- PROGRAM ARGUMENT...
//
// CALL: the process is killed by it, or it answers EPERM. --processes: RLIMIT_NPROC.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

namespace {

struct Named {
  std::string_view name;
  std::uint32_t number;
};
constexpr Named kCalls[] = {
    {"membarrier", SYS_membarrier},
    {"fallocate", SYS_fallocate},
    {"eventfd2", SYS_eventfd2},
    {"memfd_create", SYS_memfd_create},
    {"clone3", SYS_clone3},
    {"clone", SYS_clone},
    {"epoll_create1", SYS_epoll_create1},
    {"inotify_init1", SYS_inotify_init1},
    {"userfaultfd", SYS_userfaultfd},
    {"process_vm_writev", SYS_process_vm_writev},
    {"process_vm_readv", SYS_process_vm_readv},
    {"pidfd_open", SYS_pidfd_open},
    {"madvise", SYS_madvise},
    {"mremap", SYS_mremap},
    {"sched_yield", SYS_sched_yield},
    {"getrandom", SYS_getrandom},
};

std::uint32_t number_of(std::string_view name) {
  for (const Named& call : kCalls) {
    if (call.name == name) return call.number;
  }
  std::fprintf(stderr, "confined: unknown call\n");
  std::exit(2);
}

std::vector<sock_filter> filter{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};

void forbid(const char* name, std::uint32_t answer) {
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number_of(name), 0, 1));
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, answer));
}

bool install() {
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return filter.size() == 2 ||
         (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

bool apply(std::string_view option, const char* value) {
  if (option == "--kill") {
    forbid(value, SECCOMP_RET_KILL_PROCESS);
  } else if (option == "--deny") {
    forbid(value, SECCOMP_RET_ERRNO | EPERM);
  } else if (option == "--processes") {
    const rlimit limit{std::strtoul(value, nullptr, 10), std::strtoul(value, nullptr, 10)};
    return setrlimit(RLIMIT_NPROC, &limit) == 0;
  } else {
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  int at = 1;
  for (; at + 1 < argc && std::strcmp(argv[at], "--") != 0; at += 2) {
    if (!apply(argv[at], argv[at + 1])) return 2;
  }
  // The library comes with the program, not with us.
  if (const char* const library = std::getenv("CONFINED_PRELOAD")) setenv("LD_PRELOAD", library, 1);
  if (at + 1 >= argc || !install()) return 2;
  execv(argv[at + 1], argv + at + 1);
  return 127;
}
