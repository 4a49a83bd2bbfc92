// Application memory that becomes shared memory while it is registered for a peer.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "core/device/shm/memory/address_space.h"
#include "core/device/shm/memory/app_memory.h"
#include "tests/unit/device_shm/rc_pair.h"

namespace ringsock::soft::testing {
namespace {

constexpr std::size_t kBytes = 64 * kPageBytes;
constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS;
constexpr int kRemoteWrite = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

/// Memory of an application, as malloc() has it for large blocks.
class Pages {
 public:
  explicit Pages(std::size_t bytes = kBytes, int protection = PROT_READ | PROT_WRITE, int flags = kPrivate, int fd = -1)
      : data_(static_cast<unsigned char*>(::mmap(nullptr, bytes, protection, flags, fd, 0))), bytes_(bytes) {
    if (data_ == MAP_FAILED) std::abort();
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { unmap(); }
  void unmap() {
    if (bytes_ != 0) ::munmap(data_, std::exchange(bytes_, 0));
  }
  [[nodiscard]] unsigned char* data() const { return data_; }
  [[nodiscard]] std::span<unsigned char> span() const { return {data_, bytes_}; }
  void fill() const {
    for (std::size_t i = 0; i < bytes_; ++i) data_[i] = static_cast<unsigned char>(i * 31 + i / kPageBytes);
  }
  [[nodiscard]] bool is_as_filled() const {
    for (std::size_t i = 0; i < bytes_; ++i) {
      if (data_[i] != static_cast<unsigned char>(i * 31 + i / kPageBytes)) return false;
    }
    return true;
  }

 private:
  unsigned char* data_;
  std::size_t bytes_;
};

bool is_shared_now(const void* address, std::size_t bytes = kBytes) {
  const auto start = reinterpret_cast<std::uint64_t>(address);
  const auto areas = areas_between(start, start + bytes, AreaDetail::maps);
  return std::ranges::any_of(areas, [](const MemoryArea& area) { return area.permissions.ends_with('s'); });
}

/// What a peer process sees of it.
std::unique_ptr<MappedSegment> seen_by_peer(const AppMemory& memory) {
  return must(map_memory_of(::getpid(), memory.place()));
}

bool is_shareable(void* memory, std::size_t bytes) { return AppMemory(memory, bytes, true).place().inode != 0; }

/// Where memory is shared at all.
class SharedAppMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    share_application_memory(true);
    // A thread that has been joined may be counted for a moment yet.
    const Nanos deadline = monotonic_now() + std::chrono::seconds(1);
    const Pages probe;
    while (!is_shareable(probe.data(), kBytes)) {
      if (monotonic_now() > deadline) GTEST_SKIP() << "skipped: this process may not share its memory";
      std::this_thread::yield();
    }
  }
  void TearDown() override { share_application_memory(false); }
};

TEST_F(SharedAppMemory, KeepsItsContentsWhenItBecomesSharedAndWhenItIsPrivateAgain) {
  const Pages pages;
  pages.fill();
  {
    const AppMemory memory(pages.data() + 100, kBytes - 200, true);
    ASSERT_NE(memory.place().inode, 0U);
    EXPECT_TRUE(pages.is_as_filled());
    const auto peer = seen_by_peer(memory);
    EXPECT_EQ(std::memcmp(peer->base(), pages.data(), kBytes), 0);
    peer->base()[5000] = std::byte{77};
    EXPECT_EQ(pages.data()[5000], 77);
    pages.data()[6000] = 78;
    EXPECT_EQ(peer->base()[6000], std::byte{78});
  }
  EXPECT_FALSE(is_shared_now(pages.data()));
  EXPECT_EQ(pages.data()[5000], 77);
  pages.data()[5000] = static_cast<unsigned char>(5000 * 31 + 5000 / kPageBytes);
  pages.data()[6000] = static_cast<unsigned char>(6000 * 31 + 6000 / kPageBytes);
  EXPECT_TRUE(pages.is_as_filled());
}

TEST_F(SharedAppMemory, APeerThatKeepsItsMappingReachesNothingAfterTheEnd) {
  const Pages pages;
  pages.fill();
  std::unique_ptr<MappedSegment> peer;
  {
    const AppMemory memory(pages.data(), kBytes, true);
    peer = seen_by_peer(memory);
  }
  std::memset(peer->base(), 0, kBytes);
  EXPECT_TRUE(pages.is_as_filled());
}

TEST_F(SharedAppMemory, BehavesAsAnonymousMemoryAfterwards) {
  Pages pages;
  pages.fill();
  ASSERT_TRUE(is_shareable(pages.data(), kBytes));
  // An allocator that gives pages back expects zeros.
  ASSERT_EQ(::madvise(pages.data(), kPageBytes, MADV_DONTNEED), 0);
  EXPECT_TRUE(std::ranges::all_of(pages.span().first(kPageBytes), [](unsigned char byte) { return byte == 0; }));
  // realloc(3) lets large blocks grow in place or elsewhere.
  auto* grown = static_cast<unsigned char*>(::mremap(pages.data(), kBytes, 4 * kBytes, MREMAP_MAYMOVE));
  ASSERT_NE(grown, MAP_FAILED);
  EXPECT_EQ(grown[4 * kBytes - 1], 0);
  grown[4 * kBytes - 1] = 1;
  EXPECT_EQ(::munmap(grown, 4 * kBytes), 0);
}

TEST_F(SharedAppMemory, CanBeSharedAgainAndAgain) {
  const Pages pages;
  pages.fill();
  for (int round = 0; round < 300; ++round) ASSERT_TRUE(is_shareable(pages.data(), kBytes)) << round;
  EXPECT_TRUE(pages.is_as_filled());
}

TEST_F(SharedAppMemory, SeveralRegistrationsHaveTheSamePages) {
  const Pages pages;
  auto first = std::make_unique<AppMemory>(pages.data(), kBytes, true);
  const AppMemory second(pages.data() + 3 * kPageBytes + 7, 20 * kPageBytes, true);
  EXPECT_EQ(second.place().inode, first->place().inode);
  first.reset();
  EXPECT_TRUE(is_shared_now(pages.data()));
  const auto peer = seen_by_peer(second);
  peer->base()[4 * kPageBytes] = std::byte{9};
  EXPECT_EQ(pages.data()[4 * kPageBytes], 9);
}

TEST_F(SharedAppMemory, WhatPeersWriteOtherwiseIsLeftAlone) {
  const Pages pages;
  const AppMemory unshared(pages.data() + 60 * kPageBytes, 10, false);
  EXPECT_FALSE(is_shareable(pages.data(), kBytes));
  EXPECT_TRUE(is_shareable(pages.data(), 50 * kPageBytes));
}

TEST_F(SharedAppMemory, OverlappingSharedMemoryIsLeftAlone) {
  const Pages pages;
  const AppMemory first(pages.data(), 40 * kPageBytes, true);
  const AppMemory second(pages.data() + 20 * kPageBytes, 40 * kPageBytes, true);
  EXPECT_NE(first.place().inode, 0U);
  EXPECT_EQ(second.place().inode, 0U);
}

TEST_F(SharedAppMemory, MayBeFreedWhileItIsRegistered) {
  Pages pages;
  std::optional<AppMemory> memory(std::in_place, pages.data(), kBytes, true);
  ASSERT_TRUE(is_shared_now(pages.data()));
  void* const address = pages.data();
  pages.unmap();
  // Somebody else's memory at the same place.
  auto* other = static_cast<unsigned char*>(
      ::mmap(address, kBytes, PROT_READ | PROT_WRITE, kPrivate | MAP_FIXED_NOREPLACE, -1, 0));
  ASSERT_EQ(other, address);
  other[0] = 42;
  EXPECT_TRUE(is_shareable(other, kBytes)) << "the earlier registration is of memory that is gone";
  memory.reset();
  EXPECT_EQ(other[0], 42);
  EXPECT_EQ(::munmap(other, kBytes), 0);
}

TEST_F(SharedAppMemory, FreedInPartTheRestBecomesPrivate) {
  const Pages pages;
  pages.fill();
  {
    const AppMemory memory(pages.data(), kBytes, true);
    ASSERT_EQ(::mmap(pages.data() + kPageBytes, kPageBytes, PROT_READ | PROT_WRITE, kPrivate | MAP_FIXED, -1, 0),
              pages.data() + kPageBytes);
  }
  EXPECT_FALSE(is_shared_now(pages.data()));
  EXPECT_EQ(pages.data()[kPageBytes + 1], 0);
  EXPECT_EQ(pages.data()[2 * kPageBytes + 1], static_cast<unsigned char>((2 * kPageBytes + 1) * 31 + 2));
}

/// What the application did to its memory while it was shared.
struct Change {
  const char* name;
  void (*make)(unsigned char*& data);
};

void protect_a_half(unsigned char*& data) { ASSERT_EQ(::mprotect(data + kBytes / 2, kBytes / 2, PROT_READ), 0); }
void forbid_a_half(unsigned char*& data) { ASSERT_EQ(::mprotect(data, kBytes / 2, PROT_NONE), 0); }
void move(unsigned char*& data) {
  void* const elsewhere = ::mmap(nullptr, kBytes, PROT_NONE, kPrivate, -1, 0);
  ASSERT_NE(elsewhere, MAP_FAILED);
  data = static_cast<unsigned char*>(::mremap(data, kBytes, kBytes, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere));
  ASSERT_EQ(data, elsewhere);
}
void grow(unsigned char*& data) {
  data = static_cast<unsigned char*>(::mremap(data, kBytes, 4 * kBytes, MREMAP_MAYMOVE));
  ASSERT_NE(data, MAP_FAILED);
  ASSERT_EQ(data[4 * kBytes - 1], 0);
  ASSERT_EQ(::munmap(data + kBytes, 3 * kBytes), 0);
}
void move_and_protect(unsigned char*& data) {
  move(data);
  ASSERT_EQ(::mprotect(data + kBytes / 4, kBytes / 4, PROT_READ), 0);
  forbid_a_half(data);
}
void fork_a_child(unsigned char*& data) {
  protect_a_half(data);
  const pid_t child = ::fork();
  if (child == 0) {
    if (is_shared_now(data)) ::_exit(2);
    std::memset(data, 'c', kBytes / 2);
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
}

class ChangedWhileShared : public SharedAppMemory, public ::testing::WithParamInterface<Change> {};

TEST_P(ChangedWhileShared, KeepsItsContentsAndBecomesPrivateAgain) {
  auto* data = static_cast<unsigned char*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, kPrivate, -1, 0));
  ASSERT_NE(data, MAP_FAILED);
  for (std::size_t i = 0; i < kBytes; ++i) data[i] = static_cast<unsigned char>(i * 31 + i / kPageBytes);
  std::optional<AppMemory> memory(std::in_place, data, kBytes, true);
  ASSERT_TRUE(is_shared_now(data));
  const auto peer = seen_by_peer(*memory);
  ASSERT_NO_FATAL_FAILURE(GetParam().make(data));
  const auto start = reinterpret_cast<std::uint64_t>(data);
  const auto before = areas_between(start, start + kBytes, AreaDetail::maps);
  memory.reset();
  // Whatever the peer does now.
  std::memset(peer->base(), 'p', kBytes);
  EXPECT_FALSE(is_shared_now(data));
  const auto after = areas_between(start, start + kBytes, AreaDetail::maps);
  ASSERT_EQ(after.size(), before.size());
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].permissions.substr(0, 3), before[i].permissions.substr(0, 3));
    EXPECT_EQ(after[i].permissions[3], 'p');
  }
  ASSERT_EQ(::mprotect(data, kBytes, PROT_READ | PROT_WRITE), 0);
  std::size_t lost = 0;
  for (std::size_t i = 0; i < kBytes; ++i) lost += data[i] != static_cast<unsigned char>(i * 31 + i / kPageBytes);
  EXPECT_EQ(lost, 0U);
  std::memset(data, 1, kBytes);
  EXPECT_EQ(::munmap(data, kBytes), 0);
}

