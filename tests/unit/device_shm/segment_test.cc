// What a peer may claim about the shared memory, and what is believed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/device/shm/memory/segment.h"
#include "tests/unit/device_shm/rc_pair.h"

namespace ringsock::soft::testing {
namespace {

constexpr std::uint64_t kSegment = 1 << 20;

TEST(Segment, APlannedInboxFitsWhatItWasPlannedFor) {
  for (std::uint32_t entries : {0U, 1U, 17U, 384U, 1U << 20}) {
    const InboxLayout layout = plan_inbox(8192, entries, 5000, 1);
    EXPECT_TRUE(check_inbox(layout, 8192 + layout.bytes));
    EXPECT_FALSE(check_inbox(layout, 8192 + layout.bytes - 1));
    EXPECT_GE(layout.ring_entries, entries);
    EXPECT_EQ(layout.arena_bytes, kHotArenaBytes);
  }
}

TEST(Segment, AnArenaEndsWithAPage) {
  for (std::uint64_t bytes : {std::uint64_t{1}, kHotArenaBytes, kHotArenaBytes + 1, std::uint64_t{1} << 20}) {
    const InboxLayout layout = plan_inbox(0, 64, 4096, bytes);
    EXPECT_TRUE(check_inbox(layout, layout.bytes));
    EXPECT_GE(layout.arena_bytes, bytes);
    EXPECT_LT(layout.arena_bytes - bytes, kPageBytes);
  }
  EXPECT_EQ(plan_inbox(0, 64, 4096, 0).arena_bytes, 0U);
}

/// Returns the number of pages with memory.
std::size_t touched_pages(const OwnSegment& segment) {
  struct stat status {};
  if (::fstat(segment.memfd.get(), &status) != 0) return 0;
  return static_cast<std::size_t>(status.st_blocks) * 512 / kPageBytes;
}

TEST(Segment, AConnectionOfFewSmallMessagesTouchesOnePage) {
  for (std::uint32_t entries : {16U, 32U, 496U}) {
    const InboxLayout layout = plan_inbox(0, entries, 1 << 17, 1 << 17);
    const OwnSegment segment = must(make_segment(layout.bytes));
    const InboxView inbox(*segment.mapping, layout);
    inbox.consumer().receives_posted = 1;
    inbox.doorbell().armed = kArmedForAny;
    inbox.producer().fences = 1;
    inbox.rows()[kMrRows - 1].rkey = 1;
    for (std::uint32_t i = 0; i < 16; ++i) inbox.entry(inbox.first_entry() + i).head = 1;
    for (std::size_t i = 0; i < 16 * kLineBytes; ++i) inbox.arena()[i] = std::byte{1};
    EXPECT_EQ(touched_pages(segment), 1U);
  }
}

TEST(Segment, ALapHasNumbersThatFreshMemoryHasNot) {
  const InboxLayout layout = plan_inbox(0, 64, 4096, 0);
  const OwnSegment segment = must(make_segment(layout.bytes));
  const InboxView inbox(*segment.mapping, layout);
  const std::uint32_t first = inbox.first_entry();
  EXPECT_EQ(inbox.lap(first), 1U);
  EXPECT_EQ(inbox.lap(first + kHotEntries), 2U) << "the ring goes on at its start";
  EXPECT_EQ(&inbox.entry(first + kHotEntries), inbox.ring());
}

TEST(Segment, AFirstInboxThatDoesNotFitIsIgnored) {
  const OwnSegment segment = must(make_segment(kPageBytes));
  segment.mapping->tell_first_inbox(plan_inbox(0, 64, 4096, 65536));
  segment.mapping->let_go().store(1);
  EXPECT_EQ(touched_pages(segment), 1U);
}

TEST(Segment, TheEndThatIsFirstSettlesARequest) {
  const InboxLayout layout = plan_inbox(0, 64, 4096, 65536);
  const OwnSegment segment = must(make_segment(layout.bytes));
  segment.mapping->tell_first_inbox(layout);
  for (const auto& [first, second] : {std::pair(RequestState::accepted, RequestState::withdrawn),
                                      std::pair(RequestState::withdrawn, RequestState::accepted)}) {
    segment.mapping->open_request();
    EXPECT_TRUE(segment.mapping->settle_request(first));
    EXPECT_FALSE(segment.mapping->settle_request(second));
  }
}

TEST(Segment, AbsurdLayoutsAreRefused) {
  const InboxLayout good = plan_inbox(0, 64, 4096, 65536);
  ASSERT_TRUE(check_inbox(good, kSegment));
  const auto refused = [&](auto change) {
    InboxLayout bad = good;
    change(bad);
    return !check_inbox(bad, kSegment);
  };
  EXPECT_TRUE(refused([](InboxLayout& l) { l.offset = 1; }));
  EXPECT_TRUE(refused([](InboxLayout& l) { l.offset = UINT64_MAX - 4095; })) << "offset + bytes wraps around";
  EXPECT_TRUE(refused([](InboxLayout& l) { l.offset = kSegment; }));
  EXPECT_TRUE(refused([](InboxLayout& l) { l.bytes = 0; }));
  EXPECT_TRUE(refused([](InboxLayout& l) { l.bytes = UINT64_MAX - 4095; }));
  EXPECT_TRUE(refused([](InboxLayout& l) { l.bytes += 1; }));
  EXPECT_TRUE(refused([](InboxLayout& l) { l.arena_bytes += 4096; })) << "the arena would overlap the rings";
  EXPECT_TRUE(refused([](InboxLayout& l) { l.arena_bytes -= 1; })) << "lines must be lines";
  EXPECT_TRUE(refused([](InboxLayout& l) { l.arena_bytes = UINT64_MAX - 4095; }));
  EXPECT_TRUE(refused([](InboxLayout& l) { l.ring_entries = 0; }));
  EXPECT_TRUE(refused([](InboxLayout& l) { l.ring_entries = 63; }));
  EXPECT_TRUE(refused([](InboxLayout& l) { l.ring_entries = 1U << 31; }));
  EXPECT_TRUE(refused([](InboxLayout& l) { l.payload_bytes = 0; }));
  EXPECT_TRUE(refused([](InboxLayout& l) { l.payload_bytes = 1U << 31; }));
  EXPECT_TRUE(refused([](InboxLayout& l) { l.payload_bytes = 5000; }));
}

UniqueFd memfd(unsigned flags, std::size_t bytes, int seals) {
  UniqueFd fd(::memfd_create("test", flags | MFD_CLOEXEC));
  if (fd && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0 && seals != 0) ::fcntl(fd.get(), F_ADD_SEALS, seals);
  return fd;
}
constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

MemoryName name_of(const UniqueFd& fd) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return {};
  return {status.st_dev, status.st_ino, 0, 0};
}

Result<std::shared_ptr<MappedSegment>> map_it(UniqueFd fd) {
  const MemoryName name = name_of(fd);
  return map_peer_segment(std::move(fd), name, kSegment);
}

TEST(Segment, AMemfdThatIsNotTheOneItWasSaidToBeIsRefused) {
  UniqueFd fd = memfd(MFD_ALLOW_SEALING, kSegment, kAllSeals);
  MemoryName other = name_of(fd);
  ++other.inode;
  EXPECT_EQ(map_peer_segment(std::move(fd), other, kSegment).error().code, EPROTO);
}

TEST(Segment, AMemfdThatIsLargerThanNeededIsRefused) {
  UniqueFd fd = memfd(MFD_ALLOW_SEALING, kSegment, kAllSeals);
  const MemoryName name = name_of(fd);
  EXPECT_EQ(map_peer_segment(std::move(fd), name, kSegment - 1).error().code, EFBIG);
}

TEST(Segment, OnlyASealedMemfdIsMapped) {
  EXPECT_TRUE(map_it(memfd(MFD_ALLOW_SEALING, kSegment, kAllSeals)));
  EXPECT_EQ(map_it(memfd(MFD_ALLOW_SEALING, kSegment, 0)).error().code, EPROTO);
  EXPECT_EQ(map_it(memfd(0, kSegment, 0)).error().code, EPROTO);
  for (int missing : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL}) {
    EXPECT_EQ(map_it(memfd(MFD_ALLOW_SEALING, kSegment, kAllSeals & ~missing)).error().code, EPROTO);
  }
  EXPECT_EQ(map_it(memfd(MFD_ALLOW_SEALING, 0, kAllSeals)).error().code, EPROTO);
  EXPECT_EQ(map_it(memfd(MFD_ALLOW_SEALING, 5000, kAllSeals)).error().code, EPROTO);
  EXPECT_EQ(map_it(memfd(MFD_ALLOW_SEALING, kSegment, kAllSeals | F_SEAL_WRITE)).error().code, EPROTO);
}

