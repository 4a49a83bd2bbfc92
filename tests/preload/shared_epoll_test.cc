// Epoll sets over connections that several processes and descriptors have: each call reports what it reports for a
// connection of the kernel.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/preload/preloaded.h"
#include "tests/support/raw_syscall.h"

namespace ringsock::preloaded {
namespace {

/// Two ends of a connection in this process: on a ring, or of the kernel.
struct Ends {
  explicit Ends(bool on_ring) { on_ring ? by_ring() : by_kernel(); }
  Ends(const Ends&) = delete;
  Ends& operator=(const Ends&) = delete;
  ~Ends() {
    ::close(ours);
    ::close(peers);
  }
  int ours = -1;
  int peers = -1;

 private:
  void by_ring() {
    const Listener listener = listen_anywhere();
    ours = connect_to(listener.port);
    peers = ::accept(listener.fd, nullptr, nullptr);
    ::close(listener.fd);
    expect(is_on_ring(ours) && is_on_ring(peers), "a connection on a ring");
  }
  /// By system calls, which the library does not see.
  void by_kernel() {
    const auto listener = static_cast<int>(raw_syscall(SYS_socket, AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    socklen_t length = sizeof address;
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    raw_syscall(SYS_bind, listener, &address, length);
    raw_syscall(SYS_listen, listener, 1);
    raw_syscall(SYS_getsockname, listener, &address, &length);
    ours = static_cast<int>(raw_syscall(SYS_socket, AF_INET, SOCK_STREAM, 0));
    expect(raw_syscall(SYS_connect, ours, &address, length) == 0, "connect");
    peers = static_cast<int>(raw_syscall(SYS_accept4, listener, nullptr, nullptr, 0));
    raw_syscall(SYS_close, listener);
  }
};

/// What an epoll set tells, in words that do not name numbers.
class Diary {
 public:
  Diary() : set_(::epoll_create1(0)) {}
  Diary(const Diary&) = delete;
  Diary& operator=(const Diary&) = delete;
  ~Diary() { ::close(set_); }

  [[nodiscard]] int set() const { return set_; }
  void add(int fd, char name, std::uint32_t events) { control(EPOLL_CTL_ADD, fd, name, events); }
  void control(int op, int fd, char name, std::uint32_t events) {
    epoll_event event{events, {.u64 = static_cast<std::uint64_t>(name)}};
    note(::epoll_ctl(set_, op, fd, &event) == 0 ? "" : "E" + std::to_string(errno) + " ");
  }
  /// Waits for an event, and writes all down that one call reports.
  void wait() { look(10'000); }
  /// Waits until so many members have been reported, and writes each of them down once. A call that finds the first one
  /// need not find the others, of which the kernel tells one after the other.
  void wait_for_members(std::size_t count) {
    std::set<std::string> entries;
    for (bool is_over = false; !is_over && entries.size() < count;) {
      const std::vector<std::string> found = report(10'000);
      is_over = found.empty();
      entries.insert(found.begin(), found.end());
    }
    write_down(entries);
  }
  /// Writes down what is there now.
  void look() { look(0); }
  void note(const std::string& text) { text_ += text; }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  void look(int timeout) {
    std::vector<std::string> entries = report(timeout);
    // Several members with one event have no documented order.
    std::sort(entries.begin(), entries.end());
    write_down(entries);
  }
  [[nodiscard]] std::vector<std::string> report(int timeout) const {
    std::array<epoll_event, 8> events;
    const int count = ::epoll_wait(set_, events.data(), 8, timeout);
    std::vector<std::string> entries;
    entries.reserve(events.size());
    for (int i = 0; i < count; ++i) entries.push_back(entry_of(events[static_cast<std::size_t>(i)]));
    return entries;
  }
  template <class Entries>
  void write_down(const Entries& entries) {
    text_ += "[";
    for (const std::string& entry : entries) text_ += entry;
    text_ += "]";
  }
  static std::string entry_of(const epoll_event& event) {
    std::string entry(1, static_cast<char>(event.data.u64));
    if ((event.events & EPOLLIN) != 0) entry += "i";
    if ((event.events & EPOLLOUT) != 0) entry += "o";
    if ((event.events & (EPOLLERR | EPOLLHUP)) != 0) entry += "h";
    return entry;
  }

  int set_;
  std::string text_;
};

using Story = std::function<void(Ends& ends, Diary& diary)>;

std::string told(bool on_ring, const Story& story) {
  Ends ends(on_ring);
  Diary diary;
  story(ends, diary);
  return diary.text();
}

/// Several times, because what the processes do at once may come in any order.
void expect_as_kernel(const Story& story) {
  const std::string kernels = told(false, story);
  for (int i = 0; i < 5; ++i) ASSERT_EQ(told(true, story), kernels) << "in round " << i;
}

class Triggers : public testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(LevelAndEdge, Triggers, testing::Values(0U, static_cast<std::uint32_t>(EPOLLET)));

TEST_P(Triggers, AMemberIsReportedOnceAfterAChildHasUsedIt) {
  expect_as_kernel([](Ends& ends, Diary& diary) {
    diary.add(ends.ours, 'a', EPOLLIN | GetParam());
    diary.look();
    EXPECT_EQ(wait_for(spawn([&] { send_all(ends.ours, "child"); })), 0);
    diary.look();
    EXPECT_EQ(receive(ends.peers, 5), "child");
    send_all(ends.peers, "answer");
    diary.wait();
    diary.look();
    diary.note(receive(ends.ours, 6));
    diary.look();
    send_all(ends.peers, "more");
    diary.wait();
    diary.note(receive(ends.ours, 4));
    diary.look();
  });
}

TEST_P(Triggers, AMemberIsReportedOnceWhileAChildThatUsesItLives) {
  expect_as_kernel([](Ends& ends, Diary& diary) {
    Signal used, end;
    diary.add(ends.ours, 'a', EPOLLIN | EPOLLOUT | GetParam());
    diary.wait();
    const pid_t child = spawn([&] {
      expect(receive(ends.ours, 1) == "?", "a question");
      send_all(ends.ours, "child");
      used.give();
      end.wait();
    });
    send_all(ends.peers, "?");
    used.wait();
    EXPECT_EQ(receive(ends.peers, 5), "child");
    diary.control(EPOLL_CTL_MOD, ends.ours, 'a', EPOLLIN | GetParam());
    diary.look();
    send_all(ends.peers, "answer");
    diary.wait();
    diary.look();
    diary.note(receive(ends.ours, 6));
    diary.look();
    end.give();
    EXPECT_EQ(wait_for(child), 0);
    diary.look();
  });
}

/// Nothing is there to read: a call that follows would block.
TEST(SharedEpoll, PollAndSelectTellWhatIsThereAfterAChildHasUsedTheConnection) {
  expect_as_kernel([](Ends& ends, Diary& diary) {
    EXPECT_EQ(wait_for(spawn([&] { send_all(ends.ours, "child"); })), 0);
    EXPECT_EQ(receive(ends.peers, 5), "child");
    pollfd entry{ends.ours, POLLIN | POLLOUT, 0};
    diary.note(std::to_string(::poll(&entry, 1, 0)) + "," + std::to_string(entry.revents));
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(static_cast<unsigned>(ends.ours), &readable);
    timeval none{};
    diary.note("," + std::to_string(::select(ends.ours + 1, &readable, nullptr, nullptr, &none)));
    send_all(ends.peers, "answer");
    entry.events = POLLIN;
    diary.note("," + std::to_string(::poll(&entry, 1, 10'000)) + "," + std::to_string(entry.revents));
  });
}

TEST_P(Triggers, ADuplicateIsAMemberOfItsOwn) {
  expect_as_kernel([](Ends& ends, Diary& diary) {
    const int duplicate = ::dup(ends.ours);
    diary.add(ends.ours, 'a', EPOLLIN | GetParam());
    diary.add(ends.ours, 'a', EPOLLIN | GetParam());
    diary.add(duplicate, 'b', EPOLLIN | GetParam());
    diary.look();
    send_all(ends.peers, "x");
    diary.wait();
    diary.look();
    diary.note(receive(duplicate, 1));
    diary.look();
    diary.control(EPOLL_CTL_DEL, ends.ours, 'a', 0);
    send_all(ends.peers, "y");
    diary.wait();
    diary.control(EPOLL_CTL_DEL, ends.ours, 'a', 0);
    ::close(ends.ours);
    diary.note(receive(duplicate, 1));
    send_all(ends.peers, "z");
    diary.wait();
    diary.look();
    ends.ours = duplicate;
  });
}

TEST_P(Triggers, ADuplicateIsAMemberOfItsOwnAfterAChildHasUsedTheConnection) {
  expect_as_kernel([](Ends& ends, Diary& diary) {
    const int duplicate = ::dup(ends.ours);
    diary.add(ends.ours, 'a', EPOLLIN | GetParam());
    EXPECT_EQ(wait_for(spawn([&] { send_all(duplicate, "child"); })), 0);
    EXPECT_EQ(receive(ends.peers, 5), "child");
    diary.add(duplicate, 'b', EPOLLIN | GetParam());
    diary.add(duplicate, 'b', EPOLLIN | GetParam());
    diary.look();
    send_all(ends.peers, "x");
    diary.wait();
    diary.look();
    diary.note(receive(duplicate, 1));
    diary.look();
    diary.control(EPOLL_CTL_DEL, duplicate, 'b', 0);
    diary.control(EPOLL_CTL_DEL, duplicate, 'b', 0);
    send_all(ends.peers, "y");
    diary.wait();
    ::close(duplicate);
  });
}

/// The set is the child's, the members are its parent's.
TEST(SharedEpoll, AChildAddsWhatItHasInherited) {
  expect_as_kernel([](Ends& ends, Diary& diary) {
    std::array<int, 2> report;
    ASSERT_EQ(::pipe(report.data()), 0);
    Signal added;
    const pid_t child = spawn([&] {
      Diary own;
      const int duplicate = ::dup(ends.ours);
      own.add(ends.ours, 'a', EPOLLIN);
      own.add(duplicate, 'b', EPOLLIN | EPOLLONESHOT);
      own.look();
      added.give();
      own.wait_for_members(2);
      own.look();
      own.note(receive(ends.ours, 5));
      own.look();
      expect(::write(report[1], own.text().data(), own.text().size()) > 0, "a report");
    });
    added.wait();
    send_all(ends.peers, "hello");
    EXPECT_EQ(wait_for(child), 0);
    std::array<char, 256> text{};
    const ssize_t length = ::read(report[0], text.data(), text.size());
    diary.note(std::string(text.data(), static_cast<std::size_t>(length)));
    ::close(report[0]);
    ::close(report[1]);
  });
}

TEST_P(Triggers, TheParentHearsOfWhatAChildAddsToItsSet) {
  expect_as_kernel([](Ends& ends, Diary& diary) {
    EXPECT_EQ(wait_for(spawn([&] {
                diary.add(ends.ours, 'a', EPOLLIN | GetParam());
                expect(diary.text().empty(), "added");
              })),
              0);
    diary.look();
    send_all(ends.peers, "x");
    diary.wait();
    diary.note(receive(ends.ours, 1));
    diary.look();
    diary.add(ends.ours, 'a', EPOLLIN | GetParam());
  });
}

TEST_P(Triggers, TheParentHearsOfWhatAChildChangesInItsSet) {
  expect_as_kernel([](Ends& ends, Diary& diary) {
    diary.add(ends.ours, 'a', EPOLLIN | GetParam());
    diary.look();
    EXPECT_EQ(wait_for(spawn([&] { diary.control(EPOLL_CTL_MOD, ends.ours, 'b', EPOLLIN | EPOLLOUT | GetParam()); })),
              0);
    diary.wait();
    send_all(ends.peers, "x");
    pollfd readable{ends.ours, POLLIN, 0};
    EXPECT_EQ(::poll(&readable, 1, 10'000), 1);
    diary.wait();
    diary.note(receive(ends.ours, 1));
  });
}

}  // namespace
}  // namespace ringsock::preloaded
