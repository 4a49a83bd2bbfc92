// Datagram rsockets and those they did not ask for: programs that are no rsockets, forged packets, other users, peers
// that die, forked children.
#include <grp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "core/base/refusals.h"
#include "tests/stories/datagram_pair.h"
#include "tests/support/child.h"

namespace ringsock::stories {
namespace {

using testing::Channel;
using testing::Child;

std::uint64_t refused() { return refusals_counted(Refusal::datagram); }

TEST(Rendezvous, BeginsWithTheDatagramByTheKernel) {
  const KernelSocket original;
  const Post alice;
  alice.send("hi", original.name());
  const std::string packet = original.hear();
  ASSERT_EQ(packet.size(), 18u);
  EXPECT_EQ(packet.substr(0, 8), rendezvous(kData, 0).substr(0, 8));
  EXPECT_EQ(packet.substr(8, 1), std::string(1, '\0'));  // 24 bits of number
  EXPECT_NE(packet.substr(9, 3), std::string(3, '\0'));
  EXPECT_EQ(packet.substr(12), std::string("\x7f\0\0\1hi", 6));
}

TEST(Rendezvous, IsAnsweredWithAControlPacketAndTheDatagramDelivered) {
  const KernelSocket original;
  const Post bob;
  for (int round = 0; round < 2; ++round) {  // each packet is a question
    original.send(rendezvous(kData, 0x800001, "hi"), bob.name);
    Address from;
    EXPECT_EQ(bob.hear(&from), "hi");
    EXPECT_EQ(from.port(), original.name().port());
    const std::string answer = original.hear();
    ASSERT_EQ(answer.size(), 16u);
    EXPECT_EQ(answer.substr(0, 8), rendezvous(kControl, 0).substr(0, 8));
    EXPECT_EQ(answer.substr(12), std::string("\x7f\0\0\1", 4));
  }
}

TEST(Rendezvous, TellsANumberThatNobodyHasOnlyOnce) {
  const KernelSocket original;
  const Post bob;
  original.send(rendezvous(kData, 0x800001, "hi"), bob.name);
  EXPECT_EQ(bob.hear(), "hi");
  EXPECT_EQ(original.hear().size(), 16u);
  // No queue pair has the number: the answer comes by the kernel.
  bob.send("hello", original.name());
  EXPECT_EQ(original.hear().substr(16), "hello");
}

TEST(Rendezvous, PacketsThatAreNoneAreDroppedAndCounted) {
  const KernelSocket stranger;
  const Post bob;
  std::string other_tag = rendezvous(kData, 5, "x"), other_version = other_tag, other_length = other_tag,
              other_op = other_tag;
  other_tag[3] = 'V';
  other_version[4] = 6;
  other_length[6] = 28;
  other_op[5] = 3;
  const std::uint64_t before = refused();
  std::uint64_t sent = 0;
  for (const std::string& bytes :
       {std::string(), std::string("hello"), rendezvous(kData, 5).substr(0, 15), other_tag, other_version, other_length,
        other_op, rendezvous(kData, 5, std::string(2041, 'x')), rendezvous(kControl, 5)}) {
    stranger.send(bytes, bob.name);
    ++sent;
  }
  EXPECT_EQ(bob.hear(nullptr, MSG_DONTWAIT), "<EAGAIN>");
  EXPECT_EQ(refused() - before, sent);
  EXPECT_EQ(stranger.hear(MSG_DONTWAIT), "");  // nothing was answered
  const Post alice;
  introduce(alice, bob);
}

TEST(Rendezvous, AnswersThatNobodyAskedForChangeNothing) {
  const Post alice, bob;
  introduce(alice, bob);
  const KernelSocket mallory;
  mallory.send(rendezvous(kControl, 0x800002), alice.name);
  alice.send("to Bob", bob);
  EXPECT_EQ(bob.hear(), "to Bob");
}

TEST(Rendezvous, OfTenThousandAddressesDoesNotDisturbAPeer) {
  const Post alice, bob;
  introduce(alice, bob);
  int delivered = 0;
  for (int i = 0; i < 10'000; ++i) {
    const std::string host = "127.1." + std::to_string(i / 250) + "." + std::to_string(1 + i % 250);
    const KernelSocket stranger(host.c_str());
    stranger.send(rendezvous(kData, 0x800003, "storm"), bob.name);
    if (bob.hear() == "storm") ++delivered;
    if (i % 1000 != 0) continue;
    alice.send("in between", bob);
    EXPECT_EQ(bob.hear(), "in between");
  }
  EXPECT_EQ(delivered, 10'000);
  bob.send("still here", alice);
  EXPECT_EQ(alice.hear(), "still here");
}

TEST(ADeadPeer, BetweenRendezvousAndDataIsFollowedByTheNextProcess) {
  auto start = [](std::uint16_t port) {
    return Child::start([port](Channel& parent) {
      Post bob(nullptr);
      Address name = address_of("127.0.0.1", port);
      if (rbind(bob.socket, name.get(), name.length) != 0) return 1;
      parent.send(local_name(bob.socket).port());
      Address from;
      while (true) {
        const std::string text = bob.hear(&from);
        bob.send(std::to_string(getpid()) + text, from);
      }
      return 0;
    });
  };
  const Post alice;
  std::uint16_t port = 0;
  for (int life = 0; life < 3; ++life) {
    Child bob = start(port);
    const auto told = bob.channel().receive<std::uint16_t>();
    ASSERT_TRUE(told);
    port = *told;
    for (int i = 0; i < 3; ++i) {
      alice.send("!", address_of("127.0.0.1", port));
      EXPECT_EQ(alice.hear(), std::to_string(bob.pid()) + "!");
    }
    bob.kill(SIGKILL);
    bob.wait();
  }
}

/// A process of `user` that answers each datagram with its own user and the text, by a datagram rsocket.
Child echo_of(uid_t user) {
  return Child::start([user](Channel& parent) {
    if (setgroups(0, nullptr) != 0 || setgid(user) != 0 || setuid(user) != 0) return 99;
    const Post bob;
    parent.send(bob.name.port());
    for (Address from;;) {
      const std::string text = bob.hear(&from);
      bob.send(std::to_string(user) + text, from);
    }
    return 0;
  });
}

TEST(UsersOfOneHost, ExchangeDatagrams) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  struct Users {
    uid_t alices;
    uid_t bobs;
  };
  for (const Users& users : {Users{64001, 64001}, {64001, 64002}, {0, 64001}, {64001, 0}}) {
    Child bob = echo_of(users.bobs);
    const auto port = bob.channel().receive<std::uint16_t>();
    ASSERT_TRUE(port);
    Child alice = Child::start([&](Channel&) {
      if (setgroups(0, nullptr) != 0 || setgid(users.alices) != 0 || setuid(users.alices) != 0) return 99;
      const Post post;
      for (int i = 0; i < 20; ++i) {
        post.send("?", address_of("127.0.0.1", *port));
        if (post.hear() != std::to_string(users.bobs) + "?") return 1;
      }
      return 0;
    });
    EXPECT_EQ(alice.wait(), 0) << users.alices << " to " << users.bobs;
  }
}

TEST(UsersOfOneHost, AreNotToldTheNumberOfAQueuePair) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  const Post bob;
  Child mallory = Child::start([&](Channel& parent) {
    if (setgid(64003) != 0 || setuid(64003) != 0) return 99;
    const KernelSocket socket;
    socket.send(rendezvous(kData, 0x800004, "hi"), bob.name);
    parent.receive<char>();
    return socket.hear(MSG_DONTWAIT).empty() ? 0 : 1;
  });
  Address from;
  EXPECT_EQ(bob.hear(&from), "hi");
  mallory.channel().send('.');
  EXPECT_EQ(mallory.wait(), 0);
}

TEST(AForkedChild, HasAQueuePairOfItsOwn) {
  Child family = Child::start([](Channel&) {
    const Post alice, bob;
    introduce(alice, bob);
    alice.send("unread at the fork", bob);
    // The child answers from Bob's port, and hears what is sent to it afterwards.
    int to_child[2];
    if (pipe(to_child) != 0) return 1;
    const pid_t child = fork();
    if (child == 0) {
      char go;
      if (read(to_child[0], &go, 1) != 1) _exit(2);
      if (bob.hear(nullptr, MSG_DONTWAIT) != "<EAGAIN>") _exit(3);  // that was the parent's
      bob.send("from the child", alice);
      _exit(bob.hear() == "to the child" ? 0 : 4);
    }
    if (bob.hear() != "unread at the fork") return 5;
    alice.send("to the parent", bob);
    if (bob.hear() != "to the parent") return 6;
    if (write(to_child[1], "g", 1) != 1) return 7;
    Address from;
    if (alice.hear(&from) != "from the child" || from.port() != bob.name.port()) return 8;
    alice.send("to the child", from);
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? 10 * WEXITSTATUS(status) : 9;
  });
  EXPECT_EQ(family.wait(), 0);
}

/// Bob knows Alice when his process forks. `child` has his socket then, and so has `parent`, which has Alice's, too.
int family_of(const std::function<int(const Post& bob, const Post& alice)>& child,
              const std::function<int(const Post& bob, const Post& alice)>& parent) {
  Child family = Child::start([&](Channel&) {
    const Post alice, bob;
    introduce(alice, bob);
    const pid_t pid = fork();
    if (pid == 0) _exit(child(bob, alice));
    if (const int failed = parent(bob, alice); failed != 0) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
      return failed;
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? 10 * WEXITSTATUS(status) : 9;
  });
  return family.wait();
}

TEST(AForkedChild, ThatReadsNothingLeavesTheAnswersToItsParent) {
  constexpr int kDatagrams = 20;
  int end[2];
  ASSERT_EQ(pipe(end), 0);
  const auto child = [&](const Post& bob, const Post& alice) {
    for (int i = 0; i < kDatagrams; ++i) bob.send("from the child", alice);
    char none;
    return read(end[0], &none, 1) == 1 ? 0 : 1;
  };
  const auto parent = [&](const Post& bob, const Post& alice) {
    for (int i = 0; i < kDatagrams; ++i) {
      Address from;
      if (alice.hear(&from) != "from the child" || from.port() != bob.name.port()) return 1;
      alice.send(std::to_string(i), from);
    }
    for (int i = 0; i < kDatagrams; ++i) {
      if (bob.hear() != std::to_string(i)) return 2;
    }
    // Both go on.
    bob.send("from the parent", alice);
    if (alice.hear() != "from the parent") return 3;
    alice.send("to the parent", bob);
    if (bob.hear() != "to the parent") return 4;
    return write(end[1], ".", 1) == 1 ? 0 : 5;
  };
  EXPECT_EQ(family_of(child, parent), 0);
  close(end[0]);
  close(end[1]);
}

TEST(AForkedChild, ThatSendsFirstGetsTheAnswersThatItReads) {
  constexpr int kRounds = 20;
  const auto child = [](const Post& bob, const Post& alice) {
    for (int i = 0; i < kRounds; ++i) {
      bob.send(std::to_string(i), alice);
      if (bob.hear() != std::to_string(i)) return 1;
    }
    return 0;
  };
  const auto parent = [](const Post&, const Post& alice) {
    for (int i = 0; i < kRounds; ++i) {
      Address from;
      if (alice.hear(&from) != std::to_string(i)) return 1;
      alice.send(std::to_string(i), from);
    }
    return 0;
  };
  EXPECT_EQ(family_of(child, parent), 0);
}

TEST(AForkedChild, ThatReadsNothingHasTheAnswersOnceItsParentHasClosedTheSocket) {
  Child family = Child::start([](Channel&) {
    const Post alice;
    auto bob = std::make_unique<Post>();
    introduce(alice, *bob);
    int closed[2], sent[2];
    if (pipe(closed) != 0 || pipe(sent) != 0) return 1;
    char byte = 0;
    const pid_t child = fork();
    if (child == 0) {
      bob->send("before", alice);
      if (write(sent[1], ".", 1) != 1 || read(closed[0], &byte, 1) != 1) _exit(2);
      bob->send("after", alice);
      const bool has_both = bob->hear() == "to before" && bob->hear() == "to after";
      _exit(has_both ? 0 : 3);
    }
    if (read(sent[0], &byte, 1) != 1) return 4;
    const Address name = bob->name;
    bob.reset();
    if (write(closed[1], ".", 1) != 1) return 5;
    for (const char* text : {"before", "after"}) {
      if (alice.hear() != text) return 6;
      alice.send(std::string("to ") + text, name);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? 10 * WEXITSTATUS(status) : 9;
  });
  EXPECT_EQ(family.wait(), 0);
}

TEST(AForkedChild, GoesOnWhenItsParentHasEnded) {
  const Post alice;
  Child parent = Child::start([&](Channel& channel) {
    const Post bob;
    channel.send(bob.name.port());
    Address from;
    if (bob.hear(&from) != "first") return 1;
    bob.send("parent", from);
    if (fork() != 0) _exit(0);
    channel.send('c');
    while (true) {
      if (bob.hear(&from) == "end") _exit(0);
      bob.send("child", from);
    }
  });
  const auto port = parent.channel().receive<std::uint16_t>();
  ASSERT_TRUE(port);
  const Address bob = address_of("127.0.0.1", *port);
  alice.send("first", bob);
  EXPECT_EQ(alice.hear(), "parent");
  EXPECT_EQ(parent.wait(), 0);
  EXPECT_TRUE(parent.channel().receive<char>());  // the child has begun
  for (int i = 0; i < 3; ++i) {
    alice.send("next", bob);
    EXPECT_EQ(alice.hear(), "child");
  }
  alice.send("end", bob);
}

TEST(AForkedChild, GetsWhatIsSentRightAfterItsParentsEnd) {
  const Post alice;
  for (int i = 0; i < 20; ++i) {
    Child parent = Child::start([&](Channel& channel) {
      const Post bob;
      int parents_life[2];
      if (pipe(parents_life) != 0) return 1;
      if (fork() == 0) {
        close(parents_life[1]);
        char none;
        if (read(parents_life[0], &none, 1) != 0) _exit(2);
        Address from;
        while (bob.hear(&from) == "next") bob.send("child", from);
        _exit(0);
      }
      channel.send(bob.name.port());
      Address from;
      while (bob.hear(&from) == "first") bob.send("parent", from);
      _exit(0);
    });
    const auto port = parent.channel().receive<std::uint16_t>();
    ASSERT_TRUE(port);
    const Address bob = address_of("127.0.0.1", *port);
    for (int k = 0; k < 3; ++k) {
      alice.send("first", bob);
      ASSERT_EQ(alice.hear(), "parent");
    }
    alice.send("end", bob);
    ASSERT_EQ(parent.wait(), 0);
    alice.send("next", bob);
    ASSERT_EQ(alice.hear(), "child");
    alice.send("end", bob);
  }
}

}  // namespace
}  // namespace ringsock::stories
