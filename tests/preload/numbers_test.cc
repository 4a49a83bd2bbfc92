// Descriptor numbers: the library's own descriptors are not in the way of the program's.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>

#include "tests/preload/preloaded.h"

namespace ringsock::preloaded {
namespace {

/// A process that hangs is killed, and fails.
void limit_life() { ::alarm(20); }

int in_child(const std::function<void()>& body) {
  return wait_for(spawn([&] {
    limit_life();
    body();
  }));
}

int open_nothing() { return ::open("/dev/null", O_RDWR); }

// As programs do that read and write a connection as standard input and output.
TEST(Numbers, AConnectionThatAStandardStreamTakesOverLeavesTheLowestFree) {
  EXPECT_EQ(in_child([] {
              ::close(STDIN_FILENO);
              expect(open_nothing() == STDIN_FILENO, "the lowest number");
              const Listener listener = listen_anywhere();
              const int client = connect_to(listener.port);
              const int server = ::accept(listener.fd, nullptr, nullptr);
              expect(is_on_ring(client), "a ring");
              ::close(STDIN_FILENO);
              expect(::dup2(client, STDOUT_FILENO) == STDOUT_FILENO, "dup2");
              expect(!is_on_ring(client), "a kernel socket");
              const int file = open_nothing();
              expect(file == STDIN_FILENO, "the lowest number again");
              send_all(server, "text");
              expect(receive(STDOUT_FILENO, 4) == "text", "the connection");
              ::close(STDOUT_FILENO);
              ::close(client);
              expect(receive_all(server).empty(), "the end");
              ::close(server);
              expect(::lseek(file, 0, SEEK_CUR) == 0, "the program's file");
            }),
            0);
}

}  // namespace
}  // namespace ringsock::preloaded
