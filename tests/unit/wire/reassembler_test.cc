#include "core/wire/reassembler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/wire/ip.h"

namespace ringsock::wire {
namespace {

using Bytes = std::vector<std::byte>;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kIpAt = 14;
constexpr std::uint8_t kCongestion = 3, kCapable = 2;

Bytes payload(std::size_t size) {
  Bytes out(size);
  for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<std::byte>(i * 31 + i / 256);
  return out;
}

struct Way {
  std::uint16_t identification = 7;
  std::uint8_t tos = 0;
  std::uint8_t protocol = kIpProtocolUdp;
};

template <class Header>
void append(Bytes& to, const Header& header) {
  const auto bytes = std::as_bytes(std::span(&header, 1));
  to.insert(to.end(), bytes.begin(), bytes.end());
}

/// Bytes `begin` to `end` of `whole` as a fragment in a frame.
Bytes piece_v4(const Bytes& whole, std::size_t begin, std::size_t end, Way way = {}) {
  const bool is_last = end == whole.size();
  Bytes out(kIpAt);
  append(out, make_ipv4_header({.tos = way.tos,
                                .payload_bytes = static_cast<std::uint16_t>(end - begin),
                                .identification = way.identification,
                                .fragment = static_cast<std::uint16_t>(begin / 8 | (is_last ? 0 : kIpv4MoreFragments)),
                                .protocol = way.protocol,
                                .source = Be32(0x0a090002),
                                .destination = Be32(0x0a090001)}));
  out.insert(out.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin),
             whole.begin() + static_cast<std::ptrdiff_t>(end));
  return out;
}

Bytes piece_v6(const Bytes& whole, std::size_t begin, std::size_t end, Way way = {}) {
  const bool is_last = end == whole.size();
  Bytes out(kIpAt);
  append(out, make_ipv6_header({.traffic_class = way.tos,
                                .payload_bytes = static_cast<std::uint16_t>(end - begin + sizeof(Ipv6FragmentHeader)),
                                .next_header = kIpProtocolIpv6Fragment,
                                .source = {0xfd, 2},
                                .destination = {0xfd, 1}}));
  append(out, Ipv6FragmentHeader{.next_header = way.protocol,
                                 .reserved = 0,
                                 .offset_and_more = Be16(static_cast<std::uint16_t>(begin | (is_last ? 0 : 1))),
                                 .identification = Be32(way.identification)});
  out.insert(out.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin),
             whole.begin() + static_cast<std::ptrdiff_t>(end));
  return out;
}

struct Version {
  const char* name;
  Bytes (*piece)(const Bytes&, std::size_t, std::size_t, Way);
  std::size_t header_bytes;
  Nanos patience;
};

class Reassembly : public ::testing::TestWithParam<Version> {
 protected:
  /// What is complete with it: the payload, or nothing.
  Bytes add(const Bytes& frame) {
    const auto fragment = parse_fragment(frame, kIpAt);
    EXPECT_TRUE(fragment);
    if (!fragment) return {};
    const auto whole = reassembler_.add(*fragment, now_);
    frame_.assign(whole.begin(), whole.end());
    if (whole.empty()) return {};
    return {frame_.begin() + static_cast<std::ptrdiff_t>(kIpAt + GetParam().header_bytes), frame_.end()};
  }
  Bytes add(const Bytes& whole, std::size_t begin, std::size_t end, Way way = {}) {
    return add(GetParam().piece(whole, begin, end, way));
  }
  [[nodiscard]] std::uint8_t traffic_class() const {
    Ipv6Header ip{};
    std::memcpy(&ip, frame_.data() + kIpAt, std::min(sizeof ip, frame_.size() - kIpAt));
    return GetParam().header_bytes == sizeof ip ? ip.traffic_class() : static_cast<std::uint8_t>(frame_[kIpAt + 1]);
  }

  Reassembler reassembler_;
  Nanos now_ = seconds(1000);
  Bytes frame_;
};