INSTANTIATE_TEST_SUITE_P(By, ChangedWhileShared,
                         ::testing::Values(Change{"mprotectOfAHalf", protect_a_half},
                                           Change{"protNoneForAHalf", forbid_a_half}, Change{"mremap", move},
                                           Change{"realloc", grow}, Change{"mremapAndMprotect", move_and_protect},
                                           Change{"mprotectAndFork", fork_a_child}),
                         [](const auto& change) { return std::string(change.param.name); });

TEST_F(SharedAppMemory, ADescriptorThatTheProgramTookForItselfIsLeftAlone) {
  const Pages pages;
  pages.fill();
  const UniqueFd other(::memfd_create("other", MFD_CLOEXEC));
  ASSERT_EQ(::write(other.get(), "precious", 8), 8);
  std::optional<AppMemory> memory(std::in_place, pages.data(), kBytes, true);
  const auto number = static_cast<int>(memory->place().fd);
  ASSERT_EQ(::dup2(other.get(), number), number);
  memory.reset();
  char text[8];
  EXPECT_EQ(::pread(number, text, sizeof text, 0), 8);
  EXPECT_EQ(std::string_view(text, 8), "precious");
  EXPECT_TRUE(pages.is_as_filled());
  EXPECT_EQ(::close(number), 0);
}

