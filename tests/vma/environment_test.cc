// What variables of VMA do to a program with libvma. Runs beside the echo service (two_hosts.sh); environment_vma.sh
// sets the variables for each group of stories.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <regex>
#include <string>

#include "tests/support/sanitizers.h"
#include "tests/vma/shell.h"
#include "tests/vma/udp_world.h"

namespace ringsock::vma_tests {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string contents_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}
std::string log_text() { return contents_of(std::getenv("VMA_LOG_FILE")); }

std::string vma_stats(const std::string& options) {
  const WithoutLibrary here;
  const std::string command = "tools/vma_stats -p " + std::to_string(::getpid()) + " " + options + " 2>&1";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::string out;
  std::array<char, 4096> part;
  while (const std::size_t got = std::fread(part.data(), 1, part.size(), pipe.get())) out.append(part.data(), got);
  return out;
}
/// The first number that the pattern's group finds; -1: none.
long number_in(const std::string& text, const std::string& pattern) {
  std::smatch found;
  return std::regex_search(text, found, std::regex(pattern)) ? std::stol(found[1]) : -1;
}

/// A socket that has sent by a ring, because its neighbour is known.
class Environment : public ::testing::Test {
 protected:
  Environment() : echo_("10.9.0.2", kEchoPort), socket_(AF_INET) {
    socket_.limit_waits();
    const Address here("10.9.0.1", 0);
    EXPECT_EQ(::bind(socket_, here.get(), here.length()), 0);
    for (int i = 0; i < 3; ++i) exchange("hello");
    // The neighbour is known once the library has read what the kernel says of it.
    for (int left = 300; left > 0 && !has_ring() && !HasFatalFailure(); --left) exchange("hello");
  }
  void exchange(const std::string& data) {
    ASSERT_EQ(socket_.send_to(echo_, data), static_cast<ssize_t>(data.size())) << std::strerror(errno);
    ASSERT_EQ(socket_.receive(), data) << std::strerror(errno);
  }
  bool has_ring() const {
    return number_in(vma_stats("-v 3 -c 1 -s " + std::to_string(static_cast<int>(socket_))),
                     "Tx Offload: +\\d+ / (\\d+)") > 0;
  }

  Address echo_;
  Socket socket_;
};

// -- what is said at the start

class Start : public Environment {};
// VMA_BF=0 VMA_FORK=0 VMA_UDP_3T_RULES=0 VMA_TCP_NODELAY=1 VMA_RX_POLL=1000
TEST_F(Start, NamesWhatHasNoEffectInOneLine) {
  EXPECT_THAT(log_text(),
              HasSubstr("no effect here: VMA_FORK, VMA_BF; while TCP goes through the kernel: VMA_TCP_NODELAY\n"));
}
TEST_F(Start, ListsWhatActsAndNothingElse) {
  EXPECT_THAT(log_text(), HasSubstr("[VMA_RX_POLL]"));
  EXPECT_THAT(log_text(), Not(HasSubstr("[VMA_BF]")));
  EXPECT_THAT(log_text(), Not(HasSubstr("[VMA_TCP_NODELAY]")));
}

// -- VMA_EXCEPTION_HANDLING

