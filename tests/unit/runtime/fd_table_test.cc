#include "core/runtime/fd_table.h"
#include "core/runtime/reader_barrier.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <atomic>
#include <climits>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "tests/fakes/fake_endpoint.h"
#include "tests/support/raw_syscall.h"
#include "tests/support/sanitizers.h"

namespace ringsock::runtime {
namespace {

using fakes::FakeEndpoint;

/// Tells when it dies.
class Mortal final : public Endpoint {
 public:
  explicit Mortal(std::atomic<int>& deaths, std::atomic<int>& closes) : deaths_(deaths), closes_(closes) {}
  ~Mortal() override { ++deaths_; }
  std::uint32_t ready() noexcept override { return 0; }
  WaitFds arm() noexcept override { return {}; }
  void woken() noexcept override {}
  void closed() noexcept override { ++closes_; }

 private:
  std::atomic<int>& deaths_;
  std::atomic<int>& closes_;
};

class FdTableTest : public testing::Test {
 protected:
  Ref new_endpoint() { return Ref(new Mortal(deaths_, closes_)); }
  std::unique_ptr<FdTable> table_ = std::make_unique<FdTable>();
  std::atomic<int> deaths_{0};
  std::atomic<int> closes_{0};
};

TEST_F(FdTableTest, FindsOnlyWhatWasInserted) {
  ASSERT_TRUE(table_->insert(7, new_endpoint()));

  EXPECT_TRUE(table_->find(7));
  EXPECT_FALSE(table_->find(6));
  EXPECT_FALSE(table_->find(-1));
  EXPECT_FALSE(table_->find(INT_MIN));
  EXPECT_FALSE(table_->find(INT_MAX));

  EXPECT_TRUE(table_->remove(7));
  EXPECT_FALSE(table_->find(7));
  EXPECT_FALSE(table_->remove(7));
  EXPECT_EQ(deaths_, 1);
}

TEST_F(FdTableTest, TakesAnyDescriptorNumberTheKernelCanGive) {
  const std::vector<int> numbers{0, 16'383, 16'384, 1'048'575, 1'048'576, INT_MAX};
  for (const int fd : numbers) ASSERT_TRUE(table_->insert(fd, new_endpoint())) << fd;
  std::set<int> seen;
  table_->for_each([&seen](int fd, Endpoint&) { seen.insert(fd); });
  EXPECT_EQ(seen, std::set<int>(numbers.begin(), numbers.end()));
  for (const int fd : numbers) EXPECT_TRUE(table_->remove(fd)) << fd;
}

TEST_F(FdTableTest, RefusesNegativeNumbersAndKeepsErrno) {
  errno = 4711;
  const Status inserted = table_->insert(-1, new_endpoint());
  ASSERT_FALSE(inserted);
  EXPECT_EQ(inserted.error().code, EBADF);
  EXPECT_EQ(deaths_, 1);
  ASSERT_TRUE(table_->insert(3, new_endpoint()));
  ASSERT_TRUE(table_->remove(3));
  EXPECT_EQ(errno, 4711);
}

TEST_F(FdTableTest, AStaleEntryIsClosedWhenItsNumberComesAgain) {
  ASSERT_TRUE(table_->insert(5, new_endpoint()));
  ASSERT_TRUE(table_->insert(5, new_endpoint()));
  EXPECT_EQ(closes_, 1);
  EXPECT_EQ(deaths_, 1);
  EXPECT_TRUE(table_->remove(5));
  EXPECT_EQ(closes_, 1) << "remove() leaves closing to the caller";
  EXPECT_EQ(deaths_, 2);
}

TEST_F(FdTableTest, KnowsTheLastDescriptorOfAnEndpoint) {
  Ref endpoint = new_endpoint();
  ASSERT_TRUE(table_->insert(3, Ref::share(*endpoint)));
  ASSERT_TRUE(table_->insert(4, Ref::share(*endpoint)));
  EXPECT_TRUE(table_->remove(3)->has_descriptors());
  EXPECT_FALSE(table_->remove(4)->has_descriptors());
}

TEST_F(FdTableTest, APinnedLookupOutlivesRemoval) {
  ASSERT_TRUE(table_->insert(3, new_endpoint()));
  {
    FdTable::Lookup lookup = table_->find(3);
    lookup.pin();
    EXPECT_TRUE(table_->remove(3));
    EXPECT_EQ(deaths_, 0);
  }
  EXPECT_EQ(deaths_, 1);
}

TEST_F(FdTableTest, AReaderHoldsOffRemovalUntilItsLookupIsGone) {
  ASSERT_TRUE(table_->insert(3, new_endpoint()));
  std::atomic<bool> removed{false};
  std::thread closer;
  {
    const FdTable::Lookup lookup = table_->find(3);
    closer = std::thread([&] {
      EXPECT_TRUE(table_->remove(3));
      removed = true;
    });
    while (table_->find(3)) std::this_thread::yield();
    EXPECT_FALSE(removed);
    EXPECT_EQ(deaths_, 0);
  }
  closer.join();
  EXPECT_EQ(deaths_, 1);
}

TEST(FdTableOfTheProcess, ACloserDoesNotWaitForReaders) {
  static std::atomic<int> deaths{0}, closes{0};
  const UniqueFd fd(::eventfd(0, EFD_CLOEXEC));
  ASSERT_TRUE(fd_table().insert(fd.get(), Ref(new Mortal(deaths, closes))));
  {
    const FdTable::Lookup lookup = fd_table().find(fd.get());
    std::thread([&] { EXPECT_TRUE(fd_table().remove(fd.get())); }).join();
    EXPECT_EQ(deaths, 0);
    EXPECT_EQ(lookup->ready(), 0U);
  }
  while (deaths == 0) std::this_thread::yield();
}

TEST_F(FdTableTest, SurvivesReadersThatRaceWithCloseAndReuse) {
  constexpr int kRounds = 200;
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (!stop) {
        const FdTable::Lookup lookup = table_->find(9);
        if (lookup) {
          EXPECT_EQ(lookup->ready(), 0U);
        }
        const Ref kept = table_->get(9);
        if (kept) {
          EXPECT_EQ(kept->ready(), 0U);
        }
      }
    });
  }
  for (int round = 0; round < kRounds; ++round) {
    ASSERT_TRUE(table_->insert(9, new_endpoint()));
    const Ref gone = table_->remove(9);
    ASSERT_TRUE(gone);
    gone->retire();
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(deaths_, kRounds);
}

