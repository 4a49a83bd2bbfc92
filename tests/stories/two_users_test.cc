// Two users of one host. A name that a process can choose proves nothing, so a connection goes only to the process that
// would have got it from the kernel: the owner of the port.
#include <arpa/inet.h>
#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <rdma/rsocket.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "tests/support/child.h"

namespace ringsock::stories {
namespace {

using testing::Channel;
using testing::Child;
using testing::Milliseconds;

constexpr uid_t kAlice = 64001, kBob = 64002, kMallory = 64003;

struct Go {};

void become(uid_t user) {
  if (setgroups(0, nullptr) != 0 || setgid(user) != 0 || setuid(user) != 0) _exit(99);
  prctl(PR_SET_DUMPABLE, 1);  // as a process is that this user started
}

/// A process of `user`.
Child process_of(uid_t user, const std::function<int(Channel&)>& body) {
  return Child::start([&](Channel& parent) {
    become(user);
    return body(parent);
  });
}

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int try_bind(int socket, std::uint16_t port) {
  const sockaddr_in address = loopback(port);
  return rbind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
}

int try_connect(int socket, std::uint16_t port) {
  const sockaddr_in address = loopback(port);
  return rconnect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
}

/// 0 once it listens, and its port is told to the parent; else errno.
int listen_and_tell(int socket, Channel& parent) {
  if (const int code = try_bind(socket, 0); code != 0) return code;
  if (rlisten(socket, 8) != 0) return errno;
  sockaddr_in address{};
  socklen_t length = sizeof address;
  if (rgetsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) return errno;
  parent.send(ntohs(address.sin_port));
  return 0;
}

/// Serves one connection: takes a byte, gives it back plus one.
int serve_one(Channel& parent) {
  const int listener = rsocket(AF_INET, SOCK_STREAM, 0);
  if (listen_and_tell(listener, parent) != 0) return 1;
  const int socket = raccept(listener, nullptr, nullptr);
  char byte;
  if (rrecv(socket, &byte, 1, 0) != 1) return 2;
  ++byte;
  return rsend(socket, &byte, 1, MSG_NOSIGNAL) == 1 ? 0 : 3;
}

/// errno of the connection, or of what came after; 0 when a byte went there and back.
int use_server(std::uint16_t port) {
  const int socket = rsocket(AF_INET, SOCK_STREAM, 0);
  if (const int code = try_connect(socket, port); code != 0) return code;
  char byte = 'x';
  if (rsend(socket, &byte, 1, MSG_NOSIGNAL) != 1) return errno;
  return rrecv(socket, &byte, 1, 0) == 1 && byte == 'y' ? 0 : EIO;
}

/// Abstract names of the host's UNIX sockets.
std::set<std::string> abstract_names() {
  std::set<std::string> names;
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);) {
    const auto at = line.find(" @");
    if (at != std::string::npos) names.insert(line.substr(at + 2));
  }
  return names;
}

/// Listens under an abstract name of Mallory's choice; -1 when that is taken.
int listen_under(const std::string& name) {
  const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // /proc/net/unix shows zero bytes as '@'.
  for (std::size_t i = 0; i < name.size() && i + 1 < sizeof address.sun_path; ++i)
    address.sun_path[i + 1] = name[i] == '@' ? '\0' : name[i];
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::bind(socket, reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(socket, 8) != 0) return -1;
  return socket;
}

/// One buffer may be mapped at this end.
void allow_one(int socket) {
  const int entries = 1;
  rsetsockopt(socket, SOL_RDMA, RDMA_IOMAPSIZE, &entries, sizeof entries);
}

/// The connection with the one client, for whom one buffer may be mapped; negative: there is none.
int accept_who_may_map(Channel& parent) {
  const int listener = rsocket(AF_INET, SOCK_STREAM, 0);
  allow_one(listener);
  return listen_and_tell(listener, parent) == 0 ? raccept(listener, nullptr, nullptr) : -1;
}

class TwoUsers : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "skipped: only root can become two users";
  }
};

TEST_F(TwoUsers, ConnectWhenTheListenerOwnsThePort) {
  Child alice = process_of(kAlice, serve_one);
  const auto port = alice.channel().receive<std::uint16_t>();
  ASSERT_TRUE(port);
  Child bob = process_of(kBob, [&](Channel&) { return use_server(*port); });
  EXPECT_EQ(bob.wait(), 0);
  EXPECT_EQ(alice.wait(), 0);
}

TEST_F(TwoUsers, ConnectAlsoWhenOneOfThemIsRoot) {
  Child alice = process_of(kAlice, serve_one);
  const auto port_of_alice = alice.channel().receive<std::uint16_t>();
  ASSERT_TRUE(port_of_alice);
  EXPECT_EQ(Child::start([&](Channel&) { return use_server(*port_of_alice); }).wait(), 0);
  EXPECT_EQ(alice.wait(), 0);

  Child root = Child::start(serve_one);
  const auto port_of_root = root.channel().receive<std::uint16_t>();
  ASSERT_TRUE(port_of_root);
  EXPECT_EQ(process_of(kBob, [&](Channel&) { return use_server(*port_of_root); }).wait(), 0);
  EXPECT_EQ(root.wait(), 0);
}

