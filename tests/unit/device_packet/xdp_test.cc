// What is particular to rings over AF_XDP sockets. The other tests run over them, too (on_xdp.sh).
#include <gtest/gtest.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <netinet/udp.h>

#include <csignal>
#include <set>

#include "tests/support/child.h"
#include "tests/unit/device_packet/packet_test.h"

namespace ringsock::testing {
namespace {

class PacketXdp : public PacketTest {
 protected:
  const RingOptions with_xdp{.device = {.ring = soft::RingKind::xdp}};
  verbs::FlowTuple to_bob() const { return {.protocol = IPPROTO_UDP, .destination = bobs_port()}; }
  SocketAddress bobs_port() const { return with_port(world->bob.v4, 4000); }

  /// What the kernel says of bob's interface.
  [[nodiscard]] bool has_program() const {
    InNamespace there(world->bob.space.get());
    return std::system("ip -d link show dev eth-bob | grep -q 'prog/xdp'") == 0;
  }
  /// An interface's queues, of those that it was made with.
  static void set_queues(const Host& host, unsigned receiving, unsigned sending) {
    InNamespace there(host.space.get());
    const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ethtool_channels channels{};
    channels.cmd = ETHTOOL_SCHANNELS;
    channels.rx_count = receiving;
    channels.tx_count = sending;
    ifreq request{};
    std::strncpy(request.ifr_name, host.interface.c_str(), sizeof request.ifr_name - 1);
    request.ifr_data = reinterpret_cast<char*>(&channels);
    if (::ioctl(socket.get(), SIOCETHTOOL, &request) != 0) throw std::runtime_error("ETHTOOL_SCHANNELS");
  }
  /// Sends "0", "1" ... from a socket each, so that they spread over the queues, and returns what the ring got.
  std::multiset<std::string> from_many(TestRing& ring, int count) const {
    std::multiset<std::string> got;
    for (int i = 0; i < count; ++i) send_to(world->alice.udp_socket(), bobs_port(), std::to_string(i));
    for (int i = 0; i < count; ++i) {
      const auto arrival = ring.receive();
      if (!arrival) break;
      got.insert(arrival->payload());
    }
    return got;
  }
  static std::multiset<std::string> numbers(int count) {
    std::multiset<std::string> out;
    for (int i = 0; i < count; ++i) out.insert(std::to_string(i));
    return out;
  }
};

TEST_F(PacketXdp, AKilledProcessLeavesNothingAndTheNextOneHasTheQueue) {
  const UniqueFd alice = world->alice.udp_socket(), shadow = world->bob.udp_socket();
  const SocketAddress port = local_address(shadow.get());
  Child owner = Child::start([&](Channel& channel) {
    TestRing ring(world->bob, with_xdp);
    const auto flow = ring.take({.protocol = IPPROTO_UDP, .destination = port});
    channel.send(ring.device->ring_kind() == soft::RingKind::xdp);
    while (const auto arrival = ring.receive(std::chrono::seconds(30))) channel.send(arrival->payload() == "taken");
    return 1;
  });
  ASSERT_EQ(owner.channel().receive<bool>(), true);
  EXPECT_TRUE(has_program());
  send_to(alice, port, "taken");
  ASSERT_EQ(owner.channel().receive<bool>(), true);

  owner.kill(SIGKILL);
  owner.wait();

  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  std::string got;
  while (got != "back" && std::chrono::steady_clock::now() < end) {
    send_to(alice, port, "back");
    got = receive_from(shadow, 10);
  }
  EXPECT_EQ(got, "back");
  EXPECT_FALSE(has_program());
  TestRing next(world->bob, with_xdp);
  const auto flow = next.take({.protocol = IPPROTO_UDP, .destination = port});
  EXPECT_EQ(next.device->ring_kind(), soft::RingKind::xdp);
  send_to(alice, port, "again");
  EXPECT_EQ(next.receive()->payload(), "again");
}

TEST_F(PacketXdp, WhoComesSecondHasAnOrdinaryRing) {
  TestRing first(world->bob, with_xdp), second(world->bob, with_xdp);
  EXPECT_EQ(first.device->ring_kind(), soft::RingKind::xdp);
  EXPECT_EQ(second.device->ring_kind(), soft::RingKind::packet);
  const auto at_first = first.take(to_bob());
  const auto at_second = second.take({.protocol = IPPROTO_UDP, .destination = with_port(world->bob.v4, 4001)});
  const UniqueFd alice = world->alice.udp_socket();

  send_to(alice, bobs_port(), "one");
  send_to(alice, with_port(world->bob.v4, 4001), "two");

  EXPECT_EQ(first.receive()->payload(), "one");
  EXPECT_EQ(second.receive()->payload(), "two");
}

TEST_F(PacketXdp, TheOtherRingsOfAProcessAreOrdinaryOnes) {
  TestRing ring(world->bob, with_xdp);
  InNamespace there(world->bob.space.get());
  ibv_qp_init_attr attr{};
  attr.send_cq = ring.send_cq.get();
  attr.recv_cq = ring.receive_cq.get();
  attr.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
  attr.qp_type = IBV_QPT_RAW_PACKET;
  verbs::Qp second = must(ring.device->create_qp(*ring.pd, attr));
  must(verbs::start_raw_packet_qp(*ring.device, *second));
  verbs::FlowRule rule(to_bob());
  const auto flow = must(verbs::create_flow(*ring.device, *second, rule.attr()));
  std::array<std::byte, 2048> memory;
  verbs::Mr mr = must(ring.device->reg_mr(*ring.pd, memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE));
  ibv_sge sge{reinterpret_cast<std::uint64_t>(memory.data()), memory.size(), mr->lkey};
  ibv_recv_wr wr{.wr_id = 1, .next = nullptr, .sg_list = &sge, .num_sge = 1};
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_recv(second.get(), &wr, &bad), 0);

