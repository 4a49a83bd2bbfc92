// Calls on descriptors that are no sockets, for preload_cost.sh, which counts their instructions.
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>

namespace {

constexpr int kCalls = 500;

}  // namespace

// One function per kind of call: the instructions of what they call are counted by these names.
extern "C" {

[[gnu::noinline]] void cost_of_read(int fd) {
  for (int i = 0; i < kCalls; ++i) {
    char byte;
    if (::read(fd, &byte, 1) > 0) return;
  }
}
[[gnu::noinline]] void cost_of_write(int fd) {
  for (int i = 0; i < kCalls; ++i) {
    if (::write(fd, "x", 1) != 1) return;
  }
}
[[gnu::noinline]] void cost_of_poll(int fd) {
  for (int i = 0; i < kCalls; ++i) {
    pollfd entry{fd, POLLIN, 0};
    if (::poll(&entry, 1, 0) > 0) return;
  }
}
[[gnu::noinline]] void cost_of_epoll_wait(int set) {
  for (int i = 0; i < kCalls; ++i) {
    epoll_event event;
    if (::epoll_wait(set, &event, 1, 0) > 0) return;
  }
}
[[gnu::noinline]] void cost_of_close(const int* fds) {
  for (int i = 0; i < kCalls; ++i) ::close(fds[i]);
}

}  // extern "C"

int main() {
  // With a socket, so that the table of descriptors is there.
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const int event = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  if (socket < 0 || null < 0 || event < 0 || set < 0) return 1;
  std::array<int, kCalls> copies{};
  for (int& copy : copies) copy = ::dup(null);
  cost_of_read(null);
  cost_of_write(null);
  cost_of_poll(event);
  cost_of_epoll_wait(set);
  cost_of_close(copies.data());
  std::printf("%d\n", kCalls);
  return 0;
}
