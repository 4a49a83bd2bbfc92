// What libvma tells of its sockets and rings, by the tools that read it. Runs beside the echo service (two_hosts.sh),
// with libvma; statistics.sh sets the variables.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <regex>
#include <string>
#include <thread>

#include "libvmacompat/statistics/vma_page.h"
#include "tests/support/sanitizers.h"
#include "tests/vma/far_socket.h"
#include "tests/vma/shell.h"
#include "tests/vma/statistics_world.h"
#include "tests/vma/udp_world.h"

namespace ringsock::vma_tests {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class VmaTest : public ::testing::Test {
 protected:
  VmaTest() : echo_("10.9.0.2", kEchoPort), socket_(AF_INET) {
    socket_.limit_waits();
    const Address here("10.9.0.1", 0);
    EXPECT_EQ(::bind(socket_, here.get(), here.length()), 0);
    // The neighbour is known afterwards.
    for (int i = 0; i < 3; ++i) exchange("hello");
  }
  void exchange(const std::string& data) {
    ASSERT_EQ(socket_.send_to(echo_, data), static_cast<ssize_t>(data.size())) << std::strerror(errno);
    ASSERT_EQ(socket_.receive(), data) << std::strerror(errno);
  }
  std::string fd_line() const { return "Fd=[" + std::to_string(static_cast<int>(socket_)) + "]"; }

  Address echo_;
  Socket socket_;
};

class Statistics : public VmaTest {};

TEST_F(Statistics, TellWhatLeftTogether) {
  if (support::kHasThreadSanitizer || support::kHasAddressSanitizer) GTEST_SKIP() << "sanitizers make bursts too slow";
  ASSERT_THAT(vma_stats("-z"), "");
  // A sender that is taken off the CPU joins little, so it goes on until a hundred have left together.
  std::string full;
  for (int round = 0; round < 50 && number_in(full, "Tx Bursts: +(\\d+)") < 100; ++round) {
    for (int i = 0; i < 200; ++i) ASSERT_EQ(socket_.send_to(echo_, "burst"), 5) << std::strerror(errno);
    for (int i = 0; i < 200; ++i) ASSERT_EQ(socket_.receive(), "burst") << std::strerror(errno);
    full = vma_stats("-v 3 -c 1");
  }
  EXPECT_GE(number_in(full, "RING_ETH=\\[0\\]\nTx Offload: +\\d+ / (\\d+)"), 200);
  EXPECT_GE(number_in(full, "Tx Bursts: +(\\d+)"), 100);
  EXPECT_GE(number_in(full, "Tx Bursts: +\\d+ / (\\d+)"), 2);
}

TEST_F(Statistics, TellWhatWentByRings) {
  ASSERT_THAT(vma_stats("-z"), "");
  for (int i = 0; i < 50; ++i) exchange(std::string(1024, 'x'));

  const std::string full = vma_stats("-v 3 -c 1 -s " + std::to_string(static_cast<int>(socket_)));
  EXPECT_THAT(full, HasSubstr(fd_line()));
  EXPECT_THAT(full, HasSubstr("Rx Offload: 50 / 50 / 0 / 0 [kilobytes/packets/eagains/errors]"));
  EXPECT_THAT(full, HasSubstr("Tx Offload: 50 / 50 / 0 / 0 [kilobytes/packets/eagains/errors]"));
  EXPECT_GE(number_in(full, "RING_ETH=\\[0\\]\nTx Offload: +\\d+ / (\\d+)"), 50);
  EXPECT_THAT(vma_stats("-v 5 -c 1"), ContainsRegex("udp +Yes +0 +0 +10.9.0.1:"));
}

// Five answers by each call, then one wait in vain; epoll also reports a pipe of the kernel's.
TEST_F(Statistics, TellWhatWaitsForSeveralDescriptorsFound) {
  ASSERT_THAT(vma_stats("-z"), "");
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const int set = ::epoll_create1(0);
  epoll_event interest{.events = EPOLLIN, .data = {}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, socket_, &interest), 0);
  for (int i = 0; i < 5; ++i) {
    pollfd waiting{socket_, POLLIN, 0};
    ASSERT_EQ(socket_.send_to(echo_, "poll"), 4);
    ASSERT_EQ(::poll(&waiting, 1, 5000), 1);
    ASSERT_EQ(socket_.receive(), "poll");

    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(socket_, &readable);
    ASSERT_EQ(socket_.send_to(echo_, "select"), 6);
    ASSERT_EQ(::select(socket_ + 1, &readable, nullptr, nullptr, nullptr), 1);
    ASSERT_EQ(socket_.receive(), "select");

    epoll_event event{};
    ASSERT_EQ(socket_.send_to(echo_, "epoll"), 5);
    ASSERT_EQ(::epoll_wait(set, &event, 1, 5000), 1);
    ASSERT_EQ(socket_.receive(), "epoll");
  }
  pollfd nothing{socket_, POLLIN, 0};
  ASSERT_EQ(::poll(&nothing, 1, 1), 0);
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, pipe[0], &interest), 0);
  ASSERT_EQ(::write(pipe[1], "!", 1), 1);
  epoll_event event{};
  ASSERT_EQ(::epoll_wait(set, &event, 1, 5000), 1);

  const std::string view = vma_stats("-v 1 -c 1");
  EXPECT_THAT(view, HasSubstr(" poll Rx Ready:0/5 [os/offload] Timeouts:1 Errors:0 Poll:"));
  EXPECT_THAT(view, HasSubstr(" select Rx Ready:0/5 [os/offload] Timeouts:0 Errors:0 Poll:"));
  EXPECT_THAT(view,
              HasSubstr(" epoll[" + std::to_string(set) + "] Rx Ready:1/5 [os/offload] Timeouts:0 Errors:0 Poll:"));
  for (const int fd : {set, pipe[0], pipe[1]}) ::close(fd);
  EXPECT_THAT(vma_stats("-v 1 -c 1"), Not(HasSubstr("epoll["))) << "it is gone";
}

