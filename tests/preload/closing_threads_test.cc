// A descriptor that one thread closes, or puts something else in the place of, while another one uses it.
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <csignal>
#include <functional>
#include <thread>

#include "tests/preload/tcp_world.h"
#include "tests/support/sanitizers.h"

namespace ringsock::preload_tests {
namespace {

#define SKIP_UNDER_TSAN \
  if (support::kHasThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer calls a close(2) beside a send(2) a race"

struct HowItGoes {
  const char* name;
  void (*go)(int fd);
};
const HowItGoes kWays[] = {
    {"Closed", [](int fd) { ::close(fd); }},
    {"ClosedWithAll", [](int fd) { ::close_range(static_cast<unsigned>(fd), static_cast<unsigned>(fd), 0); }},
    {"Replaced",
     [](int fd) {
       const int nothing = ::open("/dev/null", O_RDWR);
       ::dup2(nothing, fd);
       ::close(nothing);
       ::close(fd);
     }},
};

class DescriptorOfTwoThreads : public testing::TestWithParam<HowItGoes> {};
INSTANTIATE_TEST_SUITE_P(Is, DescriptorOfTwoThreads, testing::ValuesIn(kWays),
                         [](const auto& way) { return std::string(way.param.name); });

/// Sends numbers until that fails: how many have gone.
std::uint32_t send_numbers(int fd, std::atomic<bool>& begun) {
  std::uint32_t next = 0;
  while (::send(fd, &next, sizeof next, 0) == sizeof next) {
    ++next;
    begun.store(true);
  }
  return next;
}

/// Until the end: how many have come in their turn.
std::uint32_t receive_numbers(int fd) {
  std::uint32_t next = 0;
  for (std::uint32_t number = 0; ::recv(fd, &number, sizeof number, MSG_WAITALL) == sizeof number;) {
    if (number == next) ++next;
  }
  return next;
}

/// /dev/null takes no send(2): ENOTSOCK ends the sender.
TEST_P(DescriptorOfTwoThreads, TakesNothingThatDoesNotArrive) {
  SKIP_UNDER_TSAN;
  for (int round = 0; round < 60; ++round) {
    auto [alice, bob] = connected_pair();
    std::atomic<bool> begun{false};
    std::uint32_t sent = 0, received = 0;
    std::thread sender([&, fd = int(alice)] { sent = send_numbers(fd, begun); });
    std::thread receiver([&, fd = int(bob)] { received = receive_numbers(fd); });
    while (!begun.load()) std::this_thread::yield();
    GetParam().go(alice.release());
    sender.join();
    receiver.join();
    ASSERT_EQ(received, sent) << "round " << round;
  }
}

TEST(NumberOfTwoThreads, StaysAConnectionUnderAnotherNumber) {
  SKIP_UNDER_TSAN;
  auto [alice, bob] = connected_pair();
  std::atomic<int> number{alice.release()};
  std::atomic<bool> is_over{false};
  std::uint32_t sent = 0, received = 0;
  std::thread sender([&] {
    while (!is_over.load()) {
      const ssize_t gone = ::send(number.load(), &sent, sizeof sent, 0);
      if (gone == sizeof sent) {
        ++sent;
      } else {
        ASSERT_EQ(errno, EBADF) << std::strerror(errno);  // between the two
      }
    }
  });
  std::thread receiver([&, fd = int(bob)] { received = receive_numbers(fd); });
  for (int i = 0; i < 300; ++i) {
    const int old = number.load();
    const int copy = ::fcntl(old, F_DUPFD, 300 + i);  // never a number that the sender may still have
    ::close(old);
    number.store(copy);
  }
  is_over.store(true);
  sender.join();
  ::close(number.load());
  receiver.join();
  EXPECT_EQ(received, sent);
}

TEST(NumberOfTwoThreads, GivesNobodyAnErrorOfWhatIsBeneathAListener) {
  SKIP_UNDER_TSAN;
  Fd first = listening();
  const Address there = name_of(first);
  std::atomic<int> number{first.release()};
  std::atomic<bool> is_over{false};
  std::thread acceptor([&] {
    while (!is_over.load()) {
      const Fd client(::accept(number.load(), nullptr, nullptr));
      if (client >= 0) continue;
      ASSERT_TRUE(errno == EBADF || errno == EINVAL) << std::strerror(errno);
    }
  });
  for (int i = 0; i < 100; ++i) {
    const int old = number.load();
    const int copy = ::dup(old);
    ::close(old);
    number.store(copy);
    Address to = there;
    const Fd client(::socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(::connect(client, to.get(), to.length), 0) << std::strerror(errno);
  }
  is_over.store(true);
  Address to = there;
  const Fd last(::socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(::connect(last, to.get(), to.length), 0) << std::strerror(errno);
  acceptor.join();
  ::close(number.load());
}

}  // namespace
}  // namespace ringsock::preload_tests
