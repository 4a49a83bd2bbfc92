// Datagrams to the echo service and back, for udp_cost.sh, which counts the instructions of recvfrom() and sendto().
// With arguments: becomes that command, which runs this program.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <vector>

namespace {

constexpr int kDatagrams = 1000;
constexpr ssize_t kBytes = 64;
using Message = std::array<char, kBytes>;

/// An answer is there after that, usually.
void wait_for_answer() {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::microseconds(1000);
  while (Clock::now() < end) {
  }
}

}  // namespace

// Instructions are counted by this name.
extern "C" [[gnu::noinline]] bool cost_of_pair(int fd, Message& message) {
  sockaddr_in from{};
  socklen_t length = sizeof from;
  auto* const name = reinterpret_cast<sockaddr*>(&from);
  return ::recvfrom(fd, message.data(), message.size(), 0, name, &length) == kBytes &&
         ::sendto(fd, message.data(), message.size(), 0, name, length) == kBytes;
}

int main(int argc, char** argv) {
  if (argc > 1) {
    std::vector<char*> command(argv + 1, argv + argc);
    command.push_back(argv[0]);
    command.push_back(nullptr);
    ::execvp(command[0], command.data());
    std::perror(command[0]);
    return 1;
  }
  const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(7000);
  ::inet_pton(AF_INET, "10.9.0.2", &peer.sin_addr);
  Message message{};
  // The first goes by the kernel, whose neighbour is not known yet.
  for (int i = 0; i < 3; ++i) {
    if (::sendto(fd, message.data(), message.size(), 0, reinterpret_cast<sockaddr*>(&peer), sizeof peer) < 0 ||
        ::recv(fd, message.data(), message.size(), 0) < 0) {
      std::perror("udp_cost");
      return 1;
    }
  }
  if (::sendto(fd, message.data(), message.size(), 0, reinterpret_cast<sockaddr*>(&peer), sizeof peer) < 0) return 1;
  for (int i = 0; i < kDatagrams; ++i) {
    wait_for_answer();
    if (!cost_of_pair(fd, message)) {
      std::perror("udp_cost");
      return 1;
    }
  }
  std::printf("%d\n", kDatagrams);
  return 0;
}