  send_to(world->alice.udp_socket(), bobs_port(), "for the second");

  ibv_wc wc{};
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (ibv_poll_cq(ring.receive_cq.get(), 1, &wc) == 0) ASSERT_LT(std::chrono::steady_clock::now(), end);
  EXPECT_EQ(wc.qp_num, second->qp_num);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(memory.data()) + 42, wc.byte_len - 42), "for the second");
}

TEST_F(PacketXdp, WhatTheDriverPutsTogetherStillArrivesOneByOne) {
  // Together they would fit into one frame.
  for (const auto mode : {soft::XdpMode::generic, soft::XdpMode::native}) {
    TestRing bob(world->bob, {.device = {.ring = soft::RingKind::xdp, .xdp_mode = mode}});
    const auto flow = bob.take(to_bob());
    const UniqueFd alice = world->alice.udp_socket();
    const int segment = 100;
    ASSERT_EQ(::setsockopt(alice.get(), IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment), 0);
    send_to(alice, bobs_port(), std::string(100, 'a') + std::string(100, 'b') + "end");
    EXPECT_EQ(bob.receive()->payload(), std::string(100, 'a'));
    EXPECT_EQ(bob.receive()->payload(), std::string(100, 'b'));
    EXPECT_EQ(bob.receive()->payload(), "end");
  }
}

TEST_F(PacketXdp, EveryQueueHasItsSocket) {
  set_queues(world->bob, 2, 2);
  set_queues(world->alice, 2, 2);
  TestRing ring(world->bob, with_xdp);
  const auto flow = ring.take(to_bob());
  EXPECT_EQ(ring.device->ring_kind(), soft::RingKind::xdp);
  EXPECT_EQ(from_many(ring, 50), numbers(50));
}

TEST_F(PacketXdp, ANewAddressOfTheInterfaceIsFollowed) {
  TestRing ring(world->bob, with_xdp);
  const auto flow = ring.take(to_bob());
  world->bob.sh("ip link set eth-bob address 02:00:00:00:00:77");
  world->alice.sh("ip neigh replace 10.77.0.2 lladdr 02:00:00:00:00:77 dev eth-alice nud permanent");
  send_to(world->alice.udp_socket(), bobs_port(), "to the new address");
  EXPECT_EQ(ring.receive()->payload(), "to the new address");
}

TEST_F(PacketXdp, LongAndShortFramesTravelInOneList) {
  TestRing ring(world->bob, with_xdp);
  const UniqueFd alice = world->alice.udp_socket();
  const std::uint16_t port = local_address(alice.get()).port();
  const std::vector<std::size_t> lengths{10, 1400, 20, 30, 1300, 1200, 40};
  std::vector<std::string> frames;
  for (const std::size_t bytes : lengths)
    frames.push_back(udp_frame(world->bob, 4000, world->alice, port, std::string(bytes, 'x')));
  std::vector<ibv_sge> sges(frames.size());
  std::vector<ibv_send_wr> requests(frames.size());
  for (std::size_t i = 0; i < frames.size(); ++i) {
    sges[i] = {reinterpret_cast<std::uint64_t>(frames[i].data()), static_cast<std::uint32_t>(frames[i].size()), 0};
    requests[i].sg_list = &sges[i];
    requests[i].num_sge = 1;
    requests[i].opcode = IBV_WR_SEND;
    requests[i].send_flags = IBV_SEND_INLINE | IBV_SEND_IP_CSUM;
    requests[i].next = i + 1 < frames.size() ? &requests[i + 1] : nullptr;
  }
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(ring.qp.get(), requests.data(), &bad), 0);
  for (const std::size_t bytes : lengths) EXPECT_EQ(receive_from(alice), std::string(bytes, 'x'));
}

TEST_F(PacketXdp, ASenderIsToldThatTheInterfaceIsGone) {
  TestRing ring(world->bob, with_xdp);
  const std::string frame = udp_frame(world->bob, 1, world->alice, 2, "gone");
  ASSERT_EQ(ring.send(frame), 0);
  world->alice.sh("ip link delete eth-alice");
  EXPECT_EQ(ring.send(frame), ENODEV);
}

}  // namespace
}  // namespace ringsock::testing
