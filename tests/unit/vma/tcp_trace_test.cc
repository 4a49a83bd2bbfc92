#include "libvmacompat/tcp/tcp_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <string>
#include <vector>

namespace ringsock::vma {
namespace {

using namespace std::chrono_literals;
namespace tcp = engine::tcp;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

tcp::Info established() {
  tcp::Info out{};
  out.state = tcp::State::established;
  out.cwnd_bytes = 14'600;
  out.srtt = 250us;
  out.snd_scale = 7;
  out.rcv_scale = 2;
  return out;
}

tcp::SegmentOut data_out(std::uint32_t seq, std::uint32_t bytes) {
  tcp::SegmentOut out;
  out.seq = seq;
  out.ack = 9'000;
  out.window = 1'000;
  out.flags = tcp::kPsh | tcp::kAck;
  out.payload_bytes = bytes;
  return out;
}

TEST(TcpTrace, ShowsEachSegmentWithNumbersThatBeginAtZero) {
  TcpTrace trace(10, 5s);
  trace.sent(data_out(4'294'967'290, 100), established(), 5s + 1'500us);
  const std::array<std::byte, 7> payload{};
  trace.received({.seq = 9'000, .ack = 94, .window = 500, .flags = tcp::kAck, .options = {}, .payload = payload},
                 established(), 5s + 2ms);
  EXPECT_THAT(
      trace.take_lines(),
      ElementsAre("+0.001500 sent [P.] 0:100 ack 0 window 4000; cwnd 14600, in flight 0, rtt 250 us, ESTABLISHED",
                  "+0.002000 received [.] 0:7 ack 100 window 64000; cwnd 14600, in flight 0, rtt 250 us, ESTABLISHED"));
  EXPECT_THAT(trace.take_lines(), IsEmpty());
}

TEST(TcpTrace, TellsWhatIsSentAgain) {
  TcpTrace trace(10, 0s);
  trace.sent(data_out(100, 50), established(), 0s);
  trace.sent(data_out(150, 50), established(), 0s);
  trace.sent(data_out(100, 50), established(), 0s);
  const auto lines = trace.take_lines();
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_THAT(lines[1], testing::Not(HasSubstr("(again)")));
  EXPECT_THAT(lines[2], HasSubstr("0:50 ack 0 window 4000 (again);"));
}

TEST(TcpTrace, EndsAfterSoManySegments) {
  TcpTrace trace(2, 0s);
  for (int i = 0; i < 5; ++i) trace.sent(data_out(100, 50), established(), 0s);
  EXPECT_TRUE(trace.is_over());
  const auto lines = trace.take_lines();
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_EQ(lines[2], "that was the last one");
  trace.go_on(1);
  EXPECT_FALSE(trace.is_over());
}

TEST(TcpTrace, CountsWhatItHasNoRoomFor) {
  TcpTrace trace(100'000, 0s);
  for (std::size_t i = 0; i < TcpTrace::kMostWaiting + 3; ++i) trace.sent(data_out(100, 50), established(), 0s);
  const auto lines = trace.take_lines();
  ASSERT_THAT(lines, SizeIs(TcpTrace::kMostWaiting + 1));
  EXPECT_EQ(lines.back(), "3 more segments came faster than they are written");
}

}  // namespace
}  // namespace ringsock::vma
