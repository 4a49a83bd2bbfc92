// Many datagrams in succession: with libvma, those that wait for the next ones, and when they leave.
#include <fcntl.h>
#include <netinet/udp.h>
#include <sched.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <thread>

#include "tests/support/sanitizers.h"
#include "tests/vma/far_socket.h"
#include "tests/vma/udp_fixture.h"

namespace ringsock::vma_tests {
namespace {

std::string numbered(unsigned number, std::size_t bytes = 64) {
  std::string out = std::to_string(number) + " ";
  out.resize(bytes, 'x');
  return out;
}

class Bursts : public Udp {
 protected:
  /// So many that the last ones wait for more.
  static constexpr unsigned kMany = 77;

  Bursts() : far_(GetParam().there) {}
  void SetUp() override {
    if (std::getenv("TWO_HOSTS_PEER") == nullptr) GTEST_SKIP() << "needs two hosts";
    bind_anywhere(socket_);
    prepare(socket_);
  }
  void prepare(const Socket& socket) {
    if (preloaded()) {
      until_rings_send(socket);
    } else {
      get_acquainted(socket);
    }
  }
  void send(unsigned number, std::size_t bytes = 64) const {
    ASSERT_EQ(socket_.send_to(far_.name(), numbered(number, bytes)), static_cast<ssize_t>(bytes))
        << std::strerror(errno);
  }
  void send_many() const {
    for (unsigned i = 0; i < kMany; ++i) send(i);
  }
  void expect_many() const {
    for (unsigned i = 0; i < kMany; ++i) ASSERT_EQ(far_.receive(), numbered(i));
  }
  /// A child process sends them by a socket of its own, and then does that. @return how waitpid(2) has it.
  int child_sends_and(const std::function<void()>& end) {
    const pid_t child = ::fork();
    if (child == 0) {
      const Socket own(GetParam().family);
      own.limit_waits();
      prepare(own);
      for (unsigned i = 0; i < kMany; ++i) own.send_to(far_.name(), numbered(i));
      end();
      ::pause();
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
  }

  FarSocket far_;
};

INSTANTIATE_TEST_SUITE_P(Over, Bursts, both_versions(), name_of_version);

TEST_P(Bursts, ArriveWholeAndInOrderWithoutAnotherCall) {
  send_many();
  expect_many();
  EXPECT_EQ(far_.receive(MSG_DONTWAIT), "(nothing)");
}

TEST_P(Bursts, LeaveTogether) {
  if (!preloaded()) GTEST_SKIP() << "the kernel sends each one at once";
  if (support::kHasThreadSanitizer || support::kHasAddressSanitizer) GTEST_SKIP() << "sanitizers make it too slow";
  far_.receive_whole_packets();
  std::size_t longest = 0, bytes = 0;
  for (unsigned i = 0; i < 1000; ++i) send(i);
  while (bytes < 64'000) {
    const std::size_t got = far_.receive().size();
    ASSERT_EQ(got % 64, 0U);
    longest = std::max(longest, got);
    bytes += got;
  }
  EXPECT_EQ(bytes, 64'000U);
  EXPECT_GE(longest, 4 * 64U);
}

TEST_P(Bursts, OfConnectedSocketsToo) {
  ASSERT_EQ(::connect(socket_, far_.name().get(), far_.name().length()), 0);
  for (unsigned i = 0; i < kMany; ++i) ASSERT_EQ(::send(socket_, numbered(i).data(), 64, 0), 64);
  expect_many();
}

TEST_P(Bursts, KeepTheOrderOfDifferentSizes) {
  const std::vector<std::size_t> sizes{64,   64,   64,   64,   64,   64, 100,  64, 1400,
                                       1400, 1400, 1400, 1400, 3000, 64, 1400, 10};
  std::vector<std::string> sent;
  for (unsigned i = 0; i < 300; ++i) sent.push_back(numbered(i, i % 60 < 40 ? 64 : sizes[i % sizes.size()]));
  for (const std::string& one : sent) ASSERT_EQ(socket_.send_to(far_.name(), one), static_cast<ssize_t>(one.size()));
  // The kernel sends what is cut into fragments; the other host puts it together when the last one comes.
  for (const std::string& one : sent) ASSERT_EQ(far_.receive(), one);
}

TEST_P(Bursts, KeepTheOrderOfEmptyDatagrams) {
  send_many();
  ASSERT_EQ(socket_.send_to(far_.name(), ""), 0);
  send_many();
  expect_many();
  EXPECT_EQ(far_.receive(), "");
  expect_many();
}

TEST_P(Bursts, GoInFrontOfWhatTheKernelSendsOfTheSameSocket) {
  for (unsigned round = 0; round < 5; ++round) {
    send_many();
    ASSERT_EQ(::sendto(socket_, "be", 2, MSG_MORE, far_.name().get(), far_.name().length()), 2);
    ASSERT_EQ(::sendto(socket_, "hind", 4, 0, far_.name().get(), far_.name().length()), 4);
    expect_many();
    ASSERT_EQ(far_.receive(), "behind");
  }
}

TEST_P(Bursts, OfSeveralSocketsAndPeersKeepTheirOrder) {
  const FarSocket other_far(GetParam().there);
  const Socket other(GetParam().family);
  for (unsigned i = 0; i < kMany; ++i) {
    send(i);
    if (i % 3 == 0) {
      ASSERT_EQ(other.send_to(far_.name(), "other"), 5);
    }
    ASSERT_EQ(socket_.send_to(other_far.name(), numbered(i)), 64);
  }
  for (unsigned i = 0; i < kMany; ++i) {
    ASSERT_EQ(far_.receive(), numbered(i));
    if (i % 3 == 0) {
      ASSERT_EQ(far_.receive(), "other");
    }
    ASSERT_EQ(other_far.receive(), numbered(i));
  }
}

TEST_P(Bursts, LeaveBeforeTheirThreadWaitsForAnswers) {
  for (unsigned round = 0; round < 20; ++round) {
    for (unsigned i = 0; i < 40; ++i) ASSERT_EQ(socket_.send_to(echo_, numbered(i)), 64);
    for (unsigned i = 0; i < 40; ++i) ASSERT_EQ(socket_.receive(), numbered(i));
  }
}

TEST_P(Bursts, GoOnBetweenLooks) {
  for (unsigned i = 0; i < 40 * kMany; ++i) {
    send(i);
    if (i % 10 != 9) continue;
    fd_set writable;
    FD_ZERO(&writable);
    FD_SET(socket_, &writable);
    ASSERT_EQ(::select(socket_ + 1, nullptr, &writable, nullptr, nullptr), 1);
  }
  for (unsigned i = 0; i < 40 * kMany; ++i) ASSERT_EQ(far_.receive(), numbered(i));
}

TEST_P(Bursts, OfTwoThreadsKeepTheOrderOfEach) {
  constexpr unsigned kOfEach = 2000;
  const auto run = [&](unsigned first) {
    for (unsigned i = 0; i < kOfEach; ++i) send(first + i);
  };
  std::thread other([&] { run(kOfEach); });
  run(0);
  std::array<unsigned, 2> next{0, kOfEach};
  for (unsigned i = 0; i < 2 * kOfEach; ++i) {
    const std::string got = far_.receive();
    const unsigned number = static_cast<unsigned>(std::atoi(got.c_str()));
    ASSERT_EQ(got, numbered(number));
    ASSERT_EQ(number, next[number / kOfEach]++);
  }
  other.join();
}

TEST_P(Bursts, WithControlDataInBetweenKeepTheirOrder) {
  send_many();
  const bool is_v4 = GetParam().family == AF_INET;
  const int level = is_v4 ? IPPROTO_IP : IPPROTO_IPV6, type = is_v4 ? IP_TTL : IPV6_HOPLIMIT;
  ASSERT_EQ(socket_.send_with(far_.name(), level, type, 9, "controlled"), 10) << std::strerror(errno);
  send_many();
  expect_many();
  EXPECT_EQ(far_.receive(), "controlled");
  expect_many();
}

TEST_P(Bursts, OnASingleCpuLeaveTooWhileTheirThreadIsBusy) {
  cpu_set_t before, one;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(::sched_getcpu()), &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  send_many();
  for (unsigned i = 0; i < kMany; ++i) {
    std::string got = far_.receive(MSG_DONTWAIT);
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (got == "(nothing)" && std::chrono::steady_clock::now() < limit) got = far_.receive(MSG_DONTWAIT);
    EXPECT_EQ(got, numbered(i));
  }
  ::sched_setaffinity(0, sizeof before, &before);
}

TEST_P(Bursts, LeaveWithClose) {
  Socket last(GetParam().family);
  for (unsigned i = 0; i < kMany; ++i) ASSERT_EQ(last.send_to(far_.name(), numbered(i)), 64);
  last = Socket(GetParam().family);
  expect_many();
}

TEST_P(Bursts, LeaveBeforeShutdown) {
  ASSERT_EQ(::connect(socket_, far_.name().get(), far_.name().length()), 0);
  for (unsigned i = 0; i < kMany; ++i) ASSERT_EQ(::send(socket_, numbered(i).data(), 64, 0), 64);
  ASSERT_EQ(::shutdown(socket_, SHUT_RDWR), 0);
  expect_many();
}

TEST_P(Bursts, LeaveBeforeAForkAndOnlyOnce) {
  send_many();
  const pid_t child = ::fork();
  if (child == 0) {
    send_many();
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  send_many();
  for (int i = 0; i < 3; ++i) expect_many();
  EXPECT_EQ(far_.receive(MSG_DONTWAIT), "(nothing)");
}

TEST_P(Bursts, LeaveWithTheProcessHoweverItEnds) {
  EXPECT_EQ(child_sends_and([] { ::_exit(0); }), 0);
  expect_many();
  // What is its parent's a child leaves behind, which would count as leaks.
  if (!support::kHasAddressSanitizer) {
    EXPECT_EQ(child_sends_and([] { ::exit(0); }), 0);
    expect_many();
    EXPECT_EQ(child_sends_and([] { std::thread([] { ::exit(0); }).join(); }), 0);
    expect_many();
  }
  EXPECT_EQ(far_.receive(MSG_DONTWAIT), "(nothing)");
}

TEST_P(Bursts, LeaveBeforeTheProcessBecomesAnotherProgram) {
  if (support::kHasThreadSanitizer) GTEST_SKIP() << "true has no ThreadSanitizer";
  EXPECT_EQ(child_sends_and([] { ::execlp("true", "true", nullptr); }), 0);
  expect_many();
}

// Nobody can be asked then. The kernel has had all that it was given.
TEST_P(Bursts, LoseTheirEndWithAProcessThatIsKilled) {
  EXPECT_EQ(child_sends_and([] { ::raise(SIGTERM); }), SIGTERM);
  unsigned next = 0;
  for (std::string got; (got = far_.receive(MSG_DONTWAIT)) != "(nothing)"; ++next) ASSERT_EQ(got, numbered(next));
  constexpr unsigned kMostWaiting = 32;
  EXPECT_GE(next, kMany - kMostWaiting);
}

}  // namespace
}  // namespace ringsock::vma_tests
