// The entry points that _FORTIFY_SOURCE makes of read(), recv() and poll().
#undef _FORTIFY_SOURCE
#define _FORTIFY_SOURCE 2

#include "tests/preload/tcp_world.h"

namespace ringsock::preload_tests {
namespace {

/// Keeps the compiler from knowing a length, so that it cannot drop the check.
std::size_t hidden(std::size_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

TEST(FortifiedCalls, ReadFromConnections) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::write(alice, "abcdef", 6), 6);
  char data[4];
  EXPECT_EQ(::read(bob, data, hidden(2)), 2);
  EXPECT_EQ(::recv(bob, data, hidden(2), 0), 2);
  EXPECT_EQ(::recvfrom(bob, data, hidden(2), 0, nullptr, nullptr), 2);
  EXPECT_EQ(std::string(data, 2), "ef");
  pollfd entries[1] = {{bob, POLLOUT, 0}};
  EXPECT_EQ(::poll(entries, hidden(1), 0), 1);
  const timespec at_once{};
  EXPECT_EQ(::ppoll(entries, hidden(1), &at_once, nullptr), 1);
}

TEST(FortifiedCallsDeathTest, EndTheProgramWhenTheBufferIsTooSmall) {
#if !defined(__USE_FORTIFY_LEVEL) || __USE_FORTIFY_LEVEL < 1
  GTEST_SKIP() << "built without optimisation, for which the C library has no fortified entry points";
#endif
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::write(alice, "abcdef", 6), 6);
  char data[4];
  EXPECT_DEATH(
      {
        const ssize_t got = ::read(bob, data, hidden(6));
        std::printf("%zd", got);
      },
      "buffer overflow|");
  EXPECT_DEATH(
      {
        const ssize_t got = ::recv(bob, data, hidden(6), 0);
        std::printf("%zd", got);
      },
      "buffer overflow|");
}

}  // namespace
}  // namespace ringsock::preload_tests
