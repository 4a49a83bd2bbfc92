// The parts of an epoll set, each alone.
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <array>
#include <memory>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/poll/changed_members.h"
#include "core/poll/doorbells.h"
#include "core/poll/epoll_set.h"
#include "core/poll/hot_members.h"
#include "core/poll/kernel_looks.h"
#include "core/poll/kernel_members.h"
#include "core/runtime/fd_table.h"
#include "tests/fakes/fake_endpoint.h"

namespace ringsock::runtime {
namespace {

UniqueFd new_event() { return UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)); }

/// Returns the endpoints whose doorbells rang, in their order.
std::vector<Endpoint*> rung(Doorbells& doorbells) {
  std::vector<Endpoint*> owners;
  doorbells.take([&owners](Endpoint& owner) { owners.push_back(&owner); });
  return owners;
}

TEST(Doorbells, TellWhoseDoorbellRangOnce) {
  auto doorbells = Doorbells::make();
  ASSERT_TRUE(doorbells);
  const UniqueFd bell = new_event();
  fakes::OpenFake fake;
  int fd = bell.get();
  ASSERT_TRUE(doorbells->add(fd, *fake, true));
  EXPECT_TRUE(rung(*doorbells).empty());

  ::eventfd_write(bell.get(), 1);

  EXPECT_EQ(rung(*doorbells), std::vector<Endpoint*>{&*fake});
  EXPECT_TRUE(rung(*doorbells).empty());
}

TEST(Doorbells, TheBellWakesAndIsNoEndpoints) {
  auto doorbells = Doorbells::make();
  ASSERT_TRUE(doorbells);
  rung(*doorbells);

  doorbells->ring_bell();

  epoll_event event{};
  EXPECT_EQ(::epoll_wait(doorbells->file(), &event, 1, 0), 1);
  doorbells->ring_bell();
  EXPECT_TRUE(rung(*doorbells).empty());
}

TEST(Doorbells, ASharedDoorbellNeedsAnotherOwnerWhenItsOwnerLeaves) {
  auto doorbells = Doorbells::make();
  ASSERT_TRUE(doorbells);
  const UniqueFd bell = new_event();
  fakes::OpenFake first;
  fakes::OpenFake second;
  int fd = bell.get();
  ASSERT_TRUE(doorbells->add(fd, *first, true));
  ASSERT_TRUE(doorbells->add(fd, *second, true));  // owns it from now on

  EXPECT_TRUE(doorbells->leave(fd, *second));
  doorbells->ring_for(fd, *first);
  ::eventfd_write(bell.get(), 1);
  EXPECT_EQ(rung(*doorbells), std::vector<Endpoint*>{&*first});

  // With the last one the kernel forgets the doorbell.
  EXPECT_FALSE(doorbells->leave(fd, *first));
  ::eventfd_write(bell.get(), 1);
  EXPECT_TRUE(rung(*doorbells).empty());
}

TEST(Doorbells, RenewedOnesHaveForgottenAll) {
  auto doorbells = Doorbells::make();
  ASSERT_TRUE(doorbells);
  const UniqueFd bell = new_event();
  fakes::OpenFake fake;
  int fd = bell.get();
  ASSERT_TRUE(doorbells->add(fd, *fake, true));

  ASSERT_TRUE(doorbells->renew());
  ::eventfd_write(bell.get(), 1);

  EXPECT_TRUE(rung(*doorbells).empty());
  ASSERT_TRUE(doorbells->add(fd, *fake, true));
  EXPECT_EQ(rung(*doorbells), std::vector<Endpoint*>{&*fake});
}

/// A member of a set that knows nothing of it.
class LooseMember {
 public:
  explicit LooseMember(EpollSet& set) : member_(set, fake_.fd(), Ref::share(*fake_)) {}
  EpollMember& operator*() { return member_; }
  fakes::FakeEndpoint& endpoint() { return *fake_; }

 private:
  fakes::OpenFake fake_;
  EpollMember member_;
};

class LooseMembers : public testing::Test {
 protected:
  ~LooseMembers() override {
    const Ref set = fd_table().remove(fd_.get());
    set->retire();
  }

  UniqueFd fd_{*EpollSet::create(EPOLL_CLOEXEC)};
  Ref set_ = fd_table().get(fd_.get());
  LooseMember a_{*set_->as_epoll_set()};
  LooseMember b_{*set_->as_epoll_set()};
  LooseMember c_{*set_->as_epoll_set()};
};

std::vector<EpollMember*> all_of(HotMembers& hot) {
  std::vector<EpollMember*> all;
  hot.for_each([&all](EpollMember& member) { all.push_back(&member); });
  return all;
}

using HotMembersOfASet = LooseMembers;
using ChangedMembersOfASet = LooseMembers;

TEST_F(HotMembersOfASet, AreAskedInTheOrderInWhichTheyGotHot) {
  HotMembers hot;
  hot.heat(*a_, 0);
  hot.heat(*b_, 0);
  hot.heat(*a_, 0);  // is hot already

  EXPECT_EQ(hot.count(), 2U);
  EXPECT_EQ(all_of(hot), (std::vector{&*a_, &*b_}));
  hot.put_last(*a_);
  EXPECT_EQ(all_of(hot), (std::vector{&*b_, &*a_}));

  hot.leave(*b_);
  EXPECT_FALSE((*b_).is_hot());
  EXPECT_EQ(hot.count(), 1U);
}

