// One description of a frame: what it says of each kind, and that nonsense has none.
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <string>
#include <vector>

#include "core/wire/emit.h"
#include "core/wire/ethernet_frame.h"
#include "core/wire/frame_ends.h"
#include "core/wire/frame_layout.h"
#include "core/wire/frame_parse.h"
#include "core/wire/ip.h"
#include "core/wire/udp.h"

namespace ringsock::wire {
namespace {

constexpr std::uint16_t kFrom = 4000, kTo = 5000;
const Ipv6Address kFrom6{0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
const Ipv6Address kTo6{0x20, 0x01, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2};

struct Kind {
  int family = AF_INET;
  std::uint8_t protocol = kIpProtocolUdp;
  bool has_tag = false;
  std::size_t ip_options = 0;   ///< bytes
  std::size_t tcp_options = 0;  ///< bytes
  std::size_t padding = 0;      ///< behind the packet
  std::size_t beyond_udp = 0;   ///< in the packet, behind UDP's own length
};

template <class Header>
void append(std::vector<std::byte>& to, const Header& header) {
  const auto bytes = std::as_bytes(std::span(&header, 1));
  to.insert(to.end(), bytes.begin(), bytes.end());
}
void append_zeros(std::vector<std::byte>& to, std::size_t count) { to.resize(to.size() + count); }

/// Without checksums.
std::vector<std::byte> bare_frame(const Kind& kind, std::string_view payload) {
  const bool is_tcp = kind.protocol == kIpProtocolTcp;
  const std::uint16_t type = kind.family == AF_INET ? kEtherTypeIpv4 : kEtherTypeIpv6;
  const std::size_t transport = (is_tcp ? 20 + kind.tcp_options : sizeof(UdpHeader)) + payload.size() + kind.beyond_udp;
  std::vector<std::byte> out;
  append(out, EthernetHeader{.destination = {2, 0, 0, 0, 0, 1},
                             .source = {2, 0, 0, 0, 0, 2},
                             .type = Be16(kind.has_tag ? kEtherTypeVlan : type)});
  if (kind.has_tag) append(out, VlanTag{.control = Be16(7), .type = Be16(type)});
  if (kind.family == AF_INET) {
    auto ip = make_ipv4_header({.payload_bytes = static_cast<std::uint16_t>(transport + kind.ip_options),
                                .protocol = kind.protocol,
                                .source = Be32(0x0a000001),
                                .destination = Be32(0x0a000002)});
    ip.version_and_words = static_cast<std::uint8_t>(4 << 4 | (sizeof ip + kind.ip_options) / 4);
    append(out, ip);
    for (std::size_t i = 0; i < kind.ip_options; ++i) out.push_back(std::byte{1});  // no operation
  } else {
    append(out, make_ipv6_header({.payload_bytes = static_cast<std::uint16_t>(transport),
                                  .next_header = kind.protocol,
                                  .source = kFrom6,
                                  .destination = kTo6}));
  }
  auto udp = make_udp_header(Be16(kFrom), Be16(kTo), static_cast<std::uint16_t>(payload.size()));
  if (is_tcp) {
    append(out, std::array{udp.source_port, udp.destination_port});
    append_zeros(out, 16 + kind.tcp_options);
    const std::size_t words_at = out.size() - kind.tcp_options - 8;
    out[words_at] = static_cast<std::byte>((20 + kind.tcp_options) / 4 << 4);
  } else {
    append(out, udp);
  }
  const auto text = std::as_bytes(std::span(payload));
  out.insert(out.end(), text.begin(), text.end());
  append_zeros(out, kind.beyond_udp);
  return out;
}

/// As it comes from the wire.
std::vector<std::byte> frame_of(const Kind& kind, std::string_view payload) {
  auto out = bare_frame(kind, payload);
  if (kind.beyond_udp == 0) fill_checksums(out);
  append_zeros(out, kind.padding);
  return out;
}

std::string_view payload_of(std::span<const std::byte> frame, const FrameLayout& layout) {
  return {reinterpret_cast<const char*>(frame.data()) + layout.payload, layout.payload_bytes};
}

int error_of(std::span<const std::byte> frame) {
  const auto layout = parse_received(frame);
  return layout ? 0 : layout.error().code;
}

const std::vector<Kind> kKinds{
    {},
    {.padding = 20},
    {.has_tag = true},
    {.ip_options = 40},
    {.family = AF_INET6},
    {.family = AF_INET6, .has_tag = true, .padding = 3},
    {.protocol = kIpProtocolTcp},
    {.protocol = kIpProtocolTcp, .has_tag = true, .ip_options = 40, .tcp_options = 40},
    {.family = AF_INET6, .protocol = kIpProtocolTcp, .tcp_options = 12, .padding = 8},
};

TEST(Frame, IsDescribedWithItsPayload) {
  for (const Kind& kind : kKinds) {
    for (const std::string_view text : {"", "x", "a payload"}) {
      const auto frame = frame_of(kind, text);
      const auto layout = parse_received(frame);
      ASSERT_TRUE(layout);
      EXPECT_EQ(payload_of(frame, *layout), text);
      EXPECT_EQ(layout->protocol, kind.protocol);
      EXPECT_EQ(layout->is_ipv6, kind.family == AF_INET6);
      EXPECT_EQ(layout->end, frame.size() - kind.padding);
      EXPECT_EQ(layout->transport + layout->transport_bytes(), layout->end);
      EXPECT_TRUE(has_valid_checksum(frame, *layout));
      EXPECT_LE(layout->payload, kMaxHeaderBytes);
    }
  }
}

TEST(Frame, EndsOfUdpAndTcpAreNamedAlike) {
  for (const Kind& kind : kKinds) {
    const auto frame = frame_of(kind, "hello");
    const auto layout = parse_received(frame);
    ASSERT_TRUE(layout);
    constexpr int kInterface = 9;
    const SocketAddress from = source_of(frame, *layout, kInterface), to = destination_of(frame, *layout, kInterface);
    EXPECT_EQ(from.port(), kFrom);
    EXPECT_EQ(to.port(), kTo);
    EXPECT_EQ(from.family(), kind.family);
    if (kind.family == AF_INET6) {
      EXPECT_EQ(from.in6().sin6_scope_id, kInterface) << "link-local";
      EXPECT_EQ(to.in6().sin6_scope_id, 0);
    }
    EXPECT_EQ(source_name(frame, *layout), EndName::of(from));
    EXPECT_EQ(destination_name(frame, *layout), EndName::of(to));
  }
}

TEST(Frame, EndsOfTwoPacketsAreTheSameOnlyWithinOneProtocol) {
  for (const Kind& one : kKinds) {
    const auto frame = frame_of(one, "1");
    const auto layout = parse_received(frame);
    ASSERT_TRUE(layout);
    const EndBytes ends(frame, *layout);
    for (const Kind& two : kKinds) {
      const auto next = frame_of(two, "another payload");
      const auto next_layout = parse_received(next);
      ASSERT_TRUE(next_layout);
      const bool same = one.family == two.family && one.protocol == two.protocol;
      EXPECT_EQ(ends.are_in(next, *next_layout), same);
    }
    EXPECT_FALSE(EndBytes().are_in(frame, *layout));
  }
}

TEST(Frame, UdpsOwnLengthMayEndBeforeTheIpPacket) {
  const auto frame = frame_of({.beyond_udp = 5}, "short");
  const auto layout = parse_received(frame);
  ASSERT_TRUE(layout);
  EXPECT_EQ(payload_of(frame, *layout), "short");
  EXPECT_EQ(layout->end, frame.size());
}

TEST(Frame, CutAnywhereHasNoDescription) {
  for (const Kind& kind : kKinds) {
    const auto frame = bare_frame(kind, "payload");
    for (std::size_t bytes = 0; bytes < frame.size(); ++bytes)
      EXPECT_FALSE(parse_received(std::span(frame).first(bytes))) << bytes;
  }
}

TEST(Frame, FragmentsAndOtherProtocolsHaveNone) {
  auto frame = frame_of({}, "payload");
  frame[sizeof(EthernetHeader) + offsetof(Ipv4Header, fragment)] = std::byte{0x20};  // more fragments
  EXPECT_EQ(error_of(frame), EPROTO);
  const auto network = parse_network(frame);
  ASSERT_TRUE(network);
  EXPECT_EQ(network->protocol, 0);

  frame = frame_of({}, "payload");
  frame[sizeof(EthernetHeader) + offsetof(Ipv4Header, protocol)] = std::byte{1};  // ICMP
  EXPECT_EQ(error_of(frame), EPROTO);
}

TEST(Frame, WrongHeaderChecksumOfIpv4IsToldApart) {
  auto frame = frame_of({}, "payload");
  frame[sizeof(EthernetHeader) + offsetof(Ipv4Header, ttl)] ^= std::byte{1};
  EXPECT_EQ(error_of(frame), EBADMSG);
}

TEST(Frame, ShortLookAgreesWithTheLongOne) {
  for (const Kind& kind : kKinds) {
    const auto frame = frame_of(kind, "payload");
    FrameLayout found;
    ASSERT_TRUE(parsing::find_payload(frame, found));
    EXPECT_EQ(parsing::is_plain_udp(frame), found == parsing::plain_udp());
  }
}

}  // namespace
}  // namespace ringsock::wire
