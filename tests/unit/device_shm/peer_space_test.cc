// A write into a peer's memory reaches the process that published its mark, and no other process that has the same
// number or is a child of it.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "core/base/refusals.h"
#include "core/device/shm/memory/peer_space.h"
#include "tests/support/child.h"

namespace ringsock::soft::testing {
namespace {

using ringsock::testing::Channel;
using ringsock::testing::Child;

/// What a process tells of itself; `text` lies in its memory.
struct Said {
  SpaceMark mark;
  std::uint64_t text;
};
constexpr std::size_t kTextBytes = 16;
constexpr std::array<char, kTextBytes> kBefore{"not written yet"}, kWritten{"written by peer"};

/// A process that says where its text is, waits for a word, and ends with 1 if its text was written.
int be_a_publisher(Channel& channel, const SpaceMark& mark) {
  static std::array<char, kTextBytes> text = kBefore;
  channel.send(Said{mark, reinterpret_cast<std::uint64_t>(text.data())});
  channel.receive<int>();
  return text == kBefore ? 0 : 1;
}

bool write_text(PeerSpace& space, const Said& said) {
  auto text = kWritten;
  std::array<iovec, 2> local{};
  local[1] = {text.data(), text.size()};
  return space.write(said.mark, local, said.text, text.size());
}

PeerSpace space_of(pid_t process) {
  PeerSpace space;
  space.set_process(process);
  return space;
}

TEST(PeerSpace, APublisherIsWrittenToAndRead) {
  Child publisher = Child::start([](Channel& channel) { return be_a_publisher(channel, own_space_mark()); });
  const Said said = *publisher.channel().receive<Said>();
  PeerSpace space = space_of(publisher.pid());
  EXPECT_EQ(space.find(said.mark), publisher.pid());
  ASSERT_TRUE(write_text(space, said));
  std::array<char, kTextBytes> read{};
  std::array<iovec, 2> local{};
  local[1] = {read.data(), read.size()};
  EXPECT_TRUE(space.read(said.mark, local, said.text, read.size()));
  EXPECT_EQ(read, kWritten);
  publisher.channel().send(1);
  EXPECT_EQ(publisher.wait(), 1);
}

TEST(PeerSpace, AChildDoesNotHaveItsParentsMarkAndMakesItsOwn) {
  const SpaceMark ours = own_space_mark();
  ASSERT_NE(ours.token, 0U);
  EXPECT_EQ(own_space_mark(), ours);
  Child child = Child::start([](Channel& channel) {
    channel.send(known_space_mark());
    return be_a_publisher(channel, own_space_mark());
  });
  EXPECT_EQ(child.channel().receive<SpaceMark>()->token, 0U);
  const Said said = *child.channel().receive<Said>();
  EXPECT_NE(said.mark.token, ours.token);
  // The child says that it is at the other end, the connection is from the time of its parent: nobody is written to.
  PeerSpace parent = space_of(::getpid());
  const auto refused = refusals_counted(Refusal::other_process);
  EXPECT_FALSE(write_text(parent, said));
  EXPECT_FALSE(write_text(parent, said));
  EXPECT_EQ(refusals_counted(Refusal::other_process), refused + 1) << "once for each mark";
  // Nor the child with its parent's mark.
  PeerSpace space = space_of(child.pid());
  EXPECT_FALSE(write_text(space, {ours, said.text}));
  child.channel().send(1);
  EXPECT_EQ(child.wait(), 0);
}

TEST(PeerSpace, AProcessThatGotTheNumberLaterIsAnotherOne) {
  const std::uint64_t before = ticks_since_boot() - 1;
  // Processes' starts are told in ticks.
  while (ticks_since_boot() < before + 3) ::usleep(1000);
  Child later = Child::start([](Channel& channel) { return be_a_publisher(channel, own_space_mark()); });
  const Said said = *later.channel().receive<Said>();
  EXPECT_TRUE(is_space_of(later.pid(), said.mark, ticks_since_boot()));
  EXPECT_FALSE(is_space_of(later.pid(), said.mark, before));
  later.channel().send(1);
  EXPECT_EQ(later.wait(), 0);
}

/// The mark's page is gone, as after execve(2): what was proven a moment ago does not help.
TEST(PeerSpace, WithoutThePageOfTheMarkNothingIsWrittenInTheSameCall) {
  Child publisher = Child::start([](Channel& channel) {
    const SpaceMark mark = own_space_mark();
    channel.send(mark);
    channel.receive<int>();
    ::munmap(reinterpret_cast<void*>(mark.address), 4096);
    return be_a_publisher(channel, mark);
  });
  const SpaceMark mark = *publisher.channel().receive<SpaceMark>();
  PeerSpace space = space_of(publisher.pid());
  ASSERT_EQ(space.find(mark), publisher.pid());
  publisher.channel().send(1);
  const Said said = *publisher.channel().receive<Said>();
  EXPECT_FALSE(write_text(space, said));
  EXPECT_EQ(space.find(mark), 0);
  publisher.channel().send(1);
  EXPECT_EQ(publisher.wait(), 0);
}

TEST(PeerSpace, WithoutAProcessOrAMarkThereIsNobody) {
  PeerSpace nobody;
  EXPECT_FALSE(nobody.has_process());
  EXPECT_EQ(nobody.find(own_space_mark()), 0);
  PeerSpace self = space_of(::getpid());
  EXPECT_EQ(self.find({}), 0);
  EXPECT_EQ(self.find({own_space_mark().token, 8}), 0);
}

}  // namespace
}  // namespace ringsock::soft::testing
