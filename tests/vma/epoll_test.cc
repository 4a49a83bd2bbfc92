// A socket over rings in several epoll sets, and sets within sets.
#include <sys/epoll.h>
#include <sys/resource.h>

#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/support/thread_status.h"
#include "tests/vma/udp_fixture.h"

namespace ringsock::vma_tests {
namespace {

/// An epoll set that is closed by libc's close().
class Set {
 public:
  Set() : fd_(::epoll_create1(0)) {}
  Set(const Set&) = delete;
  Set& operator=(const Set&) = delete;
  ~Set() { ::close(fd_); }
  operator int() const { return fd_; }

  void add(int member, std::uint32_t events = EPOLLIN) const {
    epoll_event event{.events = events, .data = {.fd = member}};
    ASSERT_EQ(::epoll_ctl(fd_, EPOLL_CTL_ADD, member, &event), 0) << std::strerror(errno);
  }
  void remove(int member) const { ASSERT_EQ(::epoll_ctl(fd_, EPOLL_CTL_DEL, member, nullptr), 0); }
  /// The one descriptor that is ready, -1 when none is.
  [[nodiscard]] int wait(int milliseconds = 5000) const {
    std::array<epoll_event, 4> events{};
    const int count = ::epoll_wait(fd_, events.data(), 4, milliseconds);
    EXPECT_LE(count, 1);
    return count > 0 ? events[0].data.fd : -1;
  }

 private:
  const int fd_;
};

class UdpSets : public Udp {
 protected:
  void SetUp() override {
    bind_anywhere(socket_);
    get_acquainted(socket_);
  }
  void ask() { ASSERT_EQ(socket_.send_to(echo_, "answer"), 6); }
  void read_answer() { EXPECT_EQ(socket_.receive(nullptr, MSG_DONTWAIT), "answer"); }
};
INSTANTIATE_TEST_SUITE_P(Versions, UdpSets, both_versions(), name_of_version);

TEST_P(UdpSets, EachOfTwoSetsTellsOfASocketThatIsInBoth) {
  const Set one, two;
  one.add(socket_);
  two.add(socket_);
  for (int round = 0; round < 4; ++round) {
    ask();
    EXPECT_EQ(one.wait(), socket_);
    EXPECT_EQ(two.wait(), socket_);
    read_answer();
    EXPECT_EQ(one.wait(0), -1);
    EXPECT_EQ(two.wait(0), -1);
  }
  one.remove(socket_);
  ask();
  EXPECT_EQ(two.wait(), socket_);
  EXPECT_EQ(one.wait(0), -1);
}

TEST_P(UdpSets, ASetWithinASetIsReadyWhenItsSocketIs) {
  const Set inner, outer;
  inner.add(socket_);
  outer.add(inner);
  for (int round = 0; round < 4; ++round) {
    EXPECT_EQ(outer.wait(0), -1);
    ask();
    EXPECT_EQ(outer.wait(), inner);
    EXPECT_EQ(inner.wait(), socket_);
    read_answer();
  }
}

TEST_P(UdpSets, ASetCannotHoldItselfByWayOfAnother) {
  const Set inner, outer;
  inner.add(socket_);
  outer.add(inner);
  epoll_event event{.events = EPOLLIN, .data = {}};
  EXPECT_EQ(::epoll_ctl(inner, EPOLL_CTL_ADD, outer, &event), -1);
  EXPECT_EQ(errno, ELOOP);
  ask();
  EXPECT_EQ(outer.wait(), inner);
}

TEST_P(UdpSets, ASocketThatComesToTheInnerSetLaterIsHeardOfByTheOuterOne) {
  const Set inner, middle, outer;
  outer.add(middle);
  middle.add(inner);
  inner.add(socket_);
  for (int round = 0; round < 4; ++round) {
    ask();
    EXPECT_EQ(outer.wait(), middle);
    read_answer();
    EXPECT_EQ(outer.wait(0), -1);
  }
}

TEST_P(UdpSets, PollTellsOfASetThatHoldsASocket) {
  const Set set;
  set.add(socket_);
  pollfd entry{set, POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
  ask();
  EXPECT_EQ(::poll(&entry, 1, 5000), 1);
  read_answer();
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
}

TEST_P(UdpSets, AnEdgeIsToldOnceInEachSet) {
  const Set one, two;
  one.add(socket_, EPOLLIN | EPOLLET);
  two.add(socket_, EPOLLIN | EPOLLET);
  for (int round = 0; round < 4; ++round) {
    ask();
    EXPECT_EQ(one.wait(), socket_);
    EXPECT_EQ(two.wait(), socket_);
    EXPECT_EQ(one.wait(0), -1);
    EXPECT_EQ(two.wait(0), -1);
  }
}

/// Sockets that share a ring, all in one set.
class ManyInASet : public Udp {
 protected:
  void make(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      sockets_.emplace_back(GetParam().family);
      ASSERT_GE(int(sockets_.back()), 0);
      bind_anywhere(sockets_.back());
      epoll_event event{EPOLLIN, {.u64 = sockets_.size() - 1}};
      ASSERT_EQ(::epoll_ctl(set_, EPOLL_CTL_ADD, sockets_.back(), &event), 0);
    }
  }
  ~ManyInASet() override { ::close(set_); }
  /// One asks, the set tells of the answer.
  void ask(std::size_t i) {
    ASSERT_EQ(sockets_[i].send_to(echo_, "hello"), 5);
    epoll_event event{};
    ASSERT_EQ(::epoll_wait(set_, &event, 1, 5000), 1);
    ASSERT_EQ(index_in(event), i);
    ASSERT_EQ(sockets_[i].receive(), "hello");
  }
  /// The structure is packed.
  static std::size_t index_in(const epoll_event& event) { return std::uint64_t{event.data.u64}; }

  const int set_ = ::epoll_create1(0);
  std::vector<Socket> sockets_;
};
INSTANTIATE_TEST_SUITE_P(Over, ManyInASet, both_versions(), name_of_version);

TEST_P(ManyInASet, EachOfTwoThousandIsTold) {
  if (preloaded()) until_rings_send(socket_);
  const rlimit enough{8192, 8192};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &enough), 0);
  make(2000);
  for (std::size_t i = 0; i < 200; ++i) ask(i * 7 % sockets_.size());
}

TEST_P(ManyInASet, ThoseThatStayHearWhenOthersLeave) {
  if (preloaded()) until_rings_send(socket_);
  make(5);
  for (std::size_t i = 0; i < sockets_.size(); ++i) {
    for (std::size_t j = i; j < sockets_.size(); ++j) {
      epoll_event event{};
      ASSERT_EQ(::epoll_wait(set_, &event, 1, 5), 0);  // nothing comes to those that have left
      std::thread asker([&, self = ::gettid()] {
        EXPECT_TRUE(support::falls_asleep(self));
        EXPECT_EQ(sockets_[j].send_to(echo_, "hello"), 5);
      });
      EXPECT_EQ(::epoll_wait(set_, &event, 1, 5000), 1);
      EXPECT_EQ(index_in(event), j);
      EXPECT_EQ(sockets_[j].receive(), "hello");
      asker.join();
    }
    ASSERT_EQ(::epoll_ctl(set_, EPOLL_CTL_DEL, sockets_[i], nullptr), 0);
  }
}

}  // namespace
}  // namespace ringsock::vma_tests
