// The sink table hands a packet to the sink whose rule fits it best, whatever the protocol, and a packet to a group to
// all sinks of the group.
#include "core/ethernet/sink_table.h"

#include <gtest/gtest.h>
#include <netinet/in.h>

#include <memory>
#include <string>
#include <vector>

#include "core/ethernet/large_buffers.h"
#include "core/verbs/buffer_pool.h"
#include "tests/support/packets.h"
#include "tests/unit/ethernet/noting_sink.h"

namespace ringsock::ethernet {
namespace {

using support::packet_bytes;

const SocketAddress kHere = SocketAddress::v4(0x0a000001, 4000);
const SocketAddress kPeer = SocketAddress::v4(0x0a000002, 5000);
const SocketAddress kStranger = SocketAddress::v4(0x0a000003, 5000);

class SinkTableTest : public testing::Test {
 protected:
  SinkTableTest() {
    auto pool = verbs::BufferPool::create(
        nullptr, nullptr, {.buffer_bytes = 2048, .slab_bytes = 1 << 16, .limit_bytes = 1 << 20, .access = 0});
    pool_ = *std::move(pool);
    spares_ = std::make_unique<SpareBuffers>(*pool_, large_, SpareBuffers::kMost);
  }

  void attach(PacketSink& sink, std::uint8_t protocol, const SocketAddress& source = {}, bool is_group = false) {
    verbs::FlowTuple tuple{.protocol = protocol, .destination = kHere, .source = source};
    if (is_group) tuple.destination_mac = {1, 0, 0x5e, 0, 0, 1};
    ASSERT_TRUE(table_.attach(tuple, sink, [&]() -> Result<verbs::Flow> {
      ++flows_made_;
      return verbs::Flow();
    }));
  }
  void detach(PacketSink& sink, std::uint8_t protocol) {
    table_.detach({.protocol = protocol, .destination = kHere}, sink);
  }
  /// False: it is for nobody.
  bool deliver(std::uint8_t protocol, const SocketAddress& from, const std::string& payload) {
    const auto bytes = packet_bytes(protocol, from, kHere, payload);
    const auto layout = wire::parse_received(bytes);
    EXPECT_TRUE(layout);
    const Packet packet{.headers = std::span(bytes).first(layout->payload),
                        .payload = std::span(bytes).subspan(layout->payload, layout->payload_bytes),
                        .layout = *layout};
    Incoming incoming(packet, nullptr, *spares_);
    Told told;
    const bool is_taken = table_.deliver(incoming, told);
    told.tell();
    return is_taken;
  }

