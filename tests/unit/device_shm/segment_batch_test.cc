// Segments that share a memfd: which connection has which, and what becomes of their pages.
#include "core/device/shm/memory/segment_batch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/device/shm/memory/segment_cache.h"
#include "tests/unit/device_shm/rc_pair.h"

namespace ringsock::soft::testing {
namespace {

/// The pages of memory that a memfd has.
blkcnt_t pages(const UniqueFd& memfd) {
  struct stat status {};
  if (::fstat(memfd.get(), &status) != 0) return -1;
  return status.st_blocks * 512 / static_cast<blkcnt_t>(kPageBytes);
}

bool is_mapped(const std::byte* address) {
  unsigned char is_there = 0;
  return ::mincore(const_cast<std::byte*>(address), kPageBytes, &is_there) == 0;
}

InboxLayout small_inbox() { return plan_inbox(0, kMinRingEntries, kMinPayloadBytes, kPageBytes); }

/// A maker and its peer, in one process.
class SegmentBatchStory : public ::testing::Test {
 protected:
  /// A segment that both have, as after a connect request. The inbox is at its start.
  struct Shared {
    OwnBatch::Taken made;
    std::shared_ptr<MappedSegment> given;
  };
  Shared share() {
    Shared out{must(own_.take(kBytes)), nullptr};
    const Inode inode{out.made.name.device, out.made.name.inode};
    out.given = given_.take(inode, kMaker, out.made.part);
    if (!out.given) {
      const auto whole = must(map_peer_segment(UniqueFd(::dup(out.made.memfd->get())), out.made.name, kMostBatchBytes));
      out.given = given_.add(inode, kMaker, MappedParts(*whole, out.made.parts), out.made.part);
    }
    out.made.mapping->tell_first_inbox(small_inbox());
    out.given->tell_first_inbox(small_inbox());
    return out;
  }

