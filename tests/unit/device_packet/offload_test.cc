// Checksums and segmentation, both ways.
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>

#include "core/wire/frame_layout.h"
#include "tests/unit/device_packet/packet_test.h"

namespace ringsock::testing {
namespace {

constexpr std::uint16_t kPort = 4000;

class PacketOffload : public PacketTest {
 protected:
  verbs::FlowTuple to_bob() const { return {.protocol = IPPROTO_UDP, .destination = with_port(world->bob.v4, kPort)}; }
  /// Sends a frame as it is, past any checksum offload.
  static void send_raw(TestRing& from, const std::string& frame) { ASSERT_EQ(from.send(frame, 0), 0); }
  std::string valid_frame(std::string_view payload) const {
    std::string frame = udp_frame(world->alice, 5000, world->bob, kPort, payload);
    auto* ip = reinterpret_cast<wire::Ipv4Header*>(frame.data() + 14);
    wire::set_checksum(*ip);
    auto* udp = reinterpret_cast<wire::UdpHeader*>(frame.data() + 34);
    auto sum = wire::pseudo_header_sum(ip->source, ip->destination, wire::kIpProtocolUdp, udp->bytes.host());
    udp->checksum = wire::sent_udp_checksum(sum.add(std::as_bytes(std::span(frame).subspan(34))));
    return frame;
  }
};

TEST(PacketChecksums, AreFilledInAndLookedAt) {
  Host alice, bob;
  alice.v4 = SocketAddress::v4(0x0a4d0001, 0);
  bob.v4 = SocketAddress::v4(0x0a4d0002, 0);
  alice.v6 = bob.v6 = SocketAddress::v6(in6addr_loopback, 0);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const std::string_view payload : {"", "odd", "even"}) {
      std::string frame = udp_frame(alice, 5000, bob, kPort, payload, family);
      const auto bytes = std::as_writable_bytes(std::span(frame));
      EXPECT_FALSE(wire::has_right_checksums(bytes)) << "nothing was filled in yet";
      wire::fill_checksums(bytes);
      EXPECT_TRUE(wire::has_right_checksums(bytes));
      // What is there already does not count.
      frame[frame.size() - payload.size() - 2] = 77;
      EXPECT_FALSE(wire::has_right_checksums(bytes));
      wire::fill_checksums(bytes);
      EXPECT_TRUE(wire::has_right_checksums(bytes));
      for (std::size_t i = 14; i < frame.size(); ++i) {
        // The class, flow label and hop limit of IPv6 are under no checksum.
        if (family == AF_INET6 && (i < 18 || i == 21)) continue;
        frame[i] = static_cast<char>(frame[i] ^ 4);
        EXPECT_FALSE(wire::has_right_checksums(bytes)) << "byte " << i;
        frame[i] = static_cast<char>(frame[i] ^ 4);
      }
    }
  }
  std::string garbage(60, 'g');
  wire::fill_checksums(std::as_writable_bytes(std::span(garbage)));
  EXPECT_FALSE(wire::has_right_checksums(std::as_bytes(std::span(garbage))));
  for (std::size_t size = 0; size < 55; ++size) {
    std::string cut = udp_frame(alice, 5000, bob, kPort, "of any length").substr(0, size);
    wire::fill_checksums(std::as_writable_bytes(std::span(cut)));
    EXPECT_EQ(cut.size(), size);
  }
}

TEST_F(PacketOffload, ARightChecksumIsFine) {
  TestRing alice(world->alice), bob(world->bob);
  const auto flow = bob.take(to_bob());
  send_raw(alice, valid_frame("right"));
  const auto arrival = bob.receive();
  ASSERT_TRUE(arrival);
  EXPECT_EQ(arrival->payload(), "right");
  EXPECT_EQ(arrival->wc_flags, unsigned{IBV_WC_IP_CSUM_OK});
}

TEST_F(PacketOffload, WrongChecksumsAndLengthsAreDroppedAndCounted) {
  TestRing alice(world->alice), bob(world->bob);
  const auto flow = bob.take(to_bob());
  std::string wrong = valid_frame("wrong");
  wrong.back() = static_cast<char>(wrong.back() ^ 1);
  std::string wrong_header = valid_frame("header");
  wrong_header[22] = 3;  // another time to live
  std::string wrong_length = valid_frame("length");
  wrong_length[39] = 60;  // of UDP

  for (const std::string& frame : {wrong, wrong_header, wrong_length, valid_frame("right")}) send_raw(alice, frame);

  EXPECT_EQ(bob.receive()->payload(), "right");
  EXPECT_EQ(bob.counters().rx_bad_checksum, 2U);
  EXPECT_EQ(bob.counters().rx_bad_length, 1U);
}

TEST_F(PacketOffload, ADatagramWithoutChecksumIsFine) {
  TestRing alice(world->alice), bob(world->bob);
  const auto flow = bob.take(to_bob());
  std::string frame = valid_frame("none");
  frame[40] = frame[41] = 0;
  send_raw(alice, frame);
  EXPECT_EQ(bob.receive()->payload(), "none");
}

