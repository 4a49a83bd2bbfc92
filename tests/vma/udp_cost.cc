// Datagrams from a peer and back, for udp_cost.sh, which counts the instructions of recvfrom() and sendto(). Each is
// there before it is received. With arguments: becomes that command, which runs this program.
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "tests/vma/measured_peer.h"

namespace {

constexpr int kDatagrams = 1000;
constexpr ssize_t kBytes = 64;
using Message = std::array<char, kBytes>;

/// The peer: sends back what comes, and then tells by a byte on its standard output.
int answer() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
  const sockaddr_in own = ringsock::vma_tests::measured_peer();
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0) return 1;
  while (::write(STDOUT_FILENO, "!", 1) == 1) {
    Message message;
    sockaddr_in from{};
    socklen_t length = sizeof from;
    auto* const name = reinterpret_cast<sockaddr*>(&from);
    const ssize_t got = ::recvfrom(fd, message.data(), message.size(), 0, name, &length);
    if (got < 0 || ::sendto(fd, message.data(), static_cast<std::size_t>(got), 0, name, length) < 0) return 1;
  }
  return 1;
}

/// Starts the peer, on its host and on the kernel's sockets. @return where it tells, or -1.
int start_peer(const char* self) {
  std::array<int, 2> ends{};
  const char* const host = std::getenv("TWO_HOSTS_PEER");
  if (host == nullptr || ::pipe(ends.data()) != 0) return -1;
  if (::fork() == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::execlp("env", "env", "-u", "LD_PRELOAD", "ip", "netns", "exec", host, self, "--answer", nullptr);
    ::_exit(1);
  }
  ::close(ends[1]);
  return ends[0];
}

bool wait_for(int peer) {
  char byte;
  return ::read(peer, &byte, 1) == 1;
}

int become(char** command, char* self) {
  std::vector<char*> words;
  for (; *command != nullptr; ++command) words.push_back(*command);
  words.insert(words.end(), {self, nullptr});
  ::execvp(words[0], words.data());
  std::perror(words[0]);
  return 1;
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
  if (argc > 1) return argv[1] == std::string_view("--answer") ? answer() : become(argv + 1, argv[0]);
  const int told = start_peer(argv[0]);
  const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
  const sockaddr_in peer = ringsock::vma_tests::measured_peer();
  Message message{};
  bool fine = wait_for(told);
  // The first goes by the kernel, whose neighbour is not known yet.
  for (int i = 0; fine && i < 4; ++i) {
    fine = ::sendto(fd, message.data(), message.size(), 0, reinterpret_cast<const sockaddr*>(&peer), sizeof peer) ==
               kBytes &&
           wait_for(told) && (i == 3 || ::recv(fd, message.data(), message.size(), 0) == kBytes);
  }
  for (int i = 0; fine && i < kDatagrams; ++i) fine = cost_of_pair(fd, message) && wait_for(told);
  if (!fine) {
    std::perror("udp_cost");
    return 1;
  }
  std::printf("%d\n", kDatagrams);
  return 0;
}
