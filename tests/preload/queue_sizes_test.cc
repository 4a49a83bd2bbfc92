// RS_SQ_SIZE, RS_RQ_SIZE and RS_INLINE: the sizes of a connection's queues, set from outside the program.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "tests/preload/preloaded.h"

namespace ringsock::preloaded {
namespace {

constexpr int kSolRdma = 0x10000;
enum RdmaOption { kSqSize, kRqSize, kInline };

/// As if the program had been started with them: before its first socket.
[[gnu::constructor]] void set_variables() {
  ::setenv("RS_SQ_SIZE", "100", 1);
  ::setenv("RS_RQ_SIZE", "200", 1);
  ::setenv("RS_INLINE", "many", 1);
}

int told(int fd, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  EXPECT_EQ(::getsockopt(fd, kSolRdma, name, &value, &length), 0) << errno;
  return value;
}

TEST(QueueSizes, AreThoseOfTheEnvironment) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(told(fd, kSqSize), 100);
  EXPECT_EQ(told(fd, kRqSize), 200);
  EXPECT_EQ(told(fd, kInline), 64);  // what is no number has no effect
  ::close(fd);
}

TEST(QueueSizes, OfAConnectionAreThoseOfTheEnvironment) {
  const Ends pair;
  for (const int fd : {pair.ours, pair.peers}) {
    EXPECT_EQ(told(fd, kSqSize), 100);
    EXPECT_EQ(told(fd, kRqSize), 200);
  }
}

}  // namespace
}  // namespace ringsock::preloaded
