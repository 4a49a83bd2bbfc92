#include "libvmacompat/tcp/tcp_trace.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>

namespace ringsock::vma {

namespace tcp = engine::tcp;

namespace {

/// As tcpdump(1) abbreviates them.
std::string text_of_flags(std::uint8_t flags) {
  struct Letter {
    std::uint8_t flag;
    char letter;
  };
  constexpr std::array kLetters{Letter{tcp::kSyn, 'S'}, Letter{tcp::kFin, 'F'}, Letter{tcp::kRst, 'R'},
                                Letter{tcp::kPsh, 'P'}, Letter{tcp::kUrg, 'U'}, Letter{tcp::kEce, 'E'},
                                Letter{tcp::kCwr, 'W'}, Letter{tcp::kAck, '.'}};
  std::string out;
  for (const Letter& one : kLetters) {
    if ((flags & one.flag) != 0) out += one.letter;
  }
  return out;
}

const char* name_of(tcp::State state) {
  constexpr std::array kNames{"CLOSED",    "SYN_SENT",   "SYN_RECV", "ESTABLISHED", "FIN_WAIT1",
                              "FIN_WAIT2", "CLOSE_WAIT", "CLOSING",  "LAST_ACK",    "TIME_WAIT"};
  return kNames.at(static_cast<std::size_t>(state));
}

}  // namespace

TcpTrace::TcpTrace(std::uint32_t segments, Nanos now) : left_(segments), start_(now) { waiting_.reserve(kMostWaiting); }

void TcpTrace::note(Segment segment, const tcp::Info& info, Nanos now) noexcept {
  if (left_ == 0) return;
  --left_;
  if (waiting_.size() == kMostWaiting) {
    ++lost_;
    return;
  }
  segment.time = now - start_;
  segment.cwnd = info.cwnd_bytes;
  segment.in_flight = info.in_flight_bytes;
  segment.rtt_us = static_cast<std::uint32_t>(std::chrono::duration_cast<std::chrono::microseconds>(info.srtt).count());
  segment.state = info.state;
  waiting_.push_back(segment);
}

void TcpTrace::received(const tcp::SegmentIn& segment, const tcp::Info& info, Nanos now) noexcept {
  if (!origin_) {
    origin_ = Origin{segment.ack, segment.seq};
    sent_up_to_ = segment.ack;
  }
  note({.seq = segment.seq - origin_->theirs,
        .ack = segment.ack - origin_->ours,
        .window = std::uint32_t{segment.window} << info.snd_scale,
        .bytes = static_cast<std::uint32_t>(segment.payload.size()),
        .flags = segment.flags},
       info, now);
}

void TcpTrace::sent(const tcp::SegmentOut& segment, const tcp::Info& info, Nanos now) noexcept {
  if (!origin_) {
    origin_ = Origin{segment.seq, segment.ack};
    sent_up_to_ = segment.seq;
  }
  const std::uint32_t end = segment.seq + segment.payload_bytes;
  const bool is_repeated = segment.payload_bytes != 0 && static_cast<std::int32_t>(segment.seq - sent_up_to_) < 0;
  if (static_cast<std::int32_t>(end - sent_up_to_) > 0) sent_up_to_ = end;
  note({.seq = segment.seq - origin_->ours,
        .ack = segment.ack - origin_->theirs,
        .window = std::uint32_t{segment.window} << info.rcv_scale,
        .bytes = segment.payload_bytes,
        .flags = segment.flags,
        .is_sent = true,
        .is_repeated = is_repeated},
       info, now);
}

std::string TcpTrace::line_of(const Segment& segment) {
  std::array<char, 256> text;
  std::snprintf(
      text.data(), text.size(), "%+.6f %s [%s] %d:%d ack %d window %u%s; cwnd %u, in flight %u, rtt %u us, %s",
      std::chrono::duration<double>(segment.time).count(), segment.is_sent ? "sent" : "received",
      text_of_flags(segment.flags).c_str(), static_cast<int>(segment.seq),
      static_cast<int>(segment.seq + segment.bytes), static_cast<int>(segment.ack), segment.window,
      segment.is_repeated ? " (again)" : "", segment.cwnd, segment.in_flight, segment.rtt_us, name_of(segment.state));
  return text.data();
}

std::vector<std::string> TcpTrace::take_lines() {
  std::vector<std::string> out;
  out.reserve(waiting_.size() + 2);
  for (const Segment& one : waiting_) out.push_back(line_of(one));
  waiting_.clear();
  if (lost_ != 0) out.push_back(std::to_string(lost_) + " more segments came faster than they are written");
  lost_ = 0;
  if (left_ == 0) out.emplace_back("that was the last one");
  return out;
}

}  // namespace ringsock::vma