TEST_F(SharedAppMemory, MemoryOfOtherKindsIsLeftAlone) {
  unsigned char stack[kBytes];
  EXPECT_FALSE(is_shareable(stack, sizeof stack));
  const Pages read_only(kBytes, PROT_READ);
  EXPECT_FALSE(is_shareable(read_only.data(), kBytes));
  const Pages shared(kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
  EXPECT_FALSE(is_shareable(shared.data(), kBytes));
  const UniqueFd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  const Pages of_file(kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file.get());
  EXPECT_FALSE(is_shareable(of_file.data(), kBytes));
  const Pages not_for_children;
  ASSERT_EQ(::madvise(not_for_children.data(), kPageBytes, MADV_DONTFORK), 0);
  EXPECT_FALSE(is_shareable(not_for_children.data(), kBytes));
  const Pages with_hole;
  ASSERT_EQ(::munmap(with_hole.data() + 5 * kPageBytes, kPageBytes), 0);
  EXPECT_FALSE(is_shareable(with_hole.data(), kBytes));
  const Pages small;
  EXPECT_FALSE(is_shareable(small.data(), kPageBytes));
  const Pages locked;
  // Sanitizers make mlock(2) do nothing.
  if (::syscall(SYS_mlock, locked.data(), kPageBytes) == 0) {
    EXPECT_FALSE(is_shareable(locked.data(), kBytes));
  }
}

TEST_F(SharedAppMemory, CanBeSwitchedOff) {
  const Pages pages;
  share_application_memory(false);
  EXPECT_FALSE(is_shareable(pages.data(), kBytes));
  share_application_memory(true);
  EXPECT_TRUE(is_shareable(pages.data(), kBytes));
}

TEST_F(SharedAppMemory, AThreadThatWritesMeanwhileLosesNothing) {
  constexpr std::size_t kLargeBytes = std::size_t{16} << 20;  // copying it takes long enough to be met
  constexpr int kRounds = 20;
  const Pages pages(kLargeBytes);
  // Each word counts the writes to it; the thread keeps what it ought to be.
  auto* words = reinterpret_cast<std::atomic<std::uint32_t>*>(pages.data());
  constexpr std::size_t kWords = kLargeBytes / kPageBytes;
  constexpr std::size_t kStride = kPageBytes / sizeof(std::uint32_t);
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> passes{0};
  std::uint64_t lost = 0;
  std::thread writer([&] {
    for (std::uint32_t pass = 0; !stop.load(std::memory_order_relaxed); ++pass) {
      for (std::size_t i = 0; i < kWords; ++i) {
        std::atomic<std::uint32_t>& word = words[i * kStride];
        lost += word.load(std::memory_order_relaxed) != pass;
        word.store(pass + 1, std::memory_order_relaxed);
      }
      passes.fetch_add(1, std::memory_order_relaxed);
    }
  });
  int shared_rounds = 0;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t before = passes.load(std::memory_order_relaxed);
    {
      const AppMemory memory(pages.data(), kLargeBytes, true);
      shared_rounds += memory.place().inode != 0;
    }
    while (passes.load(std::memory_order_relaxed) < before + 2) std::this_thread::yield();
  }
  stop.store(true, std::memory_order_relaxed);
  writer.join();
  EXPECT_EQ(lost, 0U);
  if (shared_rounds == 0) GTEST_SKIP() << "userfaultfd(2) is not permitted here: with threads memory is never shared";
  EXPECT_EQ(shared_rounds, kRounds);
}

