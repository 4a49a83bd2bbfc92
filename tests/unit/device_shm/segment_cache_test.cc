// Which segments are used again, for whom, and what is left in them.
#include "core/device/shm/memory/segment_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <new>
#include <span>
#include <vector>

#include "tests/support/failing_memory.h"

namespace ringsock::soft::testing {
namespace {

constexpr std::uint64_t kBytes = 64 * kPageBytes;

/// The maker's process and its peer's, with a cache each.
class SegmentCacheStory : public ::testing::Test {
 protected:
  /// A segment that both have, as after a connect request.
  struct Shared {
    SegmentCache::Made made;
    std::shared_ptr<MappedSegment> given;
  };
  Shared share(std::optional<PeerProcess> peer, std::optional<PeerProcess> maker) {
    Shared out{*makers_.make(kBytes, peer), nullptr};
    out.given = take(out.made, maker);
    return out;
  }
  /// As an acceptor does: the mapping that is known by its name, or a new one.
  std::shared_ptr<MappedSegment> take(const SegmentCache::Made& made, std::optional<PeerProcess> maker) {
    auto known = maker ? peers_.find(made.name, *maker) : nullptr;
    return known ? known : *peers_.map(UniqueFd(::dup(made.memfd->get())), made.name, kBytes, maker);
  }
  Shared share() { return share(kPeer, kMaker); }

