// A server and the programs of another user: neither has to wait for the other's reads sooner than over the kernel, and
// neither can make the other use more memory than the budget of a user.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <list>
#include <sstream>
#include <string>
#include <vector>

#include "tests/preload/calls.h"
#include "tests/preload/preloaded.h"

namespace ringsock::preloaded {
namespace {

constexpr std::size_t kMuch = 2u << 20;
constexpr std::size_t kArea = 4u << 20;
constexpr std::size_t kBudget = 64u << 20;
constexpr std::size_t kPiece = 16406;
/// What a connection takes without an area, and more.
constexpr std::size_t kRing = 192u << 10;

/// Each has a budget of its own.
uid_t new_user() {
  static uid_t last = 60'000;
  return ++last;
}

class Strangers : public testing::Test {
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can be several users";
  }
};

/// A process of another user that has called us and runs `body` on its end.
struct Stranger {
  int fd = -1;
  pid_t process = 0;
  template <class Body>
  explicit Stranger(Body body, uid_t user = new_user()) {
    const Listener listener = listen_anywhere();
    process = spawn([&] {
      expect(::setgid(user) == 0 && ::setuid(user) == 0, "another user");
      const int server = connect_to(listener.port);
      expect(is_on_ring(server), "the client is on a ring");
      ::close(listener.fd);
      body(server);
    });
    fd = ::accept(listener.fd, nullptr, nullptr);
    ::close(listener.fd);
    expect(is_on_ring(fd), "the connection is on a ring");
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
};

/// The memory that this process shares with others and has used.
std::size_t shared_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssShmem:")) return std::stoul(line.substr(9)) << 10;
  }
  return SIZE_MAX;
}

TEST_F(Strangers, BothSendMuchBeforeEitherReads) {
  const Stranger client([](int fd) {
    send_in_pieces(fd, pattern(kMuch, 2), 1000);
    expect(receive(fd, kMuch) == pattern(kMuch, 1), "what the server sent");
  });
  send_in_pieces(client.fd, pattern(kMuch, 1), 1000);
  EXPECT_TRUE(receive(client.fd, kMuch) == pattern(kMuch, 2));
  EXPECT_EQ(wait_for(client.process), 0);
  ::close(client.fd);
}

TEST_F(Strangers, AConnectionTakesAsMuchAsWithinOneUser) {
  Signal full;
  Signal read;
  const Stranger client([&](int fd) {
    full.wait();
    std::string bytes(kArea + kRing, ' ');
    std::size_t got = 0;
    for (ssize_t step = 1; step > 0;) {
      step = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (step > 0) got += static_cast<std::size_t>(step);
    }
    expect(got > kArea, "all of it");
    read.give();
    receive_all(fd);
  });
  EXPECT_GT(send_until_full(client.fd, kPiece), std::size_t{7} << 19);
  full.give();
  read.wait();
  EXPECT_GT(send_until_full(client.fd, kPiece), std::size_t{7} << 19) << "once more, after the first were read";
  ::close(client.fd);
  EXPECT_EQ(wait_for(client.process), 0);
}

/// As nginx does: it reads what FIONREAD has counted, and then waits for the next edge.
TEST_F(Strangers, TellAServerOfEachEdgeThatReadsWhatItHasCounted) {
  for (unsigned round = 0; round < 4; ++round) {
    Signal all_sent;
    const Stranger client([&](int fd) {
      send_all(fd, pattern(kMuch, round));
      all_sent.give();
      receive(fd, 1);  // its end would be an edge, too
    });
    all_sent.wait();
    const int set = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{EPOLLIN | EPOLLRDHUP | EPOLLET, {.fd = client.fd}};
    ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, client.fd, &event), 0);
    // A wait that ends by a time-out looks once more. One that ends by a timer's event does not.
    const int timer = ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    const itimerspec limit{{}, {30, 0}};
    ::timerfd_settime(timer, 0, &limit, nullptr);
    epoll_event too_late{EPOLLIN, {.fd = timer}};
    ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, timer, &too_late), 0);
    std::string seen;
    while (seen.size() < kMuch && ::epoll_wait(set, &event, 1, -1) == 1 && event.data.fd == client.fd) {
      int counted = 0;
      ASSERT_EQ(::ioctl(client.fd, FIONREAD, &counted), 0);
      seen += receive(client.fd, static_cast<std::size_t>(counted));
    }
    ASSERT_TRUE(seen == pattern(kMuch, round)) << seen.size() << " bytes and no further edge in round " << round;
    send_all(client.fd, "x");
    ::close(timer);
    ::close(set);
    ::close(client.fd);
    EXPECT_EQ(wait_for(client.process), 0);
  }
}