TEST_F(SharedAppMemory, AReadFromAFileIntoItMeanwhileLosesNothing) {
  constexpr std::size_t kLargeBytes = std::size_t{8} << 20;
  const Pages pages(kLargeBytes);
  const UniqueFd file(::memfd_create("source", MFD_CLOEXEC));
  std::atomic<bool> stop{false};
  std::atomic<int> failures{0}, rounds{0};
  std::thread reader([&] {
    std::vector<unsigned char> content(kLargeBytes);
    for (unsigned char round = 1; !stop.load(std::memory_order_relaxed); ++round) {
      std::ranges::fill(content, round);
      const bool read = ::pwrite(file.get(), content.data(), kLargeBytes, 0) == static_cast<ssize_t>(kLargeBytes) &&
                        ::pread(file.get(), pages.data(), kLargeBytes, 0) == static_cast<ssize_t>(kLargeBytes);
      if (!read || std::memcmp(pages.data(), content.data(), kLargeBytes) != 0) failures.fetch_add(1);
      rounds.fetch_add(1);
    }
  });
  for (int round = 0; round < 20; ++round) {
    const int before = rounds.load();
    { const AppMemory memory(pages.data(), kLargeBytes, true); }
    while (rounds.load() < before + 2) std::this_thread::yield();
  }
  stop.store(true);
  reader.join();
  EXPECT_EQ(failures.load(), 0);
}

