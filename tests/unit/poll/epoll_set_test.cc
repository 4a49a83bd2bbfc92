// What our epoll sets do beyond the kernel's promises: cost, endpoints under several numbers, work of other threads.
#include "core/poll/epoll_set.h"

#include <sys/resource.h>

#include <array>
#include <cstring>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "core/poll/poll_set.h"
#include "tests/support/thread_status.h"
#include "tests/unit/poll/epoll_worlds.h"

namespace ringsock::runtime {
namespace {

using namespace std::chrono_literals;
using fakes::FakeEndpoint;
using fakes::OpenFake;

class EpollSetTest : public testing::Test {
 protected:
  OurWorldOfEndpoints world_;
  OpenSet set_{world_};
  /// Returns whether one of the next calls, which have room for one event, reports the member with `data`.
  bool is_heard(std::uint64_t data, Nanos timeout) {
    bool heard = false;
    for (int call = 0; call < 20 && !heard; ++call) {
      for (const auto& [events, reported] : world_.wait(set_, timeout, 1)) heard = reported == data;
    }
    return heard;
  }
};

TEST_F(EpollSetTest, ThousandsOfIdleMembersCostNothing) {
  constexpr std::size_t kMembers = 5'000;
  std::vector<std::unique_ptr<OpenFake>> idle;
  for (std::size_t i = 0; i < kMembers; ++i) {
    idle.push_back(std::make_unique<OpenFake>());
    ASSERT_EQ(world_.add(set_, idle.back()->fd(), EPOLLIN, i), 0);
  }
  OpenFake busy;
  ASSERT_EQ(world_.add(set_, busy.fd(), EPOLLIN, 4711), 0);
  busy->become(EPOLLIN);

  // The idle ones get cold on the way.
  for (int call = 0; call < 300; ++call) ASSERT_EQ(world_.wait(set_).size(), 1U);
  for (auto& fake : idle) (*fake)->forget_counts();
  busy->forget_counts();

  for (int call = 0; call < 100; ++call) ASSERT_EQ(world_.wait(set_).size(), 1U);
  int looks = 0;
  int arms = 0;
  for (auto& fake : idle) {
    looks += (*fake)->looks();
    arms += (*fake)->arms();
  }
  EXPECT_EQ(looks, 0);
  EXPECT_EQ(arms, 0);
  EXPECT_EQ(busy->looks(), 100);

  // And yet each of them is heard.
  (*idle[1'234])->become(EPOLLIN);
  bool heard = false;
  for (int call = 0; call < 20 && !heard; ++call) {
    for (const auto& [events, data] : world_.wait(set_)) heard = heard || data == 1'234;
  }
  EXPECT_TRUE(heard) << "also while another keeps the set busy";
}

TEST_F(EpollSetTest, ManyReadyMembersAreReportedInPartsAndEachInItsTurn) {
  constexpr std::size_t kMembers = 1'000;
  std::vector<std::unique_ptr<OpenFake>> ready;
  for (std::size_t i = 0; i < kMembers; ++i) {
    ready.push_back(std::make_unique<OpenFake>());
    ASSERT_EQ(world_.add(set_, ready.back()->fd(), EPOLLIN, i), 0);
    (*ready.back())->become(EPOLLIN);
  }
  for (int round = 0; round < 3; ++round) {
    std::vector<int> reports(kMembers, 0);
    for (std::size_t reported = 0; reported < kMembers;) {
      const Report part = world_.wait(set_, Nanos::zero(), static_cast<int>(kMembers));
      ASSERT_GE(part.size(), 1U);
      EXPECT_LE(part.size(), EventCollector::kMostReported) << "the others wait, so that these stay in the caches";
      for (const auto& [events, data] : part) ++reports[data];
      reported += part.size();
    }
    for (std::size_t i = 0; i < kMembers; ++i) {
      // A part may go beyond the end of a round.
      EXPECT_GE(reports[i], 1) << "member " << i << " in round " << round;
      EXPECT_LE(reports[i], 2) << "member " << i << " in round " << round;
    }
  }
}

/// The data of a report.
std::vector<std::uint64_t> members_of(const Report& report) {
  std::vector<std::uint64_t> out;
  for (const auto& [events, data] : report) out.push_back(data);
  return out;
}
using Order = std::vector<std::uint64_t>;

TEST_F(EpollSetTest, MembersAreToldInTheOrderInWhichTheirPeersSent) {
  std::array<OpenFake, 4> fakes;
  for (std::size_t i = 0; i < fakes.size(); ++i) ASSERT_EQ(world_.add(set_, fakes[i].fd(), EPOLLIN, i), 0);
  const std::uint32_t now = order_stamp();
  if (now == 0) GTEST_SKIP() << "no ticks";
  fakes[2]->become_as_of(EPOLLIN, now - 400);
  fakes[3]->become_as_of(EPOLLIN, now - 300);
  fakes[0]->become_as_of(EPOLLIN, now - 200);
  fakes[1]->become_as_of(EPOLLIN, now + 1'000'000);  // a clock that is wrong, or a lie
  EXPECT_EQ(members_of(world_.wait(set_)), (Order{2, 3, 0, 1}));
}

TEST_F(EpollSetTest, WhatFindsNoRoomIsToldBeforeWhatComesLater) {
  std::array<OpenFake, 4> fakes;
  for (std::size_t i = 0; i < fakes.size(); ++i) ASSERT_EQ(world_.add(set_, fakes[i].fd(), EPOLLIN, i), 0);
  const std::uint32_t now = order_stamp();
  if (now == 0) GTEST_SKIP() << "no ticks";
  fakes[3]->become_as_of(EPOLLIN, now - 400);
  fakes[1]->become_as_of(EPOLLIN, now - 300);
  EXPECT_EQ(members_of(world_.wait(set_, Nanos::zero(), 1)), (Order{3}));
  fakes[3]->lose(EPOLLIN);
  fakes[0]->become_as_of(EPOLLIN, now - 500);
  EXPECT_EQ(members_of(world_.wait(set_, Nanos::zero(), 1)), (Order{1}));
  fakes[1]->lose(EPOLLIN);
  EXPECT_EQ(members_of(world_.wait(set_, Nanos::zero(), 1)), (Order{0}));
}

TEST_F(EpollSetTest, AMemberThatIsAlwaysReadyStarvesNobody) {
  std::array<OpenFake, 3> fakes;
  for (std::size_t i = 0; i < fakes.size(); ++i) {
    ASSERT_EQ(world_.add(set_, fakes[i].fd(), EPOLLIN, i), 0);
    fakes[i]->become_as_of(EPOLLIN, order_stamp());
  }
  std::array<int, 3> told{};
  for (int call = 0; call < 30; ++call) {
    for (const std::uint64_t member : members_of(world_.wait(set_, Nanos::zero(), 1))) {
      ++told[member];
      fakes[member]->become_as_of(EPOLLIN, 1);  // as if for ages
    }
  }
  EXPECT_EQ(told, (std::array{10, 10, 10}));
}

TEST_F(EpollSetTest, AfterAWakeUpMembersAreToldInTheOrderOfTheirDoorbells) {
  std::array<OpenFake, 3> fakes;
  for (std::size_t i = 0; i < fakes.size(); ++i) ASSERT_EQ(world_.add(set_, fakes[i].fd(), EPOLLIN, i), 0);
  // Armed, and cold.
  ASSERT_EQ(world_.wait(set_, 50ms), Report{});
  for (const std::size_t i : {1U, 0U, 2U}) fakes[i]->become(EPOLLIN);
  EXPECT_EQ(members_of(world_.wait(set_, 1s)), (Order{1, 0, 2}));
}

TEST_F(EpollSetTest, WhatAMemberSentWhileOthersWereAskedIsNotOverlooked) {
  OpenFake first;
  OpenFake second;
  ASSERT_EQ(world_.add(set_, first.fd(), EPOLLIN, 1), 0);
  ASSERT_EQ(world_.add(set_, second.fd(), EPOLLIN, 2), 0);
  if (order_stamp() == 0) GTEST_SKIP() << "no ticks";
  // In the last look before the sleep: the first one has been asked, when its peer sends, and then the other's.
  bool sent = false;
  second->on_armed_look([&] {
    if (std::exchange(sent, true)) return;
    first->become_as_of(EPOLLIN, order_stamp());
    std::this_thread::sleep_for(1us);
    second->become_as_of(EPOLLIN, order_stamp());
  });
  EXPECT_EQ(members_of(world_.wait(set_, 1s)), (Order{1, 2}));
}

TEST_F(EpollSetTest, WhatIsFoundOfAMemberThatCannotTellItsTimeIsReportedByTheNextCall) {
  OpenFake first;
  OpenFake second;
  ASSERT_EQ(world_.add(set_, first.fd(), EPOLLIN | EPOLLET, 1), 0);
  ASSERT_EQ(world_.add(set_, second.fd(), EPOLLIN | EPOLLET, 2), 0);
  if (order_stamp() == 0) GTEST_SKIP() << "no ticks";
  // As a listener whose client is taken in by the very look that finds it: nobody rings afterwards.
  bool sent = false;
  second->on_armed_look([&] {
    if (std::exchange(sent, true)) return;
    first->change_silently(EPOLLIN);
    second->become_as_of(EPOLLIN, order_stamp());
  });
  EXPECT_EQ(members_of(world_.wait(set_, 1s)), (Order{2}));
  EXPECT_EQ(members_of(world_.wait(set_)), (Order{1}));
}

TEST_F(EpollSetTest, ADoorbellThatTheLastLookBeforeASleepHasChangedIsArmedToo) {
  OpenFake fake;
  ASSERT_EQ(world_.add(set_, fake.fd(), EPOLLIN, 1), 0);
  bool is_changed = false;
  fake->on_armed_look([&] {
    if (!std::exchange(is_changed, true)) fake->change_doorbell();
  });
  std::promise<pid_t> id;
  std::thread sleeper([&] {
    id.set_value(::gettid());
    EXPECT_EQ(world_.wait(set_, 20s), (Report{{EPOLLIN, 1}}));
  });
  EXPECT_TRUE(support::falls_asleep(id.get_future().get()));
  fake->become(EPOLLIN);
  sleeper.join();
  EXPECT_TRUE(is_changed);
}

TEST_F(EpollSetTest, TheEndOfAPeerIsReportedThoughItsDataIsNeverRead) {
  OpenFake fake;
  ASSERT_EQ(world_.add(set_, fake.fd(), EPOLLIN, 1), 0);
  fake->become(EPOLLIN);
  EXPECT_EQ(world_.wait(set_, 1s), (Report{{EPOLLIN, 1}}));
  fake->end_unheard(EPOLLHUP);
  EXPECT_EQ(world_.wait(set_, 1s), (Report{{EPOLLIN | EPOLLHUP, 1}}));
}

TEST_F(EpollSetTest, RoomThatWasThereIsNoEdge) {
  OpenFake fake;
  fake->become(EPOLLOUT);
  ASSERT_EQ(world_.add(set_, fake.fd(), EPOLLIN | EPOLLOUT | EPOLLET, 1), 0);
  EXPECT_EQ(world_.wait(set_), (Report{{EPOLLOUT, 1}}));
  fake->arrive_without_room();
  EXPECT_EQ(world_.wait(set_), Report{});
  fake->become(EPOLLIN);
  EXPECT_EQ(world_.wait(set_), (Report{{EPOLLIN | EPOLLOUT, 1}}));
  fake->lose(EPOLLIN);
  fake->lose(EPOLLOUT);
  EXPECT_EQ(world_.wait(set_), Report{});
  fake->become(EPOLLOUT);
  EXPECT_EQ(world_.wait(set_), (Report{{EPOLLOUT, 1}}));
}

TEST_F(EpollSetTest, AFullTableOfDescriptorsHoldsEndpoints) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  OpenFake fake;
  const rlimit low{static_cast<rlim_t>(fake.fd()) + 64, before.rlim_max};
  if (low.rlim_cur + 16 > before.rlim_max) GTEST_SKIP() << "RLIMIT_NOFILE cannot be raised";
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<UniqueFd> others;
  for (UniqueFd one(::dup(fake.fd())); one; one.reset(::dup(fake.fd()))) others.push_back(std::move(one));

  const Status adopted = EpollSet::adopt(set.get());
  rlimit after{};
  EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &after), 0);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(adopted) << strerror(adopted.error().code);
  EXPECT_EQ(after.rlim_cur, low.rlim_cur);
  others.clear();
  EXPECT_EQ(world_.add(set.get(), fake.fd(), EPOLLIN, 7), 0);
  fake->become(EPOLLIN);
  EXPECT_EQ(world_.wait(set.get()), (Report{{EPOLLIN, 7}}));
  const Ref gone = fd_table().remove(set.get());
  gone->retire();
}

TEST_F(EpollSetTest, SleepingArmsAMemberOnce) {
  OpenFake fake;
  ASSERT_EQ(world_.add(set_, fake.fd(), EPOLLIN, 1), 0);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(world_.wait(set_, 100us), Report{});
  EXPECT_EQ(fake->arms(), 1) << "a cold member stays armed";
  fake->become(EPOLLIN);
  EXPECT_EQ(world_.wait(set_), (Report{{EPOLLIN, 1}}));
  EXPECT_EQ(fake->wakes(), 1);
}

TEST_F(EpollSetTest, KernelMembersAreHeardWhileEndpointsAreBusy) {
  OpenFake busy;
  KernelStream kernel;
  busy->become(EPOLLIN);
  ASSERT_EQ(world_.add(set_, busy.fd(), EPOLLIN, 1), 0);
  ASSERT_EQ(world_.add(set_, kernel.fd(), EPOLLIN, 2), 0);
  kernel.data_arrives();
  EXPECT_TRUE(is_heard(2, 0ns));
}

TEST_F(EpollSetTest, KernelMembersAreHeardWhileEndpointsAreBusyAfterASleepInVain) {
  OpenFake idle;
  OpenFake busy;
  KernelStream kernel;
  busy->become(EPOLLIN);
  ASSERT_EQ(world_.add(set_, idle.fd(), EPOLLIN, 3), 0);
  ASSERT_EQ(world_.add(set_, kernel.fd(), EPOLLIN, 2), 0);
  EXPECT_EQ(world_.wait(set_, 1ms), Report{});
  ASSERT_EQ(world_.add(set_, busy.fd(), EPOLLIN, 1), 0);
  kernel.data_arrives();
  EXPECT_TRUE(is_heard(2, 20s));
}

TEST_F(EpollSetTest, AnEndpointUnderTwoNumbers) {
  OpenFake fake;
  const int copy = ::fcntl(fake.fd(), F_DUPFD_CLOEXEC, 0);
  ASSERT_TRUE(fd_table().insert(copy, Ref::share(*fake)));
  EXPECT_EQ(world_.add(set_, fake.fd(), EPOLLIN, 1), 0);
  EXPECT_EQ(world_.add(set_, copy, EPOLLIN, 2), 0);
  EXPECT_EQ(world_.wait(set_, 50us), Report{});
  fake->become(EPOLLIN);
  EXPECT_EQ(world_.wait(set_).size(), 2U);
  fake->lose(EPOLLIN);

  // One leaves; the other is still heard.
  EXPECT_EQ(world_.remove(set_, fake.fd()), 0);
  EXPECT_EQ(world_.wait(set_, 50us), Report{});
  fake->become(EPOLLIN);
  EXPECT_EQ(world_.wait(set_, 20s), (Report{{EPOLLIN, 2}}));
  EXPECT_TRUE(fd_table().remove(copy));
  ::close(copy);
}

TEST_F(EpollSetTest, ANumberThatIsUsedAgainAndGivenBack) {
  OpenFake first, second;
  const int number = first.fd();
  ASSERT_EQ(world_.add(set_, number, EPOLLIN, 1), 0);
  // The number becomes the other endpoint's, while the first one is open elsewhere.
  const auto use_number_for = [number](FakeEndpoint& endpoint) {
    static_cast<void>(fd_table().remove(number));
    ASSERT_TRUE(fd_table().insert(number, Ref::share(endpoint)));
  };
  use_number_for(*second);
  EXPECT_EQ(world_.modify(set_, number, EPOLLIN, 2), ENOENT);
  ASSERT_EQ(world_.add(set_, number, EPOLLIN, 2), 0);
  first->become(EPOLLIN);
  second->become(EPOLLIN);
  EXPECT_EQ(world_.wait(set_).size(), 2U) << "both are members";
  ASSERT_EQ(world_.remove(set_, number), 0);
  use_number_for(*first);
  EXPECT_EQ(world_.add(set_, number, EPOLLIN, 1), EEXIST);
  ASSERT_EQ(world_.modify(set_, number, EPOLLIN, 3), 0);
  EXPECT_EQ(world_.wait(set_), (Report{{EPOLLIN, 3}}));
}

TEST_F(EpollSetTest, OtherCallersWorkWakesTheSleeper) {
  OpenFake fake;
  ASSERT_EQ(world_.add(set_, fake.fd(), EPOLLIN, 1), 0);
  std::thread other([&] {
    while (fake->arms() == 0) std::this_thread::yield();
    fake->become_by_other_callers_work(EPOLLIN);
  });
  EXPECT_EQ(world_.wait(set_, 20s), (Report{{EPOLLIN, 1}}));
  other.join();
}

TEST_F(EpollSetTest, AMembersDeadlineWakesTheSleeper) {
  OpenFake fake;
  ASSERT_EQ(world_.add(set_, fake.fd(), EPOLLIN, 1), 0);
  fake->set_deadline(monotonic_now() + 1ms);
  std::thread other([&] {
    while (fake->arms() == 0) std::this_thread::yield();
    fake->change_silently(EPOLLIN);
  });
  EXPECT_EQ(world_.wait(set_, 20s), (Report{{EPOLLIN, 1}}));
  other.join();
}

TEST_F(EpollSetTest, ClosingTheSetEndsTheWait) {
  OpenFake fake;
  const int set = world_.create_set();
  ASSERT_EQ(world_.add(set, fake.fd(), EPOLLIN, 1), 0);
  std::thread closer([&] {
    while (fake->arms() == 0) std::this_thread::yield();
    world_.close_set(set);
  });
  std::array<epoll_event, 1> event{};
  EXPECT_EQ(world_.wait(set, event.data(), 1, 20s, nullptr), -EBADF);
  closer.join();
}

TEST_F(EpollSetTest, ClosingAMemberDuringTheWaitIsHarmless) {
  for (int round = 0; round < 50; ++round) {
    OpenFake fake;
    OpenFake other;
    ASSERT_EQ(world_.add(set_, fake.fd(), EPOLLIN, 1), 0);
    ASSERT_EQ(world_.add(set_, other.fd(), EPOLLIN, 2), 0);
    std::thread closer([&] {
      fake.close();
      other->become(EPOLLIN);
    });
    EXPECT_EQ(world_.wait(set_, 20s), (Report{{EPOLLIN, 2}}));
    closer.join();
  }
}

TEST_F(EpollSetTest, CanBePolled) {
  OpenFake fake;
  ASSERT_EQ(world_.add(set_, fake.fd(), EPOLLIN, 1), 0);
  std::array<pollfd, 1> entry{{{set_, POLLIN, 0}}};
  EXPECT_EQ(*poll_endpoints(entry, 50us, nullptr), 0);
  std::thread peer([&] { fake->become(EPOLLIN); });
  EXPECT_EQ(*poll_endpoints(entry, 20s, nullptr), 1);
  EXPECT_EQ(entry[0].revents, POLLIN);
  peer.join();
  EXPECT_EQ(world_.wait(set_), (Report{{EPOLLIN, 1}}));
}

TEST_F(EpollSetTest, AThreadThatTakesAnEventAndGoesAwayLeavesTheNextToTheSleepers) {
  OpenFake fake;
  ASSERT_EQ(world_.add(set_, fake.fd(), EPOLLIN | EPOLLET, 1), 0);
  std::atomic<bool> stop{false};
  std::atomic<int> seen{0};
  std::thread sleeper([&] {
    while (!stop) seen += static_cast<int>(world_.wait(set_, 20s).size());
  });
  for (int round = 0; round < 200; ++round) {
    fake->become(EPOLLIN);
    world_.wait(set_);
    const int before = seen;
    fake->become(EPOLLIN);
    while (seen == before) std::this_thread::yield();
  }
  stop = true;
  fake->become(EPOLLIN);
  sleeper.join();
}

TEST_F(EpollSetTest, ChangesOfMembershipRaceWithWaitsAndEvents) {
  constexpr int kRounds = 500;
  OpenFake stays;
  OpenFake comes_and_goes;
  ASSERT_EQ(world_.add(set_, stays.fd(), EPOLLIN | EPOLLONESHOT, 1), 0);
  std::atomic<bool> stop{false};
  std::thread membership([&] {
    while (!stop) {
      EXPECT_EQ(world_.add(set_, comes_and_goes.fd(), EPOLLIN | EPOLLET, 2), 0);
      comes_and_goes->become(EPOLLIN);
      EXPECT_EQ(world_.modify(set_, comes_and_goes.fd(), EPOLLIN, 2), 0);
      comes_and_goes->lose(EPOLLIN);
      EXPECT_EQ(world_.remove(set_, comes_and_goes.fd()), 0);
    }
  });
  int seen = 0;
  std::thread peer([&] {
    while (!stop) {
      stays->become(EPOLLIN);
      std::this_thread::yield();
    }
  });
  while (seen < kRounds) {
    for (const auto& [events, data] : world_.wait(set_, 20s)) {
      if (data != 1) continue;
      ++seen;
      stays->lose(EPOLLIN);
      ASSERT_EQ(world_.modify(set_, stays.fd(), EPOLLIN | EPOLLONESHOT, 1), 0);
    }
  }
  stop = true;
  membership.join();
  peer.join();
}

}  // namespace
}  // namespace ringsock::runtime