TEST_F(Statistics, TellOfBuffersOnceADatagramWaits) {
  ASSERT_EQ(socket_.send_to(echo_, "hello"), 5);
  pollfd waiting{socket_, POLLIN, 0};
  ASSERT_EQ(::poll(&waiting, 1, 5000), 1);

  EXPECT_GE(number_in(vma_stats("-v 3 -c 1"), "BUFFER_POOL\\(RX\\)=\\[0\\]\nSize: +(\\d+)"), 64);
  EXPECT_EQ(socket_.receive(), "hello");
}

TEST_F(Statistics, TellWhatFoundNoRoom) {
  constexpr int kSent = 150;
  const std::string data(1000, 'x');
  socket_.set(SOL_SOCKET, SO_RCVBUF, 1);  // VMA_RX_BYTES_MIN, 64 KiB
  Socket reader(AF_INET);
  reader.limit_waits();
  const Address here("10.9.0.1", 0);
  ASSERT_EQ(::bind(reader, here.get(), here.length()), 0);
  ASSERT_THAT(vma_stats("-z"), "");
  for (int i = 0; i < kSent; ++i) {
    ASSERT_EQ(socket_.send_to(echo_, data), 1000);
    // A reader gives everybody's datagrams to their sockets, and those that went before have come before.
    ASSERT_EQ(reader.send_to(echo_, "next"), 4);
    ASSERT_EQ(reader.receive(), "next");
  }
  const std::string row = vma_stats("-v 2 -c 1 -s " + std::to_string(static_cast<int>(socket_)));
  const long waiting = number_in(row, "Rx:.* (\\d+) +\\d+ +\\d+\n");
  EXPECT_GT(waiting, 10);
  EXPECT_LE(waiting, 65);
  EXPECT_EQ(number_in(row, "Rx:.* (\\d+) +\\d+\n"), waiting) << "most";
  EXPECT_EQ(number_in(row, "Rx:.* (\\d+)\n"), kSent - waiting) << "dropped";
}

// Rings are emptied into the sockets' queues before they are full, by the service thread.
TEST_F(Statistics, TellWhatWaitsWhileTheProgramIsElsewhere) {
  constexpr long kSent = 20'000, kStep = 500, kMostInRing = 4096 / 4;
  const int room = 8 << 20;
  ASSERT_EQ(::setsockopt(socket_, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room), 0);
  const FarSocket far("10.9.0.2");
  ASSERT_THAT(vma_stats("-z"), "");
  for (long sent = 0; sent < kSent;) {
    for (long i = 0; i < kStep; ++i) ASSERT_GT(far.send(socket_.name(), std::to_string(sent++)), 0);
    // All but what a ring holds before the service thread is told.
    long waiting = 0;
    for (int looks = 0; looks < 500 && waiting < sent - kMostInRing; ++looks) {
      waiting = number_in(vma_stats("-v 2 -c 1 -s " + std::to_string(static_cast<int>(socket_))),
                          "Rx:.* (\\d+) +\\d+ +\\d+\n");
    }
    ASSERT_GE(waiting, sent - kMostInRing);
  }
  for (long i = 0; i < kSent; ++i) ASSERT_EQ(socket_.receive(nullptr, MSG_DONTWAIT), std::to_string(i));
  EXPECT_EQ(socket_.receive(nullptr, MSG_DONTWAIT), "");
}