int attach_filter(int fd) {
  sock_filter everything{BPF_RET | BPF_K, 0, 0, 0xffff};
  const sock_fprog program{1, &everything};
  return ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

class ExceptionIsAnError : public Environment {};
TEST_F(ExceptionIsAnError, AndTheSocketStaysOnItsRing) {
  EXPECT_EQ(attach_filter(socket_), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_THAT(log_text(), HasSubstr("socket option 26 of level 1: not supported by rings\n"));
  exchange("still here");
  EXPECT_TRUE(has_ring());
}

class ExceptionIsLogged : public Environment {};
TEST_F(ExceptionIsLogged, AndTheKernelCarriesTheSocket) {
  EXPECT_EQ(attach_filter(socket_), 0) << std::strerror(errno);
  EXPECT_THAT(log_text(), HasSubstr("ERROR: descriptor "));
  EXPECT_THAT(log_text(), HasSubstr("not supported by rings, left to the kernel\n"));
  exchange("by the kernel");
}

/// Runs `body` in a child. Returns how it ended.
int status_of_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

class ExceptionAborts : public Environment {};
TEST_F(ExceptionAborts, TheProgram) {
  const int status = status_of_child([] {
    const Socket of_child(AF_INET);
    attach_filter(of_child);
  });
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGABRT);
}

// -- signals

class Interrupt : public Environment {};
TEST_F(Interrupt, EndsTheCallThatWaitsAndTheNextOneTheProgram) {
  std::array<int, 2> told{};
  ASSERT_EQ(::pipe(told.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const Socket waiting(AF_INET);
    const Address here("10.9.0.1", 0);
    ::bind(waiting, here.get(), here.length());
    char byte = 'w';
    if (::write(told[1], &byte, 1) != 1) ::_exit(1);
    // The signal may come before the call waits; then a look without waiting ends nothing, and the next one comes.
    for (int tries = 0; tries < 2; ++tries) {
      const ssize_t got = ::recv(waiting, &byte, 1, 0);
      byte = got < 0 && errno == EINTR ? 'i' : '?';
      if (::write(told[1], &byte, 1) != 1) ::_exit(1);
    }
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(told[0], &byte, 1), 1);
  ASSERT_EQ(byte, 'w');
  // It sleeps in the call when the kernel says so.
  const std::string stat = "/proc/" + std::to_string(child) + "/stat";
  while (contents_of(stat).find(") S ") == std::string::npos) ::usleep(1000);
  ::kill(child, SIGINT);
  ASSERT_EQ(::read(told[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'i');
  ::kill(child, SIGINT);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGINT);
  for (const int end : told) ::close(end);
}

class Fault : public Environment {};
TEST_F(Fault, PrintsTheStackAndEndsTheProgramAsItWould) {
  if (support::kHasAddressSanitizer || support::kHasThreadSanitizer) GTEST_SKIP() << "sanitizers handle faults";
  std::array<int, 2> errors{};
  ASSERT_EQ(::pipe(errors.data()), 0);
  const int status = status_of_child([&] {
    ::dup2(errors[1], STDERR_FILENO);
    volatile int* volatile nowhere = nullptr;
    *nowhere = 1;
  });
  ::close(errors[1]);
  std::string written(1 << 16, '\0');
  const ssize_t got = ::read(errors[0], written.data(), written.size());
  ::close(errors[0]);
  written.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  EXPECT_THAT(written, HasSubstr("segmentation fault; the calls on the stack:\n"));
  EXPECT_THAT(written, HasSubstr("environment_test"));
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGSEGV);
}

// -- threads and polling

/// The CPUs of the library's thread, as the kernel writes them.
std::string cpus_of_service_thread() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (contents_of(task.path() / "comm") != "ringsock\n") continue;
    std::smatch found;
    const std::string status = contents_of(task.path() / "status");
    if (std::regex_search(status, found, std::regex("Cpus_allowed_list:\\s+(\\S+)"))) return found[1];
  }
  return "no such thread";
}

// VMA_INTERNAL_THREAD_AFFINITY=0x1 VMA_CPU_USAGE_STATS=1 VMA_SELECT_POLL=-1
class Threads : public Environment {};
TEST_F(Threads, TheLibrarysRunsWhereItIsTold) { EXPECT_EQ(cpus_of_service_thread(), "0"); }

TEST_F(Threads, OneThatPollsIsMeasured) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1300);
  while (std::chrono::steady_clock::now() < end) {
    pollfd waiting{socket_, POLLIN, 0};
    ASSERT_EQ(::poll(&waiting, 1, 50), 0);
  }
  EXPECT_GE(number_in(vma_stats("-v 3 -c 1"), "poll Rx Ready:.* Polling CPU:(\\d+)%"), 1);
}

