// What receiving a datagram of 1,400 bytes costs by each way of the Extra API, for packets_cost.sh: packets_cost WAY,
// one of recvfrom, callback, zerocopy, socketxtreme. The datagrams are there before they are received. Prints how many,
// and the nanoseconds of each. With further arguments: becomes that command, which runs this program.
#include <arpa/inet.h>
#include <fcntl.h>
#include <mellanox/vma_extra.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr int kBatch = 16, kBatches = 1000, kWarmUp = 100;
constexpr ssize_t kBytes = 1400;

struct Receiver {
  int fd = -1;
  int ring = -1;
  std::string_view way;
  std::array<char, 2048> room{};
  std::array<vma_completion_t, kBatch> completions{};
  int seen = 0;  ///< by the callback
};

vma_api_t& api() {
  static vma_api_t* const table = vma_get_api();
  return *table;
}

int by_recvfrom(Receiver& self) {
  int count = 0;
  for (; count < kBatch; ++count) {
    sockaddr_in from{};
    socklen_t length = sizeof from;
    if (::recvfrom(self.fd, self.room.data(), self.room.size(), 0, reinterpret_cast<sockaddr*>(&from), &length) !=
        kBytes)
      break;
  }
  return count;
}

int by_zero_copy(Receiver& self) {
  int count = 0;
  for (; count < kBatch; ++count) {
    sockaddr_in from{};
    socklen_t length = sizeof from;
    int flags = 0;
    if (api().recvfrom_zcopy(self.fd, self.room.data(), self.room.size(), &flags, reinterpret_cast<sockaddr*>(&from),
                             &length) != kBytes)
      break;
    auto* const list = reinterpret_cast<vma_packets_t*>(self.room.data());
    if ((flags & MSG_VMA_ZCOPY) == 0 || api().free_packets(self.fd, list->pkts, list->n_packet_num) != 0) break;
  }
  return count;
}

int by_socketxtreme(Receiver& self) {
  int count = 0;
  while (count < kBatch) {
    const int found = api().socketxtreme_poll(self.ring, self.completions.data(), kBatch, 0);
    if (found <= 0) break;
    for (int i = 0; i < found; ++i)
      api().socketxtreme_free_vma_packets(&self.completions[static_cast<std::size_t>(i)].packet, 1);
    count += found;
  }
  return count;
}

int by_callback(Receiver& self) {
  self.seen = 0;
  ::recv(self.fd, self.room.data(), self.room.size(), MSG_DONTWAIT);
  return self.seen;
}

/// A socket of the other host.
int far_socket() {
  const int here = ::open("/proc/thread-self/ns/net", O_RDONLY);
  const int there = ::open((std::string("/run/netns/") + std::getenv("TWO_HOSTS_PEER")).c_str(), O_RDONLY);
  if (::setns(there, CLONE_NEWNET) != 0) return -1;
  const int fd = static_cast<int>(::syscall(SYS_socket, AF_INET, SOCK_DGRAM, 0));
  return ::setns(here, CLONE_NEWNET) == 0 ? fd : -1;
}

int become(char** command, char* self, char* way) {
  std::vector<char*> words;
  for (; *command != nullptr; ++command) words.push_back(*command);
  words.insert(words.end(), {self, way, nullptr});
  ::execvp(words[0], words.data());
  std::perror(words[0]);
  return 1;
}

}  // namespace

// Instructions are counted by this name.
extern "C" [[gnu::noinline]] int cost_of_batch(Receiver& self) {
  if (self.way == "recvfrom") return by_recvfrom(self);
  if (self.way == "zerocopy") return by_zero_copy(self);
  return self.way == "callback" ? by_callback(self) : by_socketxtreme(self);
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  if (argc > 2) return become(argv + 2, argv[0], argv[1]);
  Receiver self;
  self.way = argv[1];
  self.fd = ::socket(AF_INET, SOCK_DGRAM, 0);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  ::inet_pton(AF_INET, "10.9.0.1", &own.sin_addr);
  socklen_t length = sizeof own;
  auto* const name = reinterpret_cast<sockaddr*>(&own);
  if (::bind(self.fd, name, length) != 0 || ::getsockname(self.fd, name, &length) != 0 ||
      api().get_socket_rings_fds(self.fd, &self.ring, 1) != 1)
    return 1;
  const auto drop = [](int, std::size_t, iovec[], vma_info_t*, void* context) {
    ++static_cast<Receiver*>(context)->seen;
    return VMA_PACKET_DROP;
  };
  if (self.way == "callback" && api().register_recv_callback(self.fd, drop, &self) != 0) return 1;
  const int far = far_socket();
  const std::array<char, kBytes> message{};
  std::chrono::nanoseconds spent{};
  for (int i = 0; i < kWarmUp + kBatches; ++i) {
    for (int sent = 0; sent < kBatch; ++sent) {
      if (::syscall(SYS_sendto, far, message.data(), message.size(), 0, name, length) != kBytes) return 1;
    }
    const auto begin = std::chrono::steady_clock::now();
    if (const int got = cost_of_batch(self); got != kBatch) {
      std::fprintf(stderr, "packets_cost: %d of %d\n", got, kBatch);
      return 1;
    }
    if (i >= kWarmUp) spent += std::chrono::steady_clock::now() - begin;
  }
  std::printf("%d %.0f\n", kBatch * (kWarmUp + kBatches), static_cast<double>(spent.count()) / (kBatch * kBatches));
  return 0;
}