TEST_F(Statistics, CanBeWrittenToTheLog) {
  EXPECT_THAT(contents_of("VMA_LOG_FILE"), Not(HasSubstr(fd_line())));
  EXPECT_THAT(vma_stats("-S " + std::to_string(static_cast<int>(socket_))), "");
  EXPECT_THAT(contents_of("VMA_LOG_FILE"), HasSubstr(fd_line()));
}

TEST_F(Statistics, TheToolSetsTheLogLevel) {
  EXPECT_THAT(vma_stats("-l none"), "");
  const std::size_t before = contents_of("VMA_LOG_FILE").size();
  EXPECT_THAT(vma_stats("-S 0 info"), "");
  EXPECT_EQ(contents_of("VMA_LOG_FILE").size(), before);
  EXPECT_THAT(vma_stats("-l info -D 3"), "");
  EXPECT_THAT(vma_stats("-S 0"), "");
  EXPECT_THAT(contents_of("VMA_LOG_FILE").substr(before), ContainsRegex(" Time: .* Pid: .* Tid: .* VMA INFO: "));
  EXPECT_THAT(vma_stats("-D 0"), "");
}

TEST_F(Statistics, AProcessForksWhileItIsAsked) {
  // As vma_stats(8) asks, but without a pause.
  const std::string page = std::string(std::getenv("VMA_STATS_SHMEM_DIR")) + "/vmastat." + std::to_string(::getpid());
  const int fd = ::open(page.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0) << page;
  constexpr auto kControls = static_cast<off_t>(offsetof(runtime::VmaPageHeader, controls));
  constexpr auto kAsked = kControls + static_cast<off_t>(offsetof(runtime::VmaControls, asked));
  constexpr auto kDone = kControls + static_cast<off_t>(offsetof(runtime::VmaControls, done));
  std::uint32_t first = 0;
  ASSERT_EQ(::pread(fd, &first, sizeof first, kAsked), static_cast<ssize_t>(sizeof first));
  std::atomic<bool> is_over{false};
  std::atomic<int> answers{0};
  std::thread asking([&] {
    for (std::uint32_t number = first + 1, done = first; !is_over; ++number) {
      ASSERT_EQ(::pwrite(fd, &number, sizeof number, kAsked), static_cast<ssize_t>(sizeof number));
      while (done != number && !is_over) ASSERT_GT(::pread(fd, &done, sizeof done, kDone), 0);
      ++answers;
    }
  });
  ::alarm(300);  // the locks that a fork takes and those of an answer must not be waited for in a circle
  for (int i = 0; i < 300 || answers < 300; ++i) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  }
  ::alarm(0);
  is_over = true;
  asking.join();
  ::close(fd);
}

TEST_F(Statistics, AreWrittenWhenASocketCloses) {
  const std::string fd = std::to_string(static_cast<int>(socket_));
  const std::string name = socket_.name().host() + ":" + std::to_string(socket_.name().port());
  { const Socket closed = std::move(socket_); }
  EXPECT_THAT(contents_of("VMA_STATS_FILE"), HasSubstr("Fd=[" + fd + "]\n- UDP, Blocked"));
  EXPECT_THAT(contents_of("VMA_STATS_FILE"), HasSubstr("- Local Address   = [" + name + "]"));
}

TEST_F(Statistics, RsstatShowsThem) {
  const std::string pid = std::to_string(::getpid());
  EXPECT_THAT(output_of("tools/rsstat -p " + pid), ContainsRegex("libvma, [0-9]+ UDP sockets"));
  EXPECT_THAT(output_of("tools/rsstat -p " + pid), ContainsRegex("bound +ring +10.9.0.1:"));
  EXPECT_THAT(output_of("tools/rsstat -j -p " + pid), HasSubstr("\"path\": \"ring\""));
}

