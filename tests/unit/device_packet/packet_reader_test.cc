// The packets in a ring that the test fills: no interface, no kernel.
#include "core/device/packet/packet_reader.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <string>
#include <string_view>

#include "core/device/packet/packet_reader_inline.h"
#include "core/wire/ethernet_frame.h"
#include "core/wire/ip.h"
#include "core/wire/udp.h"

namespace ringsock::soft {
namespace {

/// Shows the frames that the test has put into it.
class FakeRing final : public FrameRing {
 public:
  void put(const std::string& bytes, RingFrame about = {}) {
    kept_.push_back(bytes);
    about.bytes = std::as_bytes(std::span(kept_.back()));
    about.has_valid_checksum = true;
    frames_.push_back(about);
  }
  [[nodiscard]] std::size_t left() const { return frames_.size(); }

  const RingFrame* front() override { return frames_.empty() ? nullptr : &frames_.front(); }
  void pop() override { frames_.pop_front(); }
  Result<std::size_t> send(std::span<const OutgoingFrame> frames) override { return frames.size(); }
  [[nodiscard]] int descriptor() const override { return -1; }
  bool look() override { return true; }
  Counters counters() override { return {}; }
  [[nodiscard]] unsigned number() const override { return 1; }
  void forget() override {}

 private:
  std::deque<std::string> kept_;
  std::deque<RingFrame> frames_;
};

constexpr std::size_t kHeaderBytes = 14 + 20 + 8;
constexpr std::size_t kRoom = 2048;

template <class Header>
std::string_view bytes_of(const Header& header) {
  return {reinterpret_cast<const char*>(&header), sizeof header};
}

std::string ip_packet(std::string_view behind_ip, std::uint16_t fragment = 0) {
  const wire::EthernetHeader ethernet{{}, {}, wire::Be16(wire::kEtherTypeIpv4)};
  const auto ip = wire::make_ipv4_header({.payload_bytes = static_cast<std::uint16_t>(behind_ip.size()),
                                          .identification = 7,
                                          .fragment = fragment,
                                          .protocol = wire::kIpProtocolUdp,
                                          .source = wire::Be32(0x0a000001),
                                          .destination = wire::Be32(0x0a000002)});
  return std::string(bytes_of(ethernet)).append(bytes_of(ip)).append(behind_ip);
}
std::string datagram(std::string_view payload) {
  const auto udp =
      wire::make_udp_header(wire::Be16(1000), wire::Be16(2000), static_cast<std::uint16_t>(payload.size()));
  return std::string(bytes_of(udp)).append(payload);
}
std::string frame(std::string_view payload) { return ip_packet(datagram(payload)); }

RingFrame merged(std::uint16_t segment_bytes) {
  RingFrame about;
  about.segment_bytes = segment_bytes;
  return about;
}
RingFrame tagged(std::uint16_t control) {
  RingFrame about;
  about.vlan_control = control;
  return about;
}

class PacketReaderTest : public ::testing::Test {
 protected:
  /// The payload of the next packet, "(nothing)" if there is none. The packet is released.
  std::string next(std::size_t room = kRoom) {
    const ReceivedPacket* packet = reader_.show(room);
    if (packet == nullptr) return "(nothing)";
    header_bytes_ = packet->headers.size();
    std::string out(reinterpret_cast<const char*>(packet->payload.data()), packet->payload.size());
    reader_.release();
    return out;
  }
  [[nodiscard]] verbs::PacketCounters counters() const {
    verbs::PacketCounters out{};
    reader_.add_to(out);
    return out;
  }

  FakeRing ring_;
  PacketReader reader_{ring_};
  std::size_t header_bytes_ = 0;
};

TEST_F(PacketReaderTest, ShowsAPacketUntilItIsReleased) {
  ring_.put(frame("one"));
  ring_.put(frame("two"));
  EXPECT_EQ(reader_.show(kRoom)->payload.size(), 3U);
  EXPECT_EQ(ring_.left(), 2U);
  EXPECT_EQ(next(), "one");
  EXPECT_EQ(next(), "two");
  EXPECT_EQ(next(), "(nothing)");
  EXPECT_EQ(header_bytes_, kHeaderBytes);
}

TEST_F(PacketReaderTest, DropsAndCountsWhatIsWrong) {
  std::string cut = frame("payload");
  cut.resize(cut.size() - 1);
  std::string damaged = frame("payload");
  damaged[14 + 8] ^= 1;  // the time to live
  ring_.put(cut);
  ring_.put(damaged);
  ring_.put(frame("right"));
  EXPECT_EQ(next(), "right");
  EXPECT_EQ(counters().rx_bad_length, 1U);
  EXPECT_EQ(counters().rx_bad_checksum, 1U);
}

TEST_F(PacketReaderTest, TakesMergedPacketsApart) {
  ring_.put(frame("aaaabbbbcc"), merged(4));
  EXPECT_EQ(next(), "aaaa");
  EXPECT_TRUE(reader_.has_rest());
  EXPECT_EQ(next(), "bbbb");
  EXPECT_EQ(ring_.left(), 1U) << "the frame is still shown in part";
  EXPECT_EQ(next(), "cc");
  EXPECT_FALSE(reader_.has_rest());
  EXPECT_EQ(ring_.left(), 0U);
}

TEST_F(PacketReaderTest, PutsFragmentsTogether) {
  const std::string whole = datagram("0123456789abcdef");
  ring_.put(ip_packet(std::string_view(whole).substr(0, 16), wire::kIpv4MoreFragments));
  ring_.put(ip_packet(std::string_view(whole).substr(16), 2));
  EXPECT_EQ(next(), "0123456789abcdef");
  EXPECT_EQ(ring_.left(), 0U);
}

TEST_F(PacketReaderTest, PutsTheTagBack) {
  ring_.put(frame("tagged"), tagged(5));
  EXPECT_EQ(next(), "tagged");
  EXPECT_EQ(header_bytes_, kHeaderBytes + sizeof(wire::VlanTag));
}

TEST_F(PacketReaderTest, AForkedChildForgetsTheRestOfAFrame) {
  ring_.put(frame("aaaabb"), merged(4));
  EXPECT_EQ(next(), "aaaa");
  reader_.forget();
  EXPECT_FALSE(reader_.has_rest());
}

TEST_F(PacketReaderTest, CountsWhatTheCallerTakes) {
  ring_.put(frame("one"));
  reader_.count_received(*reader_.show(kRoom));
  reader_.count_too_long();
  EXPECT_EQ(counters().rx_packets, 1U);
  EXPECT_EQ(counters().rx_bytes, kHeaderBytes + 3);
  EXPECT_EQ(counters().rx_too_long, 1U);
}

}  // namespace
}  // namespace ringsock::soft
