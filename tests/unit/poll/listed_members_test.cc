// Epoll sets whose members' peers note their news in maps.
#include <unistd.h>

#include <future>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "core/poll/epoll_set.h"
#include "core/poll/ready_lists.h"
#include "tests/support/child.h"
#include "tests/support/thread_status.h"
#include "tests/unit/poll/epoll_worlds.h"

namespace ringsock::runtime {
namespace {

using namespace std::chrono_literals;
using fakes::FakeEndpoint;
using fakes::OpenFake;

/// A set of many connections to one peer process, some of which have been busy, so that the others are listed.
class ListedMembersTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kMembers = 200;
  static constexpr std::size_t kBusy = 20;  ///< more than the set would rather ask one by one

  ListedMembersTest() {
    for (std::size_t i = 0; i < kMembers; ++i) add_member(1);
  }
  void add_member(std::uint64_t group) {
    members_.push_back(std::make_unique<OpenFake>());
    (*members_.back())->join_group(group);
    EXPECT_EQ(world_.add(set_, members_.back()->fd(), EPOLLIN, members_.size() - 1), 0);
  }
  OpenFake& member(std::size_t i) { return *members_[i]; }

  /// Messages at the first kBusy members, and calls of epoll_wait(2) that take them, until all others are listed.
  void make_busy(int calls = 400) {
    for (int call = 0; call < calls; ++call) {
      for (std::size_t i = 0; i < kBusy; ++i) member(i)->become(EPOLLIN);
      EXPECT_FALSE(take().empty());
    }
  }
  /// What one epoll_wait(2) reports; the members are read empty.
  std::set<std::uint64_t> take(Nanos timeout = Nanos::zero()) {
    std::set<std::uint64_t> found;
    for (const auto& [events, data] : world_.wait(set_, timeout, 64)) {
      found.insert(data);
      member(data)->lose(EPOLLIN);
    }
    return found;
  }
  /// What one epoll_wait(2) reports; nobody reads.
  Report report() { return world_.wait(set_, Nanos::zero(), 64); }
  std::size_t listed() {
    std::size_t count = 0;
    for (auto& each : members_) count += (*each)->is_listed() ? 1 : 0;
    return count;
  }
  int looks() {
    int count = 0;
    for (auto& each : members_) count += (*each)->looks();
    return count;
  }
  int rings() {
    int count = 0;
    for (auto& each : members_) count += (*each)->rings();
    return count;
  }
  void forget_counts() {
    for (auto& each : members_) (*each)->forget_counts();
  }

