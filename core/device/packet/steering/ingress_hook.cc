#include "core/device/packet/steering/ingress_hook.h"

#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cerrno>
#include <string>

#include "core/device/packet/steering/bpf_program.h"
#include "core/device/packet/steering/guardian_wire.h"
#include "core/device/packet/steering/libbpf.h"

namespace ringsock::soft {

namespace {

/// BPF_TCX_INGRESS, which headers before Linux 6.6 do not have.
constexpr auto kTcxIngress = static_cast<bpf_attach_type>(46);

class TcxLink final : public IngressHook {
 public:
  explicit TcxLink(UniqueFd link) : link_(std::move(link)) {}
  void forget() override { link_.reset(); }

 private:
  UniqueFd link_;
};

/// A socket to the guardian, which keeps the filter while the socket is open.
class GuardedFilter final : public IngressHook {
 public:
  explicit GuardedFilter(UniqueFd socket) : socket_(std::move(socket)) {}
  ~GuardedFilter() override {
    if (!socket_) return;
    ::shutdown(socket_.get(), SHUT_WR);
    // The guardian closes its end when it has removed the filter.
    char nothing;
    while (::recv(socket_.get(), &nothing, sizeof nothing, 0) < 0 && errno == EINTR) {
    }
  }
  void forget() override { socket_.reset(); }

 private:
  UniqueFd socket_;
};

/// Starts the guardian, and returns when it has detached itself from this process. Errors: those of posix_spawn(3).
Status start_guardian(const char* path, unsigned ifindex, int socket, int program) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, socket, kGuardianSocket);
  posix_spawn_file_actions_adddup2(&actions, program, kGuardianProgram);
  std::string name(path), number = std::to_string(ifindex);
  char* const arguments[] = {name.data(), number.data(), nullptr};
  // Empty, so that LD_PRELOAD does not apply.
  char* const environment[] = {nullptr};
  pid_t pid = -1;
  const int failure = ::posix_spawn(&pid, path, &actions, nullptr, arguments, environment);
  posix_spawn_file_actions_destroy(&actions);
  if (failure != 0) return Error{failure == ENOENT || failure == EACCES ? EOPNOTSUPP : failure, "flow guardian"};
  // A program that waits for any child may have reaped it already, which is harmless.
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return ok();
}

}  // namespace

Result<std::unique_ptr<IngressHook>> attach_clsact(unsigned ifindex, int program, const char* guardian) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return Error::last("flow guardian: socketpair");
  // With high numbers, so that dup2(2) of one does not overwrite the other.
  UniqueFd ours = out_of_the_way(UniqueFd(ends[0])), theirs = out_of_the_way(UniqueFd(ends[1]));
  if (Status started = start_guardian(guardian, ifindex, theirs.get(), program); !started) return started.error();
  theirs.reset();
  GuardianReply reply{};
  ssize_t got;
  do {
    got = ::recv(ours.get(), &reply, sizeof reply, 0);
  } while (got < 0 && errno == EINTR);
  if (got != sizeof reply) return Error{EOPNOTSUPP, "flow guardian"};
  if (reply.error != 0) return bpf_error(reply.error, "clsact filter");
  return std::unique_ptr<IngressHook>(new GuardedFilter(std::move(ours)));
}

Result<std::unique_ptr<IngressHook>> attach_tcx(unsigned ifindex, int program) {
  UniqueFd link(bpf_link_create(program, static_cast<int>(ifindex), kTcxIngress, nullptr));
  if (!link) return bpf_error(errno, "tcx link");
  return std::unique_ptr<IngressHook>(new TcxLink(out_of_the_way(std::move(link))));
}

}  // namespace ringsock::soft
