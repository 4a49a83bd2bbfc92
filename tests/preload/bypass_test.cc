// A process that sets up io_uring or AIO: its sockets are the kernel's from then on. Each case in a process of its own.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <stdexcept>

#include "tests/preload/preloaded.h"

extern "C" int io_uring_queue_init(unsigned entries, void* ring, unsigned flags);

namespace ringsock::preloaded {
namespace {

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

/// Fails, without a page of parameters: to have asked is enough.
void set_up_uring() { ::syscall(SYS_io_uring_setup, 1, nullptr); }

TEST(Bypass, NewConnectionsAreTheKernelsAndThoseOnARingStay) {
  const pid_t child = spawn([] {
    const Listener listener = listen_anywhere();
    const int client = connect_to(listener.port);
    const int server = ::accept(listener.fd, nullptr, nullptr);
    require(is_on_ring(client), "by ring before");
    set_up_uring();
    require(is_on_ring(client), "and still");
    send_all(client, "as before");
    require(receive(server, 9) == "as before", "data by ring");

    const Listener later = listen_anywhere();
    const int second = connect_to(later.port);
    const int accepted = ::accept(later.fd, nullptr, nullptr);
    require(!is_on_ring(second) && !is_on_ring(accepted), "by the kernel afterwards");
    send_all(second, "by the kernel");
    require(receive(accepted, 13) == "by the kernel", "data by the kernel");
  });
  EXPECT_EQ(wait_for(child), 0);
}

TEST(Bypass, AListenerAndASocketFromBeforeAreTheKernels) {
  const pid_t server = spawn([] {
    const Listener listener = listen_anywhere();
    const int undecided = ::socket(AF_INET, SOCK_STREAM, 0);
    Signal set_up;
    const pid_t client = spawn([&] {
      ::close(listener.fd);
      set_up.wait();
      const int connection = connect_to(listener.port);  // this process may use rings still
      require(!is_on_ring(connection), "nobody listens on the ring any more");
      send_all(connection, "hello");
    });
    set_up_uring();
    set_up.give();
    const int accepted = ::accept(listener.fd, nullptr, nullptr);
    require(accepted >= 0 && !is_on_ring(accepted), "a client of the kernel's");
    require(receive_all(accepted) == "hello", "its data");
    require(wait_for(client) == 0, "the client");

    sockaddr_storage name{};
    socklen_t length = sizeof name;
    require(::getsockname(listener.fd, reinterpret_cast<sockaddr*>(&name), &length) == 0, "name");
    require(::connect(undecided, reinterpret_cast<const sockaddr*>(&name), length) == 0, "connect");
    require(!is_on_ring(undecided), "the socket from before");
  });
  EXPECT_EQ(wait_for(server), 0);
}

TEST(Bypass, LiburingIsCalledAfterwards) {
  const pid_t child = spawn([] {
    require(io_uring_queue_init(17, nullptr, 4) == 1704, "the library's answer, with its arguments");
    const Listener listener = listen_anywhere();
    require(!is_on_ring(connect_to(listener.port)), "by the kernel");
  });
  EXPECT_EQ(wait_for(child), 0);
}

TEST(Bypass, SyscallPassesSixArguments) {
  const std::size_t bytes = 4096;
  const long address = ::syscall(SYS_mmap, nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
  ASSERT_NE(address, -1);
  *reinterpret_cast<char*>(address) = 1;
  EXPECT_EQ(::syscall(SYS_munmap, address, bytes), 0);
  EXPECT_EQ(::syscall(SYS_close, -1), -1);
  EXPECT_EQ(errno, EBADF);
}

}  // namespace
}  // namespace ringsock::preloaded
