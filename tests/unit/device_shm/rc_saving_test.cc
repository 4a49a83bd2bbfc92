// The state of a queue pair that another process may go on from: verbs::RcExtensions::save() and is_untouched_since().
#include <gtest/gtest.h>

#include "tests/unit/device_shm/rc_pair.h"

namespace ringsock::soft::testing {
namespace {

constexpr int kMoreThanTwoLaps = 3 * 1024;

verbs::SavedQueuePair state_of(End& end) {
  const auto saved = end.device->rc().save(*end.qp);
  if (!saved) std::abort();
  return *saved;
}
bool is_untouched(End& end, const verbs::SavedQueuePair& saved) {
  return end.device->rc().is_untouched_since(*end.qp, saved);
}

/// Sends one message, and takes it and both completions.
void exchange(RcPair& pair) {
  pair.bob.post_receives(1);
  ASSERT_EQ(pair.alice.post_text(IBV_WR_SEND, "", nullptr), 0);
  ASSERT_EQ(pair.bob.next().status, IBV_WC_SUCCESS);
  ASSERT_EQ(pair.alice.next().status, IBV_WC_SUCCESS);
}

TEST(RcSaving, ASenderIsUntouchedUntilItSendsWhereverItsNextEntryIs) {
  RcPair pair;
  for (int message = 0; message < kMoreThanTwoLaps; ++message) {
    const verbs::SavedQueuePair before = state_of(pair.alice);
    ASSERT_TRUE(is_untouched(pair.alice, before)) << "message " << message;
    ASSERT_NO_FATAL_FAILURE(exchange(pair));
    ASSERT_FALSE(is_untouched(pair.alice, before)) << "message " << message;
  }
}

TEST(RcSaving, AReceiverThatHasOnlyToldWhatItHadReadIsUntouched) {
  RcPair pair;
  for (int message = 0; message < kMoreThanTwoLaps; ++message) {
    ASSERT_NO_FATAL_FAILURE(exchange(pair));
    const verbs::SavedQueuePair before = state_of(pair.bob);
    EXPECT_TRUE(End::poll_once(*pair.bob.cq).empty());
    ASSERT_TRUE(is_untouched(pair.bob, before)) << "message " << message;
  }
}

TEST(RcSaving, AReceiverThatHasTakenAMessageHasTouchedTheState) {
  RcPair pair;
  const verbs::SavedQueuePair before = state_of(pair.bob);
  for (int message = 0; message < kMoreThanTwoLaps; ++message) ASSERT_NO_FATAL_FAILURE(exchange(pair));
  EXPECT_FALSE(is_untouched(pair.bob, before));
}

}  // namespace
}  // namespace ringsock::soft::testing
