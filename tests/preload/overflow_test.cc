// Two programs that both send much before either reads: the connection takes about as much as the kernel's would,
// whatever the size of the messages, and everything arrives in order, whatever happens to the ends meanwhile.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/preload/calls.h"
#include "tests/preload/preloaded.h"
#include "tests/support/sanitizers.h"

namespace ringsock::preloaded {
namespace {

constexpr std::size_t kMuch = 2u << 20;

/// While `holds_pages` is set, a thread that gives pages back waits in the call of this program's own madvise(2).
std::atomic<bool> holds_pages{false};
std::atomic<bool> gives_pages{false};

/// Millions of calls take minutes under AddressSanitizer.
constexpr std::size_t kSmallest = support::kHasAddressSanitizer ? 16 : 1;

long shared_memory_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssShmem:")) return std::stol(line.substr(9));
  }
  return -1;
}

class BothSendFirst : public testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Overflow, BothSendFirst, testing::Values(kSmallest, 100, 65536));

TEST_P(BothSendFirst, ThenBothRead) {
  const Call call([](int fd) {
    send_in_pieces(fd, pattern(kMuch, 2), GetParam());
    expect(receive(fd, kMuch) == pattern(kMuch, 1), "what the caller sent");
    ::close(fd);
  });
  send_in_pieces(call.fd, pattern(kMuch, 1), GetParam());
  EXPECT_TRUE(receive(call.fd, kMuch) == pattern(kMuch, 2));
  EXPECT_EQ(wait_for(call.peer), 0);
}

TEST_P(BothSendFirst, WithoutWaiting) {
  const auto send_at_once = [](int fd, const std::string& text) {
    ::fcntl(fd, F_SETFL, O_NONBLOCK);
    send_in_pieces(fd, text, GetParam());
    ::fcntl(fd, F_SETFL, 0);
  };
  const Call call([&](int fd) {
    send_at_once(fd, pattern(kMuch, 2));
    expect(receive(fd, kMuch) == pattern(kMuch, 1), "what the caller sent");
  });
  send_at_once(call.fd, pattern(kMuch, 1));
  EXPECT_TRUE(receive(call.fd, kMuch) == pattern(kMuch, 2));
  EXPECT_EQ(wait_for(call.peer), 0);
}

