// Connections of the kernel leave it and come back. Two hosts, joined by a cable; nobody needs a ring for it: as long
// as a connection is out, its segments are dropped by netfilter, as a rule would keep them from the kernel.
#include "libvmacompat/tcp/kernel_connection.h"

#include <linux/bpf.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <future>
#include <random>
#include <string>

#include "libvmacompat/process/kernel_options.h"
#include "tests/unit/net/network_namespace.h"

namespace ringsock::vma {
namespace {

using engine::tcp::Established;

std::vector<std::byte> noise(std::size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(bytes);
  std::ranges::generate(out, [&] { return static_cast<std::byte>(random() & 255); });
  return out;
}

std::vector<std::byte> read_all(int fd, std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  std::size_t got = 0;
  while (got < bytes) {
    const ssize_t more = ::recv(fd, out.data() + got, bytes - got, 0);
    if (more <= 0) break;
    got += static_cast<std::size_t>(more);
  }
  out.resize(got);
  return out;
}

bool write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
  return true;
}

int queued(int fd, unsigned long request) {
  int bytes = -1;
  ::ioctl(fd, request, &bytes);
  return bytes;
}

/// Returns once the kernel's queue has so many bytes.
void wait_for_queue(int fd, unsigned long request, std::size_t bytes) {
  while (queued(fd, request) < static_cast<int>(bytes)) ::usleep(1000);
}

/// Returns a program that lets everything pass: mov r0, -1; exit.
UniqueFd ebpf_filter() {
  const std::array<bpf_insn, 2> code{bpf_insn{BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, -1},
                                     bpf_insn{BPF_JMP | BPF_EXIT, 0, 0, 0, 0}};
  bpf_attr load{};
  load.prog_type = BPF_PROG_TYPE_SOCKET_FILTER;
  load.insn_cnt = code.size();
  load.insns = reinterpret_cast<std::uintptr_t>(code.data());
  load.license = reinterpret_cast<std::uintptr_t>("");
  return UniqueFd(static_cast<int>(::syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof load)));
}

