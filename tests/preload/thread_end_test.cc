// Processes whose main thread ends before they do: pthread_exit(3), pthread_cancel(3), exit(2). Such a process ends
// with its last thread, whatever threads the library has.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <thread>

#include "tests/preload/preloaded.h"
#include "tests/support/sanitizers.h"
#include "tests/support/thread_status.h"

namespace ringsock::preloaded {
namespace {

/// Starts the library's thread, which watches a listener.
void watch_a_listener() { [[maybe_unused]] static const Listener listener = listen_anywhere(); }

void end_by_pthread_exit() { ::pthread_exit(nullptr); }
void end_by_pthread_cancel() {
  ::pthread_cancel(::pthread_self());
  ::pthread_testcancel();
}
void end_by_system_call() { ::syscall(SYS_exit, 0); }

struct WayToEnd {
  const char* name;
  void (*end)();
};
/// AddressSanitizer takes frames that the end of a thread has left for frames that are in use.
#define SKIP_IF_FRAMES_THAT_ARE_LEFT_COUNT(end)                      \
  if (support::kHasAddressSanitizer && (end) != &end_by_system_call) \
  GTEST_SKIP() << "AddressSanitizer does not know pthread_exit()"
class MainThreadEndsBy : public testing::TestWithParam<WayToEnd> {
 protected:
  void SetUp() override { SKIP_IF_FRAMES_THAT_ARE_LEFT_COUNT(GetParam().end); }
};
INSTANTIATE_TEST_SUITE_P(Ways, MainThreadEndsBy,
                         testing::Values(WayToEnd{"pthread_exit", end_by_pthread_exit},
                                         WayToEnd{"pthread_cancel", end_by_pthread_cancel},
                                         WayToEnd{"syscall", end_by_system_call}),
                         [](const auto& info) { return std::string(info.param.name); });

/// Calls it on another stack: the end of a thread unwinds the stack, and GoogleTest's functions do not let it through.
void call_on_another_stack(void (*function)()) {
  static std::array<std::byte, std::size_t{256} * 1024> stack;
  static ucontext_t here;
  static ucontext_t there;
  ::getcontext(&there);
  there.uc_stack.ss_sp = stack.data();
  there.uc_stack.ss_size = stack.size();
  there.uc_link = &here;
  ::makecontext(&there, function, 0);
  ::swapcontext(&here, &there);
}

/// A child that runs `body`, and whose main thread then ends by `end`.
pid_t spawn_that_ends(void (*body)(), void (*end)()) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  body();
  call_on_another_stack(end);
  ::abort();
}

TEST_P(MainThreadEndsBy, EndsAProcessThatListens) {
  EXPECT_EQ(wait_for(spawn_that_ends(watch_a_listener, GetParam().end)), 0);
}

/// What a child and its parent have in common.
struct Common {
  Ends connection;
  Signal may_end;
};
Common* common = nullptr;

TEST_P(MainThreadEndsBy, WaitsForTheOtherThreads) {
  Common ours;
  common = &ours;
  const pid_t child = spawn_that_ends(
      [] {
        watch_a_listener();
        std::thread([] {
          common->may_end.wait();
          send_all(common->connection.ours, "the last word");
        }).detach();
      },
      GetParam().end);
  while (!support::status_of(child, "State").starts_with('Z')) std::this_thread::yield();
  EXPECT_EQ(::waitpid(child, nullptr, WNOHANG), 0);
  ours.may_end.give();
  EXPECT_EQ(receive(ours.connection.peers, 13), "the last word");
  EXPECT_EQ(wait_for(child), 0);
}

TEST_P(MainThreadEndsBy, LetsASignalEndTheProcess) {
  Common ours;
  common = &ours;
  const pid_t child = spawn_that_ends(
      [] {
        watch_a_listener();
        std::thread([] { common->may_end.wait(); }).detach();
      },
      GetParam().end);
  while (!support::status_of(child, "State").starts_with('Z')) std::this_thread::yield();
  ::kill(child, SIGTERM);
  EXPECT_EQ(wait_for(child), 128 + SIGTERM);
}

/// The process that ends has used the connection, and its parent goes on with it.
TEST(AMainThread, ThatEndsLeavesAConnectionToTheParent) {
  SKIP_IF_FRAMES_THAT_ARE_LEFT_COUNT(end_by_pthread_exit);
  const Listener listener = listen_anywhere();
  const pid_t peer = spawn([&listener] {
    const int fd = ::accept(listener.fd, nullptr, nullptr);
    expect(receive(fd, 11) == "first bytes", "the child's bytes");
    send_all(fd, "an answer");
    expect(receive(fd, 11) == "later bytes", "the parent's bytes");
  });
  static int fd = connect_to(listener.port);
  const pid_t child = spawn_that_ends([] { send_all(fd, "first bytes"); }, end_by_pthread_exit);
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(receive(fd, 9), "an answer");
  send_all(fd, "later bytes");
  EXPECT_EQ(wait_for(peer), 0);
  ::close(fd);
  ::close(listener.fd);
}

}  // namespace
}  // namespace ringsock::preloaded
