#include "core/engine/ip/fragmentation.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/engine/ip/gather.h"
#include "core/wire/emit.h"

namespace ringsock::engine {
namespace {

using wire::Be16;
using wire::Be32;
using Buffer = std::vector<std::byte>;

constexpr wire::Ipv4Fields kFields4{.tos = 8,
                                    .payload_bytes = 0,
                                    .identification = 4711,
                                    .ttl = 33,
                                    .protocol = 17,
                                    .source = Be32(1),
                                    .destination = Be32(2)};
constexpr wire::Ipv6Fields kFields6{.traffic_class = 8,
                                    .flow_label = 99,
                                    .payload_bytes = 0,
                                    .next_header = 17,
                                    .hop_limit = 33,
                                    .source = {1},
                                    .destination = {2}};

Buffer numbered(std::size_t count) {
  Buffer out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>(i * 7 + i / 256);
  return out;
}

/// A receiver that puts a datagram together, and insists on every rule that a fragment obeys.
struct Receiver {
  Buffer datagram;
  std::size_t packets = 0;
  bool complete = false;

  void piece(std::size_t offset, bool more, Bytes payload) {
    ++packets;
    ASSERT_EQ(offset, datagram.size()) << "in order, without gap or overlap";
    ASSERT_FALSE(complete) << "nothing comes after the last";
    ASSERT_TRUE(!more || payload.size() % 8 == 0);
    ASSERT_TRUE(!payload.empty() || offset == 0);
    datagram.insert(datagram.end(), payload.begin(), payload.end());
    complete = !more;
  }
  void packet4(const Buffer& packet, std::size_t mtu) {
    ASSERT_LE(packet.size(), mtu);
    const auto parsed = wire::parse_ipv4(packet);
    ASSERT_TRUE(parsed);
    EXPECT_EQ(parsed->header.identification, Be16(4711));
    EXPECT_EQ(parsed->header.tos, 8);
    EXPECT_EQ(parsed->header.ttl, 33);
    EXPECT_EQ(parsed->header.protocol, 17);
    piece(parsed->header.fragment_offset(), (parsed->header.fragment.host() & wire::kIpv4MoreFragments) != 0,
          parsed->payload);
  }
  void packet6(const Buffer& packet, std::size_t mtu) {
    ASSERT_LE(packet.size(), mtu);
    const auto parsed = wire::parse_ipv6(packet);
    ASSERT_TRUE(parsed);
    EXPECT_EQ(parsed->header.flow_label(), 99u);
    if (parsed->header.next_header == 17) return piece(0, false, parsed->payload);
    ASSERT_EQ(parsed->header.next_header, wire::kIpProtocolIpv6Fragment);
    wire::Ipv6FragmentHeader header;
    ASSERT_GE(parsed->payload.size(), sizeof header);
    std::memcpy(&header, parsed->payload.data(), sizeof header);
    EXPECT_EQ(header.next_header, 17);
    EXPECT_EQ(header.identification, Be32(0x12345678));
    EXPECT_EQ(header.offset_and_more.host() & 6, 0) << "reserved";
    piece(header.offset_and_more.host() & ~7u, (header.offset_and_more.host() & 1) != 0,
          parsed->payload.subspan(sizeof header));
  }
};

/// Cuts a datagram of `bytes` for `mtu` and puts it together again.
void expect_round_trip4(std::size_t bytes, std::size_t mtu) {
  const Buffer datagram = numbered(bytes);
  const auto fragmenter = Ipv4Fragmenter::of(kFields4, bytes, mtu);
  ASSERT_TRUE(fragmenter) << bytes << " in " << mtu;
  Receiver receiver;
  ASSERT_TRUE(for_each_fragment(*fragmenter, [&](const Ipv4Fragment& fragment) {
    Buffer packet(sizeof fragment.header + fragment.bytes);
    std::ranges::copy(Bytes(datagram).subspan(fragment.offset, fragment.bytes),
                      wire::emit(packet, fragment.header).begin());
    receiver.packet4(packet, mtu);
    return ok();
  }));
  EXPECT_TRUE(receiver.complete);
  EXPECT_EQ(receiver.datagram, datagram);
  EXPECT_EQ(receiver.packets, fragmenter->count());
}

void expect_round_trip6(std::size_t bytes, std::size_t mtu) {
  const Buffer datagram = numbered(bytes);
  const auto fragmenter = Ipv6Fragmenter::of(kFields6, 0x12345678, bytes, mtu);
  ASSERT_TRUE(fragmenter) << bytes << " in " << mtu;
  Receiver receiver;
  ASSERT_TRUE(for_each_fragment(*fragmenter, [&](const Ipv6Fragment& fragment) {
    Buffer packet(fragment.header_bytes() + fragment.bytes);
    auto rest = wire::emit(packet, fragment.header);
    if (fragment.has_fragment_header) rest = wire::emit(rest, fragment.fragment_header);
    std::ranges::copy(Bytes(datagram).subspan(fragment.offset, fragment.bytes), rest.begin());
    receiver.packet6(packet, mtu);
    return ok();
  }));
  EXPECT_TRUE(receiver.complete);
  EXPECT_EQ(receiver.datagram, datagram);
  EXPECT_EQ(receiver.packets, fragmenter->count());
}

TEST(Ipv4Fragmentation, DatagramsOfAllKindsOfLengthsArriveWhole) {
  for (const std::size_t mtu : {28u, 68u, 576u, 1499u, 1500u, 1507u, 9000u, 65535u}) {
    for (const std::size_t bytes : {0u, 1u, 7u, 8u, 9u, 48u, 1479u, 1480u, 1481u, 2960u, 2961u, 8008u, 65507u, 65515u})
      expect_round_trip4(bytes, mtu);
  }
}

TEST(Ipv4Fragmentation, WhatFitsIsOnePacketAndNoFragment) {
  const auto fragmenter = Ipv4Fragmenter::of(kFields4, 1480, 1500);
  ASSERT_TRUE(fragmenter);
  Ipv4Fragmenter once = *fragmenter;
  EXPECT_FALSE(once.next().header.is_fragment());
  EXPECT_FALSE(once.has_next());
}

TEST(Ipv4Fragmentation, TheBytesOfALongDatagramAreWhereRfc791PutsThem) {
  auto fragmenter = Ipv4Fragmenter::of(kFields4, 3000, 1500);
  ASSERT_TRUE(fragmenter);
  const std::vector<std::uint16_t> expected{0x2000, 0x2000 | 185, 370};
  for (const std::uint16_t field : expected) EXPECT_EQ(fragmenter->next().header.fragment, Be16(field));
  EXPECT_FALSE(fragmenter->has_next());
}

TEST(Ipv4Fragmentation, WhatMustNotBeCutIsRefusedAndElseKeepsItsFlag) {
  wire::Ipv4Fields fields = kFields4;
  fields.fragment = wire::kIpv4DontFragment;
  const auto too_long = Ipv4Fragmenter::of(fields, 1481, 1500);
  ASSERT_FALSE(too_long);
  EXPECT_EQ(too_long.error().code, EMSGSIZE);
  auto fits = Ipv4Fragmenter::of(fields, 1480, 1500);
  ASSERT_TRUE(fits);
  EXPECT_EQ(fits->next().header.fragment, Be16(wire::kIpv4DontFragment));
}

TEST(Ipv4Fragmentation, ImpossibleLengthsAreRefused) {
  EXPECT_FALSE(Ipv4Fragmenter::of(kFields4, 65516, 1500));
  EXPECT_FALSE(Ipv4Fragmenter::of(kFields4, 65516, 100000));
  EXPECT_FALSE(Ipv4Fragmenter::of(kFields4, 100, 27));
  EXPECT_FALSE(Ipv4Fragmenter::of(kFields4, 100, 0));
}

TEST(Ipv6Fragmentation, DatagramsOfAllKindsOfLengthsArriveWhole) {
  for (const std::size_t mtu : {1280u, 1281u, 1500u, 9000u, 65575u}) {
    for (const std::size_t bytes : {0u, 1u, 1232u, 1240u, 1241u, 1448u, 1460u, 1461u, 2896u, 65527u, 65535u})
      expect_round_trip6(bytes, mtu);
  }
}

TEST(Ipv6Fragmentation, WhatFitsHasNoFragmentHeader) {
  auto fragmenter = Ipv6Fragmenter::of(kFields6, 1, 1240, 1280);
  ASSERT_TRUE(fragmenter);
  const Ipv6Fragment fragment = fragmenter->next();
  EXPECT_FALSE(fragment.has_fragment_header);
  EXPECT_EQ(fragment.header.next_header, 17);
  EXPECT_EQ(fragment.header.payload_bytes, Be16(1240));
}

TEST(Ipv6Fragmentation, ImpossibleLengthsAreRefused) {
  EXPECT_FALSE(Ipv6Fragmenter::of(kFields6, 1, 65536, 1500));
  EXPECT_FALSE(Ipv6Fragmenter::of(kFields6, 1, 1240, 1279));
  EXPECT_TRUE(Ipv6Fragmenter::of(kFields6, 1, 1000, 1279)) << "fits";
}

TEST(Fragmentation, StopsAtTheFirstPacketThatCannotBeSent) {
  const auto fragmenter = Ipv4Fragmenter::of(kFields4, 5000, 1500);
  ASSERT_TRUE(fragmenter);
  int packets = 0;
  const Status status = for_each_fragment(*fragmenter, [&](const Ipv4Fragment&) {
    return ++packets == 2 ? Status(Error{ENOBUFS, "test"}) : ok();
  });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ENOBUFS);
  EXPECT_EQ(packets, 2);
}

TEST(GatherReader, ReadsAcrossPiecesOfAnyLength) {
  const Buffer message = numbered(1000);
  const Bytes whole(message);
  const std::vector<Bytes> pieces{whole.first(8),        {}, whole.subspan(8, 1),
                                  whole.subspan(9, 700), {}, whole.subspan(709)};
  EXPECT_EQ(total_bytes(pieces), message.size());
  for (const std::size_t step : {1u, 8u, 333u, 1000u, 2000u}) {
    GatherReader reader(pieces);
    Buffer copy, next(step);
    while (const std::size_t count = reader.read(next))
      copy.insert(copy.end(), next.begin(), next.begin() + static_cast<std::ptrdiff_t>(count));
    EXPECT_EQ(copy, message) << step;
  }
  Buffer one(1);
  EXPECT_EQ(GatherReader({}).read(one), 0u);
}

}  // namespace
}  // namespace ringsock::engine