class KernelConnectionOf : public net::TwoHosts, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    net::TwoHosts::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    const bool v6 = std::string(GetParam()) == "IPv6";
    const int family = v6 ? AF_INET6 : AF_INET;
    const UniqueFd listener = there.socket(family, SOCK_STREAM);
    const SocketAddress any = SocketAddress::wildcard(family, 0);
    ASSERT_EQ(::bind(listener.get(), any.get(), any.length()), 0);
    ASSERT_EQ(::listen(listener.get(), 1), 0);
    const auto bound = name_by(&::getsockname, listener.get(), "getsockname");
    ours = here.socket(family, SOCK_STREAM);
    const SocketAddress to =
        v6 ? SocketAddress::v6(address6(), bound->port()) : SocketAddress::v4(0x0a000002, bound->port());
    ASSERT_EQ(::connect(ours.get(), to.get(), to.length()), 0);
    theirs = UniqueFd(::accept(listener.get(), nullptr, nullptr));
    ASSERT_TRUE(theirs);
    local = *name_by(&::getsockname, ours.get(), "getsockname");
    peer = *name_by(&::getpeername, ours.get(), "getpeername");
  }
  static in6_addr address6() {
    in6_addr out{};
    ::inet_pton(AF_INET6, "fd00::2", &out);
    return out;
  }

  void cut() const {
    here.run("nft 'add table inet cut { chain in { type filter hook input priority 0; meta l4proto tcp drop; }; }'");
  }
  void mend() const { here.run("nft delete table inet cut"); }

  Established out() {
    auto state = take_out(ours.get());
    EXPECT_TRUE(state) << state.error().where << " " << state.error().code;
    return state ? *state : Established{};
  }
  void back(const Established& state) {
    const Status put = put_back(ours.get(), local, peer, state);
    EXPECT_TRUE(put) << put.error().where << " " << put.error().code;
  }
  void go(const Established& state) const {
    const Status gone = go_on(ours.get(), state);
    EXPECT_TRUE(gone) << gone.error().where << " " << gone.error().code;
  }
  void move() {
    cut();
    const Established state = out();
    if (!HasFailure()) back(state);
    mend();
    if (!HasFailure()) go(state);
  }
  /// At most what the queue takes now. @return bytes
  std::size_t send_some(std::span<const std::byte> bytes) const {
    if (bytes.empty()) return 0;
    const ssize_t sent =
        ::send(ours.get(), bytes.data(), std::min<std::size_t>(bytes.size(), 300'000), MSG_DONTWAIT | MSG_NOSIGNAL);
    EXPECT_TRUE(sent > 0 || errno == EAGAIN) << errno;
    return sent > 0 ? static_cast<std::size_t>(sent) : 0;
  }
  /// Appends what is there.
  void receive_some(std::vector<std::byte>& received) const {
    std::vector<std::byte> piece(200'000);
    const ssize_t got = ::recv(ours.get(), piece.data(), piece.size(), MSG_DONTWAIT);
    EXPECT_TRUE(got > 0 || (got < 0 && errno == EAGAIN)) << got << " " << errno;
    if (got > 0) received.insert(received.end(), piece.begin(), piece.begin() + got);
  }
  /// Both directions work.
  void expect_alive() {
    for (const auto& [from, to] : {std::pair(ours.get(), theirs.get()), std::pair(theirs.get(), ours.get())}) {
      const auto bytes = noise(100'000, 7);
      auto reader = std::async(std::launch::async, [to = to, &bytes] { return read_all(to, bytes.size()); });
      EXPECT_TRUE(write_all(from, bytes));
      EXPECT_EQ(reader.get(), bytes);
    }
  }

  void expect_to_stay() {
    const auto state = take_out(ours.get());
    ASSERT_FALSE(state);
    EXPECT_EQ(state.error().code, EOPNOTSUPP);
    expect_alive();
  }

  UniqueFd ours;
  UniqueFd theirs;
  SocketAddress local;
  SocketAddress peer;
};

TEST_P(KernelConnectionOf, AnIdleOneGoesOutAndComesBack) {
  const Established state = out();
  EXPECT_TRUE(state.send_queue.empty());
  EXPECT_TRUE(state.receive_queue.empty());
  EXPECT_EQ(state.snd_una, state.snd_nxt);
  EXPECT_TRUE(state.timestamps && state.sack && state.window_scaling);

  back(state);
  go(state);
  expect_alive();
}

TEST_P(KernelConnectionOf, BytesInBothQueuesComeBackInTheirOrder) {
  const auto unread = noise(50'000, 1), unacknowledged = noise(60'000, 2);
  ASSERT_TRUE(write_all(theirs.get(), unread));
  wait_for_queue(ours.get(), FIONREAD, unread.size());
  cut();  // no acknowledgement comes in any more
  ASSERT_TRUE(write_all(ours.get(), unacknowledged));

  const Established state = out();
  EXPECT_EQ(state.receive_queue, unread);
  EXPECT_EQ(state.send_queue, unacknowledged);
  EXPECT_EQ(queued(ours.get(), FIONREAD), 0);  // the placeholder has nothing
  EXPECT_EQ(queued(ours.get(), TIOCOUTQ), 0);

  back(state);
  mend();
  go(state);
  EXPECT_EQ(read_all(ours.get(), unread.size()), unread);
  EXPECT_EQ(read_all(theirs.get(), unacknowledged.size()), unacknowledged);
  expect_alive();
}

TEST_P(KernelConnectionOf, MoreThanThePeersWindowIsUnsentAndLeavesLater) {
  const int small = 4096;
  ASSERT_EQ(::setsockopt(theirs.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
  const auto bytes = noise(1'000'000, 3);
  const int large = 2'000'000;
  ASSERT_EQ(::setsockopt(ours.get(), SOL_SOCKET, SO_SNDBUFFORCE, &large, sizeof large), 0);
  ASSERT_TRUE(write_all(ours.get(), bytes));

  cut();
  const Established state = out();
  EXPECT_GT(state.snd_una + state.send_queue.size(), state.snd_nxt);

  back(state);
  mend();
  go(state);
  EXPECT_EQ(read_all(theirs.get(), bytes.size()), bytes);
  expect_alive();
}

TEST_P(KernelConnectionOf, ItMovesAgainAndAgainUnderLoad) {
  constexpr int kMoves = 40;
  const auto bytes = noise(20'000'000, 4);
  auto reader = std::async(std::launch::async, [&] { return read_all(theirs.get(), bytes.size()); });
  auto writer = std::async(std::launch::async, [&] { return write_all(theirs.get(), bytes); });
  std::vector<std::byte> received;
  std::size_t sent = 0;
  int moves = 0;
  while (!HasFailure() && (sent < bytes.size() || received.size() < bytes.size())) {
    sent += send_some(std::span(bytes).subspan(sent));
    receive_some(received);
    // Spread over the stream.
    if (moves == kMoves || received.size() < static_cast<std::size_t>(moves) * (bytes.size() / kMoves)) continue;
    ++moves;
    move();
  }
  if (HasFailure()) ::shutdown(theirs.get(), SHUT_RDWR);
  EXPECT_TRUE(writer.get());
  EXPECT_EQ(moves, kMoves);
  EXPECT_TRUE(received == bytes);
  EXPECT_TRUE(reader.get() == bytes);
}

TEST_P(KernelConnectionOf, TheSocketKeepsItsNamesAndOptionsWhileTheConnectionIsOut) {
  const int on = 1;
  ASSERT_EQ(::setsockopt(ours.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), 0);
  const Established state = out();
  EXPECT_TRUE(*name_by(&::getsockname, ours.get(), "getsockname") == local);
  EXPECT_TRUE(*name_by(&::getpeername, ours.get(), "getpeername") == peer);
  back(state);
  go(state);
  int is_on = 0;
  socklen_t length = sizeof is_on;
  ::getsockopt(ours.get(), IPPROTO_TCP, TCP_NODELAY, &is_on, &length);
  EXPECT_NE(is_on, 0);
  EXPECT_TRUE(*name_by(&::getsockname, ours.get(), "getsockname") == local);
  int error = -1;
  ::getsockopt(ours.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  EXPECT_EQ(error, 0);
}

TEST_P(KernelConnectionOf, APlaceholderThatIsClosedLeavesThePeerToAReset) {
  (void)out();
  ours.reset();
  // The peer hears nothing until it sends.
  std::byte byte{1};
  EXPECT_EQ(::recv(theirs.get(), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  ASSERT_EQ(::send(theirs.get(), &byte, 1, MSG_NOSIGNAL), 1);
  EXPECT_EQ(::recv(theirs.get(), &byte, 1, 0), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

TEST_P(KernelConnectionOf, ItComesBackIntoANewSocketAfterTheFirstWasClosed) {
  const auto unread = noise(5'000, 5);
  ASSERT_TRUE(write_all(theirs.get(), unread));
  wait_for_queue(ours.get(), FIONREAD, unread.size());
  const Established state = out();
  ours = here.socket(local.family(), SOCK_STREAM);
  back(state);
  go(state);
  EXPECT_EQ(read_all(ours.get(), unread.size()), unread);
  expect_alive();
}

TEST_P(KernelConnectionOf, TheAcceptedSideMovesBesideItsListenersPort) {
  std::swap(ours, theirs);
  std::swap(local, peer);
  const Established state = out();
  back(state);
  go(state);
  expect_alive();
}

TEST_P(KernelConnectionOf, APlaceholderAcknowledgesNothingThatReachesItLate) {
  const Established state = out();
  // No rule keeps these from the kernel: a receiving CPU may have passed it before it was there.
  const auto late = noise(5'000, 6);
  ASSERT_TRUE(write_all(theirs.get(), late));
  ::usleep(20'000);
  ASSERT_EQ(queued(theirs.get(), TIOCOUTQ), static_cast<int>(late.size()));  // else it never repeats them
  EXPECT_EQ(queued(ours.get(), FIONREAD), 0);

  back(state);
  go(state);
  EXPECT_EQ(read_all(ours.get(), late.size()), late);  // the peer has repeated them
  expect_alive();
}

TEST_P(KernelConnectionOf, NoFilterIsLeftWhenItIsBackAgainOrCouldNotLeave) {
  const Established state = out();
  EXPECT_TRUE(has_filter(ours.get()));
  back(state);
  EXPECT_FALSE(has_filter(ours.get()));
  go(state);

  ::shutdown(theirs.get(), SHUT_WR);
  std::byte byte{};
  ASSERT_EQ(::recv(ours.get(), &byte, 1, 0), 0);
  EXPECT_FALSE(take_out(ours.get()));
  EXPECT_FALSE(has_filter(ours.get()));
}

TEST_P(KernelConnectionOf, OneWithAFilterOfTheApplicationStaysInTheKernel) {
  sock_filter pass = BPF_STMT(BPF_RET | BPF_K, 0xffffffff);
  const sock_fprog program{1, &pass};
  ASSERT_EQ(::setsockopt(ours.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
  expect_to_stay();
}

TEST_P(KernelConnectionOf, OneWithAnEbpfFilterStaysInTheKernel) {
  const UniqueFd program = ebpf_filter();
  if (!program) GTEST_SKIP() << "bpf(2): " << std::strerror(errno);
  const int fd = program.get();
  ASSERT_EQ(::setsockopt(ours.get(), SOL_SOCKET, SO_ATTACH_BPF, &fd, sizeof fd), 0);
  expect_to_stay();
}

TEST_P(KernelConnectionOf, OneWhoseFilterIsLockedStaysInTheKernel) {
  const int on = 1;
  ASSERT_EQ(::setsockopt(ours.get(), SOL_SOCKET, SO_LOCK_FILTER, &on, sizeof on), 0);
  expect_to_stay();
}

TEST_P(KernelConnectionOf, OneThatThePeerHasClosedStaysInTheKernel) {
  ::shutdown(theirs.get(), SHUT_WR);
  std::byte byte{};
  ASSERT_EQ(::recv(ours.get(), &byte, 1, 0), 0);
  const auto state = take_out(ours.get());
  ASSERT_FALSE(state);
  EXPECT_EQ(state.error().code, ENOTCONN);
  EXPECT_EQ(::send(ours.get(), &byte, 1, MSG_NOSIGNAL), 1);
  EXPECT_EQ(read_all(theirs.get(), 1).size(), 1U);
}

INSTANTIATE_TEST_SUITE_P(Families, KernelConnectionOf, ::testing::Values("IPv4", "IPv6"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace ringsock::vma
