#include "core/runtime/fork_registry.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/poll/epoll_set.h"
#include "core/poll/sleeper.h"
#include "core/runtime/fd_table.h"

namespace ringsock::runtime {
namespace {

/// Each of its numbers exists twice; they differ while somebody is in the middle of changing them.
class Twins final : public Endpoint {
 public:
  Twins() { fork_registry().enter(*this); }
  ~Twins() override {
    const std::shared_lock teardown(fork_registry().teardown_gate());
    fork_registry().leave(*this);
    ++first_;
    std::this_thread::yield();
    ++second_;
  }

  void change_under_mutex() {
    const std::lock_guard guard(outer_);
    ++first_;
    ++second_;
  }
  void change_under_biased(std::size_t level) {
    const std::lock_guard guard(biased_[level]);
    ++firsts_[level];
    ++seconds_[level];
  }
  /// In the child: nobody was inside, and nobody holds a lock.
  bool is_whole() {
    if (!outer_.try_lock()) return false;
    outer_.unlock();
    bool whole = first_ == second_;
    for (std::size_t level = 0; level < biased_.size(); ++level) {
      if (!biased_[level].try_lock()) return false;
      biased_[level].unlock();
      whole = whole && firsts_[level] == seconds_[level];
    }
    return whole;
  }

  void add_fork_locks(ForkLocks& locks) override {
    locks.add_outer(outer_);
    for (std::size_t level = 0; level < biased_.size(); ++level) locks.add_biased(level, biased_[level]);
    Endpoint::add_fork_locks(locks);
  }
  void after_fork(ForkSide side) noexcept override {
    Endpoint::after_fork(side);
    if (side == ForkSide::unprepared_child) whole_anyway_ = first_ == second_;
    last_side = side;
  }
  std::uint32_t ready() noexcept override { return 0; }
  WaitFds arm() noexcept override { return {}; }
  void woken() noexcept override {}
  void closed() noexcept override {}
  [[nodiscard]] bool whole_anyway() const { return whole_anyway_; }

  ForkSide last_side = ForkSide::parent;

 private:
  Mutex outer_;
  std::uint64_t first_ = 0, second_ = 0;
  std::array<BiasedMutex, ForkLocks::kLevels> biased_;
  std::array<std::uint64_t, ForkLocks::kLevels> firsts_{}, seconds_{};
  bool whole_anyway_ = true;
};

/// Its second lock exists only under the first one, as long as nobody makes it anew.
class Renewed final : public Endpoint, public LocksWithin {
 public:
  Renewed() { fork_registry().enter(*this); }
  ~Renewed() override { fork_registry().leave(*this); }

  void renew() {
    const std::lock_guard guard(outer_);
    inner_ = std::make_unique<BiasedMutex>();
  }
  [[nodiscard]] bool is_free() {
    const std::lock_guard guard(outer_);
    const std::unique_lock inner(*inner_, std::try_to_lock);
    return inner.owns_lock();
  }

  void add_fork_locks(ForkLocks& locks) override {
    locks.add_outer(outer_);
    locks.add_within(*this);
    Endpoint::add_fork_locks(locks);
  }
  void add_locks_within(ForkLocks& locks) override { locks.add_biased(0, *inner_); }
  void before_fork() noexcept override { was_held = !inner_->try_lock(); }
  std::uint32_t ready() noexcept override { return 0; }
  WaitFds arm() noexcept override { return {}; }
  void woken() noexcept override {}
  void closed() noexcept override {}

  bool was_held = false;  ///< by the fork

 private:
  Mutex outer_;
  std::unique_ptr<BiasedMutex> inner_ = std::make_unique<BiasedMutex>();
};

/// Does what another thread may do while a fork is being prepared.
class Meddler final : public Endpoint {
 public:
  explicit Meddler(std::function<void()> meddle) : meddle_(std::move(meddle)) { fork_registry().enter(*this); }
  ~Meddler() override { fork_registry().leave(*this); }
  void add_fork_locks(ForkLocks& locks) override {
    meddle_();
    Endpoint::add_fork_locks(locks);
  }
  std::uint32_t ready() noexcept override { return 0; }
  WaitFds arm() noexcept override { return {}; }
  void woken() noexcept override {}
  void closed() noexcept override {}

