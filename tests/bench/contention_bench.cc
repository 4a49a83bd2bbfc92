// Busy pairs of processes on few CPUs (design D3): 64-byte ping-pong through retry_until_ready() against the kernel's
// TCP.
//
//     contention_bench [seconds per measurement]
//
// Prints round trips of 1, 2, 4 and 8 pairs together, per second and per second of CPU time.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

#include "core/base/barrier.h"
#include "core/base/unique_fd.h"
#include "core/poll/wait.h"

namespace ringsock {
namespace {

/// One direction in shared memory: a counter that the peer bumps, and whether the reader sleeps.
struct Lane {
  alignas(64) std::atomic<std::uint32_t> messages{0};
  alignas(64) std::atomic<bool> armed{false};
};
struct SharedPair {
  std::array<Lane, 2> lanes;
  alignas(64) std::atomic<std::uint64_t> round_trips{0};
};

/// What an endpoint on the embedded device comes down to.
class LaneEndpoint final : public runtime::Endpoint {
 public:
  LaneEndpoint(Lane& in, Lane& out, int in_bell, int out_bell)
      : in_(in), out_(out), in_bell_(in_bell), out_bell_(out_bell) {
    AsymmetricBarrier::register_process();
  }
  Result<int> take() {
    if (in_.messages.load(std::memory_order_acquire) == taken_) return Error{EAGAIN, "lane"};
    ++taken_;
    return 1;
  }
  void put() {
    out_.messages.fetch_add(1, std::memory_order_release);
    AsymmetricBarrier::light();
    if (out_.armed.load(std::memory_order_relaxed) && out_.armed.exchange(false)) ::eventfd_write(out_bell_, 1);
  }
  std::uint32_t ready() noexcept override { return in_.messages.load() == taken_ ? 0U : std::uint32_t{EPOLLIN}; }
  runtime::WaitFds arm() noexcept override {
    in_.armed.store(true);
    AsymmetricBarrier::heavy();
    return {{in_bell_, -1}};
  }
  void woken() noexcept override {
    eventfd_t count = 0;
    ::eventfd_read(in_bell_, &count);
  }
  void closed() noexcept override {}

 private:
  Lane& in_;
  Lane& out_;
  int in_bell_, out_bell_;
  std::uint32_t taken_ = 0;
};

/// The child dies with the parent's signal or the parent.
template <class Body>
pid_t start(Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    ::_exit(0);
  }
  return child;
}

void ring_side(SharedPair& shared, std::size_t side, const std::array<int, 2>& bells) {
  LaneEndpoint& endpoint = *new LaneEndpoint(shared.lanes[side], shared.lanes[1 - side], bells[side], bells[1 - side]);
  if (side == 0) endpoint.put();
  for (;;) {
    static_cast<void>(runtime::retry_until_ready(endpoint, EPOLLIN, Nanos::max(), [&] { return endpoint.take(); }));
    if (side == 0) shared.round_trips.fetch_add(1, std::memory_order_relaxed);
    endpoint.put();
  }
}

void tcp_side(SharedPair& shared, std::size_t side, int fd) {
  std::array<char, 64> message{};
  if (side == 0 && ::send(fd, message.data(), message.size(), 0) < 0) return;
  for (;;) {
    if (::recv(fd, message.data(), message.size(), MSG_WAITALL) <= 0) return;
    if (side == 0) shared.round_trips.fetch_add(1, std::memory_order_relaxed);
    if (::send(fd, message.data(), message.size(), 0) < 0) return;
  }
}

/// Two ends of a TCP connection over loopback.
std::array<int, 2> tcp_pair() {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.get(), generic, length) != 0 || ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), generic, &length) != 0) {
    std::abort();
  }
  std::array<int, 2> ends{::socket(AF_INET, SOCK_STREAM, 0), -1};
  if (::connect(ends[0], generic, length) != 0) std::abort();
  ends[1] = ::accept(listener.get(), nullptr, nullptr);
  const int on = 1;
  for (const int fd : ends) ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return ends;
}

enum class Transport { ring, tcp };

struct Figures {
  double per_second;      ///< round trips of all pairs together
  double per_cpu_second;  ///< the same for each second of CPU time they used: what counts when others want the CPUs as
                          ///< well
};

Figures measure(Transport transport, int pairs, unsigned seconds) {
  void* memory = ::mmap(nullptr, sizeof(SharedPair) * static_cast<std::size_t>(pairs), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  std::vector<pid_t> children;
  std::vector<int> descriptors;
  for (int i = 0; i < pairs; ++i) {
    auto* shared = new (static_cast<SharedPair*>(memory) + i) SharedPair;
    const std::array<int, 2> ends = transport == Transport::tcp
                                        ? tcp_pair()
                                        : std::array<int, 2>{::eventfd(0, EFD_NONBLOCK), ::eventfd(0, EFD_NONBLOCK)};
    descriptors.insert(descriptors.end(), ends.begin(), ends.end());
    for (std::size_t side = 0; side < 2; ++side) {
      children.push_back(start([&] {
        if (transport == Transport::tcp) {
          tcp_side(*shared, side, ends[side]);
        } else {
          ring_side(*shared, side, ends);
        }
      }));
    }
  }
  const auto total = [&] {
    std::uint64_t sum = 0;
    for (int i = 0; i < pairs; ++i) sum += (static_cast<SharedPair*>(memory) + i)->round_trips.load();
    return sum;
  };
  ::usleep(100'000);
  const std::uint64_t before = total();
  const Nanos begun = monotonic_now();
  ::sleep(seconds);
  const auto done = static_cast<double>(total() - before);
  const double elapsed = std::chrono::duration<double>(monotonic_now() - begun).count();
  double cpu_seconds = 0;
  for (const pid_t child : children) {
    ::kill(child, SIGKILL);
    rusage used{};
    ::wait4(child, nullptr, 0, &used);
    for (const timeval& part : {used.ru_utime, used.ru_stime}) {
      cpu_seconds += static_cast<double>(part.tv_sec) + 1e-6 * static_cast<double>(part.tv_usec);
    }
  }
  const double all_trips = static_cast<double>(total());
  for (const int fd : descriptors) ::close(fd);
  ::munmap(memory, sizeof(SharedPair) * static_cast<std::size_t>(pairs));
  return {done / elapsed, all_trips / cpu_seconds};
}

}  // namespace
}  // namespace ringsock

int main(int argc, char** argv) {
  const unsigned seconds = argc > 1 ? static_cast<unsigned>(std::strtoul(argv[1], nullptr, 10)) : 1;
  std::printf("%6s | %12s %12s %7s | %12s %12s %7s\n", "pairs", "rings/s", "TCP/s", "ratio", "rings/CPU s", "TCP/CPU s",
              "ratio");
  for (const int pairs : {1, 2, 4, 8}) {
    const ringsock::Figures ring = ringsock::measure(ringsock::Transport::ring, pairs, seconds);
    const ringsock::Figures tcp = ringsock::measure(ringsock::Transport::tcp, pairs, seconds);
    std::printf("%6d | %12.0f %12.0f %7.2f | %12.0f %12.0f %7.2f\n", pairs, ring.per_second, tcp.per_second,
                ring.per_second / tcp.per_second, ring.per_cpu_second, tcp.per_cpu_second,
                ring.per_cpu_second / tcp.per_cpu_second);
  }
}