  // Numbers of living processes, or the cache would drop their segments.
  const PeerProcess kMaker{::getpid(), 1000};
  const PeerProcess kPeer{::getppid(), 1000};
  SegmentCache makers_, peers_;
};

TEST_F(SegmentCacheStory, ASegmentIsUsedAgainOnceBothHaveLetGo) {
  Shared first = share();
  EXPECT_FALSE(first.made.reused);
  std::byte* const here = first.made.mapping->base();
  std::byte* const there = first.given->base();
  first.given.reset();
  first.made = {};
  Shared second = share();
  EXPECT_TRUE(second.made.reused);
  EXPECT_EQ(second.made.mapping->base(), here);
  EXPECT_EQ(second.given->base(), there);
}

TEST_F(SegmentCacheStory, TheOrderOfLettingGoDoesNotMatter) {
  Shared first = share();
  first.made = {};
  first.given.reset();
  EXPECT_TRUE(share().made.reused);
}

TEST_F(SegmentCacheStory, ASegmentThatThePeerStillHasIsNotUsedAgain) {
  Shared first = share();
  first.made = {};
  Shared second = share();
  EXPECT_FALSE(second.made.reused);
  EXPECT_NE(second.given->base(), first.given->base());
}

TEST_F(SegmentCacheStory, ASegmentThatIsInUseIsNotUsedTwice) {
  Shared first = share();
  first.given.reset();
  Shared second = share();
  EXPECT_FALSE(second.made.reused);
}

TEST_F(SegmentCacheStory, NothingOfTheOldConnectionIsLeft) {
  Shared first = share();
  for (const std::size_t at : {std::size_t{0}, std::size_t{100}, 5 * kPageBytes + 7, std::size_t{kBytes} - 1}) {
    first.made.mapping->base()[at] = std::byte{1};
    first.given->base()[at / 2 + 1] = std::byte{2};
  }
  first.given.reset();
  first.made = {};
  const Shared second = share();
  ASSERT_TRUE(second.made.reused);
  const auto is_zero = [](std::byte value) { return value == std::byte{0}; };
  EXPECT_TRUE(std::ranges::all_of(std::span(second.made.mapping->base(), kBytes), is_zero));
  EXPECT_TRUE(std::ranges::all_of(std::span(second.given->base(), kBytes), is_zero));
}

TEST_F(SegmentCacheStory, WhatWasNeverTouchedStaysUntouched) {
  Shared first = share();
  first.made.mapping->base()[3 * kPageBytes] = std::byte{1};
  first.given.reset();
  first.made = {};
  const Shared second = share();
  ASSERT_TRUE(second.made.reused);
  // The page of the control lines, and the one above.
  EXPECT_EQ(::lseek(second.made.memfd->get(), 0, SEEK_HOLE), static_cast<off_t>(kPageBytes));
  EXPECT_EQ(::lseek(second.made.memfd->get(), kPageBytes, SEEK_DATA), static_cast<off_t>(3 * kPageBytes));
  EXPECT_LT(::lseek(second.made.memfd->get(), 4 * kPageBytes, SEEK_DATA), 0);
}

TEST_F(SegmentCacheStory, ASegmentIsForOneProcessOfOneUser) {
  share();
  ASSERT_EQ(makers_.idle(), 1u);
  EXPECT_FALSE(share(kMaker, kMaker).made.reused);
  EXPECT_FALSE(share(PeerProcess{kPeer.pid, 1001}, kMaker).made.reused);
  EXPECT_FALSE(share(std::nullopt, kMaker).made.reused);
  EXPECT_FALSE(makers_.make(2 * kBytes, kPeer)->reused);
  EXPECT_TRUE(share().made.reused);
}

TEST_F(SegmentCacheStory, APeerThatIsNotToKeepASegmentDoesNotLetGo) {
  share(kPeer, std::nullopt);
  EXPECT_EQ(peers_.idle(), 0u);
  EXPECT_FALSE(share().made.reused);
}

TEST_F(SegmentCacheStory, AMappingIsUsedAgainForItsMakerOnly) {
  Shared first = share();
  std::byte* const there = first.given->base();
  first.given.reset();
  ASSERT_EQ(peers_.idle(), 1u);
  EXPECT_NE(take(first.made, kPeer)->base(), there);
  EXPECT_NE(take(first.made, std::nullopt)->base(), there);
  EXPECT_EQ(take(first.made, kMaker)->base(), there);
}

TEST_F(SegmentCacheStory, AMemfdOfferedTwiceGetsTwoMappings) {
  Shared first = share();
  const auto again = take(first.made, kMaker);
  EXPECT_NE(again->base(), first.given->base());
}

TEST_F(SegmentCacheStory, WhatIsNoSegmentIsRefusedAsEver) {
  EXPECT_EQ(peers_.map(UniqueFd(::dup(STDERR_FILENO)), {}, kBytes, kMaker).error().code, EPROTO);
  EXPECT_EQ(peers_.map(UniqueFd(), {}, kBytes, kMaker).error().code, EPROTO);
  EXPECT_EQ(peers_.idle(), 0u);
}

TEST_F(SegmentCacheStory, AForkEmptiesTheCacheOfEitherSide) {
  share();
  makers_.before_fork();
  makers_.after_fork();
  EXPECT_EQ(makers_.idle(), 0u);
  EXPECT_FALSE(share().made.reused);
  ASSERT_EQ(peers_.idle(), 2u);
  peers_.before_fork();
  peers_.after_fork();
  EXPECT_EQ(peers_.idle(), 0u);
}

TEST_F(SegmentCacheStory, ASegmentInUseDuringAForkOfItsMakerIsGivenUp) {
  Shared first = share();
  makers_.before_fork();
  makers_.after_fork();
  first = {};
  EXPECT_EQ(makers_.idle(), 0u);
  EXPECT_FALSE(share().made.reused);
  EXPECT_TRUE(share().made.reused) << "the one made after the fork";
}

TEST_F(SegmentCacheStory, ASegmentInUseDuringAForkOfThePeerIsNotLetGoOf) {
  Shared first = share();
  peers_.before_fork();
  peers_.after_fork();
  first = {};
  EXPECT_EQ(peers_.idle(), 0u);
  EXPECT_FALSE(share().made.reused);
}

TEST_F(SegmentCacheStory, TheCacheIsBounded) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const std::size_t most_made = std::min<std::size_t>(SegmentCache::kMaxKept, limit.rlim_cur / 64);
  std::vector<Shared> many;
  for (std::size_t i = 0; i < 3 * SegmentCache::kMaxKept; ++i) many.push_back(share());
  many.clear();
  EXPECT_EQ(makers_.idle(), most_made);
  EXPECT_EQ(peers_.idle(), SegmentCache::kMaxKept);
  // Those of the other process go for it.
  for (std::size_t i = 0; i < SegmentCache::kMaxKept; ++i) many.push_back(share(kMaker, kPeer));
  many.clear();
  EXPECT_EQ(makers_.idle(), most_made);
  EXPECT_TRUE(share(kMaker, kPeer).made.reused);
  EXPECT_FALSE(share().made.reused);
}

TEST_F(SegmentCacheStory, AnotherUsersSegmentThatIsNoLongerKnownIsNotOfferedAgain) {
  const auto offered_again = [&](PeerProcess maker) {
    makers_.clear();
    peers_.clear();
    share(kPeer, maker);
    peers_.clear();
    return share(kPeer, maker).made.reused;
  };
  EXPECT_FALSE(offered_again({::getpid(), ::geteuid() + 1})) << "it would be refused";
  EXPECT_TRUE(offered_again({::getpid(), ::geteuid()})) << "our own user's is mapped anew";
}

TEST_F(SegmentCacheStory, WhatAProcessDoesNotKnowAnyMoreIsForgotten) {
  share();
  share(kMaker, kPeer);
  makers_.forget(kPeer);
  EXPECT_EQ(makers_.idle(), 1u);
  EXPECT_FALSE(share().made.reused);
  EXPECT_TRUE(share(kMaker, kPeer).made.reused);
}

TEST_F(SegmentCacheStory, LargeSegmentsAreNotKept) {
  { const auto large = makers_.make(SegmentCache::kMaxKeptBytes + kPageBytes, kPeer); }
  EXPECT_EQ(makers_.idle(), 0u);
}

TEST_F(SegmentCacheStory, LargeSegmentsAreUsedAgainIfMostOfThemHasNoMemory) {
  const auto use = [&](std::size_t bytes) {
    const auto made = makers_.make(SegmentCache::kMaxKeptBytes, kPeer);
    std::memset(made->mapping->base(), 1, bytes);
    made->mapping->let_go().store(1);
    return made->reused;
  };
  EXPECT_FALSE(use(SegmentCache::kMaxKeptMemory));
  EXPECT_TRUE(use(SegmentCache::kMaxKeptMemory + kPageBytes));
  EXPECT_FALSE(use(kPageBytes));
  EXPECT_TRUE(use(kPageBytes));
}

/// Two sparse parts of 4 MiB each, as overflow areas are.
class SparseMemoryStory : public SegmentCacheStory {
 protected:
  static constexpr std::size_t kPart = std::size_t{4} << 20;
  static constexpr std::size_t kOwnAt = 8 * kPageBytes;
  static constexpr std::size_t kPeersAt = kOwnAt + kPart + 8 * kPageBytes;
  static constexpr std::size_t kWhole = kPeersAt + kPart;