TEST_P(BothSendFirst, AgainAndAgainWithinOneProcess) {
  const Ends ends;
  for (unsigned turn = 0; turn < 5; ++turn) {
    const std::string there = pattern(300'000, turn);
    const std::string back = pattern(400'000, turn + 100);
    send_in_pieces(ends.ours, there, GetParam());
    send_in_pieces(ends.peers, back, GetParam());
    EXPECT_TRUE(receive(ends.peers, there.size()) == there);
    EXPECT_TRUE(receive(ends.ours, back.size()) == back);
  }
}

/// The sender overtakes the reader and is overtaken, in all proportions of ring and area.
TEST_P(BothSendFirst, AReaderThatIsNowAndThenSlower) {
  const std::string text = pattern(kMuch, 3);
  const Call call([&](int fd) {
    std::size_t read = 0;
    std::string bytes(70'000, ' ');
    for (std::size_t turn = 1; read < text.size(); ++turn) {
      if (turn % 16 == 0) ::usleep(2000);
      const ssize_t got = ::recv(fd, bytes.data(), 1 + turn * 7919 % bytes.size(), 0);
      expect(got > 0, "bytes");
      expect(text.compare(read, static_cast<std::size_t>(got), bytes, 0, static_cast<std::size_t>(got)) == 0,
             "in order");
      read += static_cast<std::size_t>(got);
    }
  });
  std::size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t step = ::send(call.fd, text.data() + sent, std::min(GetParam(), text.size() - sent), MSG_DONTWAIT);
    if (step < 0) {
      ASSERT_EQ(errno, EAGAIN);
      pollfd entry{call.fd, POLLOUT, 0};
      ASSERT_EQ(::poll(&entry, 1, 60'000), 1);
      continue;
    }
    sent += static_cast<std::size_t>(step);
  }
  EXPECT_EQ(wait_for(call.peer), 0);
}

class FilledBy : public testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Overflow, FilledBy, testing::Values(kSmallest, 100, 1000, 65536));

TEST_P(FilledBy, MessagesOfAnySizeAConnectionTakesAboutFourMebibytes) {
  const Ends ends;
  const std::size_t taken = send_until_full(ends.ours, GetParam());
  EXPECT_GT(taken, std::size_t{7} << 19);
  EXPECT_LT(taken, std::size_t{5} << 20);
  EXPECT_EQ(receive(ends.peers, taken), std::string(taken, 'x'));
  EXPECT_GT(send_until_full(ends.ours, GetParam()), std::size_t{7} << 19) << "once more, after the first were read";
}

TEST(Overflow, IsBoundedBySoSndbuf) {
  const Listener listener = listen_anywhere();
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const int bytes = 16 * 1024;
  ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  ::getsockname(listener.fd, reinterpret_cast<sockaddr*>(&address), &length);
  ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  const int other = ::accept(listener.fd, nullptr, nullptr);
  ASSERT_TRUE(is_on_ring(fd));
  EXPECT_LE(send_until_full(fd, 1000), 160U << 10);
  ::close(other);
}

TEST(Overflow, IsPeekedAtAndCounted) {
  const Ends ends;
  const std::string text = pattern(kMuch, 4);
  send_in_pieces(ends.ours, text, 1000);
  int count = 0;
  EXPECT_EQ(::ioctl(ends.peers, FIONREAD, &count), 0);
  EXPECT_EQ(static_cast<std::size_t>(count), text.size());
  std::string seen(text.size(), ' ');
  EXPECT_EQ(::recv(ends.peers, seen.data(), seen.size(), MSG_PEEK), static_cast<ssize_t>(text.size()));
  EXPECT_TRUE(seen == text);
  EXPECT_EQ(receive(ends.peers, 600'000), text.substr(0, 600'000));
  EXPECT_EQ(::recv(ends.peers, seen.data(), 1000, MSG_PEEK), 1000);
  EXPECT_EQ(seen.substr(0, 1000), text.substr(600'000, 1000));
  EXPECT_TRUE(receive(ends.peers, text.size() - 600'000) == text.substr(600'000));
  EXPECT_EQ(::recv(ends.peers, seen.data(), 1, MSG_DONTWAIT), -1);
}

TEST(Overflow, ASenderIsWritableAgainWhenThereIsRoom) {
  const Ends ends;
  const std::size_t taken = send_until_full(ends.ours, 1000);
  const int epoll = ::epoll_create1(0);
  epoll_event event{EPOLLOUT | EPOLLET, {}};
  ::epoll_ctl(epoll, EPOLL_CTL_ADD, ends.ours, &event);
  EXPECT_EQ(::epoll_wait(epoll, &event, 1, 0), 0);
  pollfd entry{ends.ours, POLLOUT, 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
  receive(ends.peers, taken / 8);
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
  std::thread reader([&] { receive(ends.peers, taken - taken / 8); });
  EXPECT_EQ(::epoll_wait(epoll, &event, 1, 60'000), 1);
  EXPECT_EQ(::poll(&entry, 1, 0), 1);
  EXPECT_GT(send_until_full(ends.ours, 1000), taken / 4);
  reader.join();
  ::close(epoll);
}

/// A thread that waits at this end, which has read all: it gives the area's pages back first, and stops in the middle
/// of that.
class PeerThatGivesPagesBack {
 public:
  explicit PeerThatGivesPagesBack(int end) {
    gives_pages.store(false);
    holds_pages.store(true);
    thread_ = std::thread([end] {
      pollfd entry{end, POLLIN, 0};
      ::poll(&entry, 1, 60'000);
      EXPECT_NE(receive(end, 1000), "");
    });
    while (!gives_pages.load()) ::usleep(1000);
  }
  void goes_on() {
    holds_pages.store(false);
    thread_.join();
  }

 private:
  std::thread thread_;
};

class PagesAreGivenBack : public testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Overflow, PagesAreGivenBack, testing::Range(0u, 4u));

/// The peer gives the area's pages back at this moment, so the sender may not write to them although they are free.
/// The message that comes before makes the sender poll once it has filled the ring: nothing but the refusal asks for an
/// event then. Now and then a sender polls before it sends, hence the sends that come first.
TEST_P(PagesAreGivenBack, ASenderThatIsRefusedMeanwhileIsToldWhenItMayGoOn) {
  const Ends ends;
  ::fcntl(ends.ours, F_SETFL, O_NONBLOCK);
  const int epoll = ::epoll_create1(0);
  epoll_event event{EPOLLIN | EPOLLOUT | EPOLLET, {}};
  ::epoll_ctl(epoll, EPOLL_CTL_ADD, ends.ours, &event);
  receive(ends.peers, send_until_full(ends.ours, 65536));
  for (unsigned i = 0; i < GetParam(); ++i) send_all(ends.ours, "1");
  receive(ends.peers, GetParam());
  EXPECT_EQ(::epoll_wait(epoll, &event, 1, 60'000), 1);
  send_all(ends.peers, "a message");
  PeerThatGivesPagesBack peer(ends.peers);
  const std::string text = pattern(kMuch, 5);
  EXPECT_LT(::send(ends.ours, text.data(), text.size(), 0), static_cast<ssize_t>(kMuch / 2)) << "the ring";
  EXPECT_EQ(::epoll_wait(epoll, &event, 1, 60'000), 1);
  EXPECT_EQ(receive(ends.ours, 9), "a message");
  EXPECT_EQ(error_of(::send(ends.ours, text.data(), text.size(), 0)), EAGAIN);
  peer.goes_on();
  EXPECT_EQ(::epoll_wait(epoll, &event, 1, 60'000), 1);
  EXPECT_GT(::send(ends.ours, text.data(), text.size(), 0), 0);
  ::close(epoll);
}

/// Programs that poll and write in turn would be busy meanwhile, and some give up after a number of vain turns.
TEST(Overflow, ASenderIsNotWritableWhileItIsRefused) {
  const Ends ends;
  ::fcntl(ends.ours, F_SETFL, O_NONBLOCK);
  receive(ends.peers, send_until_full(ends.ours, 65536));
  PeerThatGivesPagesBack peer(ends.peers);
  const std::string text = pattern(kMuch, 5);
  EXPECT_LT(::send(ends.ours, text.data(), text.size(), 0), static_cast<ssize_t>(kMuch / 2)) << "the ring";
  const int epoll = ::epoll_create1(0);
  epoll_event event{EPOLLOUT, {}};
  ::epoll_ctl(epoll, EPOLL_CTL_ADD, ends.ours, &event);
  pollfd entry{ends.ours, POLLOUT, 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
  EXPECT_EQ(::epoll_wait(epoll, &event, 1, 0), 0);
  EXPECT_EQ(error_of(::send(ends.ours, text.data(), text.size(), 0)), EAGAIN);
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
  std::thread sleeper([&] { EXPECT_EQ(::epoll_wait(epoll, &event, 1, 60'000), 1); });
  peer.goes_on();
  EXPECT_EQ(::poll(&entry, 1, 60'000), 1);
  sleeper.join();
  EXPECT_GT(::send(ends.ours, text.data(), text.size(), 0), 0);
  ::close(epoll);
}

/// The peer is told of bytes that come while it sleeps, after it has read all that was there.
TEST(Overflow, EveryByteWakesASleepingReader) {
  const Ends ends;
  send_until_full(ends.ours, 1000);
  const int epoll = ::epoll_create1(0);
  epoll_event event{EPOLLIN | EPOLLET, {}};
  ::epoll_ctl(epoll, EPOLL_CTL_ADD, ends.peers, &event);
  std::string bytes(1 << 20, ' ');
  for (int turn = 0; turn < 50; ++turn) {
    ASSERT_EQ(::epoll_wait(epoll, &event, 1, 60'000), 1) << turn;
    while (::recv(ends.peers, bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
    }
    std::thread writer([&] { send_all(ends.ours, "again"); });
    writer.join();
  }
  ::close(epoll);
}

TEST(Overflow, ArrivesBeforeTheEndOfTheStream) {
  Signal done;
  const Call call([&](int fd) {
    done.wait();
    const std::string got = receive_all(fd);
    expect(got == pattern(kMuch, 5), "all, and then the end");
    send_all(fd, "thanks");
  });
  send_in_pieces(call.fd, pattern(kMuch, 5), 100);
  ::shutdown(call.fd, SHUT_WR);
  done.give();
  EXPECT_EQ(receive_all(call.fd), "thanks");
  EXPECT_EQ(wait_for(call.peer), 0);
}

enum class End { kClose, kExit, kKill };
class Ended : public testing::TestWithParam<End> {};
INSTANTIATE_TEST_SUITE_P(Overflow, Ended, testing::Values(End::kClose, End::kExit, End::kKill));

TEST_P(Ended, ASendersBytesArriveAllTheSame) {
  Signal sent;
  Signal never;
  const Call call([&](int fd) {
    send_in_pieces(fd, pattern(kMuch, 6), 100);
    if (GetParam() == End::kClose) ::close(fd);
    sent.give();
    if (GetParam() == End::kExit) ::_exit(0);
    if (GetParam() == End::kKill) never.wait();
  });
  sent.wait();
  if (GetParam() == End::kKill) ::kill(call.peer, SIGKILL);
  EXPECT_EQ(wait_for(call.peer), GetParam() == End::kKill ? 128 + SIGKILL : 0);
  EXPECT_TRUE(receive(call.fd, kMuch) == pattern(kMuch, 6));
  char more = 0;
  EXPECT_EQ(::recv(call.fd, &more, 1, 0), 0);
}

TEST(Overflow, ASenderThatWaitsLearnsOfItsPeersDeath) {
  Signal never;
  const Call call([&](int) { never.wait(); });
  send_until_full(call.fd, 1000);
  std::thread killer([&] { ::kill(call.peer, SIGKILL); });
  const std::string more(kMuch, 'y');
  ssize_t last = 0;
  while (last >= 0) last = ::send(call.fd, more.data(), more.size(), MSG_NOSIGNAL);
  EXPECT_TRUE(errno == ECONNRESET || errno == EPIPE) << errno;
  killer.join();
  wait_for(call.peer);
}

void set_linger(int fd, int seconds) {
  const struct linger setting { 1, seconds };
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &setting, sizeof setting);
}

TEST(Overflow, ALingeringCloseLosesNothing) {
  Signal closing;
  const Call call([&](int fd) {
    closing.wait();
    expect(receive_all(fd) == pattern(kMuch, 11), "all, and then the end");
  });
  send_in_pieces(call.fd, pattern(kMuch, 11), 100);
  set_linger(call.fd, 60);
  std::thread reader([&] { closing.give(); });
  EXPECT_EQ(::close(call.fd), 0);
  reader.join();
  EXPECT_EQ(wait_for(call.peer), 0);
}

TEST(Overflow, AResetDoesNotWaitForTheReader) {
  Signal reset;
  const Call call([&](int fd) {
    reset.wait();
    std::string bytes(1 << 16, ' ');
    ssize_t got = 1;
    while (got > 0) got = ::recv(fd, bytes.data(), bytes.size(), 0);
    expect(got < 0 && errno == ECONNRESET, "a reset");
  });
  send_until_full(call.fd, 1000);
  set_linger(call.fd, 0);
  EXPECT_EQ(::close(call.fd), 0);
  reset.give();
  EXPECT_EQ(wait_for(call.peer), 0);
}

TEST(Overflow, BothDirectionsEndAfterTheBytesThatWait) {
  Signal all_sent;
  const Call call([&](int fd) {
    send_in_pieces(fd, pattern(kMuch, 12), 1000);
    ::shutdown(fd, SHUT_WR);
    all_sent.wait();
    expect(receive_all(fd) == pattern(kMuch, 13), "the caller's bytes, and the end");
  });
  send_in_pieces(call.fd, pattern(kMuch, 13), 1000);
  ::shutdown(call.fd, SHUT_WR);
  EXPECT_EQ(::send(call.fd, "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
  all_sent.give();
  EXPECT_TRUE(receive_all(call.fd) == pattern(kMuch, 12));
  EXPECT_EQ(wait_for(call.peer), 0);
}

/// Clients beyond the backlog wait until the listener has taken others in: they do not know it when they ask.
TEST(Overflow, ClientsThatMetAFullBacklogTakeAsMuch) {
  const Listener listener = listen_anywhere();
  ASSERT_EQ(::listen(listener.fd, 0), 0);
  constexpr int kClients = 6;
  std::vector<pid_t> clients;
  clients.reserve(kClients);
  Signal go;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(spawn([&] {
      const int fd = connect_to(listener.port);
      ::close(listener.fd);
      expect(!is_on_ring(fd) || send_until_full(fd, 16384) > kMuch, "the area");
      ::shutdown(fd, SHUT_WR);
      go.wait();
    }));
  }
  std::vector<int> accepted;
  accepted.reserve(kClients);
  for (int i = 0; i < kClients; ++i) accepted.push_back(::accept(listener.fd, nullptr, nullptr));
  for (const int fd : accepted) receive_all(fd);
  for (int i = 0; i < kClients; ++i) go.give();
  for (const pid_t client : clients) EXPECT_EQ(wait_for(client), 0);
  for (const int fd : accepted) ::close(fd);
  ::close(listener.fd);
}

TEST(Overflow, GoesOnInAChild) {
  if (!support::kForksWhileThreadsAllocate) GTEST_SKIP() << "this sanitizer's allocator may be locked in a child";
  Signal all_sent;
  const Call call([&](int fd) {
    all_sent.wait();
    expect(receive(fd, 100'000) == pattern(kMuch, 7).substr(0, 100'000), "the first part");
    const pid_t child = spawn([&] {
      expect(receive(fd, kMuch - 100'000) == pattern(kMuch, 7).substr(100'000), "the parent's bytes");
      expect(receive(fd, kMuch) == pattern(kMuch, 8), "the child's bytes");
    });
    expect(wait_for(child) == 0, "the reading child");
  });
  send_in_pieces(call.fd, pattern(kMuch, 7), 1000);
  const pid_t child = spawn([&] { send_in_pieces(call.fd, pattern(kMuch, 8), 1000); });
  EXPECT_EQ(wait_for(child), 0);
  all_sent.give();
  EXPECT_EQ(wait_for(call.peer), 0);
}

TEST(Overflow, GoesOnInAnotherProgram) {
  if (!support::kForksWhileThreadsAllocate) GTEST_SKIP() << "this sanitizer's allocator may be locked in a child";
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  Signal all_sent;
  const Call call([&](int fd) {
    all_sent.wait();
    expect(receive(fd, 100'000) == pattern(kMuch, 9).substr(0, 100'000), "the first part");
    send_in_pieces(fd, pattern(kMuch, 10), 100);
    ::dup2(fd, 0);
    ::dup2(pipe_ends[1], 1);
    ::execl("/bin/cat", "cat", nullptr);
  });
  ::close(pipe_ends[1]);
  send_in_pieces(call.fd, pattern(kMuch, 9), 1000);
  ::shutdown(call.fd, SHUT_WR);
  all_sent.give();
  std::string seen;
  std::string bytes(1 << 16, ' ');
  for (ssize_t got = 1; got > 0;) {
    got = ::read(pipe_ends[0], bytes.data(), bytes.size());
    if (got > 0) seen.append(bytes, 0, static_cast<std::size_t>(got));
  }
  EXPECT_TRUE(seen == pattern(kMuch, 9).substr(100'000));
  EXPECT_TRUE(receive_all(call.fd) == pattern(kMuch, 10));
  EXPECT_EQ(wait_for(call.peer), 0);
  ::close(pipe_ends[0]);
}

TEST(Overflow, ItsMemoryIsGivenBackWhenItIsEmpty) {
  const Ends ends;
  const long before = shared_memory_kib();
  const std::size_t taken = send_until_full(ends.ours, 65536);
  EXPECT_GT(shared_memory_kib(), before + 3500);
  receive(ends.peers, taken);
  pollfd entry{ends.peers, POLLIN, 0};
  for (int turn = 0; turn < 100 && shared_memory_kib() >= before + 500; ++turn) ::poll(&entry, 1, 100);
  EXPECT_LT(shared_memory_kib(), before + 500);
  const int epoll = ::epoll_create1(0);
  epoll_event event{EPOLLIN, {}};
  ::epoll_ctl(epoll, EPOLL_CTL_ADD, ends.peers, &event);
  receive(ends.peers, send_until_full(ends.ours, 1000));
  for (int turn = 0; turn < 100 && shared_memory_kib() >= before + 500; ++turn) ::epoll_wait(epoll, &event, 1, 100);
  EXPECT_LT(shared_memory_kib(), before + 500) << "in an epoll set";
  ::close(epoll);
}

/// mlockall(2) gives memory to each mapping at once.
TEST(Overflow, AProgramThatLocksItsMemoryPaysForWhatItUses) {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  if (::geteuid() != 0 && limit.rlim_cur != RLIM_INFINITY) GTEST_SKIP() << "the limit of locked memory is small";
  const pid_t program = spawn([] {
    expect(::mlockall(MCL_FUTURE) == 0, "mlockall");
    { const Ends first; }
    const long before = shared_memory_kib();
    const Ends ends[4];
    for (const Ends& each : ends) send_all(each.ours, "hello");
    expect(shared_memory_kib() < before + 4096, "memory for the rings only");
    for (const Ends& each : ends) expect(receive(each.peers, 5) == "hello", "the bytes");
    send_in_pieces(ends[0].ours, pattern(kMuch, 14), 1000);
    expect(receive(ends[0].peers, kMuch) == pattern(kMuch, 14), "the bytes of the area");
  });
  EXPECT_EQ(wait_for(program), 0);
}

/// A server that speaks first may have closed before its client knows that it is connected.
TEST(Overflow, WhatAServerSendsBeforeItClosesAtOnceArrives) {
  constexpr std::size_t kBytes = 300'000;
  const Listener listener = listen_anywhere();
  const pid_t server = spawn([&] {
    for (unsigned turn = 0; turn < 20; ++turn) {
      const int client = ::accept(listener.fd, nullptr, nullptr);
      send_all(client, pattern(kBytes, turn));
      ::close(client);
    }
  });
  for (unsigned turn = 0; turn < 20; ++turn) {
    const int fd = connect_to(listener.port);
    EXPECT_TRUE(receive_all(fd) == pattern(kBytes, turn)) << turn;
    ::close(fd);
  }
  EXPECT_EQ(wait_for(server), 0);
  ::close(listener.fd);
}

TEST(Overflow, AConnectionOverTheSameSegmentBeginsAfresh) {
  const long before = shared_memory_kib();
  for (unsigned turn = 0; turn < 4; ++turn) {
    {
      const Ends ends;
      send_in_pieces(ends.ours, pattern(kMuch, turn), 1000);
      if (turn % 2 == 0) {
        EXPECT_TRUE(receive(ends.peers, kMuch) == pattern(kMuch, turn));
      }
    }
    const Ends others;
    send_all(others.ours, "hello");
    EXPECT_EQ(receive(others.peers, 5), "hello");
    ::shutdown(others.ours, SHUT_WR);
    EXPECT_EQ(receive_all(others.peers), "");
  }
  EXPECT_LT(shared_memory_kib(), before + (16 << 10)) << "what is kept for other connections has a limit";
}

long page_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

/// One connection after the other, each of which carries so many bytes to us, and that end which closes first.
/// @return  the page faults of both processes, from the third connection on
long faults_of_transfers(std::size_t bytes, bool server_closes_first) {
  constexpr int kTransfers = 12;
  constexpr int kFirst = 2;
  const Listener listener = listen_anywhere();
  int pipe_ends[2];
  expect(::pipe(pipe_ends) == 0, "pipe");
  const pid_t server = spawn([&] {
    const std::string file = pattern(bytes, 21);
    long faults = 0;
    for (int i = 0; i < kTransfers; ++i) {
      if (i == kFirst) faults = page_faults();
      const int client = ::accept(listener.fd, nullptr, nullptr);
      send_all(client, file);
      if (!server_closes_first) expect(receive_all(client).empty(), "the end");
      ::close(client);
    }
    faults = page_faults() - faults;
    expect(::write(pipe_ends[1], &faults, sizeof faults) == sizeof faults, "the number of faults");
  });
  std::string buffer(bytes, ' ');
  long ours = 0;
  for (int i = 0; i < kTransfers; ++i) {
    if (i == kFirst) ours = page_faults();
    const int fd = connect_to(listener.port);
    EXPECT_EQ(::recv(fd, buffer.data(), bytes, MSG_WAITALL), static_cast<ssize_t>(bytes));
    char one_more;
    if (server_closes_first) {
      EXPECT_EQ(::recv(fd, &one_more, 1, 0), 0);
    }
    ::close(fd);
  }
  ours = page_faults() - ours;
  long theirs = 0;
  EXPECT_EQ(::read(pipe_ends[0], &theirs, sizeof theirs), static_cast<ssize_t>(sizeof theirs));
  EXPECT_EQ(wait_for(server), 0);
  for (const int end : {listener.fd, pipe_ends[0], pipe_ends[1]}) ::close(end);
  return ours + theirs;
}

/// A page's first touch costs more than what is copied into it.
TEST(Overflow, TransfersOneAfterTheOtherUseTheSamePages) {
  if (support::kHasAddressSanitizer) GTEST_SKIP() << "AddressSanitizer's memory has page faults of its own";
  constexpr std::size_t kBytes = 1u << 20;
  constexpr long kPagesOfOneTransfer = kBytes / 4096;
  EXPECT_LT(faults_of_transfers(kBytes, true), 3 * kPagesOfOneTransfer) << "10 transfers; the server closes first";
  EXPECT_LT(faults_of_transfers(kBytes, false), 3 * kPagesOfOneTransfer) << "10 transfers; the client closes first";
}

TEST(Overflow, TheMemoryOfTransfersIsGivenBackAfterAWhile) {
  const long before = shared_memory_kib();
  { EXPECT_GT(Ends().ours, 0); }
  {
    const Ends ends;
    receive(ends.peers, send_until_full(ends.ours, 65536));
  }
  for (int turn = 0; turn < 600 && shared_memory_kib() >= before + 1000; ++turn) ::poll(nullptr, 0, 100);
  EXPECT_LT(shared_memory_kib(), before + 1000);
}

TEST(Overflow, AnIdleConnectionAfterATransferHasNoMoreMemoryThanAnother) {
  const Ends first;
  const long before = shared_memory_kib();
  {
    const Ends ends;
    receive(ends.peers, send_until_full(ends.ours, 65536));
  }
  const Ends idle;
  send_all(idle.ours, "hello");
  EXPECT_EQ(receive(idle.peers, 5), "hello");
  pollfd entries[] = {{idle.ours, POLLIN, 0}, {idle.peers, POLLIN, 0}};
  for (int turn = 0; turn < 100 && shared_memory_kib() >= before + 500; ++turn) ::poll(entries, 2, 100);
  EXPECT_LT(shared_memory_kib(), before + 500);
}

}  // namespace
}  // namespace ringsock::preloaded

/// The library calls it, too.
extern "C" [[gnu::visibility("default")]] int madvise(void* address, std::size_t length, int advice) noexcept {
  using namespace ringsock::preloaded;
  if (advice == MADV_REMOVE) {
    while (holds_pages.load()) {
      gives_pages.store(true);
      ::usleep(1000);
    }
  }
  return static_cast<int>(::syscall(SYS_madvise, address, length, advice));
}
