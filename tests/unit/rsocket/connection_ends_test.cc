// How a connection ends, and what another process of its family is told of it.
#include "librsocket/connection_ends.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "librsocket/saved_connection.h"

namespace ringsock::rs {
namespace {

TEST(ConnectionEnds, TheFirstFailureStays) {
  ConnectionEnds ends;
  EXPECT_EQ(ends.failure(), 0);
  ends.fail(ETIMEDOUT);
  ends.fail(ECONNRESET);
  EXPECT_EQ(ends.failure(), ETIMEDOUT);
}

// A side that has failed hangs up, which the connection manager reports to it as the end of the peer.
TEST(ConnectionEnds, AfterAFailureNoEndOfThePeerCounts) {
  ConnectionEnds failed, ended;
  failed.fail(EIO);
  failed.peer_stopped();
  failed.peer_left();
  EXPECT_FALSE(failed.has_peer_ended());
  ended.peer_left();
  ended.fail(ECONNRESET);
  EXPECT_TRUE(ended.has_peer_ended());
}

TEST(ConnectionEnds, AFlushIsAResetWhereNobodyWillTellOfIt) {
  ConnectionEnds ends;
  ends.note_flush(false);
  EXPECT_FALSE(ends.is_flushed());
  EXPECT_EQ(ends.failure(), ECONNRESET);
}

TEST(ConnectionEnds, AFlushIsOpenUntilItsReasonIsKnown) {
  ConnectionEnds ends;
  ends.note_flush(true);
  EXPECT_TRUE(ends.is_flushed());
  EXPECT_EQ(ends.failure(), 0);
  ends.peer_left();
  EXPECT_FALSE(ends.is_flushed());
}

TEST(ConnectionEnds, AFlushIsExpectedOnceEitherSideHasEnded) {
  ConnectionEnds stopped, left, closing;
  stopped.peer_stopped();
  EXPECT_TRUE(stopped.peer_shut_down());
  EXPECT_FALSE(stopped.expects_flush());  // our direction goes on
  left.peer_left();
  EXPECT_TRUE(left.expects_flush());
  closing.expect_flush();
  EXPECT_TRUE(closing.expects_flush());
}

TEST(ConnectionEnds, WhatTwoProcessesHaveSeenIsJoined) {
  ConnectionEnds parent, child;
  parent.peer_stopped();
  child.peer_left();
  SavedConnection saved{};
  parent.save(saved);
  ASSERT_TRUE(ConnectionEnds::is_possible(saved));

  child.restore(saved);

  EXPECT_TRUE(child.peer_shut_down());
  EXPECT_TRUE(child.peer_disconnected());
  EXPECT_EQ(child.failure(), 0);
}

TEST(ConnectionEnds, AnErrorBelowZeroIsNone) {
  SavedConnection saved{};
  saved.failure = -1;
  EXPECT_FALSE(ConnectionEnds::is_possible(saved));
}

}  // namespace
}  // namespace ringsock::rs