  OurWorldOfEndpoints world_;
  OpenSet set_{world_};
  std::vector<std::unique_ptr<OpenFake>> members_;
};

using Found = std::set<std::uint64_t>;

TEST_F(ListedMembersTest, MembersOfOnePeerShareOneMapAndAreNeitherAskedNorArmedAgain) {
  make_busy();
  EXPECT_EQ(listed(), kMembers) << "those that were busy among them: there are too many to ask one by one";
  forget_counts();
  for (int round = 0; round < 50; ++round) {
    for (std::size_t i = 0; i < 100; ++i) member(2 * i)->become(EPOLLIN);
    Found all;
    while (all.size() < 100) {
      const Found found = take();
      ASSERT_FALSE(found.empty());
      all.insert(found.begin(), found.end());
    }
  }
  int arms = 0;
  for (auto& each : members_) arms += (*each)->arms();
  EXPECT_EQ(arms, 0);
  EXPECT_EQ(rings(), 0) << "nobody sleeps";
}

TEST_F(ListedMembersTest, AMemberThatWasReadEmptyIsNotAskedAgain) {
  make_busy();
  take();
  for (std::size_t i = 0; i < 2 * kBusy; ++i) member(i)->become(EPOLLIN);
  EXPECT_EQ(take().size(), 2 * kBusy);
  forget_counts();
  EXPECT_EQ(take(), Found{});
  EXPECT_LE(looks(), static_cast<int>(HotMembers::kFew)) << "so many are asked in each look, as ever";
  member(3)->become(EPOLLIN);
  EXPECT_EQ(take(), Found{3});
}

TEST_F(ListedMembersTest, MembersThatWereNotReadAreReportedAgain) {
  make_busy();
  take();
  for (std::size_t i = 0; i < 2 * kBusy; ++i) member(i)->become(EPOLLIN);
  for (int call = 0; call < 3; ++call) EXPECT_EQ(report().size(), 2 * kBusy);
  EXPECT_EQ(take().size(), 2 * kBusy);
  EXPECT_EQ(take(), Found{});
}

TEST_F(ListedMembersTest, WhatComesBetweenAReportAndTheNextLookIsReported) {
  make_busy();
  take();
  for (int call = 0; call < 10; ++call) {
    for (std::size_t i = 0; i < 2 * kBusy; ++i) member(i)->become(EPOLLIN);
    EXPECT_EQ(take().size(), 2 * kBusy);
  }
  EXPECT_EQ(take(), Found{});
  for (std::size_t i = 0; i < 2 * kBusy; ++i) member(i)->become(EPOLLIN);
  EXPECT_EQ(take().size(), 2 * kBusy);
  member(4)->become_by_other_callers_work(EPOLLIN | EPOLLHUP);
  EXPECT_EQ(report(), (Report{{EPOLLIN | EPOLLHUP, 4}}));
  EXPECT_EQ(report(), (Report{{EPOLLIN | EPOLLHUP, 4}})) << "a state";
}

TEST_F(ListedMembersTest, WhoWaitsForRoomIsAskedAgain) {
  for (std::size_t i = 0; i < 2 * kBusy; ++i) ASSERT_EQ(world_.modify(set_, member(i).fd(), EPOLLIN | EPOLLOUT, i), 0);
  make_busy();
  take();
  for (std::size_t i = 0; i < 2 * kBusy; ++i) member(i)->become(EPOLLIN);
  EXPECT_EQ(take().size(), 2 * kBusy);
  member(5)->change_silently(EPOLLOUT);
  EXPECT_EQ(report(), (Report{{EPOLLOUT, 5}})) << "as after a read that made room";
}

TEST_F(ListedMembersTest, ManyEdgesAreReportedOnceEach) {
  for (std::size_t i = 0; i < 2 * kBusy; ++i)
    ASSERT_EQ(world_.modify(set_, member(i).fd(), EPOLLIN | EPOLLOUT | EPOLLET, i), 0);
  make_busy();
  take();
  for (int call = 0; call < 10; ++call) {
    for (std::size_t i = 0; i < 2 * kBusy; ++i) member(i)->become(EPOLLIN);
    EXPECT_EQ(report().size(), 2 * kBusy);
    forget_counts();
    EXPECT_EQ(report(), Report{});
    EXPECT_LE(looks(), static_cast<int>(HotMembers::kFew));
  }
  member(6)->become_by_other_callers_work(EPOLLOUT);
  EXPECT_EQ(report(), (Report{{EPOLLIN | EPOLLOUT, 6}}));
}

TEST(MembersThatAreNotListedYet, LoseNoEdgeWhileOthersWaitForRoom) {
  constexpr std::size_t kMembers = 40;
  OurWorldOfEndpoints world;
  OpenSet set(world);
  std::vector<std::unique_ptr<OpenFake>> members;
  for (std::size_t i = 0; i < kMembers; ++i) {
    members.push_back(std::make_unique<OpenFake>());
    (*members[i])->join_group(1);
    ASSERT_EQ(world.add(set, members[i]->fd(), EPOLLIN | EPOLLET, i), 0);
    (*members[i])->become(EPOLLIN);
  }
  std::vector<int> reports(kMembers);
  for (int call = 0; call < 50; ++call) {
    for (const auto& [events, data] : world.wait(set, Nanos::zero(), 8)) {
      (*members[data])->lose(EPOLLIN);
      if (++reports[data] == 1) (*members[data])->become(EPOLLIN);
    }
  }
  EXPECT_EQ(reports, std::vector<int>(kMembers, 2));
}

TEST_F(ListedMembersTest, MessagesRingForAThreadThatSleeps) {
  make_busy();
  take();
  forget_counts();
  std::promise<pid_t> id;
  std::thread sleeper([&] {
    id.set_value(::gettid());
    Found all;
    while (all.size() < 3) all.merge(take(20s));
    EXPECT_EQ(all, (Found{50, 120, 199}));
  });
  EXPECT_TRUE(support::falls_asleep(id.get_future().get()));
  for (const std::size_t i : {199U, 50U, 120U}) member(i)->become(EPOLLIN);
  sleeper.join();
  EXPECT_GE(rings(), 1);
  EXPECT_LE(rings(), 3);
}

TEST_F(ListedMembersTest, AMessageToAConnectionThatWasJustClosedTakesNobodysWakeUp) {
  make_busy();
  take();
  // The peer of a closed connection goes on setting its bit for a while, and rings a doorbell that wakes nobody.
  ReadyBits& bits = member(0)->map()->bits();
  std::promise<pid_t> id;
  std::thread sleeper([&] {
    id.set_value(::gettid());
    EXPECT_EQ(take(20s), Found{7});
  });
  EXPECT_TRUE(support::falls_asleep(id.get_future().get()));
  ReadyBits::RungFor rung_for = 0;
  EXPECT_TRUE(bits.set(ReadyBits::kPlaces / 2, rung_for));
  member(7)->become(EPOLLIN);
  sleeper.join();
}

TEST_F(ListedMembersTest, AMessageToAClosedConnectionTakesNoWakeUpOfTheOneThatHasItsPlace) {
  make_busy();
  take();
  ReadyBits& bits = member(0)->map()->bits();
  std::promise<pid_t> id;
  std::thread sleeper([&] {
    id.set_value(::gettid());
    EXPECT_EQ(take(20s), Found{7});
  });
  EXPECT_TRUE(support::falls_asleep(id.get_future().get()));
  // The peer of a connection that had some member's place before sets the bits of all places, and rings in vain.
  ReadyBits::RungFor rung_for = 0;
  EXPECT_TRUE(bits.set(0, rung_for));
  for (std::uint32_t place = 1; place < kMembers; ++place) EXPECT_FALSE(bits.set(place, rung_for));
  member(7)->become(EPOLLIN);
  sleeper.join();
}

TEST_F(ListedMembersTest, ARemovedMembersDoorbellWakesASleeperOnceAtMost) {
  make_busy();
  take();
  ASSERT_EQ(world_.remove(set_, member(60).fd()), 0);
  std::promise<pid_t> id;
  std::thread sleeper([&] {
    id.set_value(::gettid());
    EXPECT_EQ(take(20s), Found{7});
  });
  const pid_t thread = id.get_future().get();
  EXPECT_TRUE(support::falls_asleep(thread));
  member(60)->become(EPOLLIN);
  EXPECT_TRUE(support::falls_asleep(thread));
  const std::string wake_ups = support::status_of(thread, "voluntary_ctxt_switches");
  for (int message = 0; message < 100; ++message) {
    static_cast<void>(member(60)->arm());
    member(60)->become(EPOLLIN);
  }
  EXPECT_TRUE(support::falls_asleep(thread));
  EXPECT_EQ(support::status_of(thread, "voluntary_ctxt_switches"), wake_ups);
  member(7)->become(EPOLLIN);
  sleeper.join();
}

TEST_F(ListedMembersTest, ASetThatWatchesThisOneIsWokenAfterAnotherThreadHasLookedHere) {
  make_busy();
  take();
  OpenSet outer(world_);
  ASSERT_EQ(world_.add(outer, set_, EPOLLIN, 4711), 0);
  while (!world_.wait(outer).empty()) take();
  std::promise<pid_t> id;
  std::thread sleeper([&] {
    id.set_value(::gettid());
    EXPECT_EQ(world_.wait(outer, 20s), (Report{{EPOLLIN, 4711}}));
  });
  EXPECT_TRUE(support::falls_asleep(id.get_future().get()));
  // This thread looks, and finds nothing. From then on the peers must ring for the sleeper again.
  EXPECT_EQ(take(), Found{});
  member(50)->become(EPOLLIN);
  sleeper.join();
  EXPECT_EQ(take(), Found{50});
}

TEST_F(ListedMembersTest, APeerWithFewMembersHasNoMap) {
  for (std::size_t i = 0; i < ReadyLists::kFewMembers - 1; ++i) add_member(2);
  make_busy();
  EXPECT_EQ(listed(), kMembers);
  for (std::size_t i = kMembers; i < members_.size(); ++i) EXPECT_EQ(member(i)->map(), nullptr);
  member(kMembers)->become(EPOLLIN);
  Found found;
  for (int call = 0; call < 20 && !found.contains(kMembers); ++call) found = take(1s);
  EXPECT_TRUE(found.contains(kMembers));
}

TEST_F(ListedMembersTest, APeerThatSetsAllBitsGetsNothingButLooks) {
  make_busy();
  take();
  ReadyBits& bits = member(0)->map()->bits();
  ReadyBits::RungFor rung_for = 0;
  for (std::uint32_t place = 0; place < ReadyBits::kPlaces; ++place) static_cast<void>(bits.set(place, rung_for));
  EXPECT_EQ(take(), Found{});
  member(77)->become(EPOLLIN);
  EXPECT_EQ(take(1s), Found{77});
}

TEST_F(ListedMembersTest, APeerThatClearsBitsDelaysItsOwnNewsOnly) {
  make_busy();
  take();
  member(90)->become(EPOLLIN);
  member(90)->map()->bits().take(ReadyBits::kPlaces, [](std::uint32_t) {});
  EXPECT_EQ(take(), Found{});
  member(91)->become(EPOLLIN);
  EXPECT_EQ(take(1s), Found{91});
  // Its next message tells of both.
  member(90)->become(EPOLLIN);
  EXPECT_EQ(take(1s), Found{90});
}

TEST_F(ListedMembersTest, AMemberThatIsRegisteredAnewIsAskedAtOnceAndLeftAloneUntilItHasNews) {
  make_busy();
  for (std::size_t i = 0; i < 2 * kBusy; ++i) member(i)->become(EPOLLIN);
  EXPECT_EQ(report().size(), 2 * kBusy) << "many are hot";
  forget_counts();
  ASSERT_EQ(world_.modify(set_, member(100).fd(), EPOLLIN, 100), 0);
  ASSERT_EQ(world_.remove(set_, member(101).fd()), 0);
  ASSERT_EQ(world_.add(set_, member(101).fd(), EPOLLIN, 101), 0);
  for (int call = 0; call < 2; ++call) {
    EXPECT_EQ(member(100)->looks(), 1);
    EXPECT_EQ(member(101)->looks(), 1);
    report();
  }
  EXPECT_EQ(take().size(), 2 * kBusy);
  member(100)->become(EPOLLIN);
  member(101)->become(EPOLLIN | EPOLLHUP);
  EXPECT_EQ(take(), (Found{100, 101}));
  EXPECT_EQ(report(), (Report{{EPOLLHUP, 101}}));
}

TEST_F(ListedMembersTest, AMemberThatIsReadyWhenItIsRegisteredAnewIsReported) {
  make_busy();
  for (std::size_t i = 0; i < 2 * kBusy; ++i) member(i)->become(EPOLLIN);
  EXPECT_EQ(report().size(), 2 * kBusy) << "many are hot";
  ASSERT_EQ(world_.remove(set_, member(101).fd()), 0);
  member(100)->become(EPOLLOUT);
  member(101)->become(EPOLLIN);
  ASSERT_EQ(world_.modify(set_, member(100).fd(), EPOLLIN | EPOLLOUT | EPOLLET, 100), 0);
  ASSERT_EQ(world_.add(set_, member(101).fd(), EPOLLIN, 101), 0);
  const Found found = take();
  EXPECT_TRUE(found.count(100) == 1 && found.count(101) == 1);
}

TEST_F(ListedMembersTest, AMemberThatIsRemovedAndAddedAgainIsReported) {
  make_busy();
  take();
  ASSERT_EQ(world_.remove(set_, member(60).fd()), 0);
  EXPECT_EQ(world_.remove(set_, member(60).fd()), ENOENT);
  EXPECT_EQ(world_.modify(set_, member(60).fd(), EPOLLIN, 60), ENOENT);
  member(60)->become(EPOLLIN);
  EXPECT_EQ(take(), Found{}) << "it is no member now";
  ASSERT_EQ(world_.add(set_, member(60).fd(), EPOLLIN, 60), 0);
  EXPECT_EQ(world_.add(set_, member(60).fd(), EPOLLIN, 60), EEXIST);
  EXPECT_EQ(take(1s), Found{60}) << "what came meanwhile is reported";
  member(60)->become(EPOLLIN);
  EXPECT_EQ(take(1s), Found{60});
}

TEST_F(ListedMembersTest, PlacesOfClosedMembersServeNewOnes) {
  make_busy();
  for (int generation = 0; generation < 5; ++generation) {
    for (std::size_t i = kBusy; i < kMembers; ++i) {
      members_[i] = std::make_unique<OpenFake>();
      (*members_[i])->join_group(1);
      ASSERT_EQ(world_.add(set_, member(i).fd(), EPOLLIN, i), 0);
    }
    make_busy();
    ASSERT_EQ(listed(), kMembers);
    take();
    member(kMembers - 1)->become(EPOLLIN);
    ASSERT_EQ(take(1s), Found{kMembers - 1});
  }
  // No place behind those of the first members was ever used.
  Found places;
  for (auto& each : members_) (*each)->become(EPOLLIN);
  member(0)->map()->bits().take(ReadyBits::kPlaces, [&](std::uint32_t place) { places.insert(place); });
  EXPECT_EQ(places.size(), kMembers);
  EXPECT_LT(*places.rbegin(), 2 * kMembers);
}

TEST_F(ListedMembersTest, AMemberThatAloneIsBusyIsAskedAgainAndNeedsNoBits) {
  make_busy();
  for (int call = 0; call < 2'000; ++call) {
    member(150)->become(EPOLLIN);
    ASSERT_EQ(take(1s), Found{150});
  }
  EXPECT_FALSE(member(150)->is_listed());
}

TEST_F(ListedMembersTest, EdgesAndOneShotsAreThoseOfOtherMembers) {
  ASSERT_EQ(world_.modify(set_, member(40).fd(), EPOLLIN | EPOLLET, 40), 0);
  ASSERT_EQ(world_.modify(set_, member(41).fd(), EPOLLIN | EPOLLONESHOT, 41), 0);
  make_busy();
  take();
  for (const std::size_t i : {40U, 41U}) member(i)->become(EPOLLIN);
  EXPECT_EQ(world_.wait(set_).size(), 2U);
  EXPECT_EQ(world_.wait(set_).size(), 0U) << "an edge and a shot";
  for (const std::size_t i : {40U, 41U}) member(i)->arrive();
  EXPECT_EQ(take(1s), Found{40});
  member(41)->become(EPOLLIN);
  ASSERT_EQ(world_.modify(set_, member(41).fd(), EPOLLIN | EPOLLONESHOT, 41), 0);
  EXPECT_EQ(take(1s), Found{41});
}

TEST_F(ListedMembersTest, AForkedChildMakesItsOwnMaps) {
  make_busy();
  take();
  const ReadyMap* const parents = member(0)->map();
  ringsock::testing::Child child = ringsock::testing::Child::start([&](ringsock::testing::Channel&) {
    for (int call = 0; call < 400; ++call) {
      for (std::size_t i = 0; i < kBusy; ++i) member(i)->become(EPOLLIN);
      take();
    }
    member(100)->become(EPOLLIN);
    const bool is_found = take(1s).contains(100);
    return is_found && member(0)->map() != parents ? 0 : 1;
  });
  EXPECT_EQ(child.wait(), 0);
}

}  // namespace
}  // namespace ringsock::runtime