TEST_F(HotMembersOfASet, ThoseWithoutRoomComeFirstAndThenGoBehindAllOthers) {
  HotMembers hot;
  for (LooseMember* member : {&a_, &b_, &c_}) hot.heat(**member, 0);
  hot.put_first_to_wait(*c_);
  hot.put_first_to_wait(*b_);
  EXPECT_EQ(hot.waiting(), 2U);

  EXPECT_EQ(&hot.take_waiting(), &*b_);

  EXPECT_EQ(hot.waiting(), 1U);
  EXPECT_EQ(all_of(hot), (std::vector{&*c_, &*a_, &*b_}));
  hot.leave(*c_);
  EXPECT_EQ(hot.waiting(), 0U);
}

TEST_F(HotMembersOfASet, AMemberIsIdleForLongAfterTheRoundsThatItGot) {
  HotMembers hot;
  hot.heat(*a_, 2);
  hot.end_round();
  EXPECT_FALSE(hot.was_idle_for_long(*a_));
  hot.end_round();
  EXPECT_TRUE(hot.was_idle_for_long(*a_));

  hot.keep_for_idle_rounds(*a_);
  EXPECT_FALSE(hot.was_idle_for_long(*a_));
}

TEST_F(HotMembersOfASet, AColdMemberGetsHotAtItsDeadline) {
  HotMembers hot;
  hot.heat(*a_, 0);
  hot.heat(*b_, 0);
  a_.endpoint().set_deadline(Nanos{1});  // long ago
  hot.cool(*a_);
  hot.cool(*b_);  // without a deadline
  EXPECT_EQ(hot.count(), 0U);
  EXPECT_EQ(hot.next_due(), Nanos{1});

  hot.heat_due();

  EXPECT_EQ(all_of(hot), std::vector{&*a_});
  EXPECT_EQ(hot.next_due(), Nanos::max());
}

TEST_F(ChangedMembersOfASet, AreTakenInTheOrderOfTheirChangesEachOnce) {
  ChangedMembers changed;
  for (LooseMember* member : {&b_, &a_, &b_, &c_}) changed.push(**member);
  EXPECT_FALSE(changed.empty());

  std::vector<EpollMember*> taken;
  changed.take([&taken](EpollMember& member) { taken.push_back(&member); });

  EXPECT_EQ(taken, (std::vector{&*b_, &*a_, &*c_}));
  EXPECT_TRUE(changed.empty());
  changed.push(*b_);
  EXPECT_FALSE(changed.empty());
}

TEST(KernelMembers, AreLookedAtNowAndThenWhileTheyHaveNothing) {
  KernelMembers kernel(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  std::array<epoll_event, 4> events{};
  bool doorbells_rang = false;
  ASSERT_EQ(*kernel.look(events, nullptr, doorbells_rang), 0);

  kernel.look_next_time();

  EXPECT_TRUE(kernel.is_turn(KernelLooks::kAutomatic));
}

TEST(KernelMembers, ReportWhatTheKernelHas) {
  KernelMembers kernel(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  const UniqueFd member = new_event();
  const epoll_event wanted{EPOLLIN, {.u32 = 7}};
  ASSERT_TRUE(kernel.control(EPOLL_CTL_ADD, member.get(), &wanted));
  EXPECT_FALSE(kernel.is_ready());

  ::eventfd_write(member.get(), 1);

  EXPECT_TRUE(kernel.is_ready());
  std::array<epoll_event, 4> events{};
  bool doorbells_rang = false;
  EXPECT_EQ(*kernel.look(events, nullptr, doorbells_rang), 1);
  EXPECT_EQ(events[0].data.u32, 7U);
  EXPECT_TRUE(doorbells_rang);  // not nested: nothing is known of them
}

TEST(KernelMembers, KeepNestedDoorbellsFromTheReport) {
  KernelMembers kernel(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  auto doorbells = Doorbells::make();
  ASSERT_TRUE(doorbells);
  EXPECT_TRUE(kernel.require_epoll_file(*doorbells));
  ASSERT_TRUE(kernel.nest(*doorbells));
  kernel.may_have_some();
  EXPECT_TRUE(kernel.take_ring_for_earlier_sleepers());
  rung(*doorbells);
  std::array<epoll_event, 4> events{};
  bool doorbells_rang = true;
  ASSERT_EQ(*kernel.look(events, nullptr, doorbells_rang), 0);
  EXPECT_FALSE(doorbells_rang);

  doorbells->ring_bell();

  // Threads that sleep on the file are woken, but find no event.
  epoll_event event{};
  ASSERT_EQ(::epoll_wait(kernel.file(), &event, 1, 0), 1);
  EXPECT_EQ(KernelMembers::forget_wake_up(&event, 1), 0);
  EXPECT_EQ(*kernel.look(events, nullptr, doorbells_rang), 0);
  EXPECT_TRUE(doorbells_rang);
}

TEST(KernelMembers, RefuseAFileThatIsNoEpollFile) {
  const KernelMembers kernel(new_event());
  const auto doorbells = Doorbells::make();
  ASSERT_TRUE(doorbells);

  EXPECT_EQ(kernel.require_epoll_file(*doorbells).error().code, EINVAL);
}

}  // namespace
}  // namespace ringsock::runtime