 private:
  const std::function<void()> meddle_;
};

/// Forks; the child's verdict.
bool child_says(const std::function<bool()>& question) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(question() ? 0 : 1);
  int status = -1;
  return ::waitpid(child, &status, 0) == child && status == 0;
}

TEST(ForkRegistry, AChildFindsEveryObjectWholeAndUnlocked) {
  constexpr std::size_t kThreads = 3;
  std::vector<Ref> owners;
  std::vector<Twins*> all;
  for (int i = 0; i < 6; ++i) all.push_back(static_cast<Twins*>(owners.emplace_back(new Twins).get()));
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (std::size_t number = 0; number < kThreads; ++number) {
    threads.emplace_back([&, number] {
      for (std::size_t i = number; !stop; ++i) {
        // Two are each thread's own, and keep its bias.
        Twins& one = *all[i % 16 == 0 ? i % all.size() : number];
        one.change_under_mutex();
        one.change_under_biased(i % ForkLocks::kLevels);
      }
    });
  }
  for (int round = 0; round < 60; ++round) {
    EXPECT_TRUE(child_says([&] {
      bool whole = true;
      for (Twins* one : all) whole = whole && one->last_side == Endpoint::ForkSide::child && one->is_whole();
      return whole;
    }));
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  for (Twins* one : all) EXPECT_TRUE(one->is_whole());
}

TEST(ForkRegistry, AnObjectThatIsTakenApartIsGoneOrWholeInTheChild) {
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) {
      const Ref one(new Twins);
      static_cast<Twins&>(*one).change_under_mutex();
    }
  });
  for (int round = 0; round < 60; ++round) {
    EXPECT_TRUE(child_says([] {
      bool whole = true;
      const bool visited = fork_registry().try_for_each([&](Endpoint& endpoint) {
        auto& one = static_cast<Twins&>(endpoint);
        const bool prepared = one.last_side == Endpoint::ForkSide::child;
        whole = whole && (prepared ? one.is_whole() : one.whole_anyway());
      });
      return visited && whole;
    }));
  }
  stop = true;
  busy.join();
}

TEST(ForkRegistry, ALockThatIsMadeAnewWhileAForkBeginsIsHeldOverIt) {
  const Ref owner(new Renewed);
  auto& renewed = static_cast<Renewed&>(*owner);
  const Ref meddler(new Meddler([&] { renewed.renew(); }));
  EXPECT_TRUE(child_says([&] { return renewed.was_held && renewed.is_free(); }));
  EXPECT_TRUE(renewed.was_held);
  EXPECT_TRUE(renewed.is_free());
}

TEST(ForkRegistry, AChildPutsEpollSetsIntoEachOtherWhateverThreadsWereDoingThat) {
  const Ref outer = fd_table().get(*EpollSet::create(EPOLL_CLOEXEC));
  const int inner = *EpollSet::create(EPOLL_CLOEXEC);
  const epoll_event event{EPOLLIN, {.fd = inner}};
  const auto nest = [&] {
    return outer->as_epoll_set()->control(EPOLL_CTL_ADD, inner, &event) &&
           outer->as_epoll_set()->control(EPOLL_CTL_DEL, inner, nullptr);
  };
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop && nest()) {
    }
  });
  for (int round = 0; round < 100; ++round) {
    ASSERT_TRUE(child_says([&] {
      ::alarm(10);
      [[maybe_unused]] const Status as_the_thread_left_it =
          outer->as_epoll_set()->control(EPOLL_CTL_DEL, inner, nullptr);
      return nest();
    }));
  }
  stop = true;
  busy.join();
}

TEST(ForkRegistry, SleepersOfOtherThreadsAreNotInTheChild) {
  const Ref owner(new Twins);
  const int bell = thread_bell();
  const SleeperWatch watch(*owner, ~0U, bell);
  ASSERT_TRUE(watch.entered());
  // A user that rings its own bell rings none.
  const auto another_thread_notifies = [&] { std::thread([&] { owner->notify_watchers(); }).join(); };
  EXPECT_TRUE(child_says([&] {
    another_thread_notifies();  // must not ring the parent's bell
    return true;
  }));
  pollfd entry{bell, POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
  another_thread_notifies();
  EXPECT_EQ(::poll(&entry, 1, 0), 1);
  silence_thread_bell();
}

}  // namespace
}  // namespace ringsock::runtime
