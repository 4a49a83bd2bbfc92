// The round trip of 64 bytes by each way of VMA's Extra API to receive, for extra_ways.sh: extra_ways WAY PEER [tcp].
// WAY is recvfrom, callback, zerocopy or socketxtreme; PEER is kernel (a process of the other host that spins on a
// socket of the kernel) or same (both ends receive by WAY). Prints the median in nanoseconds.
#include <arpa/inet.h>
#include <fcntl.h>
#include <mellanox/vma_extra.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr int kRounds = 20000, kWarmUp = 2000;
constexpr ssize_t kBytes = 64;
constexpr std::uint16_t kPort = 7613;

sockaddr_in address(const char* host) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_port = htons(kPort);
  ::inet_pton(AF_INET, host, &out.sin_addr);
  return out;
}

vma_api_t& api() {
  static vma_api_t* const table = vma_get_api();
  return *table;
}

void run_on_cpu(unsigned cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

constexpr const char* kClient = "10.9.0.1";
constexpr const char* kServer = "10.9.0.2";

const sockaddr* bare(const sockaddr_in& name) { return reinterpret_cast<const sockaddr*>(&name); }

/// A UDP socket of `own`, connected to the other host.
int open_udp(const char* own) {
  const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
  const sockaddr_in here = address(own), there = address(own == kClient ? kServer : kClient);
  if (::bind(fd, bare(here), sizeof here) != 0 || ::connect(fd, bare(there), sizeof there) != 0) std::exit(3);
  return fd;
}

/// A TCP connection between both hosts.
int open_tcp(const char* own) {
  const int on = 1;
  int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in server = address(kServer);
  if (own == kServer) {
    const int listener = fd;
    if (::bind(listener, bare(server), sizeof server) != 0 || ::listen(listener, 1) != 0) std::exit(3);
    fd = ::accept(listener, nullptr, nullptr);
    ::close(listener);
  } else if (::connect(fd, bare(server), sizeof server) != 0) {
    std::exit(3);
  }
  if (::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) std::exit(3);
  return fd;
}

/// One end, connected. Each try_ function receives a message if there is one.
class End {
 public:
  End(std::string_view way, const char* own, bool tcp) : way_(way), fd_(tcp ? open_tcp(own) : open_udp(own)) {
    if (way_ == "callback" && api().register_recv_callback(fd_, count_and_drop, this) != 0) std::exit(3);
    if (way_ == "socketxtreme" && api().get_socket_rings_fds(fd_, &ring_, 1) != 1) std::exit(3);
  }
  void send() const {
    if (::send(fd_, room_.data(), kBytes, 0) != kBytes) std::exit(4);
  }
  void receive() {
    while (!try_once()) {
    }
  }

 private:
  static vma_recv_callback_retval_t count_and_drop(int, std::size_t, iovec[], vma_info_t*, void* end) {
    ++static_cast<End*>(end)->seen_;
    return VMA_PACKET_DROP;
  }
  bool try_once() {
    if (way_ == "recvfrom") return ::recv(fd_, room_.data(), room_.size(), MSG_DONTWAIT) == kBytes;
    if (way_ == "callback") {
      seen_ = 0;
      const ssize_t got = ::recv(fd_, room_.data(), room_.size(), MSG_DONTWAIT);
      return seen_ != 0 || got == kBytes;  // what came before the callback was registered
    }
    return way_ == "zerocopy" ? try_zero_copy() : try_socketxtreme();
  }
  bool try_zero_copy() {
    int flags = MSG_DONTWAIT;
    if (api().recvfrom_zcopy(fd_, room_.data(), room_.size(), &flags, nullptr, nullptr) != kBytes) return false;
    auto* const list = reinterpret_cast<vma_packets_t*>(room_.data());
    if ((flags & MSG_VMA_ZCOPY) != 0) api().free_packets(fd_, list->pkts, list->n_packet_num);
    return true;
  }
  bool try_socketxtreme() {
    vma_completion_t completion{};
    if (api().socketxtreme_poll(ring_, &completion, 1, 0) != 1) return false;
    if ((completion.events & VMA_SOCKETXTREME_PACKET) == 0) return false;
    api().socketxtreme_free_vma_packets(&completion.packet, 1);
    return true;
  }

  const std::string_view way_;
  const int fd_;
  int ring_ = -1;
  int seen_ = 0;
  alignas(16) std::array<char, 2048> room_{};
};

int by_kernel(long result) {
  if (result < 0) std::_Exit(3);
  return static_cast<int>(result);
}

/// A socket of the server that no library sees, connected to the client.
int open_by_kernel(bool tcp) {
  const int fd = by_kernel(::syscall(SYS_socket, AF_INET, tcp ? SOCK_STREAM : SOCK_DGRAM, 0));
  const sockaddr_in here = address(kServer), there = address(kClient);
  by_kernel(::syscall(SYS_bind, fd, &here, sizeof here));
  if (!tcp) return by_kernel(::syscall(SYS_connect, fd, &there, sizeof there)), fd;
  const int on = 1;
  by_kernel(::syscall(SYS_listen, fd, 1));
  const int accepted = by_kernel(::syscall(SYS_accept4, fd, nullptr, nullptr, 0));
  by_kernel(::syscall(SYS_setsockopt, accepted, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
  return accepted;
}

/// Answers for ever by system calls.
[[noreturn]] void echo_by_kernel(bool tcp) {
  const int fd = open_by_kernel(tcp);
  std::array<char, 2048> room;
  for (;;) {
    const long got = ::syscall(SYS_recvfrom, fd, room.data(), room.size(), MSG_DONTWAIT, nullptr, nullptr);
    if (got > 0) ::syscall(SYS_sendto, fd, room.data(), got, 0, nullptr, 0);
  }
}

[[noreturn]] void be_the_other_host(std::string_view way, std::string_view peer, bool tcp) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  run_on_cpu(1);
  const int there = ::open((std::string("/run/netns/") + std::getenv("TWO_HOSTS_PEER")).c_str(), O_RDONLY);
  if (there < 0 || ::setns(there, CLONE_NEWNET) != 0) std::_Exit(3);
  if (peer == "kernel") echo_by_kernel(tcp);
  End end(way, kServer, tcp);
  for (;;) {
    end.receive();
    end.send();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool tcp = argc == 4 && std::string_view(argv[3]) == "tcp";
  if ((argc != 3 && !tcp) || std::getenv("TWO_HOSTS_PEER") == nullptr) {
    std::fprintf(stderr, "usage: two_hosts.sh extra_ways recvfrom|callback|zerocopy|socketxtreme kernel|same [tcp]\n");
    return 2;
  }
  const pid_t other = ::fork();
  if (other == 0) be_the_other_host(argv[1], argv[2], tcp);
  run_on_cpu(0);
  ::usleep(300'000);  // until the other host listens
  ::alarm(60);
  End end(argv[1], kClient, tcp);
  std::vector<std::chrono::nanoseconds> trips;
  for (int i = 0; i < kWarmUp + kRounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    end.send();
    end.receive();
    if (i >= kWarmUp) trips.push_back(std::chrono::steady_clock::now() - begin);
  }
  ::kill(other, SIGKILL);
  std::nth_element(trips.begin(), trips.begin() + kRounds / 2, trips.end());
  std::printf("%ld\n", static_cast<long>(trips[kRounds / 2].count()));
  return 0;
}
