// Rings on an ordinary interface: bob has them, alice has the kernel.
#include "core/ethernet/packet_ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core/device/packet/packet_queue_pair.h"
#include "core/ethernet/interface.h"
#include "tests/unit/device_packet/packet_test.h"
#include "tests/unit/ethernet/noting_sink.h"

namespace ringsock::testing {
namespace {

using ethernet::Interface;
using ethernet::NotingSink;
using ethernet::Ring;
using ethernet::WaitingCall;

constexpr std::uint16_t kPort = 4000;

class PacketRingTest : public PacketTest {
 protected:
  void SetUp() override {
    PacketTest::SetUp();
    if (IsSkipped()) return;
    InNamespace there(world->bob.space.get());
    net::Link link;
    link.index = static_cast<int>(world->bob.ifindex);
    link.name = world->bob.interface;
    link.kind = net::LinkKind::veth;
    link.mtu = 1500;
    link.mac = world->bob.mac;
    auto interface = Interface::open(link, {.card_rings = false});
    ASSERT_TRUE(interface) << interface.error().where;
    auto ring = Ring::create(*std::move(interface), {}, std::make_unique<ethernet::PrivateRingCounters>());
    ASSERT_TRUE(ring) << ring.error().where;
    ring_ = *std::move(ring);
  }

