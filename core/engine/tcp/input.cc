// A segment arrives: the order of RFC 9293, 3.10.7, with the checks of RFC 5961 and RFC 7323.
#include <cerrno>
#include <utility>

#include "core/engine/tcp/core.h"

namespace ringsock::engine::tcp {
namespace {

/// Sequence numbers that the segment uses.
std::uint32_t length_of(const SegmentIn& in) {
  return static_cast<std::uint32_t>(in.payload.size()) + ((in.flags & kSyn) != 0 ? 1 : 0) +
         ((in.flags & kFin) != 0 ? 1 : 0);
}

/// RFC 9293, 3.10.7.4, first check. Also takes what lies before the window's left edge in part.
bool acceptable(const Core& core, const SegmentIn& in) {
  const Seq end = in.seq + length_of(in);
  const Seq edge = core.rcv.nxt + core.rcv.left();
  if (before(edge, in.seq)) return false;
  // A pure ACK that data has overtaken still counts: the left edge is where the window was told.
  if (length_of(in) == 0) return at_or_before(core.rcv.wup, in.seq);
  return before(core.rcv.nxt, end);
}

/// RFC 7323, 5.3: PAWS. A ts_recent of 24 days ago tells nothing.
bool is_old(const Core& core, const Options& options, Nanos now) {
  if (!core.timestamps || !options.timestamps || core.rcv.ts_recent == 0) return false;
  return before(options.ts_value, core.rcv.ts_recent) && now - core.rcv.ts_recent_at < std::chrono::hours(24 * 24);
}

void remember_timestamp(Core& core, const SegmentIn& in, const Options& options, Nanos now) {
  if (!core.timestamps || !options.timestamps || before(core.ack.last_sent, in.seq)) return;
  if (core.rcv.ts_recent != 0 && before(options.ts_value, core.rcv.ts_recent) &&
      now - core.rcv.ts_recent_at < std::chrono::hours(24 * 24))
    return;
  core.rcv.ts_recent = options.ts_value;
  core.rcv.ts_recent_at = now;
}

/// What both SYNs offer is used.
void agree(Core& core, const SegmentIn& in, const Options& options, Nanos now) {
  core.rcv.irs = in.seq;
  core.rcv.nxt = in.seq + 1;
  core.rcv.wup = core.ack.last_sent = core.rcv.nxt;
  core.snd.mss = std::max(options.mss != 0 ? options.mss : kDefaultMss, kLeastMss);
  core.window_scaling = core.set.window_scaling && options.window_scale.has_value();
  core.snd.scale = core.window_scaling ? *options.window_scale : 0;
  if (!core.window_scaling) core.rcv.scale = 0;
  core.sack = core.set.sack && options.sack_permitted;
  core.timestamps = core.set.timestamps && options.timestamps;
  if (core.timestamps) {
    core.rcv.ts_recent = options.ts_value;
    core.rcv.ts_recent_at = now;
  }
  core.snd.wnd = core.snd.max_window = in.window;  // never scaled in a SYN
  core.snd.wl1 = in.seq;
  core.rcv.mss = static_cast<std::uint16_t>(std::min<std::uint32_t>(core.path_mss(), kDefaultMss));
}

void answer_with_reset(Core& core, const SegmentIn& in) {
  SegmentOut out;
  out.seq = in.ack;
  out.flags = kRst;
  core.reset_due = out;
}

void sample_handshake(Core& core, const Options& options, Nanos now) {
  if (core.retries == 0 && !core.snd.syn_again) {
    core.rtt.sample(now - core.snd.last_sent, core.snd.una, core.snd.nxt);
  } else if (core.timestamps && options.ts_echo != 0) {
    const std::int32_t units = std::max<std::int32_t>(distance(options.ts_echo, core.stamp(now)), 1);
    core.rtt.sample(kTimestampUnit * units, core.snd.una, core.snd.nxt);
  }
}

/// 3.10.7.3.
void process_syn_sent(Core& core, const SegmentIn& in, const Options& options, Nanos now) {
  const bool has_ack = (in.flags & kAck) != 0;
  if (has_ack && in.ack != core.snd.nxt) {
    if ((in.flags & kRst) != 0) return;
    answer_with_reset(core, in);
    if (core.retries == 0)  // Linux: the RST has ended what the peer took us for, so that the SYN can be repeated
      core.deadlines.at[Deadlines::rto] = std::min(core.deadlines.at[Deadlines::rto], now + kTimestampUnit * 2);
    return;
  }
  if ((in.flags & kRst) != 0) {
    if (has_ack) fail(core, ECONNREFUSED);
    return;
  }
  if ((in.flags & kSyn) == 0) return;
  agree(core, in, options, now);
  if (!has_ack) {  // both sides open: 3.5, figure 8
    core.state = State::syn_received;
    core.syn_due = true;
    return;
  }
  core.snd.una = core.snd.wl2 = in.ack;
  core.ecn = core.snd.asked_ecn && (in.flags & (kEce | kCwr)) == kEce;
  sample_handshake(core, options, now);
  enter_established(core, now);
  core.ack.now = true;
}

/// RFC 5961, 3.2: only the exact number resets; a number in the window asks the peer to repeat it.
void process_reset(Core& core, const SegmentIn& in, Nanos now) {
  if (in.seq != core.rcv.nxt) {
    if (in.seq != core.rcv.nxt + core.rcv.left())
      challenge(core, now);  // the right edge is in the window for ACKs only
    return;
  }
  if (core.state == State::time_wait) return enter(core, State::closed, now);
  fail(core, core.state == State::syn_received ? ECONNREFUSED : core.state == State::close_wait ? EPIPE : ECONNRESET);
}

/// Returns false when the segment ends here.
bool complete_handshake(Core& core, const SegmentIn& in, const Options& options, Nanos now) {
  if (in.ack != core.snd.iss + 1 || in.ack != core.snd.nxt) {
    answer_with_reset(core, in);
    return false;
  }
  core.snd.una = core.snd.iss + 1;
  core.snd.wl2 = in.ack;
  sample_handshake(core, options, now);
  enter_established(core, now);
  core.snd.wnd = std::uint32_t{in.window} << core.snd.scale;
  core.snd.max_window = core.snd.wnd;
  return true;
}

/// The peer repeats its SYN: our answer was lost. It does not prolong the life of a half-open connection.
void repeat_answer(Core& core, Nanos now) {
  if (now - core.snd.last_sent < kChallengePause) return;
  core.snd.syn_again = true;
  core.syn_due = true;
}

/// Returns whether the header passes the checks before the ACK.
bool passes(Core& core, const SegmentIn& in, const Options& options, Nanos now) {
  const bool reset = (in.flags & kRst) != 0;
  if (core.state == State::syn_received && (in.flags & (kSyn | kAck)) == kSyn && in.seq == core.rcv.irs) {
    repeat_answer(core, now);
    return false;
  }
  const bool old = is_old(core, options, now);
  if ((old && !reset) || !acceptable(core, in)) {
    ++core.counters.dropped_segments;
    if (reset) return false;
    if (length_of(in) == 0 || old || (in.flags & kSyn) != 0) {
      challenge(core, now);
    } else {
      if (at_or_before(in.seq + length_of(in), core.rcv.nxt) && !in.payload.empty())
        core.rcv.duplicate = SackBlock{in.seq, in.seq + static_cast<Seq>(in.payload.size())};
      core.ack.now = true;  // the peer repeats: our ACK was lost
    }
    return false;
  }
  if (reset) {
    process_reset(core, in, now);
    return false;
  }
  if ((in.flags & kSyn) != 0) {
    challenge(core, now);
    return false;
  }
  return (in.flags & kAck) != 0;
}

void process_time_wait(Core& core, const SegmentIn& in, Nanos now) {
  if ((in.flags & kRst) != 0) {
    if (in.seq == core.rcv.nxt) enter(core, State::closed, now);
    return;
  }
  if ((in.flags & kFin) != 0 && at_or_before(in.seq + length_of(in), core.rcv.nxt)) {
    enter(core, State::time_wait, now);
    core.ack.now = true;
  } else if ((in.flags & kSyn) != 0 || !acceptable(core, in)) {
    challenge(core, now);
  }
}

/// RFC 5961, 5.2. Returns whether the ACK may be used.
bool check_ack(Core& core, const SegmentIn& in, Nanos now) {
  if (before(core.snd.nxt, in.ack)) {
    challenge(core, now);
    return false;
  }
  if (distance(in.ack, core.snd.una) > static_cast<std::int64_t>(core.snd.max_window)) {
    challenge(core, now);
    return false;
  }
  return true;
}

void note_arrival(Core& core, const SegmentIn& in, Nanos now) {
  ++core.counters.segments_in;
  core.last_received = now;
  if (std::exchange(core.keepalive_probes, std::uint8_t{0}) != 0) touch_keepalive(core, now);
  if (!core.ecn) return;
  if ((in.flags & kCwr) != 0) core.rcv.echo_ce = false;
  if (in.congestion_experienced) {
    core.rcv.echo_ce = true;
    core.ack.now = true;
  }
}

}  // namespace

void process_segment(Core& core, const SegmentIn& in, Nanos now) {
  if (core.state == State::closed) return;
  const Options options = parse_options(in.options);
  if (core.state == State::syn_sent) return process_syn_sent(core, in, options, now);
  if (core.state == State::time_wait) return process_time_wait(core, in, now);
  if (core.state == State::syn_received && (in.flags & (kSyn | kAck)) == (kSyn | kAck) && in.seq == core.rcv.irs) {
    SegmentIn crossed = in;  // both sides open: the SYN is known, the ACK is what counts
    crossed.flags &= static_cast<std::uint8_t>(~kSyn);
    ++crossed.seq;
    process_segment(core, crossed, now);
    if (core.state == State::closed) return;
    core.ack.now = true;  // the peer may wait for it
    if (core.sack) core.rcv.duplicate = SackBlock{in.seq, in.seq + 1};
    return;
  }
  if (!passes(core, in, options, now)) return;
  if (core.state == State::syn_received && !complete_handshake(core, in, options, now)) return;
  if (!check_ack(core, in, now)) return;
  note_arrival(core, in, now);
  remember_timestamp(core, in, options, now);
  process_ack(core, in, options, now);
  if (core.state == State::closed || core.state == State::time_wait) return;
  process_data(core, in, options, now);
}

}  // namespace ringsock::engine::tcp