TEST_F(TwoUsers, WriteIntoEachOthersMappedBuffersWithoutSharingMemory) {
  constexpr std::size_t kBytes = 200'000;
  Child alice = process_of(kAlice, [&](Channel& parent) {
    const int socket = accept_who_may_map(parent);
    if (socket < 0) return 1;
    std::string memory(kBytes, '-');
    if (riomap(socket, memory.data(), memory.size(), PROT_WRITE, 0, 0) != 0) return 2;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find("ringsock-riomap") != std::string::npos) return 3;
    }
    char byte = 'm';
    if (rsend(socket, &byte, 1, MSG_NOSIGNAL) != 1 || rrecv(socket, &byte, 1, 0) != 1) return 4;
    return memory == std::string(kBytes, 'w') ? 0 : 5;
  });
  const auto port = alice.channel().receive<std::uint16_t>();
  ASSERT_TRUE(port);
  Child bob = process_of(kBob, [&](Channel&) {
    const int socket = rsocket(AF_INET, SOCK_STREAM, 0);
    allow_one(socket);
    if (const int code = try_connect(socket, *port); code != 0) return code;
    char byte;
    const std::string text(kBytes, 'w');
    if (rrecv(socket, &byte, 1, 0) != 1 || riowrite(socket, text.data(), text.size(), 0, 0) != text.size()) return 101;
    if (rsend(socket, &byte, 1, MSG_NOSIGNAL) != 1) return 102;
    return rrecv(socket, &byte, 1, 0) <= 0 ? 0 : 103;  // until Alice has gone: her help is needed for the writes
  });
  EXPECT_EQ(alice.wait(), 0);
  EXPECT_EQ(bob.wait(), 0);
}

/// The buffer's owner does the copying, so the writer's bytes behind it wait for that.
TEST_F(TwoUsers, WhatFollowsADirectWriteArrivesWhileTheWriterIsElsewhere) {
  constexpr std::size_t kBytes = 200'000;
  Child alice = process_of(kAlice, [&](Channel& parent) {
    ::alarm(20);
    const int socket = accept_who_may_map(parent);
    if (socket < 0) return 1;
    std::string memory(kBytes, '-');
    if (riomap(socket, memory.data(), memory.size(), PROT_WRITE, 0, 0) != 0) return 2;
    for (std::size_t bytes : {std::size_t{1000}, kBytes / 2, kBytes}) {
      char byte = 'm';
      if (rsend(socket, &byte, 1, MSG_NOSIGNAL) != 1 || rrecv(socket, &byte, 1, 0) != 1 || byte != 'w') return 3;
      if (memory.substr(0, bytes) != std::string(bytes, 'w')) return 4;
      memory.assign(kBytes, '-');
      parent.send(Go{});
    }
    return 0;
  });
  const auto port = alice.channel().receive<std::uint16_t>();
  ASSERT_TRUE(port);
  Child bob = process_of(kBob, [&](Channel& parent) {
    int socket = rsocket(AF_INET, SOCK_STREAM, 0);
    allow_one(socket);
    if (try_connect(socket, *port) != 0) return 1;
    const std::string text(kBytes, 'w');
    for (std::size_t bytes : {std::size_t{1000}, kBytes / 2, kBytes}) {
      char byte;
      if (rrecv(socket, &byte, 1, 0) != 1) return 2;
      if (riowrite(socket, text.data(), bytes, 0, 0) != bytes) return 3;
      byte = 'w';
      if (rsend(socket, &byte, 1, MSG_NOSIGNAL) != 1) return 4;
      // Another number for the same connection.
      const int other = rfcntl(socket, F_DUPFD, 0);
      rclose(std::exchange(socket, other));
      if (!parent.receive<Go>()) return 5;  // not in the library
    }
    return 0;
  });
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(alice.channel().receive<Go>());
    bob.channel().send(Go{});
  }
  EXPECT_EQ(bob.wait(), 0);
  EXPECT_EQ(alice.wait(), 0);
}

/// Bob writes where Alice has nothing any more.
TEST_F(TwoUsers, AWriteIntoMemoryThatItsOwnerHasGivenBackEndsTheConnectionOnly) {
  constexpr std::size_t kBytes = 65536;
  Child alice = process_of(kAlice, [&](Channel& parent) {
    ::alarm(20);
    const int socket = accept_who_may_map(parent);
    if (socket < 0) return 1;
    void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (riomap(socket, memory, kBytes, PROT_WRITE, 0, 0) != 0) return 2;
    ::munmap(memory, kBytes);
    char byte = 'm';
    if (rsend(socket, &byte, 1, MSG_NOSIGNAL) != 1) return 3;
    return rrecv(socket, &byte, 1, 0) == 1 ? 4 : 0;
  });
  const auto port = alice.channel().receive<std::uint16_t>();
  ASSERT_TRUE(port);
  Child bob = process_of(kBob, [&](Channel&) {
    const int socket = rsocket(AF_INET, SOCK_STREAM, 0);
    allow_one(socket);
    if (try_connect(socket, *port) != 0) return 1;
    char byte;
    if (rrecv(socket, &byte, 1, 0) != 1) return 2;
    const std::string text(kBytes, 'w');
    if (riowrite(socket, text.data(), kBytes, 0, 0) != kBytes) return 3;
    return rrecv(socket, &byte, 1, 0) < 0 && errno == EIO ? 0 : 4;
  });
  EXPECT_EQ(alice.wait(), 0);
  EXPECT_EQ(bob.wait(), 0);
}