  const std::uint64_t kBytes = 2 * small_inbox().bytes;
  const PeerProcess kMaker{::getpid(), ::geteuid()};
  OwnBatch own_;
  GivenBatches given_;
};

TEST_F(SegmentBatchStory, ConnectionsHavePartsOfOneMemfdThatDoNotOverlap) {
  std::vector<Shared> all;
  for (std::uint32_t i = 0; i < kMostParts; ++i) all.push_back(share());
  for (std::uint32_t i = 0; i < kMostParts; ++i) {
    EXPECT_EQ(all[i].made.name.inode, all.front().made.name.inode);
    EXPECT_EQ(all[i].made.part, i);
    EXPECT_EQ(all[i].made.mapping->bytes(), kBytes);
    std::memset(all[i].made.mapping->base(), static_cast<int>(i + 1), kBytes);
  }
  for (std::uint32_t i = 0; i < kMostParts; ++i) {
    const auto is_its = [&](std::byte value) { return value == std::byte(i + 1); };
    EXPECT_TRUE(std::all_of(all[i].given->base(), all[i].given->base() + kBytes, is_its));
  }
  EXPECT_NE(share().made.name.inode, all.front().made.name.inode) << "the next needs another memfd";
}

TEST_F(SegmentBatchStory, APartIsGivenOnce) {
  const Shared first = share();
  const Inode inode{first.made.name.device, first.made.name.inode};
  EXPECT_EQ(given_.take(inode, kMaker, first.made.part), nullptr);
  EXPECT_EQ(given_.take(inode, kMaker, kMostParts), nullptr) << "there is no such part";
  EXPECT_EQ(given_.take(inode, {kMaker.pid + 1, kMaker.uid}, 1), nullptr) << "another process's";
  EXPECT_NE(given_.take(inode, kMaker, 1), nullptr);
}

TEST_F(SegmentBatchStory, AnotherSizeIsAnotherMemfd) {
  const Shared first = share();
  const auto other = must(own_.take(2 * kBytes));
  EXPECT_NE(other.name.inode, first.made.name.inode);
  EXPECT_EQ(other.mapping->bytes(), 2 * kBytes);
}

TEST_F(SegmentBatchStory, ALargeSegmentIsAlone) {
  EXPECT_EQ(own_.take(kMostBatchBytes).error().code, EFBIG);
  EXPECT_EQ(must(own_.take(kMostBatchBytes / 2)).parts, 2U);
}

TEST_F(SegmentBatchStory, PagesGoWhenTheSecondEndGivesThePartUp) {
  const Shared stays = share();
  Shared ends = share();
  std::memset(ends.made.mapping->base(), 0, kBytes);
  stays.made.mapping->base()[0] = std::byte{1};
  const std::byte* const there = ends.given->base();
  ends.made.mapping.reset();
  EXPECT_GT(pages(*stays.made.memfd), static_cast<blkcnt_t>(kBytes / kPageBytes)) << "the other end may read it";
  ends.given.reset();
  EXPECT_EQ(pages(*stays.made.memfd), 1);
  EXPECT_TRUE(is_mapped(there)) << "its neighbour has a connection";
  EXPECT_EQ(stays.given->base()[0], std::byte{1});
}

TEST_F(SegmentBatchStory, PartsAreUnmappedTogetherOnceAllAreGivenUp) {
  std::vector<Shared> all;
  for (std::uint32_t i = 0; i < kMostParts; ++i) all.push_back(share());
  const std::byte* const ours = all.front().made.mapping->base();
  const std::byte* const theirs = all.front().given->base();
  own_ = {};
  given_ = {};
  for (Shared last = std::move(all.back()); !all.empty(); all.pop_back()) {
    EXPECT_TRUE(is_mapped(ours));
    EXPECT_TRUE(is_mapped(theirs));
  }
  for (std::uint32_t i = 0; i < kMostParts; ++i) {
    EXPECT_FALSE(is_mapped(ours + i * kBytes));
    EXPECT_FALSE(is_mapped(theirs + i * kBytes));
  }
}

TEST_F(SegmentBatchStory, PagesStayWhereAForkedProcessMayHaveThem) {
  const Shared stays = share();
  Shared ends = share();
  ends.made.mapping->base()[0] = std::byte{7};
  MappedSegment::note_fork();
  const blkcnt_t before = pages(*stays.made.memfd);
  ends.made.mapping.reset();
  ends.given.reset();
  EXPECT_EQ(pages(*stays.made.memfd), before);
}

TEST_F(SegmentBatchStory, APartThatWasAbandonedIsLeftToTheOther) {
  const Shared stays = share();
  Shared ends = share();
  ends.given->base()[0] = std::byte{7};
  const blkcnt_t before = pages(*stays.made.memfd);
  ends.made.mapping->abandon();
  ends.made.mapping.reset();
  ends.given.reset();
  EXPECT_GE(pages(*stays.made.memfd), before) << "another process may go on with it";
}

TEST_F(SegmentBatchStory, WhatNobodyHasTakenIsUnmapped) {
  const Shared first = share();
  const std::byte* const ours = first.made.mapping->base() + kBytes;
  const std::byte* const theirs = first.given->base() + kBytes;
  EXPECT_TRUE(is_mapped(ours));
  EXPECT_TRUE(is_mapped(theirs));
  own_ = {};
  given_ = {};
  EXPECT_FALSE(is_mapped(ours));
  EXPECT_FALSE(is_mapped(theirs));
  EXPECT_TRUE(is_mapped(first.made.mapping->base())) << "a connection has it";
  EXPECT_NE(share().made.name.inode, first.made.name.inode);
}

TEST_F(SegmentBatchStory, ADescriptorThatTheProgramHasReplacedIsNotClosed) {
  Shared first = share();
  const int number = first.made.memfd->get();
  ASSERT_EQ(::dup3(STDERR_FILENO, number, O_CLOEXEC), number);
  first.made = {};
  own_ = {};
  EXPECT_EQ(::fcntl(number, F_GETFD), FD_CLOEXEC) << "it is the program's now";
  ::close(number);
}

/// A process that has connections in all places of the cache.
class FullCache : public ::testing::Test {
 protected:
  FullCache() {
    for (std::size_t i = 0; i < SegmentCache::kMaxKept; ++i) inside_.push_back(must(makers_.make(kBytes, kOpeners)));
  }
  const std::uint64_t kBytes = 2 * small_inbox().bytes;
  const SegmentPeer kOpeners{{kAnyProcess, ::geteuid()}, true};
  SegmentCache makers_;
  std::vector<SegmentCache::Made> inside_;
};

TEST_F(FullCache, MakesSegmentsInBatches) {
  EXPECT_EQ(inside_.back().parts, 1U);
  const auto first = must(makers_.make(kBytes, kOpeners));
  const auto second = must(makers_.make(kBytes, kOpeners));
  EXPECT_EQ(first.parts, kMostParts);
  EXPECT_EQ(second.parts, kMostParts);
  EXPECT_EQ(first.name.inode, second.name.inode);
  EXPECT_NE(first.part, second.part);
}

TEST_F(FullCache, SharesNoMemfdWithThoseWhoDoNotOpenItOrAreOfAnotherUser) {
  EXPECT_EQ(must(makers_.make(kBytes, PeerProcess{kAnyProcess, ::geteuid()})).parts, 1U);
  EXPECT_EQ(must(makers_.make(kBytes, SegmentPeer({kAnyProcess, ::geteuid() + 1}, true))).parts, 1U);
  EXPECT_EQ(must(makers_.make(kBytes, SegmentPeer({::getppid(), ::geteuid()}, true))).parts, 1U);
  EXPECT_EQ(must(makers_.make(kBytes, std::nullopt)).parts, 1U);
}

TEST_F(FullCache, AForkEndsTheBatch) {
  const auto first = must(makers_.make(kBytes, kOpeners));
  const std::byte* const next = first.mapping->base() + kBytes;
  EXPECT_TRUE(is_mapped(next));
  makers_.before_fork();
  EXPECT_FALSE(is_mapped(next)) << "no child has the memory of a later connection";
  makers_.after_fork();
  EXPECT_NE(must(makers_.make(kBytes, kOpeners)).name.inode, first.name.inode);
}

TEST_F(FullCache, ThePeerMapsAMemfdOnce) {
  SegmentCache peers;
  const PeerProcess maker{::getpid(), ::geteuid()};
  const auto first = must(makers_.make(kBytes, kOpeners));
  EXPECT_EQ(peers.find_part(first.name, maker, first.part), nullptr);
  const auto given =
      must(peers.map_part(UniqueFd(::dup(first.memfd->get())), first.name, maker, first.part, first.parts));
  EXPECT_EQ(given->bytes(), kBytes);
  const auto second = must(makers_.make(kBytes, kOpeners));
  EXPECT_EQ(peers.find_part(second.name, maker, second.part)->base(), given->base() + kBytes);
  peers.before_fork();
  peers.after_fork();
  const auto third = must(makers_.make(kBytes, kOpeners));
  EXPECT_EQ(peers.find_part(third.name, maker, third.part), nullptr) << "a child could have it";
}

TEST_F(FullCache, PartsThatCannotBeAreRefused) {
  SegmentCache peers;
  const PeerProcess maker{::getpid(), ::geteuid()};
  const auto made = must(makers_.make(kBytes, kOpeners));
  const auto map = [&](std::uint32_t part, std::uint32_t parts) {
    return peers.map_part(UniqueFd(::dup(made.memfd->get())), made.name, maker, part, parts);
  };
  EXPECT_EQ(map(4, 4).error().code, EPROTO) << "no such part";
  EXPECT_EQ(map(0, 11).error().code, EPROTO) << "no whole pages";
  EXPECT_TRUE(map(0, made.parts));
}

TEST_F(FullCache, AcceptersThatOpenMemoryAreRemembered) {
  const PeerProcess listener{::getpid(), ::geteuid()};
  EXPECT_FALSE(makers_.do_open(listener));
  makers_.learn_opening(listener, {kAnyProcess, ::geteuid()}, true);
  EXPECT_TRUE(makers_.do_open(listener));
  EXPECT_EQ(makers_.accepters_of(listener, std::nullopt), (PeerProcess{kAnyProcess, ::geteuid()}));
  makers_.learn_opening(listener, {kAnyProcess, ::geteuid()}, false);
  EXPECT_FALSE(makers_.do_open(listener));
}

TEST_F(FullCache, AcceptersOfWhichOneRefusedAPartGetNoneAnyMore) {
  const PeerProcess listener{::getpid(), ::geteuid()};
  const PeerProcess accepters{kAnyProcess, ::geteuid()};
  makers_.learn_opening(listener, accepters, true);
  const auto before = must(makers_.make(kBytes, kOpeners));
  makers_.part_refused(listener, accepters);
  EXPECT_FALSE(makers_.do_open(listener));
  makers_.learn_opening(listener, accepters, true);
  EXPECT_FALSE(makers_.do_open(listener)) << "another accepter opens memory, and that one does not";
  EXPECT_NE(must(makers_.make(kBytes, kOpeners)).name.inode, before.name.inode) << "perhaps it cannot be opened";
}

}  // namespace
}  // namespace ringsock::soft::testing