  /// A connection that writes so many bytes to either part, and tells, at either end.
  SegmentCache::Made use(std::size_t own, std::size_t peers) {
    const Shared both = share(own, peers);
    EXPECT_TRUE(both.made.mapping->keep_sparse(parts(own, peers), true));
    EXPECT_TRUE(both.given->keep_sparse(parts(own, peers), true));
    return both.made;
  }
  Shared share(std::size_t own, std::size_t peers) {
    Shared out{*makers_.make(kWhole, kPeer), nullptr};
    auto known = peers_.find(out.made.name, kMaker);
    out.given = known ? known : *peers_.map(UniqueFd(::dup(out.made.memfd->get())), out.made.name, kWhole, kMaker);
    std::memset(out.made.mapping->base() + kOwnAt, 'o', own);
    std::memset(out.given->base() + kPeersAt, 'p', peers);
    return out;
  }
  static SparseParts parts(std::size_t own, std::size_t peers) {
    return {SparsePart{kOwnAt, kPart, own}, SparsePart{kPeersAt, kPart, peers}};
  }
  static blkcnt_t memory(const UniqueFd& memfd) {
    struct stat status {};
    EXPECT_EQ(::fstat(memfd.get(), &status), 0);
    return status.st_blocks * 512;
  }
  static bool is_zero(const SegmentCache::Made& made) {
    const std::span all(made.mapping->base(), kWhole);
    return std::ranges::all_of(all, [](std::byte value) { return value == std::byte{0}; });
  }
  const Nanos kLater = monotonic_now() + std::chrono::hours(1);
};

TEST_F(SparseMemoryStory, IsThereForTheNextConnectionAndZero) {
  use(0, kPart);
  const Shared second = share(0, 0);
  ASSERT_TRUE(second.made.reused);
  EXPECT_GE(memory(*second.made.memfd), static_cast<blkcnt_t>(kPart));
  EXPECT_EQ(second.made.mapping->sparse_memory(second.made.mapping->base() + kPeersAt), kPart);
  EXPECT_EQ(second.given->sparse_memory(second.given->base() + kPeersAt), kPart);
  EXPECT_EQ(second.made.mapping->sparse_memory(second.made.mapping->base() + kOwnAt), 0u);
  EXPECT_TRUE(is_zero(second.made));
}

TEST_F(SparseMemoryStory, IsZeroWhateverEarlierConnectionsHaveUsed) {
  for (const std::size_t bytes : {kPart, std::size_t{5}, std::size_t{0}, 3 * kPageBytes + 1, kPart / 2}) {
    use(bytes, bytes / 2);
    const Shared next = share(0, 0);
    ASSERT_TRUE(next.made.reused);
    EXPECT_TRUE(is_zero(next.made)) << bytes;
    EXPECT_TRUE(next.made.mapping->keep_sparse(parts(0, 0), true));
    EXPECT_TRUE(next.given->keep_sparse(parts(0, 0), true));
  }
}

TEST_F(SparseMemoryStory, AConnectionThatDoesNotTellLeavesNoSegmentBehind) {
  use(kPart, 0);
  share(0, 0);
  EXPECT_EQ(makers_.idle(), 0u);
  EXPECT_EQ(peers_.idle(), 0u);
  EXPECT_FALSE(share(0, 0).made.reused);
}

TEST_F(SparseMemoryStory, InAnotherPlaceItIsNotTaken) {
  use(kPart, 0);
  const Shared second = share(0, 0);
  SparseParts others = parts(0, 0);
  others[0].at += kPageBytes;
  EXPECT_FALSE(second.made.mapping->keep_sparse(others, true));
  others = parts(0, 0);
  others[0].bytes -= kPageBytes;
  EXPECT_FALSE(second.made.mapping->keep_sparse(others, true));
  EXPECT_TRUE(second.made.mapping->keep_sparse(parts(0, 0), true));
}

TEST_F(SparseMemoryStory, OfASegmentThatIsNotKeptItIsNotTaken) {
  const auto fresh = make_segment(kWhole);
  EXPECT_FALSE(fresh->mapping->keep_sparse(parts(0, 0), true));
  const Shared one = share(0, 0);
  one.made.mapping->forget_peer();
  EXPECT_FALSE(one.made.mapping->keep_sparse(parts(0, 0), true));
}

TEST_F(SparseMemoryStory, AllIdleSegmentsTogetherKeepSixteenMebibytes) {
  std::vector<Shared> many;
  for (int i = 0; i < 10; ++i) many.push_back(share(kPart, kPart / 2));
  for (const Shared& each : many) {
    EXPECT_TRUE(each.made.mapping->keep_sparse(parts(kPart, kPart / 2), true));
    EXPECT_TRUE(each.given->keep_sparse(parts(kPart, kPart / 2), true));
  }
  EXPECT_EQ(makers_.idle_sparse_memory(), 0u) << "all are in use";
  many.clear();
  EXPECT_EQ(makers_.idle(), 2u);
  EXPECT_EQ(makers_.idle_sparse_memory(), 3 * kPart);
  EXPECT_EQ(peers_.idle_sparse_memory(), 3 * kPart);
  use(0, 0);
  EXPECT_EQ(makers_.idle_sparse_memory(), 3 * kPart);
}

TEST_F(SparseMemoryStory, IsGivenBackOnceItWasNotUsedForASecond) {
  const UniqueFd memfd(::dup(use(kPart, kPart).memfd->get()));
  EXPECT_TRUE(makers_.give_back(monotonic_now()));
  EXPECT_GE(memory(memfd), static_cast<blkcnt_t>(2 * kPart));
  EXPECT_FALSE(makers_.give_back(kLater));
  EXPECT_EQ(makers_.idle_sparse_memory(), 0u);
  EXPECT_LT(memory(memfd), static_cast<blkcnt_t>(8 * kPageBytes));
  EXPECT_FALSE(peers_.give_back(kLater));
  EXPECT_EQ(peers_.idle(), 0u);
}

TEST_F(SparseMemoryStory, SegmentsWithoutSparseMemoryStay) {
  use(0, 0);
  EXPECT_FALSE(makers_.give_back(kLater));
  EXPECT_EQ(makers_.idle(), 1u);
}

/// A server may close as soon as it has written all, and a client that has uploaded, too.
TEST_F(SparseMemoryStory, IsNotTakenFromAPeerThatMayStillRead) {
  const auto is_left = [&](bool by_maker, bool is_read) {
    Shared both = share(kPart, kPart);
    EXPECT_TRUE(both.made.mapping->keep_sparse(parts(kPart, kPart), is_read));
    EXPECT_TRUE(both.given->keep_sparse(parts(kPart, kPart), is_read));
    const std::shared_ptr<MappedSegment> reader = by_maker ? both.given : both.made.mapping;
    const UniqueFd memfd(::dup(both.made.memfd->get()));
    if (by_maker) {
      both.made = {};
    } else {
      both.given.reset();
    }
    SegmentCache& left = by_maker ? makers_ : peers_;
    left.give_back(kLater);
    EXPECT_EQ(left.idle(), 0u);
    return memory(memfd) >= static_cast<blkcnt_t>(2 * kPart);
  };
  EXPECT_TRUE(is_left(true, false));
  EXPECT_TRUE(is_left(false, false));
  EXPECT_FALSE(is_left(true, true)) << "the peer has read all, and could keep its mapping";
  EXPECT_TRUE(is_left(false, true)) << "only its maker takes it";
}

/// The maker may use the segment for the next connection, whose other end has not looked for it yet.
TEST_F(SparseMemoryStory, APeerThatHasLetGoDoesNotTakeIt) {
  use(kPart, kPart);
  const SegmentCache::Made next = *makers_.make(kWhole, kPeer);
  ASSERT_TRUE(next.reused);
  std::memset(next.mapping->base() + kOwnAt, 'n', kPart);
  peers_.give_back(kLater);
  peers_.clear();
  const std::span written(next.mapping->base() + kOwnAt, kPart);
  EXPECT_TRUE(std::ranges::all_of(written, [](std::byte value) { return value == std::byte{'n'}; }));
}

TEST_F(SparseMemoryStory, OfAPeerThatHasLetGoItIsTakenReadOrNot) {
  Shared both = share(kPart, kPart);
  EXPECT_TRUE(both.made.mapping->keep_sparse(parts(kPart, kPart), false));
  EXPECT_TRUE(both.given->keep_sparse(parts(kPart, kPart), false));
  const UniqueFd memfd(::dup(both.made.memfd->get()));
  both.given.reset();
  both.made = {};
  makers_.give_back(kLater);
  EXPECT_LT(memory(memfd), static_cast<blkcnt_t>(8 * kPageBytes));
}

TEST_F(SparseMemoryStory, AnotherUsersSegmentThatWasGivenBackIsNotOfferedAgain) {
  Shared both = share(kPart, kPart);
  EXPECT_TRUE(both.given->keep_sparse(parts(kPart, kPart), true));
  both.given.reset();
  ASSERT_EQ(both.made.mapping->let_go().load(), 1u);
  peers_.give_back(kLater);
  EXPECT_EQ(both.made.mapping->let_go().load(), 0u) << "it would be refused";
}

TEST_F(SparseMemoryStory, IsNotTakenFromAForkedChild) {
  Shared both = share(kPart, kPart);
  const UniqueFd memfd(::dup(both.made.memfd->get()));
  EXPECT_TRUE(both.given->keep_sparse(parts(kPart, kPart), true));
  peers_.before_fork();
  peers_.after_fork();
  both.given.reset();
  EXPECT_GE(memory(memfd), static_cast<blkcnt_t>(2 * kPart));
  EXPECT_EQ(peers_.idle(), 0u);
}

TEST_F(SegmentCacheStory, AProcessWithFewDescriptorsKeepsThem) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{48, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  share();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(makers_.idle(), 0u);
}

TEST_F(SegmentCacheStory, ADescriptorThatTheProgramClosedIsNeitherUsedNorClosedAgain) {
  Shared first = share();
  const int number = first.made.memfd->get();
  first = {};
  const UniqueFd programs(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::dup3(programs.get(), number, O_CLOEXEC), number);
  EXPECT_FALSE(share().made.reused);
  EXPECT_EQ(::fcntl(number, F_GETFD), FD_CLOEXEC) << "it is the program's now";
  ::close(number);
}

TEST_F(SegmentCacheStory, SegmentsComeBackWithoutMemory) {
  Shared first = share();
  support::fail_allocation(1, support::Failing::all_from_then_on);
  first.given.reset();
  first.made = {};
  EXPECT_EQ(support::end_failures(), 0u);
  EXPECT_TRUE(share().made.reused);
}

/// Calls `make` with less memory each time less is missing, until all is there.
void without_memory(const std::function<void()>& make) {
  for (unsigned number = 1, failed = 1; failed > 0; ++number) {
    support::fail_allocation(number, support::Failing::one);
    try {
      make();
    } catch (const std::bad_alloc&) {
    }
    failed = support::end_failures();
  }
}

TEST_F(SegmentCacheStory, AFailedAllocationTakesNoPlaceAndLosesNoSegment) {
  if (!support::can_fail_allocations()) GTEST_SKIP() << "the sanitizer has an allocator of its own";
  for (std::size_t i = 0; i <= SegmentCache::kMaxKept; ++i) {
    makers_.clear();
    without_memory([&] { static_cast<void>(makers_.make(kBytes, kPeer)); });
  }
  makers_.clear();
  const std::byte* const there = share().given->base();
  without_memory([&] {
    const auto made = makers_.make(kBytes, kPeer);
    EXPECT_TRUE(made->reused);
    made->mapping->let_go().store(1);
  });
  Shared second = share();
  second.given.reset();
  ASSERT_TRUE(second.made.reused) << "all places are taken";
  without_memory([&] { EXPECT_EQ(peers_.find(second.made.name, kMaker)->base(), there); });
}

TEST_F(SegmentCacheStory, SegmentsOfADeadProcessGoAwayWithTheTrafficOfOthers) {
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(dead, nullptr, 0), dead);
  const PeerProcess gone{dead, 1000};
  share(gone, gone);
  ASSERT_EQ(makers_.idle(), 1u);
  ASSERT_EQ(peers_.idle(), 1u);
  share();
  EXPECT_EQ(makers_.idle(), 1u);
  EXPECT_EQ(peers_.idle(), 1u);
  EXPECT_TRUE(share().made.reused);
}

}  // namespace
}  // namespace ringsock::soft::testing
