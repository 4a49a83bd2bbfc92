// Headers in front of payloads, for either protocol.
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <array>
#include <cstring>
#include <set>
#include <vector>

#include "core/ethernet/destination.h"
#include "core/wire/frame_ends.h"
#include "core/wire/frame_parse.h"

namespace ringsock::ethernet {
namespace {

const net::MacAddress kOwnMac{2, 0, 0, 0, 0, 1}, kTheirMac{2, 0, 0, 0, 0, 2};
const SocketAddress kFrom4 = SocketAddress::v4(0x0a000001, 4000), kTo4 = SocketAddress::v4(0x0a000002, 5000);
const SocketAddress kFrom6 = SocketAddress::v6(in6addr_loopback, 4000),
                    kTo6 = SocketAddress::v6(in6addr_loopback, 5000);

class HeaderTemplateTest : public testing::TestWithParam<int> {
 protected:
  [[nodiscard]] const SocketAddress& from() const { return GetParam() == AF_INET ? kFrom4 : kFrom6; }
  [[nodiscard]] const SocketAddress& to() const { return GetParam() == AF_INET ? kTo4 : kTo6; }
  HeaderTemplate made(std::uint8_t protocol, const SendOptions& options = {}) {
    return {kOwnMac, kTheirMac, from(), to(), options, 64, protocol, numbers_};
  }
  /// The headers, and zeros behind them.
  static std::vector<std::byte> frame(HeaderTemplate& headers, std::size_t payload) {
    std::array<std::byte, HeaderTemplate::kMaxBytes> room;
    const auto written = headers.write(room, payload);
    std::vector<std::byte> out(written.begin(), written.end());
    out.resize(out.size() + payload);
    return out;
  }

  engine::IdentificationNumbers numbers_{{1, 2, 3, 4}};
};

TEST_P(HeaderTemplateTest, OfDatagramsAreCompleteForEachLength) {
  HeaderTemplate headers = made(IPPROTO_UDP);
  for (const std::size_t payload : {0U, 1U, 1U, 1000U, 1U, 1472U}) {
    const auto bytes = frame(headers, payload);
    const auto layout = wire::parse_received(bytes);
    ASSERT_TRUE(layout) << payload;
    EXPECT_EQ(layout->payload, headers.bytes());
    EXPECT_EQ(layout->payload_bytes, payload);
    EXPECT_EQ(layout->end, bytes.size());
    EXPECT_TRUE(wire::has_partial_checksum(bytes, *layout));
    EXPECT_EQ(wire::source_of(bytes, *layout, 0), from());
    EXPECT_EQ(wire::destination_of(bytes, *layout, 0), to());
  }
}

TEST_P(HeaderTemplateTest, OfSegmentsEndWhereTcpBegins) {
  HeaderTemplate headers = made(IPPROTO_TCP);
  constexpr std::size_t kTcpHeader = 20;
  for (const std::size_t data : {0U, 7U, 1400U}) {
    auto bytes = frame(headers, kTcpHeader + data);
    const std::size_t at = headers.bytes();
    EXPECT_EQ(at, sizeof(wire::EthernetHeader) +
                      (GetParam() == AF_INET ? sizeof(wire::Ipv4Header) : sizeof(wire::Ipv6Header)));
    // What TCP writes.
    const wire::Be16 source(from().port()), destination(to().port());
    std::memcpy(bytes.data() + at, &source, sizeof source);
    std::memcpy(bytes.data() + at + 2, &destination, sizeof destination);
    bytes[at + wire::parsing::kTcpOffsetAt] = std::byte{5 << 4};
    const wire::Be16 sum = headers.pseudo_sum(kTcpHeader + data).folded();
    std::memcpy(bytes.data() + at + 16, &sum, sizeof sum);

    const auto layout = wire::parse_received(bytes);
    ASSERT_TRUE(layout) << data;
    EXPECT_TRUE(layout->is_tcp());
    EXPECT_EQ(layout->transport, at);
    EXPECT_EQ(layout->payload_bytes, data);
    EXPECT_TRUE(wire::has_partial_checksum(bytes, *layout));
    EXPECT_EQ(wire::destination_of(bytes, *layout, 0), to());
  }
}

TEST_P(HeaderTemplateTest, OnlyWhatMayBeCutIsNumbered) {
  if (GetParam() != AF_INET) GTEST_SKIP() << "IPv6 is cut by its sender only";
  SendOptions without_df;
  without_df.forbids_fragments = false;
  HeaderTemplate whole = made(IPPROTO_UDP), cut = made(IPPROTO_UDP, without_df);
  EXPECT_FALSE(whole.may_be_cut());
  EXPECT_TRUE(cut.may_be_cut());
  std::set<std::uint16_t> seen;
  for (int i = 0; i < 100; ++i) {
    const auto bytes = frame(cut, 10);
    ASSERT_TRUE(wire::parse_received(bytes)) << "the number is in the checksum";
    const auto ip = wire::parsing::read<wire::Ipv4Header>(bytes, sizeof(wire::EthernetHeader));
    EXPECT_EQ(ip.fragment, wire::Be16());
    seen.insert(ip.identification.host());
    EXPECT_EQ(wire::parsing::read<wire::Ipv4Header>(frame(whole, 10), sizeof(wire::EthernetHeader)).identification,
              wire::Be16());
  }
  EXPECT_EQ(seen.size(), 100U);
}

INSTANTIATE_TEST_SUITE_P(Families, HeaderTemplateTest, testing::Values(AF_INET, AF_INET6),
                         [](const auto& family) { return family.param == AF_INET ? "v4" : "v6"; });

}  // namespace
}  // namespace ringsock::ethernet
