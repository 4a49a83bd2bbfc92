// Packets that are taken where they lie, and datagrams that are sent without a request: what libvma's rings do.
#include <gtest/gtest.h>
#include <netinet/udp.h>
#include <sys/uio.h>

#include <string>
#include <vector>

#include "core/device/packet/packet_queue_pair.h"
#include "core/wire/frame_layout.h"
#include "tests/unit/device_packet/packet_test.h"

namespace ringsock::testing {
namespace {

constexpr std::uint16_t kPort = 4000;
constexpr std::size_t kRoom = 2048;

/// No receives are posted.
class DirectRing : public TestRing {
 public:
  explicit DirectRing(const Host& host) : TestRing(host, {.receives = 0}) {}
  [[nodiscard]] soft::PacketQueuePair& packets() const { return soft::PacketQueuePair::of(*qp); }

  /// The payload of the next packet, spinning; "?": none came.
  std::string take_payload() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    do {
      const soft::ReceivedPacket* const packet = packets().take_packet(kRoom);
      packets().note_poll(packet != nullptr ? 1 : 0);
      if (packet == nullptr) continue;
      EXPECT_EQ(packet->headers.size(), packet->layout.payload);
      EXPECT_EQ(packet->headers.size() + packet->payload.size(), packet->layout.end);
      std::string out(reinterpret_cast<const char*>(packet->payload.data()), packet->payload.size());
      packets().release_packet();
      return out;
    } while (std::chrono::steady_clock::now() < end);
    return "?";
  }
};

class PacketDirect : public PacketTest, public ::testing::WithParamInterface<int> {
 protected:
  [[nodiscard]] int family() const { return GetParam(); }
  [[nodiscard]] SocketAddress bobs() const { return with_port(address(world->bob, family()), kPort); }
  verbs::Flow to_bob(DirectRing& bob) { return bob.take({.protocol = IPPROTO_UDP, .destination = bobs()}); }

  /// Headers from bob for so many bytes of payload, with the sum of the pseudo header in place of UDP's checksum.
  std::string headers_to(std::uint16_t port, std::size_t payload_bytes) const {
    const std::string payload(payload_bytes, 'x');
    std::string frame = udp_frame(world->bob, kPort, world->alice, port, payload, family());
    const auto bytes = std::as_writable_bytes(std::span(frame));
    wire::fill_checksums(bytes);  // IPv4's
    const auto layout = wire::parse_headers(bytes, bytes.size());
    EXPECT_TRUE(layout);
    const wire::Be16 sum =
        wire::pseudo_header(bytes, *layout, static_cast<std::uint32_t>(bytes.size() - layout->transport)).folded();
    std::memcpy(bytes.data() + layout->transport + layout->checksum_offset(), &sum, sizeof sum);
    return frame.substr(0, layout->payload);
  }
  static int send(DirectRing& ring, const std::string& headers, const std::vector<std::string>& parts) {
    std::vector<iovec> payload;
    for (const std::string& part : parts) payload.push_back({const_cast<char*>(part.data()), part.size()});
    soft::DatagramRoom room;
    std::memcpy(room.headers().data(), headers.data(), headers.size());
    return ring.packets().send_datagram(room, headers.size(), payload);
  }
};
INSTANTIATE_TEST_SUITE_P(Families, PacketDirect, ::testing::Values(AF_INET, AF_INET6),
                         [](const auto& info) { return info.param == AF_INET ? "IPv4" : "IPv6"; });

TEST_P(PacketDirect, PacketsAreTakenInOrderAndCounted) {
  DirectRing bob(world->bob);
  const auto flow = to_bob(bob);
  const UniqueFd alice = world->alice.udp_socket(family());

  send_to(alice, bobs(), "one");
  send_to(alice, bobs(), "");
  send_to(alice, bobs(), std::string(1400, 'x'));

  EXPECT_EQ(bob.take_payload(), "one");
  EXPECT_EQ(bob.take_payload(), "");
  EXPECT_EQ(bob.take_payload(), std::string(1400, 'x'));
  EXPECT_EQ(bob.packets().take_packet(kRoom), nullptr);
  EXPECT_EQ(bob.counters().rx_packets, 3U);
}

TEST_P(PacketDirect, WhoSleepsBetweenThoseThatTheKernelPutTogetherIsWoken) {
  DirectRing bob(world->bob);
  const auto flow = to_bob(bob);
  const UniqueFd alice = world->alice.udp_socket(family());
  const int segment = 1000;
  ASSERT_EQ(::setsockopt(alice.get(), IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment), 0);

  send_to(alice, bobs(), std::string(1000, 'a') + std::string(1000, 'b') + "end");

  EXPECT_EQ(bob.take_payload(), std::string(1000, 'a'));
  ibv_req_notify_cq(bob.receive_cq.get(), 0);
  EXPECT_TRUE(bob.sleep());
  EXPECT_EQ(bob.take_payload(), std::string(1000, 'b'));
  EXPECT_EQ(bob.take_payload(), "end");
}

TEST_P(PacketDirect, WhoSleepsIsWokenByTheNextPacket) {
  DirectRing bob(world->bob);
  const auto flow = to_bob(bob);
  const UniqueFd alice = world->alice.udp_socket(family());

  ibv_req_notify_cq(bob.receive_cq.get(), 0);
  EXPECT_EQ(bob.packets().take_packet(kRoom), nullptr);
  send_to(alice, bobs(), "hello");
  EXPECT_TRUE(bob.sleep());

  EXPECT_EQ(bob.take_payload(), "hello");
}

TEST_P(PacketDirect, DatagramsOfAnySizeAndNumberOfPartsAreSent) {
  DirectRing bob(world->bob);
  const UniqueFd alice = world->alice.udp_socket(family());
  const std::uint16_t port = local_address(alice.get()).port();

  for (const std::vector<std::string>& parts : {std::vector<std::string>{"hello"},
                                                {},
                                                {""},
                                                {std::string(256, 'a')},
                                                {std::string(257, 'b')},
                                                {std::string(1400, 'c')},
                                                {"several", "", "parts"},
                                                {"a short one", std::string(1000, 'd')}}) {
    std::string whole;
    for (const std::string& part : parts) whole += part;
    ASSERT_EQ(send(bob, headers_to(port, whole.size()), parts), 0);
    EXPECT_EQ(receive_from(alice), whole);
  }
  EXPECT_EQ(bob.counters().tx_packets, 8U);
}

TEST_P(PacketDirect, ARingInErrorTakesAndSendsNothing) {
  DirectRing bob(world->bob);
  const auto flow = to_bob(bob);
  const UniqueFd alice = world->alice.udp_socket(family());
  send_to(alice, bobs(), "too late");

  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ASSERT_TRUE(bob.device->modify_qp(*bob.qp, attr, IBV_QP_STATE));

  EXPECT_EQ(bob.packets().take_packet(kRoom), nullptr);
  EXPECT_EQ(send(bob, headers_to(kPort, 5), {"hello"}), ENODEV);
}

}  // namespace
}  // namespace ringsock::testing