INSTANTIATE_TEST_SUITE_P(Of, Reassembly,
                         ::testing::Values(Version{"IPv4", piece_v4, sizeof(Ipv4Header), seconds(30)},
                                           Version{"IPv6", piece_v6, sizeof(Ipv6Header), seconds(60)}),
                         [](const auto& info) { return info.param.name; });

TEST_P(Reassembly, InAnyOrderItIsWholeWithTheLastPiece) {
  const Bytes whole = payload(4001);
  std::vector<std::pair<std::size_t, std::size_t>> pieces{{0, 1480}, {1480, 2960}, {2960, 4001}};
  std::ranges::sort(pieces);
  do {
    EXPECT_EQ(add(whole, pieces[0].first, pieces[0].second), Bytes());
    EXPECT_EQ(add(whole, pieces[1].first, pieces[1].second), Bytes());
    EXPECT_EQ(add(whole, pieces[2].first, pieces[2].second), whole);
    EXPECT_EQ(reassembler_.count(), 0U);
  } while (std::ranges::next_permutation(pieces).found);
}

TEST_P(Reassembly, TheHeaderTellsOfAWholePacket) {
  const Bytes whole = payload(2000);
  add(whole, 0, 1480);
  add(whole, 1480, 2000);
  const auto bytes = std::span<const std::byte>(frame_).subspan(kIpAt);
  if (GetParam().header_bytes == sizeof(Ipv4Header)) {
    const auto ip = parse_ipv4(bytes);
    ASSERT_TRUE(ip);
    EXPECT_FALSE(ip->header.is_fragment());
    EXPECT_EQ(ip->payload.size(), whole.size());
  } else {
    const auto ip = parse_ipv6(bytes);
    ASSERT_TRUE(ip);
    EXPECT_EQ(ip->header.next_header, kIpProtocolUdp);
    EXPECT_EQ(ip->payload.size(), whole.size());
  }
}

TEST_P(Reassembly, PacketsThatComeMixedAreKeptApart) {
  const Bytes one = payload(3000), other(3000, std::byte{9});
  add(one, 0, 1480, {.identification = 1});
  add(other, 0, 1480, {.identification = 2});
  EXPECT_EQ(add(one, 1480, 3000, {.identification = 1}), one);
  EXPECT_EQ(add(other, 1480, 3000, {.identification = 2}), other);
}

TEST_P(Reassembly, ARepeatedFragmentIsIgnored) {
  const Bytes whole = payload(3000);
  add(whole, 0, 1480);
  EXPECT_EQ(add(whole, 0, 1480), Bytes());
  EXPECT_EQ(add(whole, 800, 1480), Bytes());
  EXPECT_EQ(add(whole, 1480, 3000), whole);
}

TEST_P(Reassembly, FragmentsThatOverlapEndThePacket) {
  const Bytes whole = payload(3000);
  add(whole, 0, 1480);
  EXPECT_EQ(add(whole, 1472, 3000), Bytes());
  EXPECT_EQ(reassembler_.count(), 0U);
  EXPECT_EQ(add(whole, 1480, 3000), Bytes()) << "what had come is gone";
  add(whole, 8, 1480, {.identification = 8});
  EXPECT_EQ(add(whole, 0, 16, {.identification = 8}), Bytes());
  EXPECT_EQ(reassembler_.count(), 1U);
}

TEST_P(Reassembly, APacketThatEndsInTwoPlacesIsDropped) {
  const Bytes whole = payload(3000), shorter = payload(2000);
  add(whole, 1480, 3000);
  add(shorter, 1480, 2000);
  EXPECT_EQ(reassembler_.count(), 0U);
  add(shorter, 1480, 2000);
  add(whole, 2000, 2800);
  EXPECT_EQ(reassembler_.count(), 0U) << "a piece behind the end";
  add(whole, 2000, 2800);
  add(shorter, 1480, 2000);
  EXPECT_EQ(reassembler_.count(), 0U) << "an end in front of a piece";
}

