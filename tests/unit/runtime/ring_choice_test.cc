#include "core/runtime/ring_choice.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <set>
#include <thread>

namespace ringsock::runtime {
namespace {

const SocketAddress kHere = SocketAddress::v4(0x0a000001, 0);
const SocketAddress kOtherAddress = SocketAddress::v4(0x0a000002, 0);

RingKey key_of(RingLogic logic, std::uint64_t socket, const SocketAddress& local = kHere) {
  return RingChoice(logic, 1, socket).key(local);
}
RingKey key_of_another_thread(RingLogic logic) {
  RingKey key;
  std::thread([&] { key = key_of(logic, 1); }).join();
  return key;
}

TEST(RingKey, IsTheSameForAllSocketsOfAnInterface) {
  EXPECT_EQ(key_of(RingLogic::per_interface, 1), key_of(RingLogic::per_interface, 2, kOtherAddress));
}

TEST(RingKey, FollowsTheLocalAddress) {
  EXPECT_EQ(key_of(RingLogic::per_ip, 1), key_of(RingLogic::per_ip, 2));
  EXPECT_NE(key_of(RingLogic::per_ip, 1), key_of(RingLogic::per_ip, 1, kOtherAddress));
}

TEST(RingKey, IsEachSocketsOwn) {
  EXPECT_EQ(key_of(RingLogic::per_socket, 1), key_of(RingLogic::per_socket, 1));
  EXPECT_NE(key_of(RingLogic::per_socket, 1), key_of(RingLogic::per_socket, 2));
}

TEST(RingKey, IsTheApplicationsNumber) {
  RingChoice one(RingLogic::per_interface, 1, 1), other(RingLogic::per_interface, 1, 2);
  one.set(RingLogic::per_user_id, 7);
  other.set(RingLogic::per_user_id, 7);
  EXPECT_EQ(one.key(kHere), other.key(kHere));
  other.set(RingLogic::per_user_id, 8);
  EXPECT_NE(one.key(kHere), other.key(kHere));
}

TEST(RingKey, IsEachThreadsOwn) {
  EXPECT_EQ(key_of(RingLogic::per_thread, 1), key_of(RingLogic::per_thread, 2));
  EXPECT_NE(key_of(RingLogic::per_thread, 1), key_of_another_thread(RingLogic::per_thread));
}

TEST(RingKey, KeysOfSocketsThreadsAndNumbersDoNotLast) {
  for (const auto logic : {RingLogic::per_socket, RingLogic::per_user_id, RingLogic::per_thread})
    EXPECT_FALSE((RingKey{logic, {}}).is_lasting());
  for (const auto logic : {RingLogic::per_interface, RingLogic::per_ip, RingLogic::per_core})
    EXPECT_TRUE((RingKey{logic, {}}).is_lasting());
}

TEST(RingChoice, MovesAfterTwentyLooksThatSayTheSame) {
  RingChoice choice(RingLogic::per_thread, 10, 1);
  std::thread([&] { choice.key(kHere); }).join();

  int operations = 1;
  while (operations < 1000 && !choice.should_move()) ++operations;
  EXPECT_EQ(operations, 10 * 20);

  // Once it has this thread's ring, it stays.
  choice.move_here();
  EXPECT_EQ(choice.key(kHere), key_of(RingLogic::per_thread, 1));
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(choice.should_move());
}

// The network has changed, and another thread looks for the socket's flows: they stay on their ring.
TEST(RingChoice, IsNotMovedByWhoAsksForItsKey) {
  RingChoice choice(RingLogic::per_thread, 1, 1);
  RingKey users;
  std::thread([&] { users = choice.key(kHere); }).join();

  EXPECT_EQ(choice.key(kOtherAddress), users);

  int operations = 1;
  while (operations < 1000 && !choice.should_move()) {
    EXPECT_EQ(choice.key(kHere), users) << "nor is the move put off";
    ++operations;
  }
  EXPECT_EQ(operations, 20);
}

TEST(RingChoice, TakesAPlaceAnewWhenItHasForgottenItsOwn) {
  RingChoice choice(RingLogic::per_thread, 1, 1);
  std::thread([&] { choice.key(kHere); }).join();
  choice.forget_place();
  EXPECT_EQ(choice.key(kHere), key_of(RingLogic::per_thread, 1));
}

TEST(RingChoice, ALookThatSaysOtherwiseBeginsTheCountAnew) {
  RingChoice choice(RingLogic::per_thread, 1, 1);
  std::thread([&] {
    choice.key(kHere);
    std::thread([&] {
      for (int i = 0; i < 19; ++i) EXPECT_FALSE(choice.should_move());
    }).join();
    EXPECT_FALSE(choice.should_move()) << "its own thread again";
    std::thread([&] {
      for (int i = 0; i < 19; ++i) EXPECT_FALSE(choice.should_move());
      EXPECT_TRUE(choice.should_move());
    }).join();
  }).join();
}

TEST(RingChoice, NeverMovesWithoutARatioOrWhereThreadsDoNotMatter) {
  for (const auto& [logic, ratio] : {std::pair(RingLogic::per_thread, -1), std::pair(RingLogic::per_thread, 0),
                                     std::pair(RingLogic::per_socket, 1), std::pair(RingLogic::per_interface, 1)}) {
    RingChoice choice(logic, ratio, 1);
    std::thread([&] { choice.key(kHere); }).join();
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(choice.should_move());
  }
}

TEST(RingChoice, AttachedThreadsStayOnDifferentCpus) {
  std::set<std::uint64_t> cpus;
  int allowed = 0;
  // In a thread: it stays where it is put.
  std::thread([&] {
    cpu_set_t set;
    ASSERT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
    allowed = std::min(2, CPU_COUNT(&set));
    cpus.insert(key_of(RingLogic::per_core_attach_threads, 1).id[0]);
    ASSERT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
    EXPECT_EQ(CPU_COUNT(&set), 1);
    EXPECT_TRUE(CPU_ISSET(static_cast<int>(*cpus.begin()), &set));
  }).join();
  // The first one is gone; two at the same time have a CPU each, if there are two.
  std::set<std::uint64_t> together;
  std::thread([&] {
    cpu_set_t all;
    ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
    together.insert(key_of(RingLogic::per_core_attach_threads, 1).id[0]);
    std::thread([&] {
      ASSERT_EQ(::sched_setaffinity(0, sizeof all, &all), 0);  // a thread begins with its maker's
      together.insert(key_of(RingLogic::per_core_attach_threads, 1).id[0]);
    }).join();
  }).join();
  EXPECT_EQ(static_cast<int>(together.size()), allowed);
}

}  // namespace
}  // namespace ringsock::runtime