TEST_F(Strangers, AServerThatGivesItsPrivilegesUpIsServedAsWell) {
  Signal done;
  const Listener listener = listen_anywhere();
  const uid_t user = new_user();
  const pid_t server = spawn([&] {
    expect(::setegid(user) == 0 && ::seteuid(user) == 0, "the worker is another user");
    const int fd = ::accept(listener.fd, nullptr, nullptr);
    send_in_pieces(fd, pattern(kMuch, 3), 16406);
    done.give();
    receive_all(fd);
  });
  const int fd = connect_to(listener.port);
  ASSERT_TRUE(is_on_ring(fd));
  done.wait();
  EXPECT_TRUE(receive(fd, kMuch) == pattern(kMuch, 3)) << "sent before a byte was read";
  ::close(fd);
  ::close(listener.fd);
  EXPECT_EQ(wait_for(server), 0);
}

/// Clients of one user that do not read until they are told.
class Crowd {
 public:
  Crowd(std::size_t count, uid_t user) {
    for (std::size_t i = 0; i < count; ++i) {
      clients_.emplace_back(
          [&](int fd) {
            char go = 0;
            expect(::read(gate_[0], &go, 1) == 1, "told to read");
            receive_all(fd);
          },
          user);
    }
  }
  ~Crowd() {
    for (const Stranger& client : clients_) ::close(client.fd);
    let_read();
    for (const Stranger& client : clients_) EXPECT_EQ(wait_for(client.process), 0);
    ::close(gate_[0]);
    ::close(gate_[1]);
  }
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;
  /// Sends to all as much as they take.
  std::size_t fill() {
    std::size_t sent = 0;
    for (const Stranger& client : clients_) {
      const std::size_t taken = send_until_full(client.fd, kPiece);
      least_ = std::min(least_, taken);
      sent += taken;
    }
    return sent;
  }
  void let_read() {
    const std::string all(clients_.size(), 'g');
    EXPECT_EQ(::write(gate_[1], all.data(), all.size()), static_cast<ssize_t>(all.size()));
  }
  [[nodiscard]] std::size_t least() const { return least_; }
  [[nodiscard]] const std::list<Stranger>& clients() const { return clients_; }

 private:
  struct Gate {
    int ends[2];
    Gate() { expect(::pipe(ends) == 0, "pipe"); }
    int operator[](int end) const { return ends[end]; }
  };
  Gate gate_;
  std::list<Stranger> clients_;
  std::size_t least_ = SIZE_MAX;
};

constexpr std::size_t kCrowd = 24;

TEST_F(Strangers, AllConnectionsOfAUserTogetherTakeNoMoreThanItsBudget) {
  const std::size_t before = shared_memory();
  Crowd crowd(kCrowd, new_user());
  const std::size_t taken = crowd.fill();
  EXPECT_GT(taken, kBudget);
  EXPECT_LT(taken, kBudget + kCrowd * kRing);
  EXPECT_GE(crowd.least(), std::size_t{16} << 10) << "the last ones work without an area";
  EXPECT_LT(shared_memory(), before + kBudget + kCrowd * 2 * kRing);
  Crowd others(1, new_user());
  EXPECT_GT(others.fill(), std::size_t{7} << 19) << "another user has its own";
}