TEST(FdTableFork, AChildUsesTheTableEvenWhenThreadsWereInsideIt) {
  // A thread of the child gets the stack of a thread that only the parent has.
  if (support::kHasThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer takes it for the thread that had its stack";
  fakes::OpenFake fake;
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) {
      const fakes::OpenFake another;
      EXPECT_TRUE(fd_table().find(another.fd()));
    }
  });
  for (int round = 0; round < 20; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const bool found = static_cast<bool>(fd_table().find(fake.fd()));
      const Ref gone = fd_table().remove(fake.fd());
      ::_exit(found && gone && !fd_table().find(fake.fd()) ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  stop = true;
  busy.join();
  EXPECT_TRUE(fd_table().find(fake.fd())) << "what a child removes stays in the parent";
}

// The threads of a server make short connections, so readers begin to use fences, while another thread forks.
TEST(FdTableFork, AForkAndAThreadThatMakesReadersUseFencesDoNotWaitForEachOther) {
  fakes::OpenFake fake;
  std::atomic<bool> is_over{false};
  std::thread busy([&] {
    for (int round = 0; round < 400; ++round) {
      while (!reader_barrier().are_readers_fenced()) reader_barrier().execute();
      while (reader_barrier().look_again()) std::this_thread::yield();
    }
    is_over.store(true);
  });
  while (!is_over.load()) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) ::_exit(0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  }
  busy.join();
}

/// Links of /proc/self/task: its own two and one for each thread.
int threads_of_this_process() {
  struct stat about {};
  return ::stat("/proc/self/task", &about) == 0 ? static_cast<int>(about.st_nlink) - 2 : -1;
}

// Its copy of the readers' list tells of threads that it does not have, and the locks of those that wait for them may
// be held.
TEST_F(FdTableTest, AChildThatNobodyPreparedWaitsForNoReaderOfItsParent) {
  const int number = ::eventfd(0, EFD_CLOEXEC);
  ASSERT_TRUE(fd_table().insert(number, new_endpoint()));
  std::atomic<bool> reads{false}, is_over{false};
  std::thread reader([&] {
    const auto found = fd_table().find(number);
    reads.store(true);
    while (!is_over.load()) std::this_thread::yield();
  });
  while (!reads.load()) std::this_thread::yield();
  const auto child = static_cast<pid_t>(raw_syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (child == 0) {
    fd_table().remove(number);
    raw_syscall(SYS_exit_group, threads_of_this_process() == 1 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "another thread was made to wait";
  is_over.store(true);
  reader.join();
  fd_table().remove(number);
  ::close(number);
}

/// Looks from another thread, which is in no section.
bool others_see_no_reader() {
  bool are_gone = false;
  std::thread([&] { are_gone = rcu_readers_are_gone(); }).join();
  return are_gone;
}

TEST(ReaderBarrier, AReaderIsSeenWithAndWithoutMembarrier) {
  for (const bool is_forbidden : {false, true}) {
    if (is_forbidden) reader_barrier().forgo_membarrier();
    rcu_read_enter();
    EXPECT_FALSE(others_see_no_reader());
    rcu_read_leave();
    EXPECT_TRUE(others_see_no_reader());
  }
  EXPECT_FALSE(reader_barrier().look_again()) << "membarrier(2) stays forbidden";
  EXPECT_EQ(urcu_bp_has_sys_membarrier, 0);
}

}  // namespace
}  // namespace ringsock::runtime
