// The rate at which frames leave an interface, from one socket with SO_MAX_PACING_RATE, for pacing_rate.sh:
// pacing_rate KBIT/S BURST FRAME block|poll SECONDS. Prints bytes per second as the interface counts them, their
// deviation in percent, the CPU time of the sender in percent, and how many frames leave at once after a pause.
#include <mellanox/vma_extra.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include "tests/vma/measured_peer.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kHeaders = 14 + 20 + 8;

double sent_bytes() {
  std::ifstream file("/sys/class/net/eth0/statistics/tx_bytes");
  double bytes = 0;
  file >> bytes;
  return bytes;
}
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }
double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  const vma_rate_limit_t limit{static_cast<std::uint32_t>(std::atol(argv[1])),
                               static_cast<std::uint32_t>(std::atol(argv[2])), 0};
  const std::string data(static_cast<std::size_t>(std::atol(argv[3])) - kHeaders, 'x');
  const bool polls = argv[4] == std::string_view("poll");
  const double seconds = std::atof(argv[5]);
  const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
  const sockaddr_in to = ringsock::vma_tests::measured_peer();
  const auto send = [&](int flags) {
    return ::sendto(fd, data.data(), data.size(), flags, reinterpret_cast<const sockaddr*>(&to), sizeof to) > 0;
  };
  // The first ones go by the kernel, whose neighbour is not known yet.
  for (int i = 0; i < 100; ++i) {
    send(MSG_DONTWAIT);
    ::usleep(1000);
  }
  if (::setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &limit, sizeof limit) != 0) return 1;
  ::usleep(50'000);
  unsigned burst = 0;
  while (burst < 1'000'000 && send(MSG_DONTWAIT)) ++burst;
  const double cpu = cpu_seconds(), before = sent_bytes();
  const auto start = Clock::now();
  while (seconds_since(start) < seconds) {
    pollfd one{fd, POLLOUT, 0};
    if (polls && ::poll(&one, 1, -1) != 1) return 1;
    send(polls ? MSG_DONTWAIT : 0);
  }
  const double took = seconds_since(start), rate = (sent_bytes() - before) / took, wanted = 125.0 * limit.rate;
  std::printf("%.0f %.2f %.0f %u\n", rate, 100 * (rate - wanted) / wanted, 100 * (cpu_seconds() - cpu) / took, burst);
  return 0;
}
