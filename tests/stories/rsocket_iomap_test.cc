// riomap, riowrite, riounmap.
#include <sys/mman.h>

#include <memory>

#include "tests/stories/rsocket_pair.h"

namespace ringsock::stories {
namespace {

/// A pair in which each side may map `slots` buffers for the other.
Pair pair_with_iomap(int slots) {
  Rsocket listener(rsocket(AF_INET, SOCK_STREAM, 0));
  set_int(listener, SOL_RDMA, RDMA_IOMAPSIZE, slots);
  Address any = address_of("127.0.0.1");
  EXPECT_EQ(rbind(listener, any.get(), any.length), 0);
  EXPECT_EQ(rlisten(listener, 4), 0);
  Address name = local_name(listener);
  Pair pair{Listener()};
  pair.alice = Rsocket(rsocket(AF_INET, SOCK_STREAM, 0));
  set_int(pair.alice, SOL_RDMA, RDMA_IOMAPSIZE, slots);
  EXPECT_EQ(rconnect(pair.alice, name.get(), name.length), 0);
  pair.bob = Rsocket(raccept(listener, nullptr, nullptr));
  return pair;
}

/// Bob waits until everything that Alice wrote before is in his memory: data follows direct writes in order.
void settle(Pair& pair) {
  pair.alice.say(".");
  ASSERT_EQ(pair.bob.hear(1), ".");
}

TEST(RsocketIomap, BytesLandInTheMappedBufferWithoutAReceive) {
  Pair pair = pair_with_iomap(2);
  std::string memory(100000, '-');
  ASSERT_EQ(riomap(pair.bob, memory.data(), memory.size(), PROT_WRITE, 0, 0), 0);
  pair.bob.say("mapped");
  ASSERT_EQ(pair.alice.hear(), "mapped");
  const std::string text(70000, 'w');
  ASSERT_EQ(riowrite(pair.alice, text.data(), text.size(), 10, 0), text.size());
  settle(pair);
  EXPECT_EQ(memory.substr(0, 10), "----------");
  EXPECT_EQ(memory.substr(10, text.size()), text);
  EXPECT_EQ(memory.substr(10 + text.size()), std::string(100000 - 10 - text.size(), '-'));
}

TEST(RsocketIomap, OffsetsFindTheRightBufferAndStopAtTheEndOfTheLast) {
  Pair pair = pair_with_iomap(2);
  char low[8] = {}, high[8] = {};
  ASSERT_EQ(riomap(pair.bob, low, sizeof low, PROT_WRITE, 0, 1000), 1000);
  ASSERT_EQ(riomap(pair.bob, high, sizeof high, PROT_WRITE, 0, 1008), 1008);
  pair.bob.say("go");
  ASSERT_EQ(pair.alice.hear(), "go");
  // Twelve bytes from 1004 cross from one buffer to the next; of twenty from there only twelve fit.
  EXPECT_EQ(riowrite(pair.alice, "abcdefghijklmnopqrst", 20, 1004, 0), 12u);
  settle(pair);
  EXPECT_EQ(std::string_view(low + 4, 4), "abcd");
  EXPECT_EQ(std::string_view(high, 8), "efghijkl");
  EXPECT_EQ(riowrite(pair.alice, "x", 1, 5, 0), 0u);  // nothing there
}

TEST(RsocketIomap, WithoutAnOffsetTheAddressIsTheOffset) {
  Pair pair = pair_with_iomap(1);
  char buffer[4] = {};
  const off_t offset = riomap(pair.bob, buffer, sizeof buffer, PROT_WRITE, 0, -1);
  ASSERT_EQ(offset, static_cast<off_t>(reinterpret_cast<std::uintptr_t>(buffer)));
  pair.bob.say("go");
  ASSERT_EQ(pair.alice.hear(), "go");
  EXPECT_EQ(riowrite(pair.alice, "1234", 4, offset, 0), 4u);
  settle(pair);
  EXPECT_EQ(std::string_view(buffer, 4), "1234");
}

TEST(RsocketIomap, SlotsAreLimitedAndFreedByUnmapping) {
  Pair pair = pair_with_iomap(1);
  char one[4], two[4];
  ASSERT_EQ(riomap(pair.bob, one, sizeof one, PROT_WRITE, 0, 0), 0);
  EXPECT_EQ(riomap(pair.bob, two, sizeof two, PROT_WRITE, 0, 100), -1);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(riounmap(pair.bob, one, 3), -1);
  EXPECT_EQ(errno, EINVAL);
  ASSERT_EQ(riounmap(pair.bob, one, sizeof one), 0);
  EXPECT_EQ(riomap(pair.bob, two, sizeof two, PROT_WRITE, 0, 100), 100);
  pair.bob.say("go");
  ASSERT_EQ(pair.alice.hear(), "go");
  EXPECT_EQ(riowrite(pair.alice, "no", 2, 0, 0), 0u);  // the first is gone, and the peer was told
  EXPECT_EQ(riowrite(pair.alice, "yes!", 4, 100, 0), 4u);
  settle(pair);
  EXPECT_EQ(std::string_view(two, 4), "yes!");
}

TEST(RsocketIomap, ThousandsOfMappingsCostNoCredits) {
  Pair pair = pair_with_iomap(1);
  char buffer[16];
  for (int i = 0; i < 5000; ++i) {  // upstream stalls for good after 384 (fact sheet 2.8)
    ASSERT_EQ(riomap(pair.bob, buffer, sizeof buffer, PROT_WRITE, 0, i), i);
    ASSERT_EQ(riounmap(pair.bob, buffer, sizeof buffer), 0);
    if (i % 50 == 0) {
      pair.bob.say("x");
      ASSERT_EQ(pair.alice.hear(), "x");
    }
  }
}

TEST(RsocketIomap, WhatIsNotWritableMemoryIsNotMapped) {
  Pair pair = pair_with_iomap(2);
  constexpr std::size_t kPages = 16384;
  auto* memory = static_cast<char*>(::mmap(nullptr, kPages, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  const auto error_of = [&](void* data, std::size_t length) {
    return riomap(pair.bob, data, length, PROT_WRITE, 0, 0) == 0 ? 0 : errno;
  };
  EXPECT_EQ(error_of(memory, kPages), EFAULT);
  ::mprotect(memory, kPages / 2, PROT_READ | PROT_WRITE);
  EXPECT_EQ(error_of(memory, kPages), EFAULT);
  EXPECT_EQ(error_of(reinterpret_cast<void*>(0xffff800000000000), 100), EFAULT);
  EXPECT_EQ(error_of(memory, kPages / 2), 0);
  ::munmap(memory, kPages);
}

TEST(RsocketIomap, AWriteIntoMemoryThatIsGoneEndsTheConnectionOnly) {
  Pair pair = pair_with_iomap(1);
  constexpr std::size_t kPages = 16384;
  auto* memory =
      static_cast<char*>(::mmap(nullptr, kPages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_EQ(riomap(pair.bob, memory, kPages, PROT_WRITE, 0, 0), 0);
  pair.bob.say("go");
  ASSERT_EQ(pair.alice.hear(), "go");
  ::mprotect(memory + kPages / 2, kPages / 2, PROT_READ);
  const std::string text(kPages, 'w');
  ASSERT_EQ(riowrite(pair.alice, text.data(), text.size(), 0, 0), text.size());
  pair.alice.say(".");
  EXPECT_NE(pair.bob.hear(1), ".");
  EXPECT_EQ(pair.alice.hear(1), "<EIO>");
  EXPECT_EQ(memory[kPages - 1], 0);
  ::munmap(memory, kPages);
}

TEST(RsocketIomap, ClosingWithLiveMappingsEnds) {
  Pair pair = pair_with_iomap(4);
  char buffer[64];
  ASSERT_EQ(riomap(pair.bob, buffer, sizeof buffer, PROT_WRITE, 0, 0), 0);
  pair.bob.close();
  EXPECT_EQ(pair.alice.hear(), "");
}

constexpr std::size_t kLarge = 300'000;

TEST(RsocketIomap, ALargeBufferKeepsItsBytesThroughMappingWritingAndUnmapping) {
  Pair pair = pair_with_iomap(1);
  std::string text(kLarge, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 + i / 4096);
  const auto memory = std::make_unique<std::string>(text);
  ASSERT_EQ(riomap(pair.bob, memory->data(), memory->size(), PROT_WRITE, 0, 0), 0);
  EXPECT_EQ(*memory, text);
  pair.bob.say("go");
  ASSERT_EQ(pair.alice.hear(), "go");
  const std::string written(kLarge / 2, 'w');
  ASSERT_EQ(riowrite(pair.alice, written.data(), written.size(), 5000, 0), written.size());
  text.replace(5000, written.size(), written);
  settle(pair);
  EXPECT_EQ(*memory, text);
  ASSERT_EQ(riounmap(pair.bob, memory->data(), memory->size()), 0);
  EXPECT_EQ(*memory, text);
}

TEST(RsocketIomap, OneBufferForTwoPeers) {
  Pair first = pair_with_iomap(1), second = pair_with_iomap(1);
  std::string memory(kLarge, '-');
  ASSERT_EQ(riomap(first.bob, memory.data(), memory.size(), PROT_WRITE, 0, 0), 0);
  ASSERT_EQ(riomap(second.bob, memory.data(), memory.size(), PROT_WRITE, 0, 0), 0);
  first.bob.say("go");
  second.bob.say("go");
  ASSERT_EQ(first.alice.hear(), "go");
  ASSERT_EQ(second.alice.hear(), "go");
  ASSERT_EQ(riowrite(first.alice, "first", 5, 0, 0), 5U);
  settle(first);
  ASSERT_EQ(riounmap(first.bob, memory.data(), memory.size()), 0);
  ASSERT_EQ(riowrite(second.alice, "second", 6, 100'000, 0), 6U);
  settle(second);
  second.bob.close();
  EXPECT_EQ(memory.substr(0, 6), "first-");
  EXPECT_EQ(memory.substr(99'999, 8), "-second-");
}

TEST(RsocketIomap, ABufferMayBeFreedBeforeTheClose) {
  Pair pair = pair_with_iomap(1);
  auto memory = std::make_unique<std::string>(kLarge, '-');
  ASSERT_EQ(riomap(pair.bob, memory->data(), memory->size(), PROT_WRITE, 0, 0), 0);
  pair.bob.say("go");
  ASSERT_EQ(pair.alice.hear(), "go");
  ASSERT_EQ(riowrite(pair.alice, "x", 1, 77, 0), 1U);
  settle(pair);
  memory.reset();
  pair.bob.close();
  const std::string other(kLarge, 'o');
  EXPECT_EQ(pair.alice.hear(), "");
  EXPECT_EQ(other, std::string(kLarge, 'o'));
}

TEST(RsocketIomap, WrongArguments) {
  Pair pair = pair_with_iomap(1);
  char buffer[16];
  EXPECT_EQ(riomap(pair.bob, buffer, sizeof buffer, PROT_READ, 0, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(riomap(pair.bob, buffer, 0, PROT_WRITE, 0, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(riomap(pair.bob, buffer, sizeof buffer, PROT_NONE, 0, 77), 77);  // local registration only
  EXPECT_EQ(riounmap(pair.bob, buffer, sizeof buffer), 0);
  Pair without = pair_with_iomap(0);
  EXPECT_EQ(riomap(without.bob, buffer, sizeof buffer, PROT_WRITE, 0, 0), -1);
  EXPECT_EQ(errno, ENOMEM);
}

}  // namespace
}  // namespace ringsock::stories