  std::unique_ptr<verbs::BufferPool> pool_;
  LargeBuffers large_{16};
  std::unique_ptr<SpareBuffers> spares_;
  SinkTable table_;
  int flows_made_ = 0;
};

/// Writes down that it was told.
struct CountingWatch final : runtime::Watch {
  void endpoint_changed() noexcept override { ++told; }
  int told = 0;
};

TEST_F(SinkTableTest, AFollowerHearsOfPacketsOfAllSinksUntilItIsForgotten) {
  const runtime::Ref follower(new fakes::FakeEndpoint);
  CountingWatch watch;
  ASSERT_TRUE(follower->add_watch(watch));
  NotingSink udp, tcp;
  attach(udp, IPPROTO_UDP);
  attach(tcp, IPPROTO_TCP);
  table_.set_follower(*follower);
  EXPECT_FALSE(table_.has_waiting());
  EXPECT_TRUE(deliver(IPPROTO_UDP, kPeer, "one"));
  EXPECT_TRUE(deliver(IPPROTO_TCP, kPeer, "two"));
  EXPECT_EQ(watch.told, 2);
  EXPECT_TRUE(table_.has_waiting());
  udp.arrivals.clear();
  EXPECT_TRUE(table_.has_waiting()) << "the other sink's packet";
  tcp.arrivals.clear();
  EXPECT_FALSE(table_.has_waiting());
  EXPECT_TRUE(table_.is_followed_by(*follower));
  EXPECT_EQ(table_.take_follower().get(), follower.get());
  EXPECT_TRUE(deliver(IPPROTO_UDP, kPeer, "three"));
  EXPECT_EQ(watch.told, 2);
  follower->remove_watch(watch);
}

TEST_F(SinkTableTest, ASinkGetsPacketsOfItsProtocolOnly) {
  NotingSink udp, tcp;
  attach(udp, IPPROTO_UDP);
  EXPECT_FALSE(deliver(IPPROTO_TCP, kPeer, "nobody's"));
  attach(tcp, IPPROTO_TCP);
  EXPECT_EQ(flows_made_, 2);

  // The same ends each time: only the protocol differs.
  for (const std::string text : {"1", "2"}) {
    EXPECT_TRUE(deliver(IPPROTO_UDP, kPeer, "udp " + text));
    EXPECT_TRUE(deliver(IPPROTO_TCP, kPeer, "tcp " + text));
  }
  EXPECT_EQ(udp.seen, (std::vector<std::string>{"udp 1", "udp 2"}));
  EXPECT_EQ(tcp.seen, (std::vector<std::string>{"tcp 1", "tcp 2"}));
  EXPECT_EQ(tcp.protocols, (std::vector<std::uint8_t>{IPPROTO_TCP, IPPROTO_TCP}));

  detach(tcp, IPPROTO_TCP);
  EXPECT_FALSE(deliver(IPPROTO_TCP, kPeer, "nobody's again"));
  EXPECT_TRUE(deliver(IPPROTO_UDP, kPeer, "udp 3"));
}

TEST_F(SinkTableTest, AConnectionGoesBeforeTheListener) {
  NotingSink listener, connection;
  attach(listener, IPPROTO_TCP);
  attach(connection, IPPROTO_TCP, kPeer);
  EXPECT_TRUE(deliver(IPPROTO_TCP, kPeer, "data"));
  EXPECT_TRUE(deliver(IPPROTO_TCP, kStranger, "a new client"));
  EXPECT_EQ(connection.seen, std::vector<std::string>{"data"});
  EXPECT_EQ(listener.seen, std::vector<std::string>{"a new client"});
}

TEST_F(SinkTableTest, WhatIsKeptIsTheWholePacket) {
  NotingSink tcp;
  attach(tcp, IPPROTO_TCP);
  const std::string large(60000, 'x');  // as the kernel puts segments together
  EXPECT_TRUE(deliver(IPPROTO_TCP, kPeer, large));
  EXPECT_TRUE(deliver(IPPROTO_TCP, kPeer, "small"));
  ASSERT_EQ(tcp.arrivals.size(), 2U);
  const Packet kept = tcp.arrivals[0].packet();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(kept.payload.data()), kept.payload.size()), large);
  EXPECT_EQ(wire::source_name(kept.headers, kept.layout), wire::EndName::of(kPeer));
  EXPECT_EQ(wire::destination_name(kept.headers, kept.layout), wire::EndName::of(kHere));
}

TEST_F(SinkTableTest, GroupsAreForAllOfThem) {
  NotingSink one, two;
  attach(one, IPPROTO_UDP, {}, true);
  attach(two, IPPROTO_UDP, {}, true);
  EXPECT_EQ(flows_made_, 1);
  EXPECT_TRUE(deliver(IPPROTO_UDP, kPeer, "to all"));
  EXPECT_EQ(one.seen, two.seen);
  EXPECT_EQ(one.seen.size(), 1U);
}

TEST_F(SinkTableTest, TheLastOneTakesAllUnlessItSharesItsPort) {
  NotingSink first, last;
  attach(first, IPPROTO_UDP);
  attach(last, IPPROTO_UDP);
  EXPECT_TRUE(deliver(IPPROTO_UDP, kPeer, "x"));
  EXPECT_EQ(last.seen.size(), 1U);

  first.shares = last.shares = true;
  for (std::uint16_t port = 1; port <= 64; ++port)
    EXPECT_TRUE(deliver(IPPROTO_UDP, SocketAddress::v4(0x0a000002, port), "y"));
  EXPECT_EQ(first.seen.size() + last.seen.size(), 65U);
  EXPECT_GT(first.seen.size(), 10U);
  EXPECT_GT(last.seen.size(), 10U);
}

TEST_F(SinkTableTest, WhatASinkRefusesIsForNobody) {
  NotingSink connected;
  connected.only_from = kPeer;
  attach(connected, IPPROTO_UDP);
  EXPECT_TRUE(deliver(IPPROTO_UDP, kPeer, "from the peer"));
  EXPECT_FALSE(deliver(IPPROTO_UDP, kStranger, "from a stranger"));
}

TEST_F(SinkTableTest, ARuleThatTheDeviceRefusesIsNotThere) {
  NotingSink sink;
  const auto attached =
      table_.attach({.protocol = IPPROTO_TCP, .destination = kHere}, sink, []() -> Result<verbs::Flow> {
        return Error{ENOSPC, "flow"};
      });
  EXPECT_EQ(attached.error().code, ENOSPC);
  EXPECT_TRUE(table_.empty());
}

}  // namespace
}  // namespace ringsock::ethernet
