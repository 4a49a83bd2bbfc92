// Rules: who gets which packet, and that each packet has one owner whatever happens to the rules.
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "core/device/packet/steering/copy_filter.h"
#include "core/device/packet/steering/frames_under_way.h"
#include "core/device/packet/steering/libbpf.h"
#include "tests/unit/device_packet/packet_test.h"

namespace ringsock::testing {
namespace {

class PacketFlows : public PacketTest {
 protected:
  verbs::FlowTuple to_bob(std::uint16_t port) const {
    return {.protocol = IPPROTO_UDP, .destination = with_port(world->bob.v4, port)};
  }
};

TEST_F(PacketFlows, TheKernelKeepsWhatNoRuleNames) {
  TestRing ring(world->bob);
  const UniqueFd alice = world->alice.udp_socket(), bob = world->bob.udp_socket();
  const auto flow = ring.take(to_bob(4000));

  send_to(alice, local_address(bob.get()), "for the kernel");
  send_to(alice, with_port(world->bob.v4, 4000), "for the ring");

  EXPECT_EQ(receive_from(bob), "for the kernel");
  EXPECT_EQ(ring.receive()->payload(), "for the ring");
}

TEST_F(PacketFlows, TheKernelDoesNotSeeWhatARingTakesAndGetsItBackWithTheRule) {
  TestRing ring(world->bob);
  const UniqueFd alice = world->alice.udp_socket(), shadow = world->bob.udp_socket();
  const SocketAddress port = local_address(shadow.get());
  {
    const auto flow = ring.take(to_bob(port.port()));
    send_to(alice, port, "one");
    EXPECT_EQ(ring.receive()->payload(), "one");
  }
  send_to(alice, port, "two");
  // The first that the kernel's socket has is the second.
  EXPECT_EQ(receive_from(shadow), "two");
}

TEST_F(PacketFlows, ARuleWithASourceGoesBeforeOneWithout) {
  TestRing open(world->bob), exact(world->bob);
  const UniqueFd friend_of_bob = world->alice.udp_socket(), stranger = world->alice.udp_socket();
  auto tuple = to_bob(4000);
  // Both rings belong to one device: what one takes the other does not see.
  const auto everybody = open.take(tuple);
  tuple.source = local_address(friend_of_bob.get());
  ibv_qp_init_attr attr{};
  attr.send_cq = open.send_cq.get();
  attr.recv_cq = open.receive_cq.get();
  attr.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
  attr.qp_type = IBV_QPT_RAW_PACKET;
  verbs::Qp second = must(open.device->create_qp(*open.pd, attr));
  must(verbs::start_raw_packet_qp(*open.device, *second));
  verbs::FlowRule rule(tuple);
  const auto one = must(verbs::create_flow(*open.device, *second, rule.attr()));

  send_to(friend_of_bob, with_port(world->bob.v4, 4000), "from the friend");
  send_to(stranger, with_port(world->bob.v4, 4000), "from a stranger");

  // The second ring has no receive: what it takes waits there.
  EXPECT_EQ(open.receive()->payload(), "from a stranger");
  EXPECT_EQ(open.counters().rx_packets, 1U);
}

TEST_F(PacketFlows, TheSameRuleTwiceIsRefused) {
  TestRing ring(world->bob);
  const auto flow = ring.take(to_bob(4000));
  EXPECT_EQ(ring.try_take(to_bob(4000)).error().code, EEXIST);
  const auto group = ring.take({.protocol = IPPROTO_UDP, .destination = SocketAddress::v4(0xef010203, 4000)});
  EXPECT_EQ(ring.try_take({.protocol = IPPROTO_UDP, .destination = SocketAddress::v4(0xef010203, 4000)}).error().code,
            EEXIST);
}

TEST_F(PacketFlows, NonsenseIsRefused) {
  TestRing ring(world->bob);
  const auto code = [&](auto change) {
    verbs::FlowRule rule(to_bob(4000));
    change(rule.attr());
    const auto flow = verbs::create_flow(*ring.device, *ring.qp, rule.attr());
    return flow ? 0 : flow.error().code;
  };
  EXPECT_EQ(code([](ibv_flow_attr& attr) { attr.size = 3; }), EINVAL);
  EXPECT_EQ(code([](ibv_flow_attr& attr) { ++attr.num_of_specs; }), EINVAL);
  EXPECT_EQ(code([](ibv_flow_attr& attr) { --attr.num_of_specs; }), EINVAL);
  EXPECT_EQ(code([](ibv_flow_attr& attr) { attr.port = 2; }), EINVAL);
  EXPECT_EQ(code([](ibv_flow_attr& attr) { attr.comp_mask = 1; }), EINVAL);
  EXPECT_EQ(code([](ibv_flow_attr& attr) { attr.type = IBV_FLOW_ATTR_SNIFFER; }), EOPNOTSUPP);
  EXPECT_EQ(code([](ibv_flow_attr& attr) { reinterpret_cast<ibv_flow_spec_ipv4*>(&attr + 1)->mask.dst_ip = 255; }),
            EOPNOTSUPP);
  EXPECT_EQ(code([](ibv_flow_attr& attr) { reinterpret_cast<ibv_flow_spec_ipv4*>(&attr + 1)->size = 12; }), EINVAL);
  EXPECT_EQ(ring.try_take(to_bob(0)).error().code, EINVAL);
}

TEST_F(PacketFlows, MulticastIsForTheRingAndForTheKernel) {
  TestRing one(world->bob), two(world->bob);
  const SocketAddress group = SocketAddress::v4(0xef010203, 4000);
  const auto at_one = one.take({.protocol = IPPROTO_UDP, .destination = group});
  const auto at_two = two.take({.protocol = IPPROTO_UDP, .destination = group});
  UniqueFd member;
  {
    InNamespace there(world->bob.space.get());
    member.reset(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  }
  ASSERT_EQ(::bind(member.get(), group.get(), group.length()), 0);
  ip_mreqn join{group.in4().sin_addr, {}, static_cast<int>(world->bob.ifindex)};
  ASSERT_EQ(::setsockopt(member.get(), IPPROTO_IP, IP_ADD_MEMBERSHIP, &join, sizeof join), 0);
  const UniqueFd alice = world->alice.udp_socket();
  ip_mreqn through{{}, {}, static_cast<int>(world->alice.ifindex)};
  ASSERT_EQ(::setsockopt(alice.get(), IPPROTO_IP, IP_MULTICAST_IF, &through, sizeof through), 0);

  send_to(alice, group, "to all");

  EXPECT_EQ(one.receive()->payload(), "to all");
  EXPECT_EQ(two.receive()->payload(), "to all");
  EXPECT_EQ(receive_from(member), "to all");
}

TEST_F(PacketFlows, AKernelSocketRefusesCopiesOfWhatARingHasTaken) {
  TestRing ring(world->bob);
  const SocketAddress group = SocketAddress::v4(0xef010203, 4000), other = SocketAddress::v4(0xef010204, 4000);
  UniqueFd member;
  {
    InNamespace there(world->bob.space.get());
    member.reset(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  }
  const SocketAddress any = SocketAddress::v4(INADDR_ANY, 4000);
  ASSERT_EQ(::bind(member.get(), any.get(), any.length()), 0);
  for (const SocketAddress& one : {group, other}) {
    ip_mreqn join{one.in4().sin_addr, {}, static_cast<int>(world->bob.ifindex)};
    ASSERT_EQ(::setsockopt(member.get(), IPPROTO_IP, IP_ADD_MEMBERSHIP, &join, sizeof join), 0);
  }
  const UniqueFd alice = world->alice.udp_socket();
  ip_mreqn through{{}, {}, static_cast<int>(world->alice.ifindex)};
  ASSERT_EQ(::setsockopt(alice.get(), IPPROTO_IP, IP_MULTICAST_IF, &through, sizeof through), 0);
  const soft::CopiedFlow refused[] = {{static_cast<int>(world->bob.ifindex), net::IpAddress::of(group)}};
  ASSERT_TRUE(soft::refuse_copies(member.get(), refused));

  send_to(alice, group, "no ring has a rule yet");
  EXPECT_EQ(receive_from(member), "no ring has a rule yet");
  {
    const auto flow = ring.take({.protocol = IPPROTO_UDP, .destination = group});
    const auto other_flow = ring.take({.protocol = IPPROTO_UDP, .destination = other});
    send_to(alice, group, "by the ring");
    send_to(alice, other, "by both");
    EXPECT_EQ(ring.receive()->payload(), "by the ring");
    EXPECT_EQ(ring.receive()->payload(), "by both");
    EXPECT_EQ(receive_from(member), "by both");
  }
  send_to(alice, group, "the rule is gone");
  EXPECT_EQ(receive_from(member), "the rule is gone");

  const auto flow = ring.take({.protocol = IPPROTO_UDP, .destination = group});
  ASSERT_TRUE(soft::accept_copies(member.get()));
  ASSERT_TRUE(soft::accept_copies(member.get())) << "without a filter, too";
  send_to(alice, group, "by both");
  EXPECT_EQ(ring.receive()->payload(), "by both");
  EXPECT_EQ(receive_from(member), "by both");
}

TEST_F(PacketFlows, NothingIsLostOrDoubledWhileRulesComeAndGo) {
  TestRing ring(world->bob, {.receives = 4096});
  const UniqueFd alice = world->alice.udp_socket(), shadow = world->bob.udp_socket();
  const int large = 8 << 20;
  ::setsockopt(shadow.get(), SOL_SOCKET, SO_RCVBUFFORCE, &large, sizeof large);
  const SocketAddress port = local_address(shadow.get());
  constexpr int kDatagrams = 3000;
  std::atomic<bool> done{false};
  std::thread sender([&] {
    for (int i = 0; i < kDatagrams; ++i) {
      ::sendto(alice.get(), &i, sizeof i, 0, port.get(), port.length());
      std::this_thread::yield();
    }
    done = true;
  });

  std::multiset<int> at_ring, at_kernel;
  const auto note = [](std::multiset<int>& where, const std::string& data) {
    int number;
    ASSERT_EQ(data.size(), sizeof number);
    std::memcpy(&number, data.data(), sizeof number);
    where.insert(number);
  };
  const auto collect = [&] {
    while (const auto arrival = ring.receive(std::chrono::milliseconds(0))) note(at_ring, arrival->payload());
    for (pollfd waiting{shadow.get(), POLLIN, 0}; ::poll(&waiting, 1, 0) == 1;) note(at_kernel, receive_from(shadow));
  };
  while (!done) {
    const auto flow = ring.take(to_bob(port.port()));
    collect();
  }
  sender.join();
  collect();

  EXPECT_EQ(at_ring.size() + at_kernel.size(), std::size_t{kDatagrams});
  for (int i = 0; i < kDatagrams; ++i) ASSERT_EQ(at_ring.count(i) + at_kernel.count(i), 1U) << i;
  EXPECT_GT(at_ring.size(), 0U);
}

// A socket that changes its ring empties the old one after the end of its rule, and is gone from there then.
TEST_F(PacketFlows, AfterItsRuleHasEndedARingGetsNothingMore) {
  if (tested_kind() == soft::RingKind::xdp) GTEST_SKIP() << "AF_XDP hands frames over at the end of a driver's turn";
  TestRing ring(world->bob, {.receives = 4096});
  const UniqueFd alice = world->alice.udp_socket(), shadow = world->bob.udp_socket();
  const SocketAddress port = local_address(shadow.get());
  std::atomic<bool> done{false};
  std::thread sender([&] {
    while (!done) ::sendto(alice.get(), "x", 1, 0, port.get(), port.length());
  });
  // The sender may be faster than this thread.
  const auto take = [&](int most) {
    int taken = 0;
    while (taken < most && ring.receive(std::chrono::milliseconds(0))) ++taken;
    return taken;
  };
  constexpr int kFew = 8, kAll = 100'000;

  int in_time = 0, late = 0;
  for (int round = 0; round < 1000 || in_time < 1000; ++round) {
    auto flow = ring.take(to_bob(port.port()));
    for (int i = 0; i < 20; ++i) in_time += take(kFew);
    flow.reset();
    in_time += take(kAll);
    for (int i = 0; i < 20; ++i) late += take(kFew);
  }
  done = true;
  sender.join();

  EXPECT_EQ(late, 0) << "beside " << in_time;
}

TEST_F(PacketFlows, ANoteThatStaysDoesNotHoldTheEndOfARuleUpForEver) {
  UniqueFd taken(
      soft::bpf_map_create(BPF_MAP_TYPE_PERCPU_ARRAY, "taken", sizeof(std::uint32_t), sizeof(taken_by), 1, nullptr));
  ASSERT_TRUE(taken) << std::strerror(errno);
  std::vector<taken_by> notes(static_cast<std::size_t>(soft::libbpf_num_possible_cpus()));
  notes.back().rings[1] = 1;    // of ring 65
  notes.front().copies[0] = 2;  // of ring 2
  const std::uint32_t only = 0;
  ASSERT_EQ(soft::bpf_map_update_elem(taken.get(), &only, notes.data(), BPF_ANY), 0);
  soft::FramesUnderWay under_way(std::move(taken));

  EXPECT_TRUE(under_way.wait_for(1));
  EXPECT_FALSE(under_way.wait_for(65, std::chrono::milliseconds(1)));
  EXPECT_FALSE(under_way.wait_for(2, std::chrono::milliseconds(1)));
}

TEST_F(PacketFlows, FragmentsComeAsThePacketThatTheyMake) {
  RingOptions options;
  options.buffer_bytes = 8192;
  TestRing ring(world->bob, options);
  const UniqueFd alice = world->alice.udp_socket(), shadow = world->bob.udp_socket();
  const auto flow = ring.take(to_bob(local_address(shadow.get()).port()));

  send_to(alice, local_address(shadow.get()), std::string(4000, 'f'));

  const auto arrival = ring.receive(std::chrono::seconds(5));
  ASSERT_TRUE(arrival);
  EXPECT_EQ(arrival->payload(), std::string(4000, 'f'));
}

TEST_F(PacketFlows, FragmentsOfOthersAreTheKernels) {
  TestRing ring(world->bob);
  const UniqueFd alice = world->alice.udp_socket(), shadow = world->bob.udp_socket(), other = world->bob.udp_socket();
  const auto flow = ring.take(to_bob(local_address(other.get()).port()));

  send_to(alice, local_address(shadow.get()), std::string(4000, 'f'));

  EXPECT_EQ(receive_from(shadow), std::string(4000, 'f'));
}

}  // namespace
}  // namespace ringsock::testing