TEST_P(Reassembly, WhatIsNotCompleteInTimeIsForgotten) {
  const Bytes whole = payload(3000);
  add(whole, 0, 1480);
  now_ += GetParam().patience;
  EXPECT_EQ(add(whole, 1480, 3000), whole);
  add(whole, 0, 1480);
  now_ += GetParam().patience + milliseconds(1);
  EXPECT_EQ(add(whole, 1480, 3000), Bytes());
  EXPECT_EQ(reassembler_.count(), 1U);
}

TEST_P(Reassembly, TheOldestPacketGoesForANewOne) {
  const Bytes whole = payload(3000);
  for (std::uint16_t i = 0; i <= Reassembler::kMostPackets; ++i) add(whole, 0, 1480, {.identification = i});
  EXPECT_EQ(reassembler_.count(), Reassembler::kMostPackets);
  EXPECT_EQ(add(whole, 1480, 3000, {.identification = 1}), whole);
  EXPECT_EQ(add(whole, 1480, 3000, {.identification = 0}), Bytes());
}

TEST_P(Reassembly, APacketFullOfHolesIsDropped) {
  const Bytes whole = payload(60000);
  for (std::size_t i = 0; i < Reassembler::kMostRuns; ++i) add(whole, 16 * i, 16 * i + 8);
  EXPECT_EQ(reassembler_.count(), 1U);
  add(whole, 16 * Reassembler::kMostRuns, 16 * Reassembler::kMostRuns + 8);
  EXPECT_EQ(reassembler_.count(), 0U);
}

TEST_P(Reassembly, TheLargestPacketFits) {
  const std::size_t room = GetParam().header_bytes == sizeof(Ipv4Header) ? kMaxIpv4Packet - sizeof(Ipv4Header) : 65535;
  const Bytes whole = payload(room);
  for (std::size_t begin = 0; begin < room; begin += 1480) {
    const std::size_t end = std::min(begin + 1480, room);
    EXPECT_EQ(add(whole, begin, end), end == room ? whole : Bytes());
  }
}

TEST_P(Reassembly, CongestionOfAFragmentIsThePackets) {
  const Bytes whole = payload(3000);
  add(whole, 0, 1480, {.tos = 0x20 | kCapable});
  EXPECT_EQ(add(whole, 1480, 3000, {.tos = 0x20 | kCongestion}), whole);
  EXPECT_EQ(traffic_class(), 0x20 | kCongestion);
  add(whole, 0, 1480, {.tos = 0});
  EXPECT_EQ(add(whole, 1480, 3000, {.tos = kCongestion}), Bytes());
}

TEST_P(Reassembly, WhatIsNoFragmentIsRefused) {
  const Bytes whole = payload(3000);
  Bytes frame = GetParam().piece(whole, 0, 1480, {.protocol = kIpProtocolTcp});
  EXPECT_FALSE(parse_fragment(frame, kIpAt));
  frame = GetParam().piece(whole, 8, 8, {});
  EXPECT_FALSE(parse_fragment(frame, kIpAt)) << "empty";
  frame = GetParam().piece(whole, 8, 16, {});
  for (std::size_t size = 0; size < frame.size(); ++size)
    EXPECT_FALSE(parse_fragment(std::span(frame).first(size), kIpAt)) << size;
  const Bytes long_one = payload(65536);
  frame = GetParam().piece(long_one, 65528, 65536, {});
  EXPECT_FALSE(parse_fragment(frame, kIpAt)) << "behind what a packet can have";
}

TEST(ReassemblyOfIpv4, ARestOfLessThanEightBytesIsLeftOut) {
  const Bytes whole = payload(100);
  const Bytes frame = piece_v4(whole, 0, 21);
  const auto fragment = parse_fragment(frame, kIpAt);
  ASSERT_TRUE(fragment);
  EXPECT_EQ(fragment->payload.size(), 16U);
  EXPECT_FALSE(parse_fragment(piece_v6(whole, 0, 21), kIpAt));
}

}  // namespace
}  // namespace ringsock::wire