TEST_F(TwoUsers, CannotBindEachOthersPort) {
  Child alice = process_of(kAlice, serve_one);
  const auto port = alice.channel().receive<std::uint16_t>();
  ASSERT_TRUE(port);
  Child bob = process_of(kBob, [&](Channel&) { return try_bind(rsocket(AF_INET, SOCK_STREAM, 0), *port); });
  EXPECT_EQ(bob.wait(), EADDRINUSE);
}

TEST_F(TwoUsers, CannotBindAPortThatTheOtherHasFromTheKernel) {
  Child alice = process_of(kAlice, [](Channel& parent) {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = loopback(0);
    socklen_t length = sizeof address;
    if (::bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(listener, 1) != 0) return 1;
    ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
    parent.send(ntohs(address.sin_port));
    parent.receive<Go>();
    return 0;
  });
  const auto port = alice.channel().receive<std::uint16_t>();
  ASSERT_TRUE(port);
  Child bob = process_of(kBob, [&](Channel&) { return try_bind(rsocket(AF_INET, SOCK_STREAM, 0), *port); });
  EXPECT_EQ(bob.wait(), EADDRINUSE);
  alice.channel().send(Go{});
  EXPECT_EQ(alice.wait(), 0);
}

TEST_F(TwoUsers, NeedPrivilegesForAPrivilegedPort) {
  int first_free_for_all = 1024;
  std::ifstream("/proc/sys/net/ipv4/ip_unprivileged_port_start") >> first_free_for_all;
  if (first_free_for_all < 2) GTEST_SKIP() << "skipped: this kernel has no privileged ports";
  Child bob = process_of(kBob, [](Channel&) { return try_bind(rsocket(AF_INET, SOCK_STREAM, 0), 1); });
  EXPECT_EQ(bob.wait(), EACCES);
}

TEST_F(TwoUsers, AreRefusedWhereNobodyListens) {
  // A port that was free a moment ago.
  Child alice =
      process_of(kAlice, [](Channel& parent) { return listen_and_tell(rsocket(AF_INET, SOCK_STREAM, 0), parent); });
  const auto port = alice.channel().receive<std::uint16_t>();
  ASSERT_TRUE(port);
  ASSERT_EQ(alice.wait(), 0);
  EXPECT_EQ(process_of(kBob, [&](Channel&) { return use_server(*port); }).wait(), ECONNREFUSED);
}

TEST_F(TwoUsers, AnImpostorUnderTheRightNameGetsNoConnection) {
  // Mallory learns under which names an honest listener can be reached, and takes them when it has gone. The port's
  // number stays Alice's: she keeps it from the kernel.
  const std::set<std::string> before = abstract_names();
  Child alice = process_of(kAlice, [](Channel& parent) {
    const int listener = rsocket(AF_INET, SOCK_STREAM, 0);
    if (listen_and_tell(listener, parent) != 0) return 1;
    const auto port = parent.receive<std::uint16_t>();
    rclose(listener);
    const int plain = ::socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = loopback(*port);
    if (::bind(plain, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 || ::listen(plain, 1) != 0)
      return 2;
    parent.send(Go{});
    parent.receive<Go>();
    return 0;
  });
  const auto port = alice.channel().receive<std::uint16_t>();
  ASSERT_TRUE(port);
  std::set<std::string> names;
  for (const auto& name : abstract_names()) {
    if (!before.contains(name)) names.insert(name);
  }
  ASSERT_FALSE(names.empty()) << "the listener has no abstract name";
  alice.channel().send(*port);
  ASSERT_TRUE(alice.channel().receive<Go>()) << "the port was not free again";

  Child mallory = process_of(kMallory, [&](Channel& parent) {
    bool listens = false;
    for (const auto& name : names) listens = listen_under(name) >= 0 || listens;
    parent.send(listens);
    parent.receive<Go>();
    return 0;
  });
  const auto listens = mallory.channel().receive<bool>();
  ASSERT_TRUE(listens && *listens) << "the impostor could not take the name";

  EXPECT_EQ(process_of(kBob, [&](Channel&) { return use_server(*port); }).wait(), ECONNREFUSED);
  EXPECT_EQ(process_of(kAlice, [&](Channel&) { return use_server(*port); }).wait(), ECONNREFUSED);
  // Nor do the impostor's own other programs talk to it: the kernel would connect them to Alice.
  EXPECT_EQ(process_of(kMallory, [&](Channel&) { return use_server(*port); }).wait(), ECONNREFUSED);
}

}  // namespace
}  // namespace ringsock::stories