TEST_F(SharedAppMemory, AForkedChildHasItsOwnCopyAsOfTheFork) {
  const Pages pages;
  pages.fill();
  const AppMemory memory(pages.data(), kBytes, true);
  ASSERT_TRUE(is_shared_now(pages.data()));
  int go[2];
  ASSERT_EQ(::pipe(go), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte;
    // Until the parent has written.
    if (::read(go[0], &byte, 1) != 1) ::_exit(3);
    if (is_shared_now(pages.data())) ::_exit(4);
    const bool good = pages.is_as_filled();
    std::memset(pages.data(), 'c', kBytes);
    ::_exit(good ? 0 : 5);
  }
  std::memset(pages.data(), 'p', kBytes);
  ASSERT_EQ(::write(go[1], "g", 1), 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(std::ranges::all_of(pages.span(), [](unsigned char byte) { return byte == 'p'; }));
  EXPECT_TRUE(is_shared_now(pages.data()));
  ::close(go[0]);
  ::close(go[1]);
}

// -- what a peer says of its memory

class LyingPeer : public ::testing::Test {
 protected:
  SharedPlace place_of(int fd, std::uint64_t bytes = kBytes) {
    struct stat status {};
    EXPECT_EQ(::fstat(fd, &status), 0);
    return {0x10000, bytes, status.st_ino, static_cast<std::uint32_t>(fd)};
  }
  static int refused(const SharedPlace& place) {
    auto mapped = map_memory_of(::getpid(), place);
    return mapped ? 0 : mapped.error().code;
  }
  static UniqueFd memfd(off_t bytes, int seals, unsigned flags = 0) {
    UniqueFd fd(::memfd_create("liar", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
    if (!fd || ::ftruncate(fd.get(), bytes) != 0 || ::fcntl(fd.get(), F_ADD_SEALS, seals) != 0) std::abort();
    return fd;
  }
  static constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_SEAL;
};

TEST_F(LyingPeer, IsBelievedWhenItSaysTheTruth) {
  const UniqueFd good = memfd(kBytes, kSealed);
  EXPECT_EQ(refused(place_of(good.get())), 0);
}

TEST_F(LyingPeer, AFileThatCouldShrinkIsRefused) {
  const UniqueFd unsealed = memfd(kBytes, 0);
  EXPECT_EQ(refused(place_of(unsealed.get())), EPROTO);
  const UniqueFd half = memfd(kBytes, F_SEAL_SHRINK);
  EXPECT_EQ(refused(place_of(half.get())), EPROTO);
}

TEST_F(LyingPeer, AFileSmallerThanItSaidIsRefused) {
  const UniqueFd small = memfd(kBytes - kPageBytes, kSealed);
  EXPECT_EQ(refused(place_of(small.get())), EPROTO);
}

TEST_F(LyingPeer, NonsenseIsRefused) {
  const UniqueFd good = memfd(kBytes, kSealed);
  SharedPlace place = place_of(good.get());
  place.bytes = 0;
  EXPECT_EQ(refused(place), EPROTO);
  place.bytes = 1000;
  EXPECT_EQ(refused(place), EPROTO);
  place.bytes = ~std::uint64_t{0} & ~(kPageBytes - 1);
  EXPECT_EQ(refused(place), EPROTO);
  place = place_of(good.get());
  ++place.inode;
  EXPECT_EQ(refused(place), EPROTO);
  place = place_of(good.get());
  place.fd = 0xffffffff;
  EXPECT_EQ(refused(place), EPROTO);
  place.fd = 1'000'000;
  EXPECT_EQ(refused(place), ENOENT);
}

TEST_F(LyingPeer, OtherFilesAreRefusedAndNotOpened) {
  int pipe_ends[2];
  ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
  EXPECT_EQ(refused(place_of(pipe_ends[0])), EPROTO);
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
  const UniqueFd program(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(refused(place_of(program.get())), EPROTO);
}

TEST_F(LyingPeer, AWriteOutsideWhatIsMappedFindsNothing) {
  const UniqueFd good = memfd(kBytes, kSealed);
  const SharedPlace place = place_of(good.get());
  PeerMemory memory;
  PeerSpace self;
  self.set_process(::getpid());
  const SpaceMark mark = own_space_mark();
  const std::uint64_t start = place.start;
  EXPECT_NE(memory.find(self, mark, place, start, kBytes), nullptr);
  EXPECT_EQ(memory.find(self, mark, place, start - 1, 1), nullptr);
  EXPECT_EQ(memory.find(self, mark, place, start + 1, kBytes), nullptr);
  EXPECT_EQ(memory.find(self, mark, place, start + kBytes, 1), nullptr);
  EXPECT_EQ(memory.find(self, mark, place, ~std::uint64_t{0}, 1), nullptr);
  EXPECT_EQ(memory.find(self, mark, place, start, ~std::uint64_t{0}), nullptr);
  EXPECT_EQ(memory.find(self, mark, {}, start, 1), nullptr);
}

// -- through a queue pair

class RcAppMemory : public SharedAppMemory {
 protected:
  ibv_wc_status write(std::string_view text, const void* to, std::uint32_t rkey, ibv_wr_opcode opcode) {
    ibv_send_wr wr{};
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
    wr.wr.rdma.remote_addr = reinterpret_cast<std::uint64_t>(to);
    wr.wr.rdma.rkey = rkey;
    EXPECT_EQ(pair_.alice.post(wr, {sge_of(text.data(), text.size(), 0)}), 0);
    return pair_.alice.next().status;
  }
  RcPair pair_;
};

TEST_F(RcAppMemory, AWriteLandsInSharedMemory) {
  const Pages pages;
  pair_.bob.post_receives(1);
  auto mr = pair_.bob.register_memory(pages.data(), kBytes, kRemoteWrite);
  ASSERT_TRUE(is_shared_now(pages.data()));
  EXPECT_EQ(write("plain", pages.data() + 100, mr->rkey, IBV_WR_RDMA_WRITE), IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(pages.data() + 100, "plain", 5), 0);
  EXPECT_EQ(write("with a message", pages.data() + 9000, mr->rkey, IBV_WR_RDMA_WRITE_WITH_IMM), IBV_WC_SUCCESS);
  EXPECT_EQ(pair_.bob.next().opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(std::memcmp(pages.data() + 9000, "with a message", 14), 0);
  // The page is shared, what lies around the registration is not the peer's.
  EXPECT_EQ(write("beyond", pages.data() + kBytes - 5, mr->rkey, IBV_WR_RDMA_WRITE), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(RcAppMemory, KeysThatComeAgainLeadToTheirOwnMemory) {
  const Pages one, two;
  for (int round = 0; round < 600; ++round) {  // generations of a key end after 255
    const Pages& pages = round % 2 == 0 ? one : two;
    auto mr = pair_.bob.register_memory(pages.data(), kBytes, kRemoteWrite);
    const std::string text = std::to_string(round);
    if (round % 255 < 2) {
      ASSERT_EQ(write(text, pages.data() + 77, mr->rkey, IBV_WR_RDMA_WRITE), IBV_WC_SUCCESS);
      ASSERT_EQ(std::memcmp(pages.data() + 77, text.data(), text.size()), 0) << round;
    }
  }
}

TEST_F(RcAppMemory, AfterTheEndOfTheRegistrationNothingIsWritten) {
  const Pages pages;
  pages.fill();
  std::uint32_t rkey = 0;
  {
    auto mr = pair_.bob.register_memory(pages.data(), kBytes, kRemoteWrite);
    rkey = mr->rkey;
    EXPECT_EQ(write("x", pages.data(), rkey, IBV_WR_RDMA_WRITE), IBV_WC_SUCCESS);
    pages.data()[0] = 0;
  }
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
  wr.wr.rdma.remote_addr = reinterpret_cast<std::uint64_t>(pages.data());
  wr.wr.rdma.rkey = rkey;
  ASSERT_EQ(pair_.alice.post(wr, {sge_of("yy", 2, 0)}), 0);
  ibv_wc wc{};
  while (ibv_poll_cq(pair_.alice.cq.get(), 1, &wc) == 0) End::poll_once(*pair_.bob.cq);
  EXPECT_EQ(wc.status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_TRUE(pages.is_as_filled());
}

TEST_F(RcAppMemory, WritesAndTheEndOfARegistrationInTwoThreads) {
  const Pages pages;
  auto mr = pair_.bob.register_memory(pages.data(), kBytes, kRemoteWrite);
  const std::uint32_t rkey = mr->rkey;
  const std::string text(3 * kPageBytes, 'w');
  std::atomic<int> written{0};
  std::thread writer([&] {
    // Until the key is gone: the write then waits for Bob, who never looks, so it stays queued.
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
    wr.wr.rdma.remote_addr = reinterpret_cast<std::uint64_t>(pages.data() + 50);
    wr.wr.rdma.rkey = rkey;
    while (pair_.alice.post(wr, {sge_of(text.data(), text.size(), 0)}) == 0 &&
           !End::poll_once(*pair_.alice.cq).empty()) {
      written.fetch_add(1);
    }
  });
  while (written.load() < 100) std::this_thread::yield();
  mr = {};
  std::memset(pages.data(), 'o', kBytes);
  writer.join();
  EXPECT_TRUE(std::ranges::all_of(pages.span(), [](unsigned char byte) { return byte == 'o'; }));
}

}  // namespace
}  // namespace ringsock::soft::testing
