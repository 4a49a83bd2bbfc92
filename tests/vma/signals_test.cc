// A signal while a thread waits for a datagram. VMA's calls look at their rings for 100 ms before they sleep.
#include "tests/support/signals.h"

#include "tests/vma/udp_fixture.h"

namespace ringsock::vma_tests {
namespace {

using support::Disposition;
using support::LibcWait;

class UdpSignals : public testing::TestWithParam<LibcWait> {
 protected:
  void SetUp() override {
    const Address any("0.0.0.0", 0);
    ASSERT_EQ(::bind(socket_, any.get(), any.length()), 0);
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(socket_.send_to(echo_, "hello"), 5) << std::strerror(errno);
      ASSERT_EQ(socket_.receive(), "hello") << std::strerror(errno);
    }
  }
  const Address echo_{"10.9.0.2", kEchoPort};
  const Socket socket_{AF_INET};
};
INSTANTIATE_TEST_SUITE_P(Calls, UdpSignals, testing::ValuesIn(support::kLibcWaits),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(UdpSignals, OneInterruptsAWait) {
  const Disposition handler(SIGUSR1);
  EXPECT_EQ(support::with_one_signal([&] { return GetParam().call(socket_); }), -1);
  EXPECT_EQ(errno, EINTR);
  EXPECT_EQ(support::handled, 1);
  EXPECT_FALSE(support::is_blocked(SIGUSR1));
}

TEST_P(UdpSignals, WithSaRestartAReceiveGoesOnAndAPollDoesNot) {
  if (support::kDelaysHandlers) GTEST_SKIP() << "ThreadSanitizer delays the handler";
  const Disposition handler(SIGUSR1, support::count_handled, SA_RESTART);
  const bool is_receive = GetParam().call == support::wait_in_recv;
  const auto send = [&] {
    support::until_handled();
    if (is_receive) socket_.send_to(echo_, "x");
  };
  const int answer = support::with_one_signal([&] { return GetParam().call(socket_); }, send);
  EXPECT_EQ(answer, is_receive ? 1 : -1);
  EXPECT_EQ(support::handled, 1);
}

TEST_P(UdpSignals, WithATimeOutAReceiveIsInterruptedAlsoWithSaRestart) {
  const Disposition handler(SIGUSR1, support::count_handled, SA_RESTART);
  socket_.limit_waits(3'600'000);
  EXPECT_EQ(support::with_one_signal([&] { return GetParam().call(socket_); }), -1);
  EXPECT_EQ(errno, EINTR);
}

}  // namespace
}  // namespace ringsock::vma_tests
