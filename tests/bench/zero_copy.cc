// What receiving without a copy brings on an rsocket: 64 KiB messages from one process to another, received by rrecv()
// and by recvfrom_zcopy() in turns, on one connection. The receiver reads each byte once, or none. zero_copy [ROUNDS]
// (9; medians). Prints for each: GB/s by both ways, their ratio, and the CPU time of the receiver.
#include <mellanox/vma_extra.h>
#include <rdma/rsocket.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include "tests/bench/pair.h"

namespace ringsock::bench {

namespace {

constexpr std::size_t kMessage = 64 << 10;
constexpr std::size_t kRun = 2048 * kMessage;  ///< of one way, then it is the next one's turn

struct Way {
  bool copies;
  bool reads;
};
constexpr std::array<Way, 4> kWays{Way{true, false}, Way{false, false}, Way{true, true}, Way{false, true}};

struct Run {
  double gb_per_second;
  double cpu_percent;  ///< of the receiver
};

/// Reads each byte once.
std::uint64_t sum_of(const void* bytes, std::size_t count) {
  const auto* at = static_cast<const char*>(bytes);
  std::uint64_t sum = 0, word = 0;
  for (; count >= sizeof word; at += sizeof word, count -= sizeof word) {
    std::memcpy(&word, at, sizeof word);
    sum += word;
  }
  for (; count > 0; ++at, --count) sum += static_cast<unsigned char>(*at);
  return sum;
}

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Each process has a CPU to itself, if there are two: the first or the last one that it may use.
void stay_on(bool first) {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  int chosen = -1;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed) && (chosen < 0 || !first)) chosen = cpu;
  }
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(chosen, &only);
  ::sched_setaffinity(0, sizeof only, &only);
}

class Receiver {
 public:
  Receiver(const Party& party, int socket) : party_(party), socket_(socket) {
    socklen_t length = sizeof(void*);
    if (rgetsockopt(-1, SOL_SOCKET, SO_VMA_GET_API, &api_, &length) != 0) party.fail("SO_VMA_GET_API");
  }

  /// Receives one run, after a byte that tells the sender to begin.
  Run receive(const Way& way) {
    party_.send_all(socket_, "g", 1);
    const double cpu = cpu_seconds();
    const auto start = Clock::now();
    for (std::size_t left = kRun; left > 0;) left -= way.copies ? by_copy(way, left) : by_packets(way);
    const double took = seconds_since(start);
    return {kRun / took / 1e9, 100 * (cpu_seconds() - cpu) / took};
  }
  [[nodiscard]] std::uint64_t sum() const { return sum_; }

 private:
  std::size_t by_copy(const Way& way, std::size_t left) {
    const ssize_t got = party_.calls.recv(socket_, buffer_.data(), std::min(left, buffer_.size()), 0);
    if (got <= 0) party_.fail("recv");
    if (way.reads) sum_ += sum_of(buffer_.data(), static_cast<std::size_t>(got));
    return static_cast<std::size_t>(got);
  }
  std::size_t by_packets(const Way& way) {
    int flags = MSG_VMA_ZCOPY_FORCE;
    const int got = api_->recvfrom_zcopy(socket_, room_.data(), room_.size(), &flags, nullptr, nullptr);
    if (got <= 0) party_.fail("recvfrom_zcopy");
    auto* const list = reinterpret_cast<vma_packets_t*>(room_.data());
    const char* at = reinterpret_cast<const char*>(list->pkts);
    for (std::size_t i = 0; way.reads && i < list->n_packet_num; ++i) {
      const auto& packet = *reinterpret_cast<const vma_packet_t*>(at);
      sum_ += sum_of(packet.iov[0].iov_base, packet.iov[0].iov_len);
      at += sizeof packet + packet.sz_iov * sizeof(iovec);
    }
    if (api_->free_packets(socket_, list->pkts, list->n_packet_num) != 0) party_.fail("free_packets");
    return static_cast<std::size_t>(got);
  }

  const Party& party_;
  const int socket_;
  vma_api_t* api_ = nullptr;
  std::vector<char> buffer_ = std::vector<char>(kMessage);
  std::array<char, 1024> room_{};
  std::uint64_t sum_ = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void print(const std::array<std::vector<Run>, kWays.size()>& runs) {
  const auto of = [&](std::size_t way, double Run::*figure) {
    std::vector<double> values;
    for (const Run& one : runs[way]) values.push_back(one.*figure);
    return median(values);
  };
  std::printf("%-22s %8s %8s %7s %12s %12s\n", "64 KiB messages, GB/s", "rrecv", "zero", "ratio", "rrecv's CPU",
              "zero's CPU");
  for (std::size_t way = 0; way < kWays.size(); way += 2) {
    const double copied = of(way, &Run::gb_per_second), lent = of(way + 1, &Run::gb_per_second);
    std::printf("%-22s %8.2f %8.2f %6.2fx %11.0f%% %11.0f%%\n",
                kWays[way].reads ? "each byte read once" : "no byte read", copied, lent, lent / copied,
                of(way, &Run::cpu_percent), of(way + 1, &Run::cpu_percent));
  }
}

int compare(int rounds) {
  const auto receive = [&](const Party& party, int socket) {
    stay_on(true);
    Receiver receiver(party, socket);
    std::array<std::vector<Run>, kWays.size()> runs;
    for (int round = -1; round < rounds; ++round) {
      for (std::size_t way = 0; way < kWays.size(); ++way) {
        const Run run = receiver.receive(kWays[way]);
        if (round >= 0) runs[way].push_back(run);
      }
    }
    print(runs);
    if (receiver.sum() == 0) party.fail("nothing was read");
    std::fflush(stdout);
  };
  const auto send = [&](const Party& party, int socket) {
    stay_on(false);
    const std::vector<char> message(kMessage, 'x');
    char go = 0;
    for (int run = 0; run < (rounds + 1) * static_cast<int>(kWays.size()); ++run) {
      if (!party.receive_all(socket, &go, 1)) party.fail("recv: early end");
      for (std::size_t left = kRun; left > 0; left -= kMessage) party.send_all(socket, message.data(), kMessage);
    }
    return 0.0;
  };
  return run_connected(kRing, receive, send) ? 0 : 1;
}

}  // namespace
}  // namespace ringsock::bench

int main(int argc, char** argv) { return ringsock::bench::compare(argc > 1 ? std::max(1, std::atoi(argv[1])) : 9); }
