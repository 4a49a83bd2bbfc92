// Sleeping, completion events, errors of queue pairs, and what happens to the interface.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <thread>

#include "core/device/packet/packet_queue_pair.h"
#include "tests/unit/device_packet/packet_test.h"

namespace ringsock::testing {
namespace {

class PacketWaiting : public PacketTest {
 protected:
  verbs::FlowTuple to_bob() const { return {.protocol = IPPROTO_UDP, .destination = with_port(world->bob.v4, 4000)}; }
  void say(const UniqueFd& from, std::string_view data) const { send_to(from, with_port(world->bob.v4, 4000), data); }
  static bool is_readable(int fd) {
    pollfd now{fd, POLLIN, 0};
    return ::poll(&now, 1, 0) == 1;
  }
  /// The next asynchronous event, asleep.
  static ibv_event_type next_async(TestRing& ring) {
    for (;;) {
      pollfd waiting{ring.device->context().async_fd, POLLIN, 0};
      if (::poll(&waiting, 1, 10'000) != 1) throw std::runtime_error("no asynchronous event");
      auto event = ring.device->get_async_event();
      if (!event) continue;
      ring.device->ack_async_event(*event);
      return event->event_type;
    }
  }
};

TEST_F(PacketWaiting, ASleeperWakesWhenAPacketComes) {
  TestRing ring(world->bob);
  const auto flow = ring.take(to_bob());
  const UniqueFd alice = world->alice.udp_socket();
  for (const char* word : {"one", "two", "three"}) {
    ibv_req_notify_cq(ring.receive_cq.get(), 0);
    std::thread sender([&] { say(alice, word); });
    EXPECT_TRUE(ring.sleep());
    EXPECT_EQ(ring.receive()->payload(), word);
    sender.join();
  }
}

TEST_F(PacketWaiting, WhoHasNotArmedIsLeftAlone) {
  TestRing ring(world->bob);
  const auto flow = ring.take(to_bob());
  const UniqueFd alice = world->alice.udp_socket();

  say(alice, "quiet");
  EXPECT_EQ(ring.receive()->payload(), "quiet");
  EXPECT_FALSE(is_readable(ring.channel->fd));

  // One event per arming, however much comes.
  ibv_req_notify_cq(ring.receive_cq.get(), 0);
  say(alice, "loud");
  EXPECT_TRUE(ring.sleep());
  say(alice, "and louder");
  EXPECT_FALSE(is_readable(ring.channel->fd));
  EXPECT_EQ(ring.receive()->payload(), "loud");
  EXPECT_EQ(ring.receive()->payload(), "and louder");
}

TEST_F(PacketWaiting, WhoPollsAllTheTimeWakesASleeperOnceAndHearsAgainWhenArmed) {
  TestRing ring(world->bob);
  const auto flow = ring.take(to_bob());
  const UniqueFd alice = world->alice.udp_socket();
  const auto poll_many = [&] {
    for (int i = 0; i < 100; ++i) {
      say(alice, "polled");
      ASSERT_EQ(ring.receive()->payload(), "polled");
    }
  };
  ibv_req_notify_cq(ring.receive_cq.get(), 0);
  poll_many();
  EXPECT_TRUE(is_readable(ring.channel->fd));
  EXPECT_TRUE(ring.sleep());
  poll_many();
  EXPECT_FALSE(is_readable(ring.channel->fd));

  ibv_req_notify_cq(ring.receive_cq.get(), 0);
  say(alice, "heard");
  EXPECT_TRUE(ring.sleep());
  EXPECT_EQ(ring.receive()->payload(), "heard");
}

TEST_F(PacketWaiting, WhatCameBeforeArmingWakesToo) {
  TestRing ring(world->bob);
  const auto flow = ring.take(to_bob());
  const UniqueFd alice = world->alice.udp_socket();
  say(alice, "early");
  ibv_req_notify_cq(ring.receive_cq.get(), 0);
  EXPECT_TRUE(ring.sleep());
  EXPECT_EQ(ring.receive()->payload(), "early");
}

TEST_F(PacketWaiting, CompletionsTellTheTimeOfArrival) {
  TestRing ring(world->bob);
  const auto flow = ring.take(to_bob());
  const UniqueFd alice = world->alice.udp_socket();
  const auto wall = [] {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
  };
  const std::uint64_t before = wall();
  say(alice, "when");
  const std::uint64_t after = wall();

  auto* cq = reinterpret_cast<ibv_cq_ex*>(ring.receive_cq.get());
  ibv_poll_cq_attr attr{};
  int got = ENOENT;
  while (got == ENOENT) got = ibv_start_poll(cq, &attr);
  ASSERT_EQ(got, 0);
  EXPECT_EQ(cq->status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_wc_read_opcode(cq), IBV_WC_RECV);
  EXPECT_EQ(ibv_wc_read_byte_len(cq), 14U + 20 + 8 + 4);
  EXPECT_GE(ibv_wc_read_completion_wallclock_ns(cq), before);
  EXPECT_LE(ibv_wc_read_completion_wallclock_ns(cq), after);
  EXPECT_EQ(ibv_next_poll(cq), ENOENT);
  ibv_end_poll(cq);
}

TEST_F(PacketWaiting, ACompletionQueueOfTheExtendedKindCanBeMade) {
  TestRing ring(world->bob);
  ibv_cq_init_attr_ex attr{};
  attr.cqe = 16;
  attr.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
  ibv_cq_ex* cq = ibv_create_cq_ex(&ring.device->context(), &attr);
  ASSERT_NE(cq, nullptr);
  EXPECT_EQ(ring.device->destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
  ibv_device_attr_ex device{};
  ASSERT_EQ(ibv_query_device_ex(&ring.device->context(), nullptr, &device), 0);
  EXPECT_NE(device.raw_packet_caps & IBV_RAW_PACKET_CAP_IP_CSUM, 0U);
  EXPECT_GE(device.tso_caps.max_tso, 60'000U);
}

TEST_F(PacketWaiting, PacketsWaitWhileNoReceiveIsPosted) {
  TestRing ring(world->bob, {.receives = 1});
  const auto flow = ring.take(to_bob());
  const UniqueFd alice = world->alice.udp_socket();
  for (int i = 0; i < 10; ++i) say(alice, std::to_string(i));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(ring.receive()->payload(), std::to_string(i));
}

TEST_F(PacketWaiting, AFullRingDropsAndCounts) {
  TestRing ring(world->bob, {.receives = 1});
  const auto flow = ring.take(to_bob());
  const UniqueFd alice = world->alice.udp_socket();
  for (int i = 0; i < 1000; ++i) say(alice, "flood");
  int got = 0;
  while (ring.receive(std::chrono::milliseconds(0))) ++got;
  EXPECT_GE(got, 256);
  EXPECT_EQ(ring.counters().rx_ring_full, static_cast<std::uint64_t>(1000 - got));
  say(alice, "after");
  EXPECT_EQ(ring.receive()->payload(), "after");
}

/// Whether somebody should empty the ring.
bool is_alarmed(const TestRing& ring, int timeout_ms) {
  const auto fds = soft::PacketQueuePair::of(*ring.qp).alarms();
  std::array<pollfd, 2> waiting{{{fds[0], POLLIN, 0}, {fds[1], POLLIN, 0}}};
  return ::poll(waiting.data(), waiting.size(), timeout_ms) > 0;
}

TEST_F(PacketWaiting, AnAlarmTellsThatARingFillsAndNobodyTakes) {
  constexpr int kAlarmAfter = 256 / 4;
  TestRing ring(world->bob);
  const auto flow = ring.take(to_bob());
  const UniqueFd alice = world->alice.udp_socket();
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < kAlarmAfter - 1; ++i) say(alice, "fill");
    EXPECT_FALSE(is_alarmed(ring, 0));
    say(alice, "filled");
    EXPECT_TRUE(is_alarmed(ring, 5'000));
    soft::PacketQueuePair::of(*ring.qp).silence_alarms();
    EXPECT_FALSE(is_alarmed(ring, 0));
  }
  for (int i = 0; i < 3 * kAlarmAfter; ++i) ASSERT_TRUE(ring.receive());
}

TEST_F(PacketWaiting, WhoTakesPacketsIsNotAlarmed) {
  TestRing ring(world->bob);
  const auto flow = ring.take(to_bob());
  const UniqueFd alice = world->alice.udp_socket();
  for (int i = 0; i < 50; ++i) say(alice, "backlog");
  for (int i = 0; i < 200; ++i) {
    say(alice, "one");
    ASSERT_TRUE(ring.receive());
  }
  EXPECT_FALSE(is_alarmed(ring, 0));
}

TEST_F(PacketWaiting, AReceiveThatIsTooShortDropsAndCounts) {
  TestRing ring(world->bob, {.buffer_bytes = 64});
  const auto flow = ring.take(to_bob());
  const UniqueFd alice = world->alice.udp_socket();
  say(alice, std::string(100, 'l'));
  say(alice, "short");
  EXPECT_EQ(ring.receive()->payload(), "short");
  EXPECT_EQ(ring.counters().rx_too_long, 1U);
}

TEST_F(PacketWaiting, AForeignKeyEndsTheQueuePair) {
  TestRing ring(world->bob);
  std::string frame = udp_frame(world->bob, 1, world->alice, 2, "key");
  ibv_sge sge{reinterpret_cast<std::uint64_t>(frame.data()), static_cast<std::uint32_t>(frame.size()), 0xdead};
  ibv_send_wr wr{};
  wr.wr_id = 7;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(ring.qp.get(), &wr, &bad), 0);
  ibv_wc wc;
  ASSERT_EQ(ibv_poll_cq(ring.send_cq.get(), 1, &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(wc.wr_id, 7U);
  ASSERT_EQ(ibv_poll_cq(ring.receive_cq.get(), 1, &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(PacketWaiting, TheLinkGoesDownAndComesBack) {
  TestRing ring(world->bob);
  const auto flow = ring.take(to_bob());
  const UniqueFd alice = world->alice.udp_socket();
  const std::string frame = udp_frame(world->bob, 1, world->alice, 2, "down");

  // The kernel tells of a new link with some delay.
  while (must(ring.device->query_port(1)).state != IBV_PORT_ACTIVE) next_async(ring);

  world->bob.sh("ip link set eth-bob down");
  ibv_event_type event = next_async(ring);
  while (event == IBV_EVENT_PORT_ACTIVE) event = next_async(ring);
  EXPECT_EQ(event, IBV_EVENT_PORT_ERR);
  EXPECT_EQ(must(ring.device->query_port(1)).state, IBV_PORT_DOWN);
  EXPECT_EQ(ring.send(frame), ENETDOWN);

  world->bob.sh("ip link set eth-bob up");
  EXPECT_EQ(next_async(ring), IBV_EVENT_PORT_ACTIVE);
  EXPECT_EQ(ring.send(frame), 0);
  say(alice, "up again");
  EXPECT_EQ(ring.receive()->payload(), "up again");
}

TEST_F(PacketWaiting, WhoAsksLateHearsOfEveryChangeOfTheLink) {
  world->bob.sh("ip link set eth-bob down");
  TestRing ring(world->bob);
  world->bob.sh("ip link set eth-bob up");
  EXPECT_EQ(next_async(ring), IBV_EVENT_PORT_ACTIVE);
  world->bob.sh("ip link set eth-bob down; ip link set eth-bob up");
  while (must(ring.device->query_port(1)).state != IBV_PORT_ACTIVE) std::this_thread::yield();
  EXPECT_EQ(next_async(ring), IBV_EVENT_PORT_ERR);
  EXPECT_EQ(next_async(ring), IBV_EVENT_PORT_ACTIVE);
}

TEST_F(PacketWaiting, ALargerMtuIsFollowed) {
  TestRing ring(world->bob, {.buffer_bytes = 9216});
  const auto flow = ring.take(to_bob());
  world->alice.sh("ip link set eth-alice mtu 9000");
  world->bob.sh("ip link set eth-bob mtu 9000");
  const UniqueFd alice = world->alice.udp_socket();

  say(alice, std::string(8000, 'j'));
  EXPECT_EQ(ring.receive()->payload(), std::string(8000, 'j'));
  ASSERT_EQ(
      ring.send(udp_frame(world->bob, 1, world->alice, local_address(alice.get()).port(), std::string(8000, 'k'))), 0);
  EXPECT_EQ(receive_from(alice), std::string(8000, 'k'));
}

TEST_F(PacketWaiting, AnInterfaceThatIsRemovedWakesTheSleeper) {
  TestRing ring(world->bob);
  const auto flow = ring.take(to_bob());
  ibv_req_notify_cq(ring.receive_cq.get(), 0);
  std::thread remover([&] { world->alice.sh("ip link delete eth-alice"); });

  ibv_wc wc{};
  while (ibv_poll_cq(ring.receive_cq.get(), 1, &wc) == 0) {
    ibv_req_notify_cq(ring.receive_cq.get(), 0);
    if (ibv_poll_cq(ring.receive_cq.get(), 1, &wc) == 1) break;
    ASSERT_TRUE(ring.sleep());
  }
  remover.join();
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(next_async(ring), IBV_EVENT_DEVICE_FATAL);
}

TEST_F(PacketWaiting, ASpinnerHearsThatTheInterfaceIsRemoved) {
  TestRing ring(world->bob);
  world->alice.sh("ip link delete eth-alice");
  ibv_wc wc{};
  while (ibv_poll_cq(ring.receive_cq.get(), 1, &wc) == 0) {
  }
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(PacketWaiting, AForkedChildForgetsAndTheParentGoesOn) {
  TestRing ring(world->bob);
  auto flow = ring.take(to_bob());
  const UniqueFd alice = world->alice.udp_socket();
  const pid_t child = ::fork();
  if (child == 0) {
    ring.device->forget_after_fork();
    flow.reset();
    ring.~TestRing();
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ibv_req_notify_cq(ring.receive_cq.get(), 0);
  say(alice, "still there");
  EXPECT_TRUE(ring.sleep());
  EXPECT_EQ(ring.receive()->payload(), "still there");
}

TEST_F(PacketWaiting, WhereThereIsNoInterfaceThereIsNoDevice) {
  InNamespace there(world->bob.space.get());
  EXPECT_EQ(soft::PacketDevice::open(4711).error().code, ENODEV);
  EXPECT_EQ(soft::PacketDevice::open(::if_nametoindex("lo")).error().code, EOPNOTSUPP);
}

}  // namespace
}  // namespace ringsock::testing
