// pthread_cancel(3) of a thread in a call that waits: it ends there, and others go on.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "tests/preload/tcp_world.h"
#include "tests/support/sanitizers.h"
#include "tests/support/signals.h"

namespace ringsock::preload_tests {
namespace {

/// Alice and Bob are connected, and nobody has sent anything; the listener has no client.
struct World {
  Fd listener = listening();
  Pair pair = connected_pair();
};

void read_one(World& world) {
  char byte = 0;
  [[maybe_unused]] const ssize_t got = ::read(world.pair.bob, &byte, 1);
}
void receive_message(World& world) {
  char byte = 0;
  iovec part{&byte, 1};
  msghdr message = message_of(part);
  ::recvmsg(world.pair.bob, &message, 0);
}
void send_for_ever(World& world) {
  static const std::array<char, 70'000> data{};
  while (::send(world.pair.alice, data.data(), data.size(), 0) > 0) continue;
}
void write_for_ever(World& world) {
  while (::write(world.pair.alice, "x", 1) > 0) continue;
}
void receive_without_waiting(World& world) {
  char byte = 0;
  while (::recv(world.pair.bob, &byte, 1, MSG_DONTWAIT) < 0) continue;
}
void read_without_waiting(World& world) {
  char byte = 0;
  ::fcntl(world.pair.bob, F_SETFL, O_NONBLOCK);
  while (::read(world.pair.bob, &byte, 1) < 0) continue;
}
void poll_without_waiting(World& world) {
  pollfd entry{world.pair.bob, POLLIN, 0};
  while (::poll(&entry, 1, 0) == 0) continue;
}
void talk_for_ever(World& world) {
  char byte = 0;
  while (::send(world.pair.alice, "x", 1, 0) == 1 && ::recv(world.pair.bob, &byte, 1, 0) == 1) continue;
}
void accept_one(World& world) { ::accept(world.listener, nullptr, nullptr); }
/// Without destructors, in which close(2) must not be where the cancellation acts.
void connect_for_ever(World& world) {
  Address there = name_of(world.listener);
  for (;;) {
    const int client = ::socket(AF_INET, SOCK_STREAM, 0);
    ::connect(client, there.get(), there.length);
    ::pthread_testcancel();
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
    ::close(::accept(world.listener, nullptr, nullptr));
    ::close(client);
    ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
  }
}
void wait_for_listener(World& world) { support::wait_in_poll(world.listener); }

struct Call {
  const char* name;
  void (*wait)(World&);
  bool leaves_stream_empty = true;
};
constexpr Call kCalls[] = {
    {"recv", [](World& world) { support::wait_in_recv(world.pair.bob); }},
    {"read", read_one},
    {"recvmsg", receive_message},
    {"poll", [](World& world) { support::wait_in_poll(world.pair.bob); }},
    {"poll_of_a_listener", wait_for_listener},
    {"select", [](World& world) { support::wait_in_select(world.pair.bob); }},
    {"epoll_wait", [](World& world) { support::wait_in_epoll(world.pair.bob); }},
    {"send", send_for_ever, false},
    {"write", write_for_ever, false},
    {"recv_without_waiting", receive_without_waiting},
    {"read_without_waiting", read_without_waiting},
    {"poll_without_waiting", poll_without_waiting},
    {"talk", talk_for_ever, false},
    {"accept", accept_one},
    {"connect", connect_for_ever},
};

class Cancellation : public testing::TestWithParam<Call> {
 protected:
  void SetUp() override {
    if (support::kHasThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer loses its way when a stack is unwound";
    const std::string name = GetParam().name;
    if (support::kHasAddressSanitizer && name.find("without_waiting") != std::string::npos)
      GTEST_SKIP() << "AddressSanitizer takes what a forced unwinding has left of deeper frames for an overflow";
  }
};
INSTANTIATE_TEST_SUITE_P(Calls, Cancellation, testing::ValuesIn(kCalls),
                         [](const auto& info) { return std::string(info.param.name); });

struct Begun {
  World& world;
  const Call& call;
  bool is_cancelled;
  int type;
};
void* begin(void* argument) {
  const auto& begun = *static_cast<const Begun*>(argument);
  ::pthread_setcanceltype(begun.type, nullptr);
  if (begun.is_cancelled) ::pthread_cancel(::pthread_self());
  begun.call.wait(begun.world);
  return nullptr;
}

/// The result of a thread that is cancelled so long after it was started, with no delay before its call.
void* cancelled_after(std::chrono::microseconds delay, World& world, const Call& call,
                      int type = PTHREAD_CANCEL_DEFERRED) {
  const bool at_once = delay == delay.zero();
  Begun begun{world, call, at_once, type};
  pthread_t thread{};
  ::pthread_create(&thread, nullptr, begin, &begun);
  if (!at_once) {
    std::this_thread::sleep_for(delay);
    ::pthread_cancel(thread);
  }
  void* result = nullptr;
  ::pthread_join(thread, &result);
  return result;
}

void expect_talk(int from, int to) {
  EXPECT_EQ(::send(from, "hello", 5, 0), 5);
  EXPECT_EQ(read_all(to, 5), "hello");
}

TEST_P(Cancellation, EndsTheThreadThereAndOthersGoOn) {
  auto world = std::make_unique<World>();
  const int rounds = GetParam().leaves_stream_empty ? 60 : 10;
  for (int round = 0; round < rounds; ++round) {
    // Every other thread is cancelled before its call.
    const std::chrono::microseconds delay(round % 2 * round * 10);
    EXPECT_EQ(cancelled_after(delay, *world, GetParam()), PTHREAD_CANCELED);
    expect_talk(world->pair.bob, world->pair.alice);
    if (GetParam().leaves_stream_empty) {
      expect_talk(world->pair.alice, world->pair.bob);
    } else {
      world = std::make_unique<World>();
    }
  }
}

TEST_P(Cancellation, OfAThreadThatHasWaitedForLong) {
  World world;
  EXPECT_EQ(cancelled_after(std::chrono::milliseconds(50), world, GetParam()), PTHREAD_CANCELED);
  expect_talk(world.pair.bob, world.pair.alice);
  EXPECT_GE(connected_to(world.listener), 0);
}

/// A program that makes a thread's cancellation asynchronous (iperf3's workers) may have it act at any instruction of
/// its own, but not where the library is at work.
class AsynchronousCancellation : public Cancellation {
 protected:
  void SetUp() override {
    Cancellation::SetUp();
    if (support::kHasAddressSanitizer) GTEST_SKIP() << "AddressSanitizer's own code may be unwound at any instruction";
  }
};
constexpr Call kCallsAlone[] = {
    {"recv", [](World& world) { support::wait_in_recv(world.pair.bob); }},
    {"read", read_one},
    {"send", send_for_ever, false},
    {"write", write_for_ever, false},
    {"recv_without_waiting", receive_without_waiting},
    {"read_without_waiting", read_without_waiting},
    {"poll_without_waiting", poll_without_waiting},
    {"talk", talk_for_ever, false},
};
INSTANTIATE_TEST_SUITE_P(Calls, AsynchronousCancellation, testing::ValuesIn(kCallsAlone),
                         [](const auto& made) { return made.param.name; });

TEST_P(AsynchronousCancellation, EndsTheThreadAndOthersGoOn) {
  for (int round = 0; round < 20; ++round) {
    World world;
    const std::chrono::microseconds delay((round + 1) * 50);
    EXPECT_EQ(cancelled_after(delay, world, GetParam(), PTHREAD_CANCEL_ASYNCHRONOUS), PTHREAD_CANCELED);
    expect_talk(world.pair.bob, world.pair.alice);
    EXPECT_GE(connected_to(world.listener), 0);
  }
}

/// syscall(2) is no cancellation point.
void* receive_by_number(void* fd) {
  char byte = 0;
  ::syscall(SYS_recvfrom, *static_cast<int*>(fd), &byte, 1, 0, nullptr, nullptr);
  return fd;
}
TEST(CancellationByNumber, WaitsForTheCall) {
  Pair pair = connected_pair();
  int bob = pair.bob;
  pthread_t thread{};
  ::pthread_create(&thread, nullptr, receive_by_number, &bob);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ::pthread_cancel(thread);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(::send(pair.alice, "x", 1, 0), 1);
  void* result = nullptr;
  ::pthread_join(thread, &result);
  EXPECT_EQ(result, &bob);
}

}  // namespace
}  // namespace ringsock::preload_tests
