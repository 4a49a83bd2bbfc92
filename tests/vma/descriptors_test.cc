// How many descriptors libvma takes from the program.
#include <dirent.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <vector>

#include "tests/vma/udp_fixture.h"

namespace ringsock::vma_tests {
namespace {

int open_descriptors() {
  DIR* const folder = ::opendir("/proc/self/fd");
  int count = -1;  // the folder's own
  while (const dirent* const entry = ::readdir(folder)) count += entry->d_name[0] != '.';
  ::closedir(folder);
  return count;
}

class UdpDescriptors : public Udp {};
INSTANTIATE_TEST_SUITE_P(Over, UdpDescriptors, both_versions(), name_of_version);

/// What open(2) returns next.
int next_number() {
  const int number = ::dup(0);
  ::close(number);
  return number;
}

// Programs count on the numbers that they get (dup2(2), close(2) and open(2) in turn).
TEST_P(UdpDescriptors, RingsLeaveLowNumbersToTheProgram) {
  const int number = next_number();
  bind_anywhere(socket_);
  until_rings_send(socket_);
  socket_.limit_waits(20);
  EXPECT_EQ(socket_.receive(), "");
  EXPECT_EQ(next_number(), number);
}

TEST_P(UdpDescriptors, SocketsThatSleepTakeNone) {
  constexpr int kSockets = 20;
  bind_anywhere(socket_);
  until_rings_send(socket_);
  socket_.limit_waits(20);
  EXPECT_EQ(socket_.receive(), "");
  std::vector<Socket> sockets;
  for (int i = 0; i < kSockets; ++i) {
    sockets.emplace_back(GetParam().family);
    bind_anywhere(sockets.back());
    sockets.back().limit_waits();
    get_acquainted(sockets.back());
    sockets.back().limit_waits(20);
  }
  const int before = open_descriptors();
  std::vector<pollfd> entries;
  for (const Socket& socket : sockets) {
    EXPECT_EQ(socket.receive(), "");
    EXPECT_EQ(errno, EAGAIN);
    entries.push_back({socket, POLLIN, 0});
  }
  EXPECT_EQ(::poll(entries.data(), entries.size(), 20), 0);
  EXPECT_EQ(open_descriptors(), before);
  // And they hear.
  ASSERT_EQ(sockets[3].send_to(echo_, "hello"), 5);
  EXPECT_EQ(::poll(entries.data(), entries.size(), 5000), 1);
  EXPECT_EQ(entries[3].revents, POLLIN);
  EXPECT_EQ(sockets[3].receive(), "hello");
}

TEST_P(UdpDescriptors, AProcessThatMayHaveFewHasThemForItself) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit few{64, 64};
    ::setrlimit(RLIMIT_NOFILE, &few);
    const int left = 64 - open_descriptors();
    std::vector<Socket> sockets;
    for (int i = 0; i < left; ++i) {
      sockets.emplace_back(GetParam().family);
      if (sockets.back() < 0) ::_exit(i);
      bind_anywhere(sockets.back());
    }
    for (const Socket& socket : sockets) {
      socket.limit_waits();
      if (socket.send_to(echo_, "hello") != 5 || socket.receive() != "hello") ::_exit(200);
    }
    ::_exit(255);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 255) << "sockets of " << 64;
}

}  // namespace
}  // namespace ringsock::vma_tests