TEST_F(PacketOffload, DatagramsThatTheKernelPutTogetherArriveOneByOne) {
  TestRing bob(world->bob);
  const auto flow = bob.take(to_bob());
  const UniqueFd alice = world->alice.udp_socket();
  const int segment = 1000;
  ASSERT_EQ(::setsockopt(alice.get(), IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment), 0);

  send_to(alice, with_port(world->bob.v4, kPort),
          std::string(1000, 'a') + std::string(1000, 'b') + std::string(1000, 'c') + "end");

  for (const std::string& expected :
       {std::string(1000, 'a'), std::string(1000, 'b'), std::string(1000, 'c'), std::string("end")}) {
    const auto arrival = bob.receive();
    ASSERT_TRUE(arrival);
    EXPECT_EQ(arrival->payload(), expected);
    EXPECT_EQ(arrival->wc_flags, unsigned{IBV_WC_IP_CSUM_OK});
    // The headers are those of a packet of its own.
    EXPECT_TRUE(wire::parse_ipv4(std::as_bytes(std::span(arrival->frame)).subspan(14)));
  }
}

/// With a kernel whose packet sockets take UDP packets apart, and with an older one.
class PacketSegmentation : public PacketOffload, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Kernels, PacketSegmentation, ::testing::Values(true, false),
                         [](const auto& info) { return info.param ? "Linux62" : "Older"; });

TEST_F(PacketOffload, WhatAnOlderKernelCannotTellARingOfIsTheKernels) {
  TestRing bob(world->bob, {.device = {.kernel_segments_udp = false}});
  const UniqueFd alice = world->alice.udp_socket(), shadow = world->bob.udp_socket();
  const auto flow = bob.take({.protocol = IPPROTO_UDP, .destination = local_address(shadow.get())});
  const int segment = 1000;
  ASSERT_EQ(::setsockopt(alice.get(), IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment), 0);

  send_to(alice, local_address(shadow.get()), std::string(1000, 'a') + "end");
  EXPECT_EQ(receive_from(shadow), std::string(1000, 'a'));
  EXPECT_EQ(receive_from(shadow), "end");
  send_to(alice, local_address(shadow.get()), "one");
  EXPECT_EQ(bob.receive()->payload(), "one");
}

TEST_P(PacketSegmentation, DatagramsOfOneRequestAreSegmentedOnTheWay) {
  TestRing bob(world->bob, {.device = {.kernel_segments_udp = GetParam()}});
  const UniqueFd alice = world->alice.udp_socket();
  std::string headers = udp_frame(world->bob, kPort, world->alice, local_address(alice.get()).port(), "");
  std::string payload = std::string(1200, 'x') + std::string(1200, 'y') + "z";
  ibv_sge sge{reinterpret_cast<std::uint64_t>(payload.data()), static_cast<std::uint32_t>(payload.size()), 0};
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_TSO;
  wr.send_flags = IBV_SEND_INLINE | IBV_SEND_IP_CSUM | IBV_SEND_SIGNALED;
  wr.tso.hdr = headers.data();
  wr.tso.hdr_sz = static_cast<std::uint16_t>(headers.size());
  wr.tso.mss = 1200;
  ibv_send_wr* bad = nullptr;

  ASSERT_EQ(ibv_post_send(bob.qp.get(), &wr, &bad), 0);

  EXPECT_EQ(receive_from(alice), std::string(1200, 'x'));
  EXPECT_EQ(receive_from(alice), std::string(1200, 'y'));
  EXPECT_EQ(receive_from(alice), "z");
  ibv_wc wc;
  ASSERT_EQ(ibv_poll_cq(bob.send_cq.get(), 1, &wc), 1);
  EXPECT_EQ(wc.opcode, IBV_WC_TSO);
  EXPECT_EQ(bob.counters().tx_system_calls, GetParam() ? 1U : 3U);
  EXPECT_EQ(bob.counters().tx_packets, 1U);
}

/// Alice's kernel sends TCP segments; the first is a SYN, which is all that is needed to see whole headers.
TEST_F(PacketOffload, TcpIsTakenToo) {
  TestRing bob(world->bob);
  const auto flow = bob.take({.protocol = IPPROTO_TCP, .destination = with_port(world->bob.v4, kPort)});
  UniqueFd alice;
  {
    InNamespace there(world->alice.space.get());
    alice.reset(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  }
  const SocketAddress to = with_port(world->bob.v4, kPort);
  ::connect(alice.get(), to.get(), to.length());
  const auto arrival = bob.receive();
  ASSERT_TRUE(arrival);
  EXPECT_NE(arrival->frame[14 + 20 + 13] & 0x02, 0) << "SYN";
}

TEST_F(PacketOffload, AFrameLongerThanTheMtuIsRefused) {
  TestRing bob(world->bob);
  const std::string frame = udp_frame(world->bob, 1, world->alice, 2, std::string(1473, 'l'));
  EXPECT_EQ(bob.send(frame), EMSGSIZE);
  EXPECT_EQ(bob.send(udp_frame(world->bob, 1, world->alice, 2, std::string(1472, 'l'))), 0);
}

TEST_F(PacketOffload, AListOfRequestsIsOneSystemCall) {
  TestRing bob(world->bob);
  const UniqueFd alice = world->alice.udp_socket();
  const std::uint16_t port = local_address(alice.get()).port();
  std::vector<std::string> frames;
  for (char c = 'a'; c < 'a' + 20; ++c) frames.push_back(udp_frame(world->bob, kPort, world->alice, port, {&c, 1}));
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
  ASSERT_EQ(ibv_post_send(bob.qp.get(), requests.data(), &bad), 0);
  for (char c = 'a'; c < 'a' + 20; ++c) EXPECT_EQ(receive_from(alice), std::string(1, c));
  EXPECT_EQ(bob.counters().tx_system_calls, 1U);
  ibv_wc wc;
  EXPECT_EQ(ibv_poll_cq(bob.send_cq.get(), 1, &wc), 0) << "nobody asked for completions";
}

}  // namespace
}  // namespace ringsock::testing
