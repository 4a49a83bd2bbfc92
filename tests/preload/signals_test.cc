// A signal while a thread waits for a connection, asleep or, with RINGSOCK_POLLING_TIME, spinning.
#include "tests/support/signals.h"

#include <string>

#include "tests/preload/tcp_world.h"

namespace ringsock::preload_tests {
namespace {

using support::Disposition;
using support::LibcWait;

class PreloadedSignals : public testing::TestWithParam<LibcWait> {
 protected:
  Pair pair_ = connected_pair();
};
INSTANTIATE_TEST_SUITE_P(Calls, PreloadedSignals, testing::ValuesIn(support::kLibcWaits),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(PreloadedSignals, OneInterruptsAWait) {
  const Disposition handler(SIGUSR1);
  EXPECT_EQ(support::with_one_signal([&] { return GetParam().call(pair_.bob); }), -1);
  EXPECT_EQ(errno, EINTR);
  EXPECT_EQ(support::handled, 1);
  EXPECT_FALSE(support::is_blocked(SIGUSR1));
}

TEST_P(PreloadedSignals, WithSaRestartAReadGoesOnAndAPollDoesNot) {
  if (support::kDelaysHandlers) GTEST_SKIP() << "ThreadSanitizer delays the handler";
  const Disposition handler(SIGUSR1, support::count_handled, SA_RESTART);
  const bool is_read = GetParam().call == support::wait_in_recv;
  const auto send = [&] {
    support::until_handled();
    EXPECT_EQ(::write(pair_.alice, "x", is_read ? 1 : 0), is_read ? 1 : 0);
  };
  const int answer = support::with_one_signal([&] { return GetParam().call(pair_.bob); }, send);
  EXPECT_EQ(answer, is_read ? 1 : -1);
  EXPECT_EQ(support::handled, 1);
}

}  // namespace
}  // namespace ringsock::preload_tests
