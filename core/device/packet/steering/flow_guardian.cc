// ringsock-flow-guardian INTERFACE_INDEX keeps a filter at tc ingress while a process lives, on kernels without TCX. It
// is started by attach_clsact() with the program as descriptor 3 and a socket as standard input. When the process ends,
// in any way, the socket's other end is closed; then the guardian removes the filter, and the qdisc if a guardian has
// made it.
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fcntl.h>
#include <netlink/route/classifier.h>
#include <netlink/route/tc.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/device/packet/steering/guardian_wire.h"

namespace {

using ringsock::soft::GuardianReply;
using ringsock::soft::kGuardianProgram;
using ringsock::soft::kGuardianSocket;

// Guardians of several processes share a qdisc. The priority of a filter says whether one of them has made the qdisc;
// if so, the last of them removes it.
constexpr std::uint32_t kQdiscIsOurs = 0xa77a;
constexpr std::uint32_t kQdiscIsNot = 0xa77b;

struct Filters {
  int count = 0;
  bool qdisc_is_ours = false;
};

/// Excludes other guardians of this network namespace while one makes, uses or removes a qdisc. Without it, others
/// could take a qdisc that is not yet marked by a filter for a foreign one, which nobody removes; or use a qdisc
/// between the last look and its removal. Any process may hold this lock, so the wait is limited to five seconds.
class Turn {
 public:
  Turn() : file_(::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)) {
    constexpr int kAttempts = 1000;
    constexpr useconds_t kPauseUs = 5'000;
    for (int i = 0; i < kAttempts && ::flock(file_, LOCK_EX | LOCK_NB) != 0; ++i) ::usleep(kPauseUs);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() { ::close(file_); }

 private:
  int file_;
};

/// Returns what is attached at ingress and egress; not empty when the kernel cannot be asked.
Filters look_at(int ifindex) {
  Filters out;
  const std::unique_ptr<nl_sock, decltype(&nl_socket_free)> socket(nl_socket_alloc(), &nl_socket_free);
  if (!socket || nl_connect(socket.get(), NETLINK_ROUTE) < 0) return {.count = 1};
  for (const std::uint32_t parent : {std::uint32_t{TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)},
                                     std::uint32_t{TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_EGRESS)}}) {
    nl_cache* found = nullptr;
    if (rtnl_cls_alloc_cache(socket.get(), ifindex, parent, &found) < 0) {
      ++out.count;
      continue;
    }
    const std::unique_ptr<nl_cache, decltype(&nl_cache_free)> filters(found, &nl_cache_free);
    for (nl_object* object = nl_cache_get_first(found); object != nullptr; object = nl_cache_get_next(object)) {
      ++out.count;
      if (rtnl_cls_get_prio(reinterpret_cast<rtnl_cls*>(object)) == kQdiscIsOurs) out.qdisc_is_ours = true;
    }
  }
  return out;
}

class Filter {
 public:
  explicit Filter(int ifindex) {
    hook_.sz = sizeof hook_;
    hook_.ifindex = ifindex;
    hook_.attach_point = BPF_TC_INGRESS;
  }

  /// Returns 0 or an errno value.
  int attach() {
    const Turn ours;
    // The last user of a qdisc may have removed it after it was found.
    constexpr int kAttempts = 10;
    int failure = 0;
    for (int i = 0; i < kAttempts; ++i) {
      failure = try_to_attach();
      if (failure != -ENOENT && failure != -EINVAL) break;
    }
    return -failure;
  }

  void detach() {
    const Turn ours;
    options_.flags = 0;
    options_.prog_fd = options_.prog_id = 0;
    bpf_tc_detach(&hook_, &options_);
    if (!qdisc_is_ours_ || look_at(hook_.ifindex).count != 0) return;
    hook_.attach_point = static_cast<bpf_tc_attach_point>(BPF_TC_INGRESS | BPF_TC_EGRESS);
    bpf_tc_hook_destroy(&hook_);
  }

 private:
  int try_to_attach() {
    const int made = bpf_tc_hook_create(&hook_);
    if (made != 0 && made != -EEXIST) return made;
    qdisc_is_ours_ = made == 0 || look_at(hook_.ifindex).qdisc_is_ours;
    options_ = {};
    options_.sz = sizeof options_;
    options_.prog_fd = kGuardianProgram;
    options_.priority = qdisc_is_ours_ ? kQdiscIsOurs : kQdiscIsNot;
    return bpf_tc_attach(&hook_, &options_);
  }

  bpf_tc_hook hook_{};
  bpf_tc_opts options_{};
  bool qdisc_is_ours_ = false;
};

/// Becomes a daemon in a session of its own, without the other descriptors of its starter, and ignores its signals.
void stand_apart() {
  if (::fork() != 0) ::_exit(EXIT_SUCCESS);
  ::setsid();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT}) ::signal(signal, SIG_IGN);
  ::close_range(kGuardianProgram + 1, ~0U, 0);
  const int nowhere = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  ::dup2(nowhere, STDOUT_FILENO);
  ::dup2(nowhere, STDERR_FILENO);
  if (::chdir("/") != 0) ::_exit(EXIT_FAILURE);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return EXIT_FAILURE;
  stand_apart();
  libbpf_set_print(nullptr);
  Filter filter(std::atoi(argv[1]));
  const GuardianReply reply{filter.attach()};
  ::send(kGuardianSocket, &reply, sizeof reply, MSG_NOSIGNAL);
  if (reply.error != 0) return EXIT_FAILURE;
  char nothing;
  while (::recv(kGuardianSocket, &nothing, sizeof nothing, 0) > 0 || errno == EINTR) {
    errno = 0;
  }
  filter.detach();
  return EXIT_SUCCESS;
}
