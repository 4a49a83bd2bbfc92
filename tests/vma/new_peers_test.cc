// Datagrams to peers that the socket has not sent to before, as those of servers whose clients take a new port for each
// request.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "tests/vma/far_socket.h"
#include "tests/vma/shell.h"
#include "tests/vma/udp_fixture.h"

namespace ringsock::vma_tests {
namespace {

/// From now on the calling thread has neither of the system calls `one` and `other`: they fail.
void renounce(unsigned one, unsigned other) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, one, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, other, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = static_cast<unsigned short>(std::size(program)), .filter = program};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(raw_syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter), 0) << std::strerror(errno);
}
/// By these the library asks the kernel about routes and neighbours, and has the kernel's socket send.
void renounce_questions() { renounce(SYS_sendmsg, SYS_recvmsg); }

class NewPeers : public Udp {
 protected:
  std::vector<std::unique_ptr<FarSocket>> peers(int count) {
    std::vector<std::unique_ptr<FarSocket>> out;
    for (int i = 0; i < count; ++i) out.push_back(std::make_unique<FarSocket>(GetParam().there));
    return out;
  }
  [[nodiscard]] const char* ip() const { return GetParam().family == AF_INET ? "ip " : "ip -6 "; }
};
INSTANTIATE_TEST_SUITE_P(Over, NewPeers, both_versions(), name_of_version);

TEST_P(NewPeers, PortsOfAKnownHostCostNoQuestion) {
  if (!preloaded()) GTEST_SKIP() << "without libvma nothing is asked";
  bind_anywhere(socket_);
  until_rings_send(socket_);
  const auto clients = peers(100);
  std::thread([&] {
    renounce_questions();
    for (const auto& client : clients)
      EXPECT_EQ(socket_.send_to(client->name(), "for " + std::to_string(client->name().port())),
                static_cast<ssize_t>(4 + std::to_string(client->name().port()).size()))
          << std::strerror(errno);
  }).join();
  for (const auto& client : clients) ASSERT_EQ(client->receive(), "for " + std::to_string(client->name().port()));
}

TEST_P(NewPeers, ASocketThatSharesItsPortHasItsRingsSinceBind) {
  if (!preloaded()) GTEST_SKIP() << "without libvma there are no rings";
  until_rings_send(socket_);
  const pid_t child = ::fork();  // it has no rings yet
  if (child == 0) {
    const Socket server(GetParam().family);
    server.set(SOL_SOCKET, SO_REUSEPORT, 1);
    bind_anywhere(server);
    renounce(SYS_bpf, SYS_bpf);  // a ring needs it
    const long before = kernels_sent_datagrams(GetParam().family);
    const bool is_sent = server.send_to(echo_, "an answer") == 9;
    ::_exit(is_sent && kernels_sent_datagrams(GetParam().family) == before ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "the kernel has sent it";
}

TEST_P(NewPeers, ARuleAboutAPortIsForThatPortOnly) {
  bind_anywhere(socket_);
  until_rings_send(socket_);
  const auto clients = peers(3);
  for (const auto& client : clients) {
    ASSERT_EQ(socket_.send_to(client->name(), "welcome"), 7);
    EXPECT_EQ(client->receive(), "welcome");
  }
  const std::string rule = "prohibit ipproto udp dport " + std::to_string(clients[1]->name().port());
  sh(ip() + ("rule add " + rule));
  ssize_t sent = 0;
  do {
    sent = socket_.send_to(clients[1]->name(), "no");  // libvma hears of the rule soon after the kernel
    ASSERT_EQ(socket_.send_to(clients[0]->name(), "yes"), 3) << std::strerror(errno);
    EXPECT_EQ(clients[0]->receive(), "yes");
  } while (sent == 2);
  ASSERT_EQ(socket_.send_to(clients[1]->name(), "no"), -1);
  EXPECT_EQ(errno, EACCES);
  ASSERT_EQ(socket_.send_to(clients[2]->name(), "yes"), 3) << std::strerror(errno);
  EXPECT_EQ(clients[2]->receive(), "yes");
  sh(ip() + ("rule delete " + rule));
  while (socket_.send_to(clients[1]->name(), "again") != 5) ASSERT_EQ(errno, EACCES);
  std::string heard;
  while ((heard = clients[1]->receive()) == "no") {
  }
  EXPECT_EQ(heard, "again");
}

}  // namespace
}  // namespace ringsock::vma_tests