TEST_F(Statistics, NothingIsShownOfProcessesThatAreNotThere) {
  EXPECT_THAT(output_of("tools/vma_stats -p 1 -c 1"), HasSubstr("no such process"));
  EXPECT_THAT(output_of("tools/vma_stats -n nobody -c 1"), HasSubstr("no such process"));
}

// -- rings: run with one per thread, and a look with each operation

class Rings : public VmaTest {
 protected:
  /// The first datagrams may leave by the kernel: the library knows the neighbour once the kernel has told it.
  void begin_by_rings() {
    const std::string of_socket = "-v 3 -c 1 -s " + std::to_string(static_cast<int>(socket_));
    while (number_in(vma_stats(of_socket), "Tx Offload: \\d+ / (\\d+)") < 1) exchange("hello");
    ASSERT_THAT(vma_stats("-z"), "");
  }
};

TEST_F(Rings, ASocketMovesToAnotherThreadsRing) {
  begin_by_rings();
  std::thread([&] {
    // Some are under way while it moves: each comes once, and in order.
    constexpr int kAhead = 8, kAll = 200;
    for (int i = 0; i < kAhead; ++i) ASSERT_GT(socket_.send_to(echo_, std::to_string(i)), 0);
    for (int i = 0; i < kAll; ++i) {
      ASSERT_EQ(socket_.receive(), std::to_string(i));
      if (i + kAhead < kAll) {
        ASSERT_GT(socket_.send_to(echo_, std::to_string(i + kAhead)), 0);
      }
    }
  }).join();
  const std::string full = vma_stats("-v 3 -c 1");
  EXPECT_THAT(full, HasSubstr("Ring migrations Rx: 1, Tx: 1"));
  EXPECT_THAT(full, HasSubstr("RING_ETH=[1]\nTx Offload: "));
}

// Changes of addresses make a socket look for its flows again, in the thread that notices them first. That is no move.
TEST_F(Rings, ASocketMovesAlsoAfterAddressesHaveChanged) {
  begin_by_rings();
  std::thread([&] {
    std::atomic<bool> have_changed{false};
    std::thread change([&] {
      sh("for i in 1 2 3 4 5 6 7 8; do ip address add 10.9.1.$i/32 dev eth0; ip address del 10.9.1.$i/32 dev eth0; "
         "done");
      have_changed = true;
    });
    while (!have_changed) EXPECT_EQ(socket_.receive(nullptr, MSG_DONTWAIT), "");
    change.join();
    for (int i = 0; i < 100; ++i) exchange(std::to_string(i));
  }).join();
  const std::string full = vma_stats("-v 3 -c 1");
  EXPECT_THAT(full, HasSubstr("Ring migrations Rx: 1, Tx: 1"));
  EXPECT_THAT(full, HasSubstr("RING_ETH=[1]\nTx Offload: "));
}

TEST_F(Rings, NoMoreThanTheLimit) {
  // The limit is two.
  for (int i = 0; i < 4; ++i) {
    std::thread([&] {
      Socket socket(AF_INET);
      socket.limit_waits();
      const Address here("10.9.0.1", 0);
      ASSERT_EQ(::bind(socket, here.get(), here.length()), 0);
      ASSERT_EQ(socket.send_to(echo_, "x"), 1);
      ASSERT_EQ(socket.receive(), "x");
    }).join();
    EXPECT_THAT(vma_stats("-v 3 -c 1"), Not(HasSubstr("RING_ETH=[2]")));
  }
}

TEST_F(Rings, TheApplicationChooses) {
  constexpr int kOption = 2810;
  const std::array<std::uint32_t, 5> by_number{2 | 4 | 8, 11, 0, 4711, 1 | 2};
  ASSERT_EQ(::setsockopt(socket_, SOL_SOCKET, kOption, by_number.data(), sizeof by_number), 0) << std::strerror(errno);
  for (int i = 0; i < 10; ++i) exchange("chosen");
  EXPECT_THAT(vma_stats("-v 3 -c 1"), HasSubstr("- RX: Ring User ID = 4711"));
  EXPECT_EQ(::setsockopt(socket_, SOL_SOCKET, kOption, by_number.data(), 16), -1);
  EXPECT_EQ(errno, EINVAL);
}

}  // namespace
}  // namespace ringsock::vma_tests