// VMA_RX_POLL_INIT=0 VMA_RX_POLL_YIELD=8 VMA_SELECT_POLL_OS_RATIO=0 VMA_SELECT_SKIP_OS=3 VMA_RX_CQ_DRAIN_RATE_NSEC=1
// VMA_THREAD_MODE=3 VMA_TRIGGER_DUMMY_SEND_GETSOCKNAME=1
class Polling : public Environment {};
TEST_F(Polling, AsksTheKernelAfterThreeHits) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  std::array<pollfd, 2> both{{{socket_, POLLIN, 0}, {pipe[0], POLLIN, 0}}};
  ASSERT_EQ(::poll(both.data(), both.size(), 0), 0) << "the kernel has been asked";
  ASSERT_EQ(::write(pipe[1], "x", 1), 1);
  ASSERT_EQ(socket_.send_to(echo_, "answer"), 6);
  pollfd ours{socket_, POLLIN, 0};
  while (::poll(&ours, 1, 1000) != 1) {
  }
  int calls_without_kernel = 0;
  while (::poll(both.data(), both.size(), 0) == 1) ++calls_without_kernel;
  EXPECT_LE(calls_without_kernel, 3);
  EXPECT_NE(both[1].revents & POLLIN, 0);
  EXPECT_EQ(socket_.receive(), "answer");
  for (const int end : pipe) ::close(end);
}

TEST_F(Polling, SocketsThatHaveReceivedNothingAndOthersWork) {
  for (int i = 0; i < 100; ++i) exchange("again");
  Socket fresh(AF_INET);
  fresh.limit_waits();
  ASSERT_EQ(fresh.send_to(echo_, "first"), 5);
  EXPECT_EQ(fresh.receive(), "first");
}

TEST_F(Polling, ADrainLosesNothingAndKeepsTheOrder) {
  for (int i = 0; i < 200; ++i)
    ASSERT_EQ(socket_.send_to(echo_, std::to_string(i)), static_cast<ssize_t>(std::to_string(i).size()));
  for (int i = 0; i < 200; ++i) ASSERT_EQ(socket_.receive(), std::to_string(i)) << std::strerror(errno);
}

TEST_F(Polling, AskingForTheNameOfAConnectedSocketRunsASend) {
  ASSERT_EQ(::connect(socket_, echo_.get(), echo_.length()), 0);
  exchange("connected");
  const std::string here = "-v 3 -c 1 -s " + std::to_string(static_cast<int>(socket_));
  const long before = number_in(vma_stats(here), "Tx Dummy messages : (\\d+)");
  static_cast<void>(socket_.name());
  EXPECT_EQ(number_in(vma_stats(here), "Tx Dummy messages : (\\d+)"), std::max(before, 0L) + 1);
}

// -- buffers

// VMA_MTU=600 VMA_RX_PREFETCH_BYTES=128 VMA_BUFFER_BATCHING_MODE=0 VMA_CQ_MODERATION_PERIOD_USEC=30
//
class Buffers : public Environment {};
TEST_F(Buffers, DatagramsLongerThanTheChosenMtuAreSentByTheKernelAndReceivedByTheRing) {
  const std::string here = "-v 3 -c 1 -s " + std::to_string(static_cast<int>(socket_));
  ASSERT_EQ(vma_stats("-z"), "");
  exchange(std::string(572, 's'));
  EXPECT_EQ(number_in(vma_stats(here), "Tx Offload: +\\d+ / (\\d+)"), 1);
  exchange(std::string(573, 'l'));
  exchange(std::string(1400, 'l'));
  const std::string now = vma_stats(here);
  EXPECT_EQ(number_in(now, "Tx Offload: +\\d+ / (\\d+)"), 1);
  EXPECT_EQ(number_in(now, "Tx OS info: +\\d+ / (\\d+)"), 2);
  EXPECT_EQ(number_in(now, "Rx Offload: +\\d+ / (\\d+)"), 3);
}
TEST_F(Buffers, ModerationIsThatOfTheVariables) {
  exchange("x");
  EXPECT_THAT(vma_stats("-v 3 -c 1"), ::testing::ContainsRegex("Moderation: +48 / 30"));
}

}  // namespace
}  // namespace ringsock::vma_tests
