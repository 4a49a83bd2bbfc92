// Datagrams of 64 bytes per second, sent by sendto() one by one to the other host and received there by recvfrom(), for
// udp_rate.sh: udp_rate SECONDS [LIBRARY OF THE RECEIVER]. Prints datagrams sent and received per second.
#include <netinet/in.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "tests/vma/measured_peer.h"

namespace {

using Clock = std::chrono::steady_clock;
using Message = std::array<char, 64>;
constexpr char kEnd = 'e';

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Each end has a CPU of its own, if there are two.
void stay_on_cpu(std::size_t number) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(number, &one);
  ::sched_setaffinity(0, sizeof one, &one);
}

/// The receiver: tells by a byte on its standard output that it is ready, and in the end how many came per second.
int sink() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  stay_on_cpu(1);
  const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
  const sockaddr_in own = ringsock::vma_tests::measured_peer();
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0) return 1;
  std::array<char, 2048> message{};
  if (::write(STDOUT_FILENO, "!", 1) != 1 || ::recv(fd, message.data(), message.size(), 0) < 0) return 1;
  const auto start = Clock::now();
  double count = 0, seconds = 0;
  for (;;) {
    sockaddr_in from{};
    socklen_t length = sizeof from;
    if (::recvfrom(fd, message.data(), message.size(), 0, reinterpret_cast<sockaddr*>(&from), &length) < 0) return 1;
    if (message[0] == kEnd) break;
    ++count;
    if (static_cast<unsigned long>(count) % 64 == 0) seconds = seconds_since(start);
  }
  std::printf("%.0f\n", seconds > 0 ? count / seconds : 0);
  return 0;
}

/// @return where it tells, or null.
FILE* start_sink(const char* self, const char* library) {
  const char* const host = std::getenv("TWO_HOSTS_PEER");
  if (host == nullptr) return nullptr;
  const std::string command = "exec env LD_PRELOAD=" + std::string(library) + " ip netns exec " + host + " " + self;
  return ::popen((command + " --sink").c_str(), "r");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && argv[1] == std::string_view("--sink")) return sink();
  if (argc < 2) return 2;
  FILE* const told = start_sink(argv[0], argc > 2 ? argv[2] : "");
  if (told == nullptr || std::fgetc(told) != '!') return 1;
  stay_on_cpu(0);
  const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
  const sockaddr_in to = ringsock::vma_tests::measured_peer();
  Message message{};
  const auto send = [&] {
    return ::sendto(fd, message.data(), message.size(), 0, reinterpret_cast<const sockaddr*>(&to), sizeof to) > 0;
  };
  // The first ones go by the kernel, whose neighbour is not known yet.
  for (int i = 0; i < 10; ++i) {
    send();
    ::usleep(10'000);
  }
  const double seconds = std::atof(argv[1]);
  const auto start = Clock::now();
  double sent = 0;
  while (seconds_since(start) < seconds) {
    for (int i = 0; i < 64; ++i) sent += send();
  }
  const double rate = sent / seconds_since(start);
  message[0] = kEnd;
  for (int i = 0; i < 10; ++i) {
    ::usleep(10'000);
    send();
  }
  double received = 0;
  if (std::fscanf(told, "%lf", &received) != 1) return 1;
  std::printf("%.0f %.0f\n", rate, received);
  return 0;
}
