// What Linux promises about epoll sets, asked of the kernel and of ours alike.
#include <algorithm>
#include <csignal>
#include <set>
#include <thread>

#include "tests/support/signals.h"
#include "tests/unit/poll/epoll_worlds.h"

namespace ringsock::runtime {
namespace {

using namespace std::chrono_literals;

class EpollSemantics : public testing::TestWithParam<WorldKind> {
 protected:
  std::unique_ptr<World> world_ = make_world(GetParam());
  OpenSet set_{*world_};
};
INSTANTIATE_TEST_SUITE_P(Worlds, EpollSemantics,
                         testing::Values(WorldKind::kernel, WorldKind::our_set_of_kernel_streams,
                                         WorldKind::our_set_of_endpoints),
                         world_name);

TEST_P(EpollSemantics, LevelTriggeredReportsAsLongAsTheConditionHolds) {
  const auto stream = world_->open_stream();
  ASSERT_EQ(world_->add(set_, stream->fd(), EPOLLIN, 1), 0);
  EXPECT_EQ(world_->wait(set_), Report{});
  stream->data_arrives();
  EXPECT_EQ(world_->wait(set_), (Report{{EPOLLIN, 1}}));
  EXPECT_EQ(world_->wait(set_), (Report{{EPOLLIN, 1}}));
  stream->read_everything();
  EXPECT_EQ(world_->wait(set_), Report{});
}

TEST_P(EpollSemantics, EdgeTriggeredReportsEachArrivalOnce) {
  const auto stream = world_->open_stream();
  ASSERT_EQ(world_->add(set_, stream->fd(), EPOLLIN | EPOLLET, 1), 0);
  stream->data_arrives();
  EXPECT_EQ(world_->wait(set_), (Report{{EPOLLIN, 1}}));
  EXPECT_EQ(world_->wait(set_), Report{});
  // New data, though the old has not been read.
  stream->data_arrives();
  EXPECT_EQ(world_->wait(set_), (Report{{EPOLLIN, 1}}));
  // Read and filled again between two looks.
  stream->read_everything();
  stream->data_arrives();
  EXPECT_EQ(world_->wait(set_), (Report{{EPOLLIN, 1}}));
  stream->read_everything();
  EXPECT_EQ(world_->wait(set_), Report{});
}

TEST_P(EpollSemantics, EdgeTriggeredReportsWhatIsThereWhenAddedOrModified) {
  const auto stream = world_->open_stream();
  stream->data_arrives();
  ASSERT_EQ(world_->add(set_, stream->fd(), EPOLLIN | EPOLLET, 1), 0);
  EXPECT_EQ(world_->wait(set_), (Report{{EPOLLIN, 1}}));
  EXPECT_EQ(world_->wait(set_), Report{});
  ASSERT_EQ(world_->modify(set_, stream->fd(), EPOLLIN | EPOLLOUT | EPOLLET, 2), 0);
  EXPECT_EQ(world_->wait(set_), (Report{{EPOLLIN | EPOLLOUT, 2}}));
  EXPECT_EQ(world_->wait(set_), Report{});
}

TEST_P(EpollSemantics, OneShotFiresOnceUntilModified) {
  const auto stream = world_->open_stream();
  ASSERT_EQ(world_->add(set_, stream->fd(), EPOLLIN | EPOLLONESHOT, 1), 0);
  stream->data_arrives();
  EXPECT_EQ(world_->wait(set_), (Report{{EPOLLIN, 1}}));
  stream->data_arrives();
  stream->connection_dies();
  EXPECT_EQ(world_->wait(set_), Report{}) << "not even a hang-up";
  ASSERT_EQ(world_->modify(set_, stream->fd(), EPOLLIN | EPOLLONESHOT, 2), 0);
  EXPECT_EQ(world_->wait(set_), (Report{{EPOLLIN | EPOLLHUP, 2}}));
  EXPECT_EQ(world_->wait(set_), Report{});
}

TEST_P(EpollSemantics, HangUpIsReportedUnaskedAndHalfCloseIsNot) {
  const auto stream = world_->open_stream();
  ASSERT_EQ(world_->add(set_, stream->fd(), 0, 1), 0);
  stream->peer_shuts_down();
  EXPECT_EQ(world_->wait(set_), Report{});
  ASSERT_EQ(world_->modify(set_, stream->fd(), EPOLLRDHUP, 1), 0);
  EXPECT_EQ(world_->wait(set_), (Report{{EPOLLRDHUP, 1}}));
  ASSERT_EQ(world_->modify(set_, stream->fd(), 0, 1), 0);
  stream->connection_dies();
  EXPECT_EQ(world_->wait(set_), (Report{{EPOLLHUP, 1}}));
}

TEST_P(EpollSemantics, NormalBandsComeWithReadableAndWritable) {
  const auto stream = world_->open_stream();
  stream->data_arrives();
  ASSERT_EQ(world_->add(set_, stream->fd(), EPOLLRDNORM | EPOLLWRNORM, 1), 0);
  EXPECT_EQ(world_->wait(set_), (Report{{EPOLLRDNORM | EPOLLWRNORM, 1}}));
}

TEST_P(EpollSemantics, DataComesBackAsItWasGiven) {
  const std::vector<std::uint64_t> values{0, 1, ~0ULL, 0x7fff'ffff'ffff, 0x8000'0000'0000'0000, 0xffff'ffff};
  std::vector<std::unique_ptr<Stream>> streams;
  for (const std::uint64_t value : values) {
    streams.push_back(world_->open_stream());
    ASSERT_EQ(world_->add(set_, streams.back()->fd(), EPOLLOUT, value), 0);
  }
  std::set<std::uint64_t> seen;
  for (const auto& [events, data] : world_->wait(set_)) seen.insert(data);
  EXPECT_EQ(seen, std::set<std::uint64_t>(values.begin(), values.end()));
}

TEST_P(EpollSemantics, MistakesAreAnsweredAsByTheKernel) {
  const auto stream = world_->open_stream();
  const int fd = stream->fd();
  const UniqueFd file(::open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  const UniqueFd directory(::open("/", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(world_->modify(set_, fd, EPOLLIN, 1), ENOENT);
  EXPECT_EQ(world_->remove(set_, fd), ENOENT);
  EXPECT_EQ(world_->add(set_, fd, EPOLLIN, 1), 0);
  EXPECT_EQ(world_->add(set_, fd, EPOLLIN, 1), EEXIST);
  EXPECT_EQ(world_->control(set_, 99, fd, EPOLLIN, 1), EINVAL);
  EXPECT_EQ(world_->add(set_, set_, EPOLLIN, 1), EINVAL) << "itself";
  EXPECT_EQ(world_->add(set_, -1, EPOLLIN, 1), EBADF);
  EXPECT_EQ(world_->add(set_, directory.get(), EPOLLIN, 1), EPERM);
  EXPECT_EQ(world_->add(-1, fd, EPOLLIN, 1), EBADF);
  EXPECT_EQ(world_->add(file.get(), fd, EPOLLIN, 1), EINVAL) << "not a set";
  EXPECT_EQ(world_->remove(set_, fd), 0);
  EXPECT_EQ(world_->remove(set_, fd), ENOENT);

  std::array<epoll_event, 1> event{};
  EXPECT_EQ(world_->wait(set_, event.data(), 0, 0ns, nullptr), -EINVAL);
  EXPECT_EQ(world_->wait(set_, event.data(), -1, 0ns, nullptr), -EINVAL);
  EXPECT_EQ(world_->wait(-1, event.data(), 1, 0ns, nullptr), -EBADF);
  EXPECT_EQ(world_->wait(file.get(), event.data(), 1, 0ns, nullptr), -EINVAL);
  EXPECT_EQ(world_->wait(fd, event.data(), 1, 0ns, nullptr), -EINVAL);
}

TEST_P(EpollSemantics, ExclusiveIsForAddingOnlyAndNotWithOneShot) {
  const auto stream = world_->open_stream();
  const int fd = stream->fd();
  const OpenSet other(*world_);
  EXPECT_EQ(world_->add(set_, fd, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 1), EINVAL);
  EXPECT_EQ(world_->add(set_, fd, EPOLLIN | EPOLLEXCLUSIVE | EPOLLRDHUP, 1), EINVAL);
  EXPECT_EQ(world_->add(set_, other, EPOLLIN | EPOLLEXCLUSIVE, 1), EINVAL);
  EXPECT_EQ(world_->add(set_, fd, EPOLLIN | EPOLLEXCLUSIVE | EPOLLET | EPOLLWAKEUP, 1), 0);
  EXPECT_EQ(world_->modify(set_, fd, EPOLLIN, 1), EINVAL);
  EXPECT_EQ(world_->modify(set_, fd, EPOLLIN | EPOLLEXCLUSIVE, 1), EINVAL);
  stream->data_arrives();
  EXPECT_EQ(world_->wait(set_), (Report{{EPOLLIN, 1}}));
}

TEST_P(EpollSemantics, WhenMoreAreReadyThanAskedForAllGetTheirTurn) {
  std::vector<std::unique_ptr<Stream>> streams;
  std::set<std::uint64_t> all;
  for (std::uint64_t i = 0; i < 7; ++i) {
    streams.push_back(world_->open_stream());
    ASSERT_EQ(world_->add(set_, streams.back()->fd(), EPOLLOUT, i), 0);
    all.insert(i);
  }
  std::set<std::uint64_t> seen;
  for (int call = 0; call < 4; ++call) {
    const Report report = world_->wait(set_, 0ns, 2);
    EXPECT_EQ(report.size(), 2U);
    for (const auto& [events, data] : report) seen.insert(data);
  }
  EXPECT_EQ(seen, all);
}

TEST_P(EpollSemantics, AStreamMayBeInSeveralSets) {
  const auto stream = world_->open_stream();
  const OpenSet other(*world_);
  ASSERT_EQ(world_->add(set_, stream->fd(), EPOLLIN | EPOLLET, 1), 0);
  ASSERT_EQ(world_->add(other, stream->fd(), EPOLLIN | EPOLLET, 2), 0);
  stream->data_arrives();
  EXPECT_EQ(world_->wait(set_), (Report{{EPOLLIN, 1}}));
  EXPECT_EQ(world_->wait(other), (Report{{EPOLLIN, 2}}));
  EXPECT_EQ(world_->wait(set_), Report{});
}

TEST_P(EpollSemantics, AClosedStreamLeavesItsSets) {
  auto stream = world_->open_stream();
  const auto other = world_->open_stream();
  ASSERT_EQ(world_->add(set_, stream->fd(), EPOLLIN, 1), 0);
  ASSERT_EQ(world_->add(set_, other->fd(), EPOLLIN, 2), 0);
  stream->data_arrives();
  other->data_arrives();
  const int fd = stream->fd();
  stream->close();
  EXPECT_EQ(world_->wait(set_), (Report{{EPOLLIN, 2}}));
  EXPECT_EQ(world_->remove(set_, fd), EBADF);

  // The number comes again for another stream: it is not in the set.
  const auto reused = world_->open_stream();
  reused->data_arrives();
  EXPECT_EQ(world_->wait(set_), (Report{{EPOLLIN, 2}}));
  EXPECT_EQ(world_->add(set_, reused->fd(), EPOLLIN, 3), 0);
  EXPECT_EQ(world_->wait(set_).size(), 2U);
}

TEST_P(EpollSemantics, ASetIsReadableInAnotherSet) {
  const auto stream = world_->open_stream();
  const OpenSet outer(*world_);
  ASSERT_EQ(world_->add(set_, stream->fd(), EPOLLIN, 1), 0);
  ASSERT_EQ(world_->add(outer, set_, EPOLLIN, 2), 0);
  EXPECT_EQ(world_->wait(outer), Report{});
  stream->data_arrives();
  EXPECT_EQ(world_->wait(outer), (Report{{EPOLLIN, 2}}));
  EXPECT_EQ(world_->wait(outer), (Report{{EPOLLIN, 2}}));
  EXPECT_EQ(world_->wait(set_), (Report{{EPOLLIN, 1}}));
  stream->read_everything();
  EXPECT_EQ(world_->wait(outer), Report{});
  EXPECT_EQ(world_->wait(set_), Report{});
}

TEST_P(EpollSemantics, SetsMayNotContainEachOther) {
  const OpenSet other(*world_);
  const OpenSet third(*world_);
  EXPECT_EQ(world_->add(set_, other, EPOLLIN, 1), 0);
  EXPECT_EQ(world_->add(other, set_, EPOLLIN, 1), ELOOP);
  EXPECT_EQ(world_->add(other, third, EPOLLIN, 1), 0);
  EXPECT_EQ(world_->add(third, set_, EPOLLIN, 1), ELOOP);
  EXPECT_EQ(world_->remove(set_, other), 0);
  EXPECT_EQ(world_->add(third, set_, EPOLLIN, 1), 0);
}

TEST_P(EpollSemantics, TimeOutsAreExact) {
  const auto stream = world_->open_stream();
  ASSERT_EQ(world_->add(set_, stream->fd(), EPOLLIN, 1), 0);
  for (const Nanos timeout : {Nanos(1us), Nanos(300us), Nanos(1'234'567ns)}) {
    const Nanos begun = monotonic_now();
    EXPECT_EQ(world_->wait(set_, timeout), Report{});
    EXPECT_GE(monotonic_now() - begun, timeout);
  }
}

TEST_P(EpollSemantics, ASleeperIsWokenByData) {
  const auto stream = world_->open_stream();
  ASSERT_EQ(world_->add(set_, stream->fd(), EPOLLIN, 1), 0);
  for (int round = 0; round < 200; ++round) {
    std::thread peer([&] {
      if (round % 2) std::this_thread::yield();
      stream->data_arrives();
    });
    EXPECT_EQ(world_->wait(set_, 20s), (Report{{EPOLLIN, 1}}));
    peer.join();
    stream->read_everything();
  }
}

TEST_P(EpollSemantics, ASleeperSeesWhatIsAddedAndModifiedMeanwhile) {
  for (int round = 0; round < 100; ++round) {
    const auto stream = world_->open_stream();
    std::thread other([&] {
      EXPECT_EQ(world_->add(set_, stream->fd(), 0, 1), 0);
      EXPECT_EQ(world_->modify(set_, stream->fd(), EPOLLOUT, 2), 0);
    });
    EXPECT_EQ(world_->wait(set_, 20s), (Report{{EPOLLOUT, 2}}));
    other.join();
  }
}

TEST_P(EpollSemantics, ANestedSetWakesTheSleeperOfTheOuter) {
  const auto stream = world_->open_stream();
  const OpenSet outer(*world_);
  ASSERT_EQ(world_->add(set_, stream->fd(), EPOLLIN, 1), 0);
  ASSERT_EQ(world_->add(outer, set_, EPOLLIN, 2), 0);
  for (int round = 0; round < 100; ++round) {
    std::thread peer([&] { stream->data_arrives(); });
    EXPECT_EQ(world_->wait(outer, 20s), (Report{{EPOLLIN, 2}}));
    EXPECT_EQ(world_->wait(set_), (Report{{EPOLLIN, 1}}));
    peer.join();
    stream->read_everything();
  }
}

/// Several threads serve one set; each event must be served, with EPOLLONESHOT by one thread at a time.
void serve(World& world, int set, std::vector<std::unique_ptr<Stream>>& streams, std::uint32_t flags,
           std::atomic<int>& served, int wanted) {
  while (served < wanted) {
    std::array<epoll_event, 4> events;
    const int count = world.wait(set, events.data(), 4, 1ms, nullptr);
    ASSERT_GE(count, 0);
    for (int i = 0; i < count; ++i) {
      const std::uint64_t index = events[static_cast<std::size_t>(i)].data.u64;
      streams[index]->read_everything();
      ++served;
      if (flags & EPOLLONESHOT) {
        ASSERT_EQ(world.modify(set, streams[index]->fd(), EPOLLIN | flags, index), 0);
      }
    }
  }
}

class EpollThreads : public testing::TestWithParam<std::tuple<WorldKind, std::uint32_t>> {};
INSTANTIATE_TEST_SUITE_P(Worlds, EpollThreads,
                         testing::Combine(testing::Values(WorldKind::kernel, WorldKind::our_set_of_endpoints),
                                          testing::Values(0U, std::uint32_t{EPOLLET}, std::uint32_t{EPOLLONESHOT},
                                                          std::uint32_t{EPOLLONESHOT | EPOLLET})));

TEST_P(EpollThreads, SeveralThreadsServeOneSetAndMissNothing) {
  const auto [kind, flags] = GetParam();
  const auto world = make_world(kind);
  const OpenSet set(*world);
  std::vector<std::unique_ptr<Stream>> streams;
  for (std::uint64_t i = 0; i < 8; ++i) {
    streams.push_back(world->open_stream());
    ASSERT_EQ(world->add(set, streams.back()->fd(), EPOLLIN | flags, i), 0);
  }
  constexpr int kWanted = 2'000;
  std::atomic<int> served{0};
  std::vector<std::thread> servers;
  for (int i = 0; i < 3; ++i) {
    servers.emplace_back([&, flags = flags] { serve(*world, set, streams, flags, served, kWanted); });
  }
  // The peers: data comes for all of them, until enough has been served.
  for (std::size_t i = 0; served < kWanted; i = (i + 1) % streams.size()) {
    streams[i]->data_arrives();
    std::this_thread::yield();
  }
  for (std::thread& server : servers) server.join();
}

class EpollSignals : public EpollSemantics {
 protected:
  EpollSignals() {
    sigset_t usr2;
    sigemptyset(&usr2);
    sigaddset(&usr2, SIGUSR2);
    ::pthread_sigmask(SIG_BLOCK, &usr2, &let_through_);
    EXPECT_EQ(world_->add(set_, stream_->fd(), EPOLLIN, 1), 0);
  }
  ~EpollSignals() override { ::pthread_sigmask(SIG_SETMASK, &let_through_, nullptr); }
  int wait(Nanos timeout, const sigset_t* mask) {
    std::array<epoll_event, 1> event{};
    return world_->wait(set_, event.data(), 1, timeout, mask);
  }
  support::Disposition counted_{SIGUSR2, support::count_handled, SA_RESTART};
  sigset_t let_through_{};
  std::unique_ptr<Stream> stream_ = world_->open_stream();
};
INSTANTIATE_TEST_SUITE_P(Worlds, EpollSignals,
                         testing::Values(WorldKind::kernel, WorldKind::our_set_of_kernel_streams,
                                         WorldKind::our_set_of_endpoints),
                         world_name);

TEST_P(EpollSignals, APendingSignalThatTheMaskLetsThroughInterrupts) {
  ::raise(SIGUSR2);
  EXPECT_EQ(wait(100us, nullptr), 0) << "still blocked";
  EXPECT_EQ(support::handled, 0);
  EXPECT_EQ(wait(20s, &let_through_), -EINTR);
#ifndef RINGSOCK_TSAN  // which delays handlers
  EXPECT_EQ(support::handled, 1);
#endif
}

TEST_P(EpollSignals, EventsComeBeforeSignals) {
  stream_->data_arrives();
  ::raise(SIGUSR2);
  EXPECT_EQ(wait(20s, &let_through_), 1);
  EXPECT_EQ(support::handled, 0);
}

TEST_P(EpollSignals, ASleeperIsInterrupted) {
  std::atomic<bool> done{false};
  std::thread sender([&, victim = ::pthread_self()] {
    while (!done) {
      ::pthread_kill(victim, SIGUSR2);
      std::this_thread::yield();
    }
  });
  EXPECT_EQ(wait(20s, &let_through_), -EINTR);
  done = true;
  sender.join();
}

}  // namespace
}  // namespace ringsock::runtime
