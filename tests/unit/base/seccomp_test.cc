// What seccomp filters let through: a filter's program run for calls that are not made, and a filter of this process
// found out by children.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <vector>

#include "core/base/filter_program.h"
#include "core/base/rare_call_table.h"
#include "core/base/seccomp_probe.h"

namespace ringsock {
namespace {

using Program = std::vector<sock_filter>;

sock_filter load(std::size_t offset) { return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<unsigned>(offset)); }
sock_filter answer(unsigned verdict) { return BPF_STMT(BPF_RET | BPF_K, verdict); }

/// `verdict` for one call, everything else is allowed.
Program against(long number, unsigned verdict) {
  return {load(offsetof(seccomp_data, nr)), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1),
          answer(verdict), answer(SECCOMP_RET_ALLOW)};
}

const RareCallRow& row(RareCall call) { return rare_call_rows()[static_cast<std::size_t>(call)]; }

TEST(BpfProgram, AnswersAsTheKernelWould) {
  const Program program = against(SYS_memfd_create, SECCOMP_RET_KILL_PROCESS);
  EXPECT_EQ(verdict_of(program, row(RareCall::memfd_create)), Verdict::killed);
  EXPECT_EQ(verdict_of(program, row(RareCall::eventfd2)), Verdict::allowed);
  EXPECT_EQ(verdict_of(against(SYS_memfd_create, SECCOMP_RET_ERRNO | EPERM), row(RareCall::memfd_create)),
            Verdict::refused);
  EXPECT_EQ(verdict_of(against(SYS_memfd_create, SECCOMP_RET_LOG), row(RareCall::memfd_create)), Verdict::allowed);
  // A tracer or a supervisor that may not be there.
  for (const unsigned action : {SECCOMP_RET_TRACE, SECCOMP_RET_USER_NOTIF, SECCOMP_RET_TRAP, SECCOMP_RET_KILL_THREAD}) {
    EXPECT_EQ(verdict_of(against(SYS_memfd_create, action), row(RareCall::memfd_create)), Verdict::killed);
  }
}

TEST(BpfProgram, LooksAtArguments) {
  // socket() of a family above 2, by arithmetic that libseccomp's filters use.
  const Program program{load(offsetof(seccomp_data, nr)),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 5),
                        load(offsetof(seccomp_data, args)),
                        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xff),
                        BPF_STMT(BPF_ST, 3),
                        BPF_STMT(BPF_LD | BPF_MEM, 3),
                        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 2, 1, 0),
                        answer(SECCOMP_RET_ALLOW),
                        answer(SECCOMP_RET_ERRNO | EAFNOSUPPORT)};
  EXPECT_EQ(verdict_of(program, row(RareCall::tcp_socket)), Verdict::allowed);
  EXPECT_EQ(verdict_of(program, row(RareCall::netlink_socket)), Verdict::refused);
}

TEST(BpfProgram, ThatTheKernelWouldNotTakeAllowsNothing) {
  for (const Program& program :
       {Program{}, Program{load(2)}, Program{load(4096)}, Program{load(0)}, Program{BPF_STMT(BPF_ST, 99)},
        Program{BPF_STMT(BPF_ALU | BPF_DIV | BPF_K, 0)}, Program{BPF_JUMP(BPF_JMP | BPF_JA, 0xfffffff0, 0, 0)}}) {
    EXPECT_EQ(run_filter(program, row(RareCall::futex)), SECCOMP_RET_KILL_PROCESS);
  }
}

/// What children of a process under `program` find out, and whether that process saw anything of them.
std::string found_under(const Program* program) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t process = ::fork();
  if (process == 0) {
    if (program != nullptr) {
      Program copy = *program;
      sock_fprog all{static_cast<unsigned short>(copy.size()), copy.data()};
      ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
      if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) != 0) ::_exit(1);
    }
    const Verdicts verdicts = probe_seccomp_filter(rare_call_rows());
    std::string found;
    for (std::size_t i = 0; i < rare_call_rows().size(); ++i) {
      if (verdicts[i] == Verdict::allowed) continue;
      found += std::string(rare_call_rows()[i].name) + (verdicts[i] == Verdict::killed ? " killed " : " refused ");
    }
    const bool saw_child = ::waitpid(-1, nullptr, WNOHANG) >= 0 || errno != ECHILD;
    found += saw_child ? "with a child" : "";
    if (::write(ends[1], found.data(), found.size()) < 0) ::_exit(1);
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string found(4096, '\0');
  const ssize_t length = ::read(ends[0], found.data(), found.size());
  ::close(ends[0]);
  found.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  int status = 0;
  ::waitpid(process, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? found : "died";
}

TEST(SeccompProbe, FindsWhatAFilterForbids) {
  // What this host forbids anyway (userfaultfd, bpf and so on without privileges) is in both.
  const std::string plain = found_under(nullptr);
  EXPECT_EQ(plain.find("killed"), std::string::npos) << plain;
  for (const RareCall call : {RareCall::kill, RareCall::prctl, RareCall::memfd_create, RareCall::eventfd2,
                              RareCall::membarrier, RareCall::fallocate, RareCall::newfstatat}) {
    const Program killing = against(row(call).number, SECCOMP_RET_KILL_PROCESS);
    const std::string found = found_under(&killing);
    EXPECT_NE(found.find(std::string(row(call).name) + " killed"), std::string::npos) << found;
    const Program refusing = against(row(call).number, SECCOMP_RET_ERRNO | ENOSYS);
    EXPECT_NE(found_under(&refusing).find(std::string(row(call).name) + " refused"), std::string::npos);
  }
}

TEST(SeccompProbe, MayNotEvenWaitForItsChildren) {
  const Program program = against(SYS_wait4, SECCOMP_RET_KILL_PROCESS);
  // The process under the filter is not killed, and trusts nothing.
  int status = 0;
  const pid_t process = ::fork();
  if (process == 0) {
    Program copy = program;
    sock_fprog all{static_cast<unsigned short>(copy.size()), copy.data()};
    ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) != 0) ::_exit(1);
    const Verdicts verdicts = probe_seccomp_filter(rare_call_rows());
    ::_exit(verdicts[static_cast<std::size_t>(RareCall::memfd_create)] == Verdict::unknown ? 0 : 2);
  }
  ::waitpid(process, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace ringsock