TEST_F(Strangers, ABudgetThatIsUsedUpSlowsConnectionsDownOnly) {
  const uid_t user = new_user();
  Crowd crowd(kCrowd, user);
  crowd.fill();
  const std::string text = pattern(3 * kMuch, 4);
  const Stranger client(
      [&](int fd) {
        std::size_t read = 0;
        std::string bytes(5000, ' ');
        for (ssize_t got = 1; got > 0; read += static_cast<std::size_t>(got)) {
          got = ::recv(fd, bytes.data(), bytes.size(), 0);
          expect(got >= 0 &&
                     text.compare(read, static_cast<std::size_t>(got), bytes, 0, static_cast<std::size_t>(got)) == 0,
                 "the bytes in order");
        }
        expect(read == text.size(), "all of them");
      },
      user);
  ::fcntl(client.fd, F_SETFL, O_NONBLOCK);
  const int epoll = ::epoll_create1(0);
  epoll_event event{EPOLLOUT | EPOLLET, {}};
  ::epoll_ctl(epoll, EPOLL_CTL_ADD, client.fd, &event);
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t step = ::send(client.fd, text.data() + sent, std::min<std::size_t>(16406, text.size() - sent), 0);
    if (step > 0) {
      sent += static_cast<std::size_t>(step);
      continue;
    }
    ASSERT_EQ(errno, EAGAIN);
    ASSERT_EQ(::epoll_wait(epoll, &event, 1, 60'000), 1) << "after " << sent;
  }
  ::close(epoll);
  ::close(client.fd);
  EXPECT_EQ(wait_for(client.process), 0);
}

TEST_F(Strangers, TheBudgetIsThereAgainOnceEverythingIsRead) {
  const uid_t user = new_user();
  Crowd crowd(kCrowd, user);
  crowd.fill();
  Crowd late(1, user);
  EXPECT_LT(late.fill(), kRing);
  crowd.let_read();
  std::vector<pollfd> all;
  for (const Stranger& client : crowd.clients()) all.push_back({client.fd, POLLIN, 0});
  std::size_t taken = 0;
  for (int turn = 0; turn < 600 && taken < kMuch; ++turn) {
    EXPECT_EQ(::poll(all.data(), all.size(), 100), 0);
    taken += late.fill();
  }
  EXPECT_GE(taken, kMuch);
}

TEST_F(Strangers, BytesThatAreNotReadYetArriveAfterTheServersClose) {
  Signal closed;
  const Stranger client([&](int fd) {
    closed.wait();
    expect(receive_all(fd) == pattern(kMuch, 5), "all, and then the end");
  });
  send_in_pieces(client.fd, pattern(kMuch, 5), 1000);
  ::close(client.fd);
  closed.give();
  EXPECT_EQ(wait_for(client.process), 0);
}

TEST_F(Strangers, AClientsBytesArriveAfterItsEnd) {
  for (const bool is_killed : {false, true}) {
    Signal sent;
    Signal never;
    const Stranger client([&](int fd) {
      send_in_pieces(fd, pattern(kMuch, 6), 1000);
      sent.give();
      if (is_killed) never.wait();
    });
    sent.wait();
    if (is_killed) ::kill(client.process, SIGKILL);
    EXPECT_EQ(wait_for(client.process), is_killed ? 128 + SIGKILL : 0);
    EXPECT_TRUE(receive(client.fd, kMuch) == pattern(kMuch, 6));
    char more = 0;
    EXPECT_EQ(::recv(client.fd, &more, 1, 0), 0);
    ::close(client.fd);
  }
}

constexpr std::size_t kPage = 4096;

bool has_memory(std::byte* page) {
  unsigned char is_there = 0;
  return ::mincore(page, kPage, &is_there) == 0 && is_there != 0;
}

/// Returns where this process sees `mark`, which lies at a multiple of 64 in the memory of a connection.
std::byte* place_of(const std::string& mark) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:ringsock") == std::string::npos) continue;
    std::uintptr_t start = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    std::istringstream(line) >> std::hex >> start >> dash >> end;
    for (std::uintptr_t page = start; page < end; page += kPage) {
      auto* const memory = reinterpret_cast<std::byte*>(page);
      if (!has_memory(memory)) continue;
      for (std::size_t at = 0; at + mark.size() <= kPage; at += 64) {
        if (std::memcmp(memory + at, mark.data(), mark.size()) == 0) return memory + at;
      }
    }
  }
  return nullptr;
}

/// Fills the server's area, and takes the memory away: the server reads zeros.
void fill_with_nothing(int fd, const std::string& mark) {
  constexpr std::uintptr_t kRingBytes = 128U << 10;
  send_all(fd, mark);
  std::byte* const ring = place_of(mark);
  expect(ring != nullptr, "the start of the server's ring");
  expect(send_until_full(fd, kPiece) > kArea - kRing, "the area is full");
  const std::uintptr_t area = (reinterpret_cast<std::uintptr_t>(ring) + kRingBytes + kPage - 1) / kPage * kPage;
  expect(::madvise(reinterpret_cast<void*>(area), kArea, MADV_REMOVE) == 0, "the pages are gone");
}

TEST_F(Strangers, AServerThatReadsWhatIsNotThereUsesNoMoreThanTheBudget) {
  const std::size_t before = shared_memory();
  std::list<Stranger> liars;
  std::list<Signal> ready;
  const uid_t user = new_user();
  for (std::size_t i = 0; i < kCrowd; ++i) {
    Signal& is_ready = ready.emplace_back();
    liars.emplace_back(
        [&, i](int fd) {
          fill_with_nothing(fd, "the mark of client " + std::to_string(i) + std::string(64, '.'));
          is_ready.give();
          char byte = 0;
          while (::recv(fd, &byte, 1, 0) > 0) {
          }  // until the reset: the server closes with unread bytes
        },
        user);
  }
  for (Signal& is_ready : ready) is_ready.wait();
  std::string bytes(1 << 16, ' ');
  for (const Stranger& liar : liars) {
    for (std::size_t got = 0; got < kArea - kRing;) {
      const ssize_t step = ::recv(liar.fd, bytes.data(), bytes.size(), 0);
      ASSERT_GT(step, 0) << std::strerror(errno);
      got += static_cast<std::size_t>(step);
    }
  }
  EXPECT_LT(shared_memory(), before + kBudget + kCrowd * 2 * kRing);
  for (const Stranger& liar : liars) ::close(liar.fd);
  for (const Stranger& liar : liars) EXPECT_EQ(wait_for(liar.process), 0);
}

}  // namespace
}  // namespace ringsock::preloaded
