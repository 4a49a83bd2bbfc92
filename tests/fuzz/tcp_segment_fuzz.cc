// Segments from a hostile peer into a live connection: each is a header of 12 bytes, options and payload, with calls of
// the application between. Numbers are offsets from what the connection expects, so that many segments get far.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "core/engine/tcp/connection.h"

using namespace ringsock;
using namespace ringsock::engine::tcp;

namespace {

constexpr Seq kFirst = 0xffff'ff00;

Established begun(unsigned bits) {
  Established state;
  state.snd_una = state.snd_nxt = state.rcv_nxt = state.rcv_wup = state.snd_wl1 = kFirst;
  state.snd_wnd = state.max_window = state.rcv_wnd = 65'535;
  state.mss = 1000;
  state.sack = (bits & 1) != 0;
  state.timestamps = (bits & 2) != 0;
  state.ecn = (bits & 4) != 0;
  state.window_scaling = (bits & 8) != 0;
  if (state.window_scaling) state.snd_scale = state.rcv_scale = 7;
  return state;
}

void use(TcpConnection& tcp, unsigned what, Nanos now) {
  static const std::byte bytes[3000]{};
  std::byte out[500];
  if (what % 8 == 0) (void)tcp.write(bytes, now);
  if (what % 8 == 1) (void)tcp.read(out, now);
  if (what == 248) tcp.packet_too_big(static_cast<std::uint16_t>(now.count()), kFirst + 500, now);
  if (what == 249) {
    Settings set = tcp.settings();
    set.most_pacing_rate = set.most_pacing_rate == 0 ? 300'000 : 0;
    tcp.set(set, now);
  }
  if (what == 250) tcp.shutdown_send(now);
  if (what == 251) tcp.close(now);
  if (what == 252) (void)tcp.write_urgent(std::span(bytes).first(10), now);
  if (what == 253) (void)tcp.read_urgent();
}

/// What the connection tells of itself fits together, and its memory is bounded.
void check(const TcpConnection& tcp) {
  const Info info = tcp.info();
  if (std::uint64_t{info.sacked_bytes} + info.lost_bytes > info.unacked_bytes) std::abort();
  if (info.in_flight_bytes > info.unacked_bytes) std::abort();
  if (info.cwnd_bytes == 0 && info.state != State::closed) std::abort();
  if (info.unread_bytes > 200'000 || info.memory_bytes > 2u << 20) std::abort();
}

/// The descriptors of one turn are few, and none is larger than it may be.
void send_all(TcpConnection& tcp, Nanos now) {
  int count = 0;
  while (const auto out = tcp.next_segment(now)) {
    if (out->payload[0].size() + out->payload[1].size() != out->payload_bytes) std::abort();
    if (out->payload_bytes > kMostPayloadBytes || out->option_bytes > kMostOptionBytes) std::abort();
    if (++count > 20'000) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  auto left = std::as_bytes(std::span(data, size));
  const auto number = [&](std::size_t at) { return std::to_integer<unsigned>(left[at]); };
  Nanos now = std::chrono::seconds(1);
  TcpConnection tcp;
  if (!tcp.begin(begun(size != 0 ? number(0) : 0), now)) std::abort();
  while (left.size() >= 12) {
    SegmentIn in;
    in.seq = kFirst + (number(0) << 8 | number(1)) - 1000;
    in.ack = kFirst + (number(2) << 8 | number(3)) - 1000;
    in.flags = static_cast<std::uint8_t>(number(4) | ((number(5) & 3) != 0 ? kAck : 0));
    if ((number(5) & 12) != 0) in.flags &= static_cast<std::uint8_t>(~(kRst | kSyn));
    in.window = static_cast<std::uint16_t>(number(6) << 8 | number(7));
    in.urgent = static_cast<std::uint16_t>(number(8));
    now += std::chrono::milliseconds(number(9) * number(9) / 16);
    use(tcp, number(10), now);
    const std::size_t length = number(11);
    left = left.subspan(12);
    const auto body = left.first(std::min(length, left.size()));
    left = left.subspan(body.size());
    in.options = body.first(std::min<std::size_t>(body.size(), length % 41));
    in.payload = body.subspan(in.options.size());
    tcp.timers(now);
    tcp.segment(in, now);
    send_all(tcp, now);
    check(tcp);
  }
  return 0;
}
