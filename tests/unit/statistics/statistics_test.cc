#include "core/statistics/statistics.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/statistics/statistics_file.h"
#include "core/statistics/statistics_reader.h"
#include "tests/support/child.h"
#include "tests/support/sanitizers.h"

namespace ringsock::runtime {
namespace {

using ringsock::testing::Channel;
using ringsock::testing::Child;
using ::testing::IsEmpty;
using ::testing::SizeIs;

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

/// What rsstat sees of a process.
std::optional<ProcessSnapshot> seen(pid_t pid) {
  std::vector<std::string> refused;
  for (ProcessSnapshot& process : read_all_statistics(kStatisticsDirectory, refused)) {
    if (process.pid == static_cast<std::uint32_t>(pid)) return std::move(process);
  }
  return std::nullopt;
}

/// Runs `body` in a process that has not counted anything yet, and that leaves by exit(3).
template <class Body>
Child process(Body body) {
  return Child::start([body](Channel& channel) -> int { std::exit(body(channel)); });
}

/// The sockets of the processes below do not connect: they are told what to be.
const SocketDescription kConnected{7, SocketState::connected, SocketPath::embedded,
                                   SocketAddress::v4(INADDR_LOOPBACK, 1234), SocketAddress::v6(in6addr_loopback, 80)};

/// "go on", in either direction.
bool wait_for(Channel& channel) { return channel.receive<char>().has_value(); }
void say_go(Channel& channel) { EXPECT_TRUE(channel.send('g')); }

TEST(Statistics, SocketIsSeenFromOutsideWithItsCounters) {
  Child counted = process([](Channel& channel) {
    SocketStatistics socket;
    socket.describe(kConnected);
    socket.count_sent(100);
    socket.count_sent(28);
    socket.count_received(5);
    socket.count_wakeup();
    socket.count_spin_paid();
    socket.count_error();
    process_statistics.count_connected(SocketPath::embedded);
    say_go(channel);
    return wait_for(channel) ? 0 : 1;
  });
  ASSERT_TRUE(wait_for(counted.channel()));
  const auto page = seen(counted.pid());
  ASSERT_TRUE(page);
  EXPECT_EQ(page->program, ::program_invocation_short_name);
  EXPECT_EQ(page->connected[static_cast<std::size_t>(SocketPath::embedded)], 1u);
  ASSERT_THAT(page->sockets, SizeIs(1));
  const auto& [what, counters] = page->sockets[0];
  EXPECT_EQ(what.descriptor, 7);
  EXPECT_EQ(what.state, SocketState::connected);
  EXPECT_EQ(what.path, SocketPath::embedded);
  EXPECT_EQ(what.local.to_string(), "127.0.0.1:1234");
  EXPECT_EQ(what.peer.to_string(), "[::1]:80");
  EXPECT_EQ(counters.bytes_out, 128u);
  EXPECT_EQ(counters.messages_out, 2u);
  EXPECT_EQ(counters.bytes_in, 5u);
  EXPECT_EQ(counters.messages_in, 1u);
  EXPECT_EQ(counters.wakeups, 1u);
  EXPECT_EQ(counters.spins_paid, 1u);
  EXPECT_EQ(counters.errors, 1u);
  EXPECT_EQ(page->total.bytes_out, 128u);
  say_go(counted.channel());
  EXPECT_EQ(counted.wait(), 0);
}

TEST(Statistics, ClosedSocketLeavesItsCountsToTheTotals) {
  Child counted = process([](Channel& channel) {
    {
      SocketStatistics first;
      first.count_received(10);
    }
    SocketStatistics second;  // in the slot that the first one left
    second.count_received(1);
    say_go(channel);
    return wait_for(channel) ? 0 : 1;
  });
  ASSERT_TRUE(wait_for(counted.channel()));
  const auto page = seen(counted.pid());
  ASSERT_TRUE(page);
  ASSERT_THAT(page->sockets, SizeIs(1));
  EXPECT_EQ(page->sockets[0].counters.bytes_in, 1u);
  EXPECT_EQ(page->total.bytes_in, 11u);
  EXPECT_EQ(page->total.messages_in, 2u);
  say_go(counted.channel());
  EXPECT_EQ(counted.wait(), 0);
}

TEST(Statistics, WhatWasRefusedIsSeenFromOutsideAlsoFromBeforeTheFirstSocket) {
  Child refusing = process([](Channel& channel) {
    count_refusal(Refusal::descriptor);
    const SocketStatistics socket;
    count_refusal(Refusal::descriptor);
    count_refusal(Refusal::patience);
    say_go(channel);
    return wait_for(channel) ? 0 : 1;
  });
  ASSERT_TRUE(wait_for(refusing.channel()));
  const auto page = seen(refusing.pid());
  ASSERT_TRUE(page);
  EXPECT_EQ(page->refused[static_cast<std::size_t>(Refusal::descriptor)], 2u);
  EXPECT_EQ(page->refused[static_cast<std::size_t>(Refusal::patience)], 1u);
  EXPECT_EQ(page->refused[static_cast<std::size_t>(Refusal::address)], 0u);
  say_go(refusing.channel());
  EXPECT_EQ(refusing.wait(), 0);
}

TEST(Statistics, FileIsPrivateAndGoesAtExit) {
  Child counted = process([](Channel& channel) {
    const SocketStatistics socket;
    std::array<char, 64> path{};
    process_statistics.path().copy(path.data(), path.size() - 1);
    channel.send(path);
    return wait_for(channel) ? 0 : 1;
  });
  const auto path = counted.channel().receive<std::array<char, 64>>();
  ASSERT_TRUE(path);
  struct stat status {};
  ASSERT_EQ(::stat(path->data(), &status), 0) << path->data();
  EXPECT_EQ(status.st_mode, S_IFREG | 0600u);
  EXPECT_EQ(status.st_uid, ::geteuid());
  EXPECT_LT(status.st_blocks * 512, 64 * 1024) << "slots that were never used take no memory";
  say_go(counted.channel());
  EXPECT_EQ(counted.wait(), 0);
  EXPECT_FALSE(exists(path->data()));
}

TEST(Statistics, FileOfAKilledProcessIsRemovedByTheNextReader) {
  Child counted = process([](Channel& channel) {
    const SocketStatistics socket;
    std::array<char, 64> path{};
    process_statistics.path().copy(path.data(), path.size() - 1);
    channel.send(path);
    return wait_for(channel) ? 0 : 1;
  });
  const auto path = counted.channel().receive<std::array<char, 64>>();
  ASSERT_TRUE(path);
  const pid_t pid = counted.pid();
  counted.kill(SIGKILL);
  counted.wait();
  EXPECT_TRUE(exists(path->data()));
  EXPECT_FALSE(seen(pid));
  EXPECT_FALSE(exists(path->data()));
}

TEST(Statistics, FileOfALivingProcessThatHasNotMappedItYetIsKept) {
  const auto file = create_statistics_file(kStatisticsBytes);
  ASSERT_TRUE(file);
  EXPECT_FALSE(seen(::getpid())) << "it is empty";
  EXPECT_TRUE(exists(file->path.data()));

  const std::size_t page = kPageHeaderBytes;
  void* const memory = map_private_statistics(page);
  ASSERT_TRUE(show_statistics(memory, page, page, page, file->fd.get()));
  ::munmap(memory, page);
  EXPECT_FALSE(seen(::getpid())) << "its contents are there, and the maker still has the file open";
  EXPECT_TRUE(exists(file->path.data()));
  ::unlink(file->path.data());
}

TEST(Statistics, FileOfAKilledProcessIsRemovedByTheNextProcess) {
  Child counted = process([](Channel& channel) {
    const SocketStatistics socket;
    std::array<char, 64> path{};
    process_statistics.path().copy(path.data(), path.size() - 1);
    channel.send(path);
    return wait_for(channel) ? 0 : 1;
  });
  const auto path = counted.channel().receive<std::array<char, 64>>();
  ASSERT_TRUE(path);
  counted.kill(SIGKILL);
  counted.wait();
  EXPECT_EQ(process([](Channel&) {
              const SocketStatistics socket;
              return 0;
            }).wait(),
            0);
  EXPECT_FALSE(exists(path->data()));
}

TEST(Statistics, ManySocketsHaveASlotEach) {
  constexpr std::uint32_t kSockets = 1000;
  Child counted = process([](Channel& channel) {
    std::vector<std::unique_ptr<SocketStatistics>> sockets;
    for (std::uint32_t i = 0; i < kSockets; ++i) {
      sockets.push_back(std::make_unique<SocketStatistics>());
      sockets.back()->count_sent(i);
    }
    say_go(channel);
    return wait_for(channel) ? 0 : 1;
  });
  ASSERT_TRUE(wait_for(counted.channel()));
  const auto page = seen(counted.pid());
  ASSERT_TRUE(page);
  ASSERT_THAT(page->sockets, SizeIs(kSockets));
  for (std::uint32_t i = 0; i < kSockets; ++i) EXPECT_EQ(page->sockets[i].counters.bytes_out, i);
  say_go(counted.channel());
  EXPECT_EQ(counted.wait(), 0);
}

TEST(Statistics, SocketsBeyondThePageAreCountedTogether) {
  EXPECT_EQ(process([](Channel&) {
              const std::vector<SocketStatistics> sockets(kStatisticsSlots);
              SocketStatistics one_more, another;
              one_more.describe(kConnected);
              one_more.count_sent(1);
              another.count_sent(2);
              const auto page = seen(::getpid());
              return page && page->sockets.size() == kStatisticsSlots && page->others.bytes_out == 3 &&
                             page->total.bytes_out == 3
                         ? 0
                         : 1;
            }).wait(),
            0);
}

TEST(Statistics, ThreadsOpenCountAndCloseWhileOthersRead) {
  constexpr unsigned kThreads = 4, kRounds = 500;
  EXPECT_EQ(process([](Channel&) {
              std::atomic<unsigned> running{kThreads};
              const auto work = [&running] {
                for (unsigned i = 0; i < kRounds; ++i) {
                  SocketStatistics socket;
                  socket.describe(kConnected);
                  socket.count_sent(3);
                  process_statistics.count_connected(SocketPath::embedded);
                }
                --running;
              };
              std::vector<std::thread> threads;
              for (unsigned i = 0; i < kThreads; ++i) threads.emplace_back(work);
              int status = 0;
              while (running > 0) {
                const auto page = seen(::getpid());
                if (page && page->sockets.size() > kThreads) status = 1;
              }
              for (std::thread& thread : threads) thread.join();
              const auto page = seen(::getpid());
              return page && page->total.bytes_out == kThreads * kRounds * 3 && page->sockets.empty() ? status : 2;
            }).wait(),
            0);
}

// -- fork

TEST(Statistics, ForkedChildCountsForItself) {
  EXPECT_EQ(process([](Channel&) {
              SocketStatistics socket;
              socket.describe(kConnected);
              socket.count_sent(100);
              Child child = process([&socket](Channel& channel) {
                socket.count_sent(7);
                if (seen(::getpid())) return 1;  // not yet: most children only execute another program
                socket.count_wakeup();
                say_go(channel);
                return wait_for(channel) ? 0 : 2;
              });
              if (!wait_for(child.channel())) return 3;
              const auto of_child = seen(child.pid()), of_parent = seen(::getpid());
              if (!of_child || !of_parent) return 4;
              if (of_child->sockets.size() != 1 || of_child->sockets[0].counters.bytes_out != 7) return 5;
              if (of_child->sockets[0].description.descriptor != 7 || of_child->total.bytes_out != 7) return 6;
              if (of_parent->total.bytes_out != 100 || of_parent->total.wakeups != 0) return 7;
              say_go(child.channel());
              return child.wait();
            }).wait(),
            0);
}

TEST(Statistics, ChildThatMakesASocketIsSeen) {
  EXPECT_EQ(process([](Channel&) {
              const SocketStatistics inherited;
              return process([](Channel&) {
                       const SocketStatistics own;
                       const auto page = seen(::getpid());
                       return page && page->sockets.size() == 2 ? 0 : 1;
                     })
                  .wait();
            }).wait(),
            0);
}

TEST(Statistics, ParentsFileSurvivesTheExitOfItsChild) {
  EXPECT_EQ(process([](Channel&) {
              const SocketStatistics socket;
              if (process([](Channel&) { return 0; }).wait() != 0) return 1;
              return exists(process_statistics.path()) ? 0 : 2;
            }).wait(),
            0);
}

// -- where there is no room

TEST(Statistics, LimitOfFileSizesKeepsThePagePrivate) {
  EXPECT_EQ(process([](Channel&) {
              rlimit before{};
              ::getrlimit(RLIMIT_FSIZE, &before);
              const rlimit none{0, before.rlim_max};
              if (::setrlimit(RLIMIT_FSIZE, &none) != 0) return 1;
              SocketStatistics socket;  // not SIGXFSZ
              socket.count_sent(3);
              ::setrlimit(RLIMIT_FSIZE, &before);  // sanitizers write to the test's log
              if (!process_statistics.path().empty() || seen(::getpid())) return 2;
              return process_statistics.line().find("1 messages 3 bytes out") != std::string::npos ? 0 : 3;
            }).wait(),
            0);
}

TEST(Statistics, WithoutMemoryEverythingGoesOn) {
  if (support::kHasAddressSanitizer || support::kHasThreadSanitizer)
    GTEST_SKIP() << "the sanitizer itself needs the memory";
  EXPECT_EQ(process([](Channel&) {
              const rlimit little{1 << 20, 1 << 20};
              if (::setrlimit(RLIMIT_AS, &little) != 0) return 1;
              SocketStatistics socket, another;
              socket.describe(kConnected);
              socket.count_sent(3);
              another.count_sent(4);
              return process_statistics.path().empty() ? 0 : 2;
            }).wait(),
            0);
}

TEST(Statistics, FullDescriptorTableKeepsThePagePrivate) {
  EXPECT_EQ(process([](Channel&) {
              rlimit before{};
              ::getrlimit(RLIMIT_NOFILE, &before);
              const rlimit none{0, before.rlim_max};
              if (::setrlimit(RLIMIT_NOFILE, &none) != 0) return 1;
              SocketStatistics socket;
              socket.count_sent(3);
              ::setrlimit(RLIMIT_NOFILE, &before);  // sanitizers make pipes
              return process_statistics.path().empty() ? 0 : 2;
            }).wait(),
            0);
}

// -- the line at exit

/// Runs `body` in a process with RINGSOCK_STATS=1 and returns what it writes to standard error.
template <class Body>
std::string said_at_exit(Body body) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  Child child = process([&writing, body](Channel&) {
    ::dup2(writing.get(), STDERR_FILENO);
    process_statistics.set_print_at_exit(true);
    body();
    return 0;
  });
  writing.reset();
  EXPECT_EQ(child.wait(), 0);
  std::string text(4096, '\0');
  const ssize_t length = ::read(reading.get(), text.data(), text.size());
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  // LeakSanitizer's remark in a forked child that other threads of its parent are not there.
  while (text.starts_with("==")) text.erase(0, text.find('\n') + 1);
  // The pid is another each time.
  const std::size_t bracket = text.find('['), blank = text.find(' ');
  if (bracket < blank) text.replace(bracket + 1, blank - bracket - 1, "PID");
  return text;
}

TEST(StatisticsLine, TellsTheTotalsOfAllSockets) {
  EXPECT_EQ(
      said_at_exit([] {
        process_statistics.count_connected(SocketPath::embedded);
        process_statistics.count_connected(SocketPath::rdma);
        process_statistics.count_accepted(SocketPath::embedded);
        process_statistics.count_accepted(SocketPath::kernel);
        process_statistics.count_kernel_connected(KernelReason::nobody_listened);
        process_statistics.count_kernel_connected(KernelReason::nobody_listened);
        process_statistics.count_kernel_connected(KernelReason::fork);
        SocketStatistics().count_received(56789);
        static SocketStatistics alive;
        alive.count_sent(10);
        alive.count_wakeup();
        alive.count_spin_paid();
        process_statistics.count_shared_spin_paid();
      }),
      std::string("ringsock[PID ") + ::program_invocation_short_name +
          "]: 3 connections by ring (2 embedded, 1 rdma, 1 accepted), 4 by kernel TCP (2 nobody listened, 1 fork, 1 "
          "accepted), 1 messages 56789 bytes in, 1 messages 10 bytes out, 1 wake-ups, 2 spins paid, 0 errors\n");
}

TEST(StatisticsLine, IsShortWhenTheKernelHadNothing) {
  EXPECT_EQ(said_at_exit([] { const SocketStatistics unused; }),
            std::string("ringsock[PID ") + ::program_invocation_short_name +
                "]: 0 connections by ring (0 embedded, 0 rdma, 0 accepted), 0 by kernel TCP, 0 messages 0 bytes in, 0 "
                "messages 0 bytes out, 0 wake-ups, 0 spins paid, 0 errors\n");
}

TEST(StatisticsLine, IsNotSaidByAProcessWithoutSockets) {
  EXPECT_EQ(said_at_exit([] {}), "");
}

TEST(StatisticsLine, IsSaidByAChildOnlyOfWhatItDid) {
  EXPECT_EQ(said_at_exit([] {
              static SocketStatistics socket;
              socket.count_sent(1);
              process_statistics.set_print_at_exit(false);  // the parent is silent here
              process([](Channel&) {
                process_statistics.set_print_at_exit(true);
                return 0;
              }).wait();
            }),
            "");
  EXPECT_THAT(said_at_exit([] {
                static SocketStatistics socket;
                socket.count_sent(1);
                process_statistics.set_print_at_exit(false);
                process([](Channel&) {
                  process_statistics.set_print_at_exit(true);
                  socket.count_received(2);
                  return 0;
                }).wait();
              }),
              ::testing::HasSubstr("1 messages 2 bytes in, 0 messages 0 bytes out"));
}

}  // namespace
}  // namespace ringsock::runtime
