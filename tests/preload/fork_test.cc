// Processes that fork while they have connections: who may use one, who sees its end, and what others notice (nothing).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/preload/calls.h"
#include "tests/preload/preloaded.h"
#include "tests/support/closing_children.h"
#include "tests/support/sanitizers.h"
#include "tests/support/thread_status.h"

extern char** environ;

namespace ringsock::preloaded {
namespace {

/// Reads from a pipe, up to its end.
std::string bytes_of(int pipe, std::size_t bytes) {
  std::string got(bytes, '\0');
  std::size_t done = 0;
  for (ssize_t more = 1; more > 0 && done < bytes; done += static_cast<std::size_t>(more)) {
    more = ::read(pipe, got.data() + done, bytes - done);
    if (more < 0) break;
  }
  got.resize(done);
  return got;
}

/// A splice(2) that waits for room in its pipe takes no bytes meanwhile: a child may read them.
TEST(Fork, AChildReadsWhatASpliceHasNoRoomFor) {
  Signal go;
  const Call it([&](int client) {
    send_all(client, "abc");
    go.wait();
    send_all(client, "def");
    expect(receive_all(client).empty(), "the end");
  });
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const std::string full(65536, 'f');
  ASSERT_EQ(::write(pipe[1], full.data(), full.size()), ssize_t(full.size()));
  std::atomic<pid_t> splicer{0};
  ssize_t moved = -1;
  std::thread thread([&] {
    splicer.store(::gettid());
    moved = ::splice(it.fd, nullptr, pipe[1], nullptr, 100, 0);
  });
  while (splicer.load() == 0) std::this_thread::yield();
  EXPECT_TRUE(support::falls_asleep(splicer.load()));
  EXPECT_EQ(wait_for(spawn([&] { expect(receive(it.fd, 3) == "abc", "the first bytes"); })), 0);
  EXPECT_EQ(bytes_of(pipe[0], full.size()), full);
  go.give();
  thread.join();
  EXPECT_EQ(moved, 3);
  EXPECT_EQ(bytes_of(pipe[0], 3), "def");
  ::close(pipe[1]);
  EXPECT_EQ(bytes_of(pipe[0], 1), "");
  ::close(pipe[0]);
  EXPECT_EQ(it.end(), 0);
}

/// The peer runs, on our CPU, as soon as a message wakes it, so it has read, answered and ended when our send()
/// returns.
TEST(Fork, APeerThatAnswersAndEndsBeforeASendReturnsResetsNothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root has SCHED_FIFO";
  cpu_set_t all, one;
  ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(::sched_getcpu()), &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  // Some sends look for the peer's end, too.
  for (int requests = 1; requests <= 16; ++requests) {
    const Call it([requests](int client) {
      const sched_param urgent{1};
      expect(::sched_setscheduler(0, SCHED_FIFO, &urgent) == 0, "SCHED_FIFO");
      for (int i = 0; i < requests; ++i) {
        expect(receive(client, 1) == "?", "a request");
        send_all(client, "!");
      }
      ::close(client);
    });
    for (int i = 1; i < requests; ++i) {
      send_all(it.fd, "?");
      EXPECT_EQ(receive(it.fd, 1), "!");
    }
    send_all(it.fd, "?");
    pollfd entry{it.fd, POLLIN, 0};
    EXPECT_EQ(::poll(&entry, 1, 10000), 1);
    EXPECT_EQ(entry.revents, POLLIN) << "after " << requests << " requests";
    EXPECT_EQ(receive_all(it.fd), "!");
    ::close(it.fd);
    EXPECT_EQ(wait_for(it.peer), 0);
  }
  ::sched_setaffinity(0, sizeof all, &all);
}

TEST(Fork, BothProcessesUseAConnectionThoughTheyHaveNoFreeDescriptors) {
  const Listener listener = listen_anywhere();
  const pid_t server = spawn([&] { echo(::accept(listener.fd, nullptr, nullptr)); });
  const pid_t client = spawn([&] {
    const int fd = connect_to(listener.port);
    ::close(listener.fd);
    use_all_descriptors(true);
    const auto talk = [fd] {
      send_all(fd, "hello");
      expect(receive(fd, 5) == "hello", "the echo");
    };
    talk();
    expect(wait_for(spawn(talk)) == 0, "the child");
    talk();
  });
  ::close(listener.fd);
  EXPECT_EQ(wait_for(client), 0);
  EXPECT_EQ(wait_for(server), 0);
}

TEST(Fork, AConnectThatNobodyHasAnsweredGoesOnInBothProcesses) {
  StoppedServer server([](int client) { expect(receive_all(client) == "child parent", "both"); });
  const int fd = start_connecting(server.port());
  const pid_t child = spawn([fd] {
    expect_connected(fd);
    send_all(fd, "child ");
  });
  EXPECT_EQ(wait_for(child), 0);
  expect_connected(fd);
  send_all(fd, "parent");
  ::close(fd);
  EXPECT_EQ(server.go_on_and_wait(), 0);
}

TEST(Fork, AConnectThatIsAnsweredStaysOnItsRing) {
  Signal accepted;
  const Listener listener = listen_anywhere();
  const pid_t server = spawn([&] {
    const int client = ::accept(listener.fd, nullptr, nullptr);
    accepted.give();
    expect(receive_all(client) == "child", "the child's bytes");
  });
  ::close(listener.fd);
  const int fd = start_connecting(listener.port);
  accepted.wait();
  const pid_t child = spawn([fd] {
    expect(is_on_ring(fd), "a ring");
    send_all(fd, "child");
  });
  ::close(fd);
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(wait_for(server), 0);
}

TEST(Fork, AServerThatForksForEachClientServesThem) {
  const Listener listener = listen_anywhere();
  constexpr int kClients = 8;
  const pid_t server = spawn([&] {
    for (int i = 0; i < kClients; ++i) {
      const int client = ::accept(listener.fd, nullptr, nullptr);
      expect(is_on_ring(client), "the client came by a ring");
      spawn([&] {
        ::close(listener.fd);
        echo(client);
      });
      ::close(client);
    }
    while (::wait(nullptr) > 0) {
    }
  });
  ::close(listener.fd);

  std::vector<std::thread> clients;
  for (unsigned i = 0; i < kClients; ++i) {
    clients.emplace_back([&listener, i] {
      const int fd = connect_to(listener.port);
      expect_echo(fd, 1 << 20, i);
      ::close(fd);
    });
  }
  for (auto& client : clients) client.join();
  EXPECT_EQ(wait_for(server), 0);
}

TEST(Fork, WorkersShareAnInheritedListener) {
  const Listener listener = listen_anywhere();
  std::set<pid_t> workers;
  for (int i = 0; i < 4; ++i) {
    workers.insert(spawn([&] {
      for (;;) {
        const int client = ::accept(listener.fd, nullptr, nullptr);
        expect(is_on_ring(client), "the client came by a ring");
        if (receive(client, 4) == "quit") return;
        send_all(client, std::to_string(::getpid()));
        ::close(client);
      }
    }));
  }
  // This process has the listener, too, but never accepts: every client must get an answer all the same.
  for (int i = 0; i < 200; ++i) {
    const int fd = connect_to(listener.port);
    send_all(fd, "ping");
    EXPECT_TRUE(workers.contains(std::stoi(receive_all(fd))));
    ::close(fd);
  }
  for (int i = 0; i < 4; ++i) send_all(connect_to(listener.port), "quit");
  for (const pid_t worker : workers) EXPECT_EQ(wait_for(worker), 0);
}

TEST(Fork, AWorkerOfAnotherUserTakesInAClientAtItsFirstTry) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  constexpr uid_t kSomebody = 4711;
  const Listener listener = listen_anywhere();
  ::fcntl(listener.fd, F_SETFL, O_NONBLOCK);
  const pid_t worker = spawn([&] {
    expect(::setgid(kSomebody) == 0 && ::setuid(kSomebody) == 0, "the worker is another user");
    const int set = ::epoll_create1(0);
    epoll_event event{.events = EPOLLIN, .data = {}};
    expect(::epoll_ctl(set, EPOLL_CTL_ADD, listener.fd, &event) == 0, "the worker watches the listener");
    // Strangers exchange one packet more than processes of one user. It comes while the worker does something else.
    int in_vain = 0;
    int client = -1;
    for (;;) {
      expect(::epoll_wait(set, &event, 1, -1) == 1, "a client wakes the worker");
      client = ::accept(listener.fd, nullptr, nullptr);
      expect(client >= 0 || errno == EAGAIN, "accept");
      if (client >= 0) break;
      ++in_vain;
      ::usleep(1000);
    }
    expect(is_on_ring(client), "the client came by a ring");
    expect(in_vain < 20, "a set that reports the listener lets the worker go on");
    echo(client);
  });
  ASSERT_TRUE(support::falls_asleep(worker));
  const int fd = connect_to(listener.port);
  EXPECT_TRUE(is_on_ring(fd));
  send_all(fd, "ping");
  ::shutdown(fd, SHUT_WR);
  EXPECT_EQ(receive_all(fd), "ping");
  EXPECT_EQ(wait_for(worker), 0);
}

TEST(Fork, AChildGoesOnWithItsParentsConnectionWhicheverClosesFirst) {
  for (const bool parent_first : {true, false}) {
    const Echo peer;
    send_all(peer.fd, "by the parent");
    EXPECT_EQ(receive(peer.fd, 13), "by the parent");
    Signal closed;
    const pid_t child = spawn([&] {
      if (parent_first) closed.wait();
      const std::string text = pattern(300'000, 7);
      std::thread writer([&] { send_all(peer.fd, text); });
      expect(receive(peer.fd, text.size()) == text, "the echo");
      writer.join();
      ::shutdown(peer.fd, SHUT_WR);
      expect(receive_all(peer.fd).empty(), "the end");
      ::close(peer.fd);
      if (!parent_first) closed.give();
    });
    if (!parent_first) closed.wait();
    ::close(peer.fd);
    if (parent_first) closed.give();
    EXPECT_EQ(wait_for(child), 0);
    EXPECT_EQ(wait_for(peer.peer), 0);
  }
}

TEST(Fork, AChildThatOnlyClosesOrEndsLeavesTheConnectionToItsParent) {
  for (const bool closes : {true, false}) {
    const Echo peer;
    const pid_t child = spawn([&] {
      if (closes) ::close(peer.fd);
    });
    EXPECT_EQ(wait_for(child), 0);
    send_all(peer.fd, "still here");
    EXPECT_EQ(receive(peer.fd, 10), "still here");
    EXPECT_EQ(peer.end(), 0);
  }
}

/// A server that forks to save its data: its connections end while the child has them, and their numbers are other
/// clients' at once.
TEST(Fork, AConnectionThatItsPeerEndedIsClosedOnceThoughAChildHasIt) {
  constexpr int kConnections = 8;
  std::deque<Call> calls;
  for (int i = 0; i < kConnections; ++i) calls.emplace_back([](int fd) { ::close(fd); });
  const pid_t child = spawn([] { ::pause(); });
  for (const Call& one : calls) {
    char byte = 0;
    EXPECT_EQ(::read(one.fd, &byte, 1), 0);
    pollfd entry{one.fd, 0, 0};
    ::poll(&entry, 1, 50);  // only a sleeper hears of the end of the link
    EXPECT_EQ(wait_for(one.peer), 0);
  }
  // Another thread takes each number that becomes free, as accept() does.
  std::atomic<bool> all_closed{false};
  std::vector<int> taken;
  std::thread taker([&] {
    while (!all_closed) {
      const int fd = ::eventfd(0, EFD_CLOEXEC);
      if (fd <= calls.back().fd) {
        taken.push_back(fd);
      } else {
        ::close(fd);
      }
    }
  });
  for (const Call& one : calls) EXPECT_EQ(::close(one.fd), 0);
  all_closed = true;
  taker.join();
  for (const int fd : taken) EXPECT_EQ(::close(fd), 0) << fd << " was closed behind its owner's back";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(Fork, WhoReadsOnceInAWhileIsToldOfAKilledPeerAtTheNextRead) {
  // A peer that is killed before its accept() returns resets the connection instead.
  const Call silent([](int fd) {
    send_all(fd, "accepted");
    ::pause();
  });
  EXPECT_EQ(receive(silent.fd, 8), "accepted");
  char byte = 0;
  EXPECT_EQ(::recv(silent.fd, &byte, 1, MSG_DONTWAIT), -1);
  ::kill(silent.peer, SIGKILL);
  EXPECT_EQ(wait_for(silent.peer), 128 + SIGKILL);
  // No event to wait for: a read looks closely at the peer once the last close look is 2 ms old.
  ::usleep(20'000);
  EXPECT_EQ(::recv(silent.fd, &byte, 1, MSG_DONTWAIT), 0);
  ::close(silent.fd);
}

TEST(Fork, BytesThatCameBeforeTheForkAreTheUsers) {
  const Call peer([](int fd) {
    send_all(fd, "before the fork");
    echo(fd);
  });
  EXPECT_EQ(receive(peer.fd, 7), "before ");
  const pid_t child = spawn([&] {
    std::string rest(32, '\0');
    const ssize_t got = ::recv(peer.fd, rest.data(), rest.size(), MSG_DONTWAIT);
    expect(got == 8 && rest.substr(0, 8) == "the fork", "the rest, without waiting");
  });
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(peer.end(), 0);
}

TEST(Fork, ThePeerSeesTheEndWhenTheLastProcessIsGoneHoweverItWent) {
  for (const bool child_last : {true, false}) {
    const Call peer([](int fd) { expect(receive_all(fd) == "hello", "hello, and the end"); });
    Signal go;
    const pid_t first = spawn([&] {
      send_all(peer.fd, "hello");
      if (child_last) go.wait();
      if (child_last) ::kill(::getpid(), SIGKILL);
    });
    if (child_last) {
      ::close(peer.fd);
      go.give();
      EXPECT_EQ(wait_for(first), 128 + SIGKILL);
    } else {
      EXPECT_EQ(wait_for(first), 0);
      pollfd entry{peer.fd, POLLIN, 0};
      EXPECT_EQ(::poll(&entry, 1, 0), 0);
      ::close(peer.fd);
    }
    EXPECT_EQ(wait_for(peer.peer), 0);
  }
}

TEST(Fork, KillingTheParentLeavesTheChildItsConnection) {
  const Listener listener = listen_anywhere();
  const pid_t server = spawn([&] {
    const int client = ::accept(listener.fd, nullptr, nullptr);
    spawn([&] { echo(client); });
    ::pause();
  });
  const int fd = connect_to(listener.port);
  send_all(fd, "one");
  EXPECT_EQ(receive(fd, 3), "one");
  ::kill(server, SIGKILL);
  EXPECT_EQ(wait_for(server), 128 + SIGKILL);
  send_all(fd, "two");
  EXPECT_EQ(receive(fd, 3), "two");
  ::shutdown(fd, SHUT_WR);
  EXPECT_EQ(receive_all(fd), "");
  ::close(fd);
  ::close(listener.fd);
}

TEST(Fork, AServerMayGoIntoAUserNamespaceOfItsOwn) {
  const pid_t server = spawn([] {
    const Listener listener = listen_anywhere();
    const bool is_alone = ::unshare(CLONE_NEWUSER) == 0;
    expect(is_alone || errno != EINVAL, "the kernel sees one thread");
    const int client = connect_to(listener.port);
    const int accepted = ::accept(listener.fd, nullptr, nullptr);
    expect(::write(client, "hello", 5) == 5, "write");
    std::array<char, 8> got{};
    expect(::read(accepted, got.data(), got.size()) == 5, "read");
  });
  EXPECT_EQ(wait_for(server), 0);
}

TEST(Fork, AnInheritedEpollSetWorksInTheChild) {
  const Echo peer;
  const int set = ::epoll_create1(0);
  epoll_event interest{EPOLLIN, {.fd = peer.fd}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, peer.fd, &interest), 0);
  epoll_event event{};
  ASSERT_EQ(::epoll_wait(set, &event, 1, 10), 0);
  const pid_t child = spawn([&] {
    send_all(peer.fd, "hello");
    expect(::epoll_wait(set, &event, 1, 10'000) == 1 && event.data.fd == peer.fd, "an event");
    expect(receive(peer.fd, 5) == "hello", "the echo");
    expect(::epoll_wait(set, &event, 1, 10) == 0, "no more events");
    ::close(set);
    ::close(peer.fd);
  });
  ::close(peer.fd);
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(wait_for(peer.peer), 0);
  ::close(set);
}

/// The lock of a set that is made during fork(2) may be another thread's, which the child does not have.
TEST(Fork, AChildClosesAnEpollSetThatAnotherThreadWasMaking) {
  constexpr int kForks = 300;
  const Echo peer;
  std::atomic<bool> is_over{false};
  std::thread maker([&] {
    while (!is_over.load()) {
      const int set = ::epoll_create1(0);
      epoll_event event{EPOLLIN, {.fd = peer.fd}};
      ::epoll_ctl(set, EPOLL_CTL_ADD, peer.fd, &event);
      ::epoll_wait(set, &event, 1, 0);
      ::close(set);
    }
  });
  support::let_children_close(kForks);
  is_over.store(true);
  maker.join();
  ::close(peer.fd);
  EXPECT_EQ(wait_for(peer.peer), 0);
}

/// The set was the kernel's at the fork.
TEST(Fork, WhatAParentAddsToASetThatAChildHasShowsTheChildNothingStrange) {
  const int set = ::epoll_create1(0);
  Signal added;
  const pid_t child = spawn([&] {
    added.wait();
    epoll_event event{};
    expect(::epoll_wait(set, &event, 1, 50) == 0, "no event");
  });
  const Echo peer;
  epoll_event event{EPOLLIN, {.u64 = 0x1234}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, peer.fd, &event), 0);
  added.give();
  EXPECT_EQ(wait_for(child), 0);
  send_all(peer.fd, "hello");
  event = {};
  EXPECT_EQ(::epoll_wait(set, &event, 1, 10'000), 1);
  const std::uint64_t told = event.data.u64;  // it is packed
  EXPECT_EQ(told, 0x1234U);
  EXPECT_EQ(receive(peer.fd, 5), "hello");
  ::close(peer.fd);
  EXPECT_EQ(wait_for(peer.peer), 0);
  ::close(set);
}

TEST(Fork, WhatAChildAddsToASharedEpollSetShowsItsParentNothingStrange) {
  const Echo peer;
  const int set = ::epoll_create1(0);
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = spawn([&] {
    epoll_event event{EPOLLIN, {.fd = peer.fd}};
    expect(::epoll_ctl(set, EPOLL_CTL_ADD, peer.fd, &event) == 0, "added");
    send_all(peer.fd, "hello");
    expect(::epoll_wait(set, &event, 1, 10'000) == 1 && event.data.fd == peer.fd, "an event");
    [[maybe_unused]] const ssize_t told = ::write(ready[1], "x", 1);
    expect(receive(peer.fd, 5) == "hello", "the echo");
    ::close(set);
    ::close(peer.fd);
  });
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  // The kernel tells of the child's member; of a ring only the child hears (COMPLIANCE.md).
  epoll_event event{};
  if (::epoll_wait(set, &event, 1, 50) == 1) {
    EXPECT_EQ(event.data.fd, peer.fd);
  }
  ::close(peer.fd);
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(wait_for(peer.peer), 0);
  for (const int fd : {set, ready[0], ready[1]}) ::close(fd);
}

TEST(Fork, AnEpollSetGoesOnInTheParentOfAChildThatClosesIt) {
  const Echo peer;
  const int set = ::epoll_create1(0);
  epoll_event interest{EPOLLIN, {.fd = peer.fd}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, peer.fd, &interest), 0);
  for (int i = 0; i < 10; ++i) {
    const pid_t child = spawn([&] {
      ::close(set);
      ::close(peer.fd);
    });
    send_all(peer.fd, "hello");
    epoll_event event{};
    EXPECT_EQ(::epoll_wait(set, &event, 1, 10'000), 1);
    EXPECT_EQ(receive(peer.fd, 5), "hello");
    EXPECT_EQ(wait_for(child), 0);
  }
  ::close(set);
  EXPECT_EQ(peer.end(), 0);
}

TEST(Fork, ADaemonTakesItsConnectionsAndItsListenerWithIt) {
  const Listener listener = listen_anywhere();
  Signal ready;
  const Echo peer;
  const pid_t starter = spawn([&] {
    send_all(peer.fd, "before");
    expect(::daemon(1, 1) == 0, "daemon");
    ready.give();
    expect(receive(peer.fd, 6) == "before", "the answer comes to the daemon");
    const int client = ::accept(listener.fd, nullptr, nullptr);
    echo(client);
  });
  ::close(peer.fd);
  EXPECT_EQ(wait_for(starter), 0);
  ready.wait();
  const int fd = connect_to(listener.port);
  ::close(listener.fd);
  send_all(fd, "hello");
  EXPECT_EQ(receive(fd, 5), "hello");
  ::shutdown(fd, SHUT_WR);
  EXPECT_EQ(receive_all(fd), "");
  ::close(fd);
  EXPECT_EQ(wait_for(peer.peer), 0);
}

/// Ping-pong on a connection of its own until `stop`; how often.
void keep_busy(int fd, const std::atomic<bool>& stop, std::atomic<int>& rounds, unsigned seed) {
  while (!stop) {
    const std::string text = pattern(3000, seed++);
    send_all(fd, text);
    ASSERT_TRUE(receive(fd, text.size()) == text);
    ++rounds;
  }
}

TEST(Fork, OtherThreadsTrafficGoesOnWhileOneThreadForks) {
  constexpr unsigned kThreads = 3;
  const std::deque<Echo> peers(kThreads);
  const Echo inherited;
  std::atomic<bool> stop{false};
  std::array<std::atomic<int>, kThreads> rounds{};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] { keep_busy(peers[i].fd, stop, rounds[i], i * 1'000'000); });
  }
  for (int i = 0; i < 40; ++i) {
    const pid_t child = spawn([&] {
      if (i % 4 != 0) return;
      // A child of a process with threads can use what it inherited, and make connections of its own.
      for (const Call& peer : peers) ::close(peer.fd);
      const Listener own = listen_anywhere();
      const int fd = connect_to(own.port);
      const int accepted = ::accept(own.fd, nullptr, nullptr);
      send_all(fd, "in the child");
      expect(receive(accepted, 12) == "in the child", "a connection of its own");
    });
    EXPECT_EQ(wait_for(child), 0);
  }
  const pid_t user = spawn([&] {
    send_all(inherited.fd, "inherited");
    expect(receive(inherited.fd, 9) == "inherited", "the inherited connection");
  });
  EXPECT_EQ(wait_for(user), 0);
  const std::array<int, kThreads> so_far{rounds[0], rounds[1], rounds[2]};
  for (unsigned i = 0; i < kThreads; ++i) {
    while (rounds[i] == so_far[i]) std::this_thread::yield();
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  ::close(inherited.fd);
  for (const Call& peer : peers) ::close(peer.fd);
  for (const Call& peer : peers) EXPECT_EQ(wait_for(peer.peer), 0);
  EXPECT_EQ(wait_for(inherited.peer), 0);
}

/// A connection that could not be established is destroyed, with its locks.
TEST(Fork, ThreadsConnectInVainWhileAnotherThreadForks) {
  // The more sockets a process has, the longer it prepares a fork.
  std::array<int, 200> idle{};
  for (int& fd : idle) fd = ::socket(AF_INET, SOCK_STREAM, 0);
  std::atomic<bool> stop{false};
  const auto connect_in_vain = [&stop] {
    while (!stop) {
      const Listener listener = listen_anywhere();
      const int fd = start_connecting(listener.port);
      ::close(listener.fd);
      pollfd entry{fd, POLLOUT, 0};
      EXPECT_EQ(::poll(&entry, 1, 10'000), 1);
      ::close(fd);
    }
  };
  std::array<std::thread, 2> threads{std::thread(connect_in_vain), std::thread(connect_in_vain)};
  // A sanitizer makes each fork twenty times as long.
  const int forks = support::kHasAddressSanitizer || support::kHasThreadSanitizer ? 8 : 80;
  for (int i = 0; i < forks; ++i) {
    ::alarm(60);
    EXPECT_EQ(wait_for(spawn([] {})), 0);
  }
  ::alarm(0);
  stop = true;
  for (auto& thread : threads) thread.join();
  for (const int fd : idle) ::close(fd);
}

/// In its own network namespace, where the loopback interface is down.
TEST(Fork, AChildInANetworkOfItsOwnReachesNobodyAsWithTheKernel) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root has network namespaces";
  EXPECT_EQ(wait_for(spawn([] {
              expect(::unshare(CLONE_NEWNET) == 0, "unshare");
              const Listener listener = listen_anywhere();
              sockaddr_in address{};
              socklen_t length = sizeof address;
              expect(::getsockname(listener.fd, reinterpret_cast<sockaddr*>(&address), &length) == 0, "a name");
              const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
              expect(error_of(::connect(fd, reinterpret_cast<sockaddr*>(&address), length)) == ENETUNREACH,
                     "ENETUNREACH");
            })),
            0);
}

TEST(Fork, AListenerThatAChildHasShutDownListensAgainAndWaits) {
  const Listener listener = listen_anywhere();
  EXPECT_EQ(wait_for(spawn([&] { expect(::shutdown(listener.fd, SHUT_RDWR) == 0, "shutdown"); })), 0);
  EXPECT_EQ(::accept(listener.fd, nullptr, nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
  ASSERT_EQ(::listen(listener.fd, 5), 0);
  EXPECT_EQ(::fcntl(listener.fd, F_GETFL) & O_NONBLOCK, 0) << "nobody has set it";
  sockaddr_in name{};
  socklen_t length = sizeof name;
  ASSERT_EQ(::getsockname(listener.fd, reinterpret_cast<sockaddr*>(&name), &length), 0);
  const pid_t client = spawn([&] { receive_all(connect_to(ntohs(name.sin_port))); });
  const int accepted = ::accept(listener.fd, nullptr, nullptr);
  EXPECT_GE(accepted, 0);
  ::close(accepted);
  EXPECT_EQ(wait_for(client), 0);
  ::close(listener.fd);
}

TEST(Fork, CommandsThatAreRunLeaveTheConnectionsAlone) {
  const Echo peer;
  const auto still_works = [&] {
    send_all(peer.fd, "hello");
    return receive(peer.fd, 5) == "hello";
  };
  EXPECT_EQ(std::system("true"), 0);
  EXPECT_TRUE(still_works());
  FILE* const output = ::popen("echo from the shell", "r");
  std::array<char, 64> line{};
  EXPECT_STREQ(std::fgets(line.data(), line.size(), output), "from the shell\n");
  EXPECT_EQ(::pclose(output), 0);
  EXPECT_TRUE(still_works());
  std::array<char*, 2> arguments{const_cast<char*>("true"), nullptr};
  pid_t child = 0;
  ASSERT_EQ(::posix_spawnp(&child, "true", nullptr, nullptr, arguments.data(), environ), 0);
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_TRUE(still_works());
  // NOLINTBEGIN(clang-analyzer-security.insecureAPI.vfork,clang-analyzer-unix.Vfork): programs do so
  child = ::vfork();
  if (child == 0) {
    ::close(peer.fd);
    ::execvp("true", arguments.data());
    ::_exit(99);
  }
  // NOLINTEND(clang-analyzer-security.insecureAPI.vfork,clang-analyzer-unix.Vfork)
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_TRUE(still_works());
  EXPECT_EQ(peer.end(), 0);
}

}  // namespace
}  // namespace ringsock::preloaded