TEST(Segment, OtherDescriptorsAreRefused) {
  EXPECT_EQ(map_it(UniqueFd(::open("/dev/zero", O_RDWR | O_CLOEXEC))).error().code, EPROTO);
  EXPECT_EQ(map_it(UniqueFd(::open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600))).error().code, EPROTO);
  EXPECT_EQ(map_it(socket_pair().first.get() < 0 ? UniqueFd() : UniqueFd(::dup(STDERR_FILENO))).error().code, EPROTO);
  EXPECT_EQ(map_it(UniqueFd()).error().code, EPROTO);
}

TEST(Segment, HugePagesAreRefused) {
  UniqueFd huge = memfd(MFD_ALLOW_SEALING | MFD_HUGETLB, 2 << 20, kAllSeals);
  if (!huge) GTEST_SKIP() << "no hugetlbfs here";
  EXPECT_EQ(map_it(std::move(huge)).error().code, EPROTO);
}

TEST(Segment, OursIsSealedAndZeroed) {
  auto made = make_segment(kSegment);
  ASSERT_TRUE(made);
  EXPECT_EQ(made->mapping->base()[kSegment - 1], std::byte{0});
  EXPECT_NE(::ftruncate(made->memfd.get(), 0), 0);
  EXPECT_TRUE(map_it(UniqueFd(::dup(made->memfd.get()))));
}

TEST(Segment, APeersInboxOutsideTheRoomItWasGivenIsRefused) {
  End alice, bob;
  alice.create(nullptr);
  bob.create(nullptr);
  auto [a, b] = socket_pair();
  auto link = std::make_shared<Link>(std::move(a));
  QueuePairOffer offer = wiring_of(*alice.qp).offer();
  // Alice's own inbox, where the reply should name the spare room.
  offer.flags = 0;
  EXPECT_EQ(wiring_of(*alice.qp).attach(offer, nullptr, link, {}, 7).error().code, EPROTO);
  offer.inbox = offer.spare;
  offer.inbox.offset -= kPageBytes;
  EXPECT_EQ(wiring_of(*alice.qp).attach(offer, nullptr, link, {}, 7).error().code, EPROTO);
  EXPECT_EQ(alice.state(), IBV_QPS_INIT);
}

}  // namespace
}  // namespace ringsock::soft::testing