  [[nodiscard]] SocketAddress bobs() const { return with_port(world->bob.v4, kPort); }
  [[nodiscard]] verbs::FlowTuple to_bob(std::uint8_t protocol) const {
    return {.protocol = protocol, .destination = bobs()};
  }
  /// Not for ever.
  template <class Condition>
  void poll_while(Condition holds, WaitingCall* call = nullptr) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (holds() && std::chrono::steady_clock::now() < end) ring_->poll(call);
  }
  /// Until the sink has so many packets; false: they do not come.
  bool poll_until(const NotingSink& sink, std::size_t count) {
    poll_while([&] { return sink.seen.size() < count; });
    return sink.seen.size() == count;
  }
  /// A TCP socket of alice's that is connecting to bob.
  [[nodiscard]] UniqueFd connecting() const {
    InNamespace there(world->alice.space.get());
    UniqueFd out(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const SocketAddress to = bobs();
    EXPECT_EQ(::connect(out.get(), to.get(), to.length()), -1);
    EXPECT_EQ(errno, EINPROGRESS);
    return out;
  }
  /// What has become of it: an errno value, 0 connected.
  static int outcome_of(const UniqueFd& socket) {
    pollfd waiting{socket.get(), POLLOUT, 0};
    EXPECT_EQ(::poll(&waiting, 1, 5000), 1);
    int error = -1;
    socklen_t length = sizeof error;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    return error;
  }

  std::shared_ptr<Ring> ring_;
};

TEST_F(PacketRingTest, TcpGoesToItsSinkAndNotToTheKernel) {
  NotingSink tcp;
  ASSERT_TRUE(ring_->attach(to_bob(IPPROTO_TCP), tcp));
  const UniqueFd client = connecting();
  ASSERT_TRUE(poll_until(tcp, 1));
  EXPECT_EQ(tcp.protocols, std::vector<std::uint8_t>{IPPROTO_TCP});
  EXPECT_TRUE(tcp.seen[0].empty()) << "a SYN";
  const auto packet = tcp.arrivals[0].packet();
  EXPECT_EQ(wire::source_of(packet.headers, packet.layout, 0), local_address(client.get()));
  EXPECT_EQ(wire::destination_of(packet.headers, packet.layout, 0), bobs());
  // Bob's kernel has nobody there, and would refuse.
  pollfd waiting{client.get(), POLLOUT, 0};
  EXPECT_EQ(::poll(&waiting, 1, 0), 0);

  ring_->detach(to_bob(IPPROTO_TCP), tcp);
  EXPECT_EQ(outcome_of(connecting()), ECONNREFUSED);
}

TEST_F(PacketRingTest, UdpAndTcpOfOnePortAreApart) {
  NotingSink udp, tcp;
  ASSERT_TRUE(ring_->attach(to_bob(IPPROTO_UDP), udp));
  ASSERT_TRUE(ring_->attach(to_bob(IPPROTO_TCP), tcp));
  const UniqueFd alice = world->alice.udp_socket();
  send_to(alice, bobs(), "one");
  const UniqueFd client = connecting();
  send_to(alice, bobs(), "two");
  ASSERT_TRUE(poll_until(udp, 2));
  ASSERT_TRUE(poll_until(tcp, 1));
  EXPECT_EQ(udp.seen, (std::vector<std::string>{"one", "two"}));
  ring_->detach(to_bob(IPPROTO_UDP), udp);
  ring_->detach(to_bob(IPPROTO_TCP), tcp);
}

TEST_F(PacketRingTest, WhoLeavesGetsWhatHasComeAndTheKernelTheRest) {
  NotingSink udp;
  ASSERT_TRUE(ring_->attach(to_bob(IPPROTO_UDP), udp));
  UniqueFd kernel;
  {
    InNamespace there(world->bob.space.get());
    kernel.reset(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const SocketAddress at = bobs();
    ASSERT_EQ(::bind(kernel.get(), at.get(), at.length()), 0);
  }
  const UniqueFd alice = world->alice.udp_socket();
  for (const char* text : {"1", "2", "3"}) send_to(alice, bobs(), text);
  ring_->detach(to_bob(IPPROTO_UDP), udp);
  send_to(alice, bobs(), "4");
  // A busy host may deliver late: each datagram comes by one way, in order.
  std::vector<std::string> all = udp.seen;
  while (all.size() < 4) all.push_back(receive_from(kernel));
  EXPECT_EQ(all, (std::vector<std::string>{"1", "2", "3", "4"}));
  EXPECT_EQ(ring_->poll(nullptr), Ring::Look::nothing);
}

TEST_F(PacketRingTest, DatagramsLeaveAndTrainsGoInFront) {
  const UniqueFd alice = world->alice.udp_socket();
  const std::uint16_t port = local_address(alice.get()).port();
  const auto headers_of = [&](const std::string& payload) {
    std::string frame = udp_frame(world->bob, kPort, world->alice, port, payload);
    const auto bytes = std::as_writable_bytes(std::span(frame));
    wire::fill_checksums(bytes);
    const auto layout = wire::parse_received(bytes);
    EXPECT_TRUE(layout);
    const wire::Be16 sum = wire::pseudo_header(bytes, *layout, layout->transport_bytes()).folded();
    std::memcpy(bytes.data() + layout->transport + layout->checksum_offset(), &sum, sizeof sum);
    return frame.substr(0, layout->payload);
  };
  const auto part_of = [](std::string& payload) { return iovec{payload.data(), payload.size()}; };
  std::vector<std::string> sent{"a1", "a2", "a3"};
  for (std::string& payload : sent) {
    std::string headers = headers_of(payload);
    const iovec part = part_of(payload);
    EXPECT_EQ(ring_->send_in_burst(std::as_writable_bytes(std::span(headers)), {&part, 1}, payload.size()), 0);
  }
  sent.emplace_back("behind the train");
  soft::DatagramRoom room;
  const std::string headers = headers_of(sent.back());
  std::memcpy(room.headers().data(), headers.data(), headers.size());
  const iovec part = part_of(sent.back());
  EXPECT_EQ(ring_->send(room, headers.size(), {&part, 1}), 0);
  for (const std::string& payload : sent) EXPECT_EQ(receive_from(alice), payload);
}

TEST_F(PacketRingTest, AWaitingCallEndsTheBatchOnlyWhenItIsServed) {
  /// Serves calls, as a socket does.
  class Serving final : public ethernet::PacketSink {
   public:
    [[nodiscard]] bool accepts(const wire::EndName&) const noexcept override { return true; }
    ethernet::Delivery deliver(ethernet::Incoming& incoming, const wire::EndName&) noexcept override {
      ++packets;
      if (WaitingCall* const call = incoming.call_of(*this)) call->is_served = true;
      return ethernet::Delivery::done;
    }
    runtime::Endpoint& endpoint() noexcept override { return *owner_; }
    [[nodiscard]] bool shares_port() const noexcept override { return false; }
    [[nodiscard]] bool has_waiting() const noexcept override { return false; }
    int packets = 0;

   private:
    runtime::Ref owner_{new fakes::FakeEndpoint};
  } sink;
  NotingSink other;
  const SocketAddress elsewhere = with_port(world->bob.v4, kPort + 1);
  ASSERT_TRUE(ring_->attach(to_bob(IPPROTO_UDP), sink));
  ASSERT_TRUE(ring_->attach({.protocol = IPPROTO_UDP, .destination = elsewhere}, other));
  const UniqueFd alice = world->alice.udp_socket();
  send_to(alice, elsewhere, "other's");
  for (const char* text : {"1", "2", "3"}) send_to(alice, bobs(), text);

  WaitingCall call{.sink = &sink};
  poll_while([&] { return !call.is_served; }, &call);
  EXPECT_TRUE(call.is_served);
  EXPECT_EQ(other.seen.size(), 1U);
  EXPECT_EQ(sink.packets, 1);
  poll_while([&] { return sink.packets < 3; }, &call);
  EXPECT_EQ(sink.packets, 3) << "a call that is served waits no more";
  ring_->detach(to_bob(IPPROTO_UDP), sink);
  ring_->detach({.protocol = IPPROTO_UDP, .destination = elsewhere}, other);
}

}  // namespace
}  // namespace ringsock::testing
