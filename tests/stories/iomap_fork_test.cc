// riomap() and riowrite() in processes that fork, start programs and end: whose memory is written, and what goes on.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "tests/stories/rsocket_pair.h"
#include "tests/support/child.h"

namespace ringsock::stories {
namespace {

using testing::Channel;
using testing::Child;

constexpr std::size_t kBytes = 8192;
/// A hang ends by SIGALRM, and the test fails.
constexpr unsigned kPatienceSeconds = 20;

/// Exit status 2, and a word about it, when something is not as it should be. For processes that are no tests.
void expect(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "%d: not as expected: %s (%s)\n", static_cast<int>(::getpid()), what, std::strerror(errno));
  ::_exit(2);
}

void allow_mappings(int socket) {
  const int slots = 2;
  expect(rsetsockopt(socket, SOL_RDMA, RDMA_IOMAPSIZE, &slots, sizeof slots) == 0, "RDMA_IOMAPSIZE");
}

void say(int socket, char word) { expect(rsend(socket, &word, 1, MSG_NOSIGNAL) == 1, "rsend"); }
void hear(int socket, char word) {
  char heard = 0;
  expect(rrecv(socket, &heard, 1, 0) == 1 && heard == word, "rrecv");
}

void map(int socket, std::string& memory) {
  expect(riomap(socket, memory.data(), memory.size(), PROT_WRITE, 0, 0) == 0, "riomap");
}

/// Says that the memory is mapped, and returns when the peer has written it.
void be_written(int socket) {
  say(socket, 'm');
  hear(socket, 'w');
}

/// Writes 'w' to all that the peer has mapped, `rounds` times.
void write_all(int socket, int rounds = 1) {
  const std::string text(kBytes, 'w');
  for (int round = 0; round < rounds; ++round) {
    hear(socket, 'm');
    expect(riowrite(socket, text.data(), text.size(), 0, 0) == text.size(), "riowrite");
    say(socket, 'w');
  }
}

bool is_all(const std::string& memory, char byte) { return memory == std::string(memory.size(), byte); }

template <class Body>
int in_child(Body body) {
  return Child::start([&](Channel&) {
           ::alarm(kPatienceSeconds);
           body();
           return 0;
         })
      .wait();
}

/// A server process with one client process: `serve` runs on the accepted socket, `visit` on the connected one.
struct Outcome {
  int server, client;
};
template <class Serve, class Visit>
Outcome play(Serve serve, Visit visit) {
  Child server = Child::start([&](Channel& channel) {
    ::alarm(kPatienceSeconds);
    Listener listener;
    allow_mappings(listener.socket);
    channel.send(listener.name);
    const Rsocket socket = listener.accept();
    serve(socket);
    return 0;
  });
  auto name = server.channel().receive<Address>();
  if (!name) return {server.wait(), -1};
  Child client = Child::start([&](Channel&) {
    ::alarm(kPatienceSeconds);
    const Rsocket socket(rsocket(AF_INET, SOCK_STREAM, 0));
    allow_mappings(socket);
    expect(rconnect(socket, name->get(), name->length) == 0, "rconnect");
    visit(socket);
    // What needs the server's help to arrive would end with this process: until the server's end.
    char byte;
    rrecv(socket, &byte, 1, 0);
    return 0;
  });
  const int client_status = client.wait();
  return {server.wait(), client_status};
}

void expect_good(const Outcome& outcome) {
  EXPECT_EQ(outcome.server, 0);
  EXPECT_EQ(outcome.client, 0);
}

// -- who is written to

TEST(IomapFork, TheChildThatMapsIsWrittenToAndItsParentIsNot) {
  const auto serve = [](int socket) {
    std::string memory(kBytes, '-');
    const int child = in_child([&] {
      map(socket, memory);
      be_written(socket);
      expect(is_all(memory, 'w'), "the child's memory is written");
      expect(riounmap(socket, memory.data(), memory.size()) == 0, "riounmap");
    });
    expect(child == 0, "the child");
    expect(is_all(memory, '-'), "the parent's memory is as it was");
  };
  expect_good(play(serve, [](int socket) { write_all(socket); }));
}

TEST(IomapFork, MemoryThatTheParentMappedIsTheChildsOnceTheChildUsesTheConnection) {
  const auto serve = [](int socket) {
    std::string memory(kBytes, '-');
    map(socket, memory);
    be_written(socket);
    expect(is_all(memory, 'w'), "the parent is written to");
    memory.assign(kBytes, '-');
    const int child = in_child([&] {
      be_written(socket);
      expect(is_all(memory, 'w'), "the child's memory is written");
      expect(riounmap(socket, memory.data(), memory.size()) == 0, "riounmap");
    });
    expect(child == 0, "the child");
    expect(is_all(memory, '-'), "the parent's memory is as it was");
  };
  expect_good(play(serve, [](int socket) { write_all(socket, 2); }));
}

/// The child has to do the copying. The writer has written, and is not in the library any more.
TEST(IomapFork, WhatFollowsADirectWriteReachesTheChildWhileTheWriterIsElsewhere) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const auto serve = [&](int socket) {
    std::string memory(kBytes, '-');
    map(socket, memory);
    be_written(socket);
    memory.assign(kBytes, '-');
    const int child = in_child([&] {
      be_written(socket);
      expect(is_all(memory, 'w'), "the child's memory is written");
    });
    expect(child == 0, "the child");
    expect(::write(ends[1], "x", 1) == 1, "write");
  };
  const auto visit = [&](int socket) {
    write_all(socket, 2);
    char byte;
    expect(::read(ends[0], &byte, 1) == 1, "read");
  };
  expect_good(play(serve, visit));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(IomapFork, MemoryStaysTheParentsWhenTheChildOnlyEnds) {
  const auto serve = [](int socket) {
    std::string memory(kBytes, '-');
    map(socket, memory);
    be_written(socket);
    memory.assign(kBytes, '-');
    const int child = in_child([&] { expect(is_all(memory, '-'), "the child's copy"); });
    expect(child == 0, "the child");
    be_written(socket);
    expect(is_all(memory, 'w'), "the parent's memory is written");
  };
  expect_good(play(serve, [](int socket) { write_all(socket, 2); }));
}

/// What a target that spins on its memory sees: no call of its own.
void wait_for_byte(const std::string& memory, char byte) {
  const volatile char* last = &memory.back();
  while (*last != byte) {
  }
}

TEST(IomapFork, AWriteNeedsNoCallOfTheTargetEvenAfterItStartedAProgram) {
  const auto serve = [](int socket) {
    std::string memory(kBytes, '-');
    map(socket, memory);
    say(socket, 'm');
    wait_for_byte(memory, 'w');
    hear(socket, 'w');
    memory.assign(kBytes, '-');
    say(socket, 'm');
    expect(::system("true") == 0, "system");
    wait_for_byte(memory, 'w');
  };
  expect_good(play(serve, [](int socket) { write_all(socket, 2); }));
}

/// The program that the next test's server turns into: it has memory where the server had its own.
int be_another_program(const char* address, const char* pipe_end) {
  void* const wanted = reinterpret_cast<void*>(std::strtoul(address, nullptr, 16));
  auto* memory = static_cast<char*>(
      ::mmap(wanted, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
  if (memory != wanted) return 3;
  std::memset(memory, 'o', kBytes);
  const int fd = std::atoi(pipe_end);
  char byte = 'r';
  if (::write(fd, &byte, 1) != 1) return 4;
  // Until the client has tried, and has gone.
  if (::read(fd, &byte, 1) != 1) return 5;
  return std::string(memory, kBytes) == std::string(kBytes, 'o') ? 0 : 6;
}

TEST(IomapFork, APeerThatExecutedAnotherProgramIsNotWrittenTo) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const auto serve = [&](int socket) {
    // Far from what programs have at random addresses: the other program needs the same address.
    void* const low = reinterpret_cast<void*>(0x20000000);
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    auto* memory = static_cast<char*>(::mmap(low, kBytes, PROT_READ | PROT_WRITE, kFlags, -1, 0));
    expect(memory == low, "memory at a low address");
    expect(riomap(socket, memory, kBytes, PROT_WRITE, 0, 0) == 0, "riomap");
    be_written(socket);
    say(socket, 'm');
    hear(socket, '.');
    // The connection stays open: a child that does not use it has it, too.
    const pid_t us = ::getpid();
    if (::fork() == 0) {
      testing::end_with(us);
      ::alarm(kPatienceSeconds);
      ::pause();
    }
    char address[32], end[16];
    std::snprintf(address, sizeof address, "%lx", reinterpret_cast<unsigned long>(memory));
    std::snprintf(end, sizeof end, "%d", ends[1]);
    const char* const arguments[] = {"other", address, end, nullptr};
    // By the kernel alone: nobody tells the library.
    ::syscall(SYS_execve, "/proc/self/exe", arguments, environ);
    ::_exit(7);
  };
  const auto visit = [&](int socket) {
    write_all(socket);
    hear(socket, 'm');
    say(socket, '.');
    char byte = 0;
    expect(::read(ends[0], &byte, 1) == 1, "the other program is there");
    const std::string text(kBytes, 'w');
    // It is carried out by the peer, which never will: what matters is where it does not go.
    riowrite(socket, text.data(), text.size(), 0, MSG_DONTWAIT);
    expect(::write(ends[0], &byte, 1) == 1, "the other program may look");
  };
  expect_good(play(serve, visit));
  ::close(ends[0]);
  ::close(ends[1]);
}

// -- nothing blocks for ever

/// As system(3) of an older libc, or popen(3): a child that comes and goes.
void fork_once() {
  expect(in_child([] {}) == 0, "the child");
}

TEST(IomapFork, AfterAForkTheFirstDirectWriteGoesOut) {
  const auto serve = [](int socket) {
    std::string memory(kBytes, '-');
    map(socket, memory);
    be_written(socket);
    expect(is_all(memory, 'w'), "written");
  };
  const auto visit = [](int socket) {
    hear(socket, 'm');
    fork_once();
    const std::string text(kBytes, 'w');
    expect(riowrite(socket, text.data(), text.size(), 0, 0) == text.size(), "riowrite");
    say(socket, 'w');
  };
  expect_good(play(serve, visit));
}

TEST(IomapFork, AfterAForkMappingAndUnmappingGoOn) {
  const auto serve = [](int socket) {
    std::string memory(kBytes, '-');
    map(socket, memory);
    fork_once();
    expect(riounmap(socket, memory.data(), memory.size()) == 0, "riounmap");
    fork_once();
    map(socket, memory);
    be_written(socket);
    expect(is_all(memory, 'w'), "written");
  };
  expect_good(play(serve, [](int socket) { write_all(socket); }));
}

TEST(IomapFork, WhoLostTheConnectionGetsAnErrorAndNoWrites) {
  const auto serve = [](int socket) {
    std::string memory(kBytes, '-');
    map(socket, memory);
    be_written(socket);
    memory.assign(kBytes, '-');
    Child child = Child::start([&](Channel& channel) {
      ::alarm(kPatienceSeconds);
      hear(socket, '.');  // the connection is the child's now
      channel.send(1);
      channel.receive<int>();
      be_written(socket);
      expect(is_all(memory, 'w'), "the child's memory is written");
      return 0;
    });
    expect(child.channel().receive<int>().has_value(), "the child has it");
    char byte = 'x';
    errno = 0;
    expect(riowrite(socket, &byte, 1, 0, 0) == static_cast<std::size_t>(-1) && errno == EIO, "riowrite: EIO");
    errno = 0;
    expect(riomap(socket, &byte, 1, PROT_WRITE, 0, 50000) == -1 && errno == EIO, "riomap: EIO");
    errno = 0;
    expect(riounmap(socket, memory.data(), memory.size()) == -1 && errno == EIO, "riounmap: EIO");
    child.channel().send(1);
    expect(child.wait() == 0, "the child");
    expect(is_all(memory, '-'), "the parent's memory is as it was");
  };
  const auto visit = [](int socket) {
    write_all(socket);
    say(socket, '.');
    write_all(socket);
  };
  expect_good(play(serve, visit));
}

}  // namespace
}  // namespace ringsock::stories

int main(int argc, char** argv) {
  if (std::string_view(argv[0]) == "other") return ringsock::stories::be_another_program(argv[1], argv[2]);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
