// A signal while a thread waits for a connection, asleep or, with RINGSOCK_POLLING_TIME, spinning.
#include "tests/support/signals.h"

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

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

/// What is partly done is never restarted, though nobody else goes on with it.
class PartialTransfer : public testing::Test {
 protected:
  void SetUp() override {
    if (support::kDelaysHandlers) GTEST_SKIP() << "ThreadSanitizer delays the handler";
    // A call that goes on instead ends all the same, with what it should not have waited for.
    rescue_ = std::thread([this] {
      const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (!done_ && std::chrono::steady_clock::now() < late)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      in_time_ = done_.load();
      if (!in_time_) ::shutdown(pair_.alice, SHUT_RDWR);
    });
  }
  void TearDown() override {
    done_ = true;
    if (rescue_.joinable()) rescue_.join();
    EXPECT_TRUE(in_time_ || IsSkipped());
  }

  Pair pair_ = connected_pair();
  const Disposition handler_{SIGUSR1, support::count_handled, SA_RESTART};
  const std::string data_ = std::string(std::size_t{16} << 20, 'x');
  std::atomic<bool> done_{false};
  bool in_time_ = false;
  std::thread rescue_;
};

TEST_F(PartialTransfer, ASendAnswersWhatItHasSent) {
  const ssize_t sent =
      support::with_one_signal([&] { return ::send(pair_.alice, data_.data(), data_.size(), MSG_NOSIGNAL); });
  EXPECT_GT(sent, 0);
  EXPECT_LT(sent, static_cast<ssize_t>(data_.size()));
}

TEST_F(PartialTransfer, AWritevAnswersWhatItHasWritten) {
  char* const bytes = const_cast<char*>(data_.data());
  const std::array<iovec, 2> parts{{{bytes, data_.size()}, {bytes, data_.size()}}};
  const ssize_t sent = support::with_one_signal([&] { return ::writev(pair_.alice, parts.data(), 2); });
  EXPECT_GT(sent, 0);
  EXPECT_LT(sent, static_cast<ssize_t>(2 * data_.size()));
}

TEST_F(PartialTransfer, AReceiveOfAllAnswersWhatItHas) {
  ASSERT_EQ(::send(pair_.alice, "abc", 3, 0), 3);
  std::string room(10, ' ');
  EXPECT_EQ(support::with_one_signal([&] { return ::recv(pair_.bob, room.data(), room.size(), MSG_WAITALL); }), 3);
  EXPECT_EQ(room.substr(0, 3), "abc");
}

TEST_F(PartialTransfer, OneThatHasNothingYetGoesOn) {
  std::string room(3, ' ');
  const ssize_t got = support::with_one_signal([&] { return ::recv(pair_.bob, room.data(), room.size(), MSG_WAITALL); },
                                               [&] {
                                                 support::until_handled();
                                                 EXPECT_EQ(::send(pair_.alice, "abc", 3, 0), 3);
                                               });
  EXPECT_EQ(got, 3);
}

}  // namespace
}  // namespace ringsock::preload_tests
