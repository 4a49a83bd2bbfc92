#include "core/base/at_fork.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace ringsock {
namespace {

/// What has run, a letter each. In the child its own copy.
std::string& story() {
  static std::string text;
  return text;
}

void register_letters() {
  at_fork(
      ForkStep::fork_pipe, [] { story() += 'C'; }, [] { story() += 'c'; }, [] { story() += '3'; });
  at_fork(
      ForkStep::networks, [] { story() += 'A'; }, [] { story() += 'a'; }, [] { story() += '1'; });
  at_fork(
      ForkStep::statistics, [] { story() += 'B'; }, nullptr, [] { story() += '2'; });
}

TEST(AtFork, HandlersRunInTheOrderOfTheStepsNotOfTheirRegistration) {
  static const bool registered = (register_letters(), true);
  ASSERT_TRUE(registered);
  story().clear();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(story() == "CBA123" ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "the child's story was another one";
  EXPECT_EQ(story(), "CBAac");
}

/// The parts of a running fork that have had their turn have nothing to undo.
TEST(AtFork, AHandlerThatIsRegisteredWhileAForkIsUnderWayWaitsForTheNextFork) {
  static int undone = 0;
  if (undone > 0) GTEST_SKIP() << "handlers stay: once in a process";
  at_fork(
      ForkStep::devices,
      [] {
        static const bool once = (at_fork(
                                      ForkStep::door, nullptr, [] { ++undone; }, nullptr),
                                  true);
        static_cast<void>(once);
      },
      nullptr, nullptr);
  for (const int expected : {0, 1}) {
    run_before_fork();
    run_after_fork_in_parent();
    EXPECT_EQ(undone, expected);
  }
}

}  // namespace
}  // namespace ringsock
