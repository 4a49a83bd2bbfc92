// Which segment leaves next: RST, SYN, repeated data, new data, probes, acknowledgements.
#include <utility>

#include "core/engine/tcp/core.h"

namespace ringsock::engine::tcp {
namespace {

/// What has not arrived of the buffer's bytes: the window we could tell.
std::uint32_t offered_window(const Core& core) {
  const ReceiveSide& rcv = core.rcv;
  const std::uint32_t free = free_window(core);
  const std::uint32_t left = rcv.left();
  // RFC 9293, 3.8.6.2.2: a window grows by a segment or by half of the buffer, and never shrinks.
  const std::uint32_t step = std::min<std::uint32_t>(rcv.mss, rcv.buffer / 2);
  if (free < left + step) return left;
  return free >> rcv.scale << rcv.scale;
}

/// RFC 7323, 2.4. Rounded up only into free room: an edge that moves a little with each small segment never closes.
/// Rounded down, what was told before stays acceptable.
std::uint16_t take_window(Core& core) {
  ReceiveSide& rcv = core.rcv;
  const std::uint32_t left = rcv.left();
  const std::uint32_t offered = offered_window(core);
  const std::uint32_t up = offered + (1u << rcv.scale) - 1;
  const bool fits = up >> rcv.scale << rcv.scale <= free_window(core);
  const std::uint32_t scaled = std::min((fits ? up : offered) >> rcv.scale, 65'535u);
  rcv.wup = rcv.nxt;
  rcv.wnd = std::max(scaled << rcv.scale, left);
  return static_cast<std::uint16_t>(scaled);
}

/// Bytes of the options that the next header will have; SACK blocks make a packet smaller.
std::uint32_t option_length(const Core& core) {
  const std::uint32_t fixed = core.timestamps ? 12 : 0;
  if (!core.sack || (!core.rcv.duplicate && !core.rcv.queue.has_gap())) return fixed;
  const std::size_t blocks = core.rcv.queue.ranges() + (core.rcv.duplicate ? 1 : 0);
  const std::size_t fit = std::min<std::size_t>((kMostOptionBytes - fixed - 4) / 8, Options{}.sack.size());
  return fixed + 4 + 8 * static_cast<std::uint32_t>(std::min(blocks, fit));
}

/// A FIN that waits behind a gap is part of the last range.
void report_fin(const Core& core, Options& options) {
  if (!core.rcv.fin_known || core.rcv.fin) return;
  for (std::size_t i = 0; i < options.sack_count; ++i)
    if (options.sack[i].end == core.rcv.fin_seq) ++options.sack[i].end;
  const bool in_window = at_or_before(core.rcv.fin_seq, core.rcv.nxt + core.rcv.left());
  if (options.sack_count == 0 && in_window)
    options.sack[options.sack_count++] = {core.rcv.fin_seq, core.rcv.fin_seq + 1};
}

Options current_options(Core& core, Nanos now) {
  Options options;
  if (core.timestamps) {
    options.timestamps = true;
    options.ts_value = core.stamp(now);
    options.ts_echo = core.rcv.ts_recent;
  }
  if (!core.sack) return options;
  if (core.rcv.duplicate) options.sack[options.sack_count++] = *core.rcv.duplicate;
  core.rcv.duplicate.reset();
  core.rcv.queue.report(options);
  report_fin(core, options);
  return options;
}

/// An acknowledgement leaves with this segment.
void count_ack(Core& core) {
  AckPolicy& ack = core.ack;
  const bool was_due = ack.now || core.deadlines.runs(Deadlines::ack) || ack.last_sent != core.rcv.nxt;
  if (ack.quick_left > 0 && was_due) --ack.quick_left;
  ack.now = false;
  ack.last_sent = core.rcv.nxt;
  core.deadlines.stop(Deadlines::ack);
}

void header(Core& core, SegmentOut& out, Seq seq, Nanos now) {
  out.seq = seq;
  out.ack = core.rcv.nxt;
  out.flags = kAck;
  if (core.rcv.echo_ce) out.flags |= kEce;
  if (core.timestamps || core.rcv.duplicate || core.rcv.queue.has_gap() || core.rcv.fin_known)
    out.option_bytes = emit_options(current_options(core, now), out.options);
  out.window = take_window(core);
  out.segment_bytes = static_cast<std::uint16_t>(core.path_mss() - out.option_bytes);
  count_ack(core);
  ++core.counters.segments_out;
}

void mark_urgent(const Core& core, SegmentOut& out) {
  if (!core.snd.urgent || !before(out.seq, core.snd.urgent_end)) return;
  out.flags |= kUrg;
  out.urgent = static_cast<std::uint16_t>(std::min<std::uint32_t>(core.snd.urgent_end - out.seq, 65'535));
}

/// Puts up to `most` bytes of the queue into the segment, and the FIN when it fits behind them.
void fill(Core& core, SegmentOut& out, std::uint32_t most, bool fin) {
  SendSide& snd = core.snd;
  if (most != 0) out.payload = snd.queue.view(out.seq - snd.data_start(), most);
  out.payload_bytes = static_cast<std::uint32_t>(out.payload[0].size() + out.payload[1].size());
  // More than two chunks: whole packets leave, the rest is the next piece.
  if (out.payload_bytes < most && out.payload_bytes > out.segment_bytes) {
    out.payload_bytes -= out.payload_bytes % out.segment_bytes;
    out.payload = snd.queue.view(out.seq - snd.data_start(), out.payload_bytes);
  }
  const bool last = out.seq + out.payload_bytes == snd.data_end();
  // A train has PSH as on Linux: receive offload of the peer hands its packets on at once.
  if (out.payload_bytes > out.segment_bytes || (last && out.payload_bytes != 0)) out.flags |= kPsh;
  if (last && fin) out.flags |= kFin;
  mark_urgent(core, out);
}

/// 3.10.1 and 3.5: SYN, or SYN-ACK.
void make_syn(Core& core, SegmentOut& out, Nanos now) {
  const bool answer = core.state == State::syn_received;
  out.seq = core.snd.iss;
  out.flags = answer ? kSyn | kAck : kSyn;
  if (answer && core.ecn) out.flags |= kEce;
  if (!answer && core.set.ask_ecn && core.retries == 0) {  // RFC 3168, 6.1.1.1: some drop such SYNs
    core.snd.asked_ecn = true;
    out.flags |= kEce | kCwr;
  }
  out.ack = answer ? core.rcv.nxt : 0;
  Options options;
  const std::uint16_t limit = core.set.most_mss != 0 ? core.set.most_mss : core.set.mtu_payload;
  options.mss = std::min(limit, core.set.mtu_payload);
  options.sack_permitted = answer ? core.sack : core.set.sack;
  options.timestamps = answer ? core.timestamps : core.set.timestamps;
  options.ts_value = core.stamp(now);
  options.ts_echo = answer ? core.rcv.ts_recent : 0;
  if (answer ? core.window_scaling : core.set.window_scaling) options.window_scale = core.rcv.scale;
  out.option_bytes = emit_options(options, out.options);
  // As on Linux: whole packets.
  const std::uint32_t packet = options.mss - (options.timestamps && answer ? 12u : 0u);
  std::uint32_t window = std::min<std::uint32_t>(core.rcv.buffer, 65'535);
  if (window > packet) window -= window % packet;
  out.window = static_cast<std::uint16_t>(window);
  core.rcv.wnd = window;
  core.rcv.wup = core.rcv.nxt;
  core.syn_due = false;
  core.ack.now = false;
  core.snd.nxt = core.snd.iss + 1;
  core.snd.last_sent = now;
  if (!core.deadlines.runs(Deadlines::rto)) core.deadlines.at[Deadlines::rto] = core.repeat_due(now);
  ++core.counters.segments_out;
}

void note_small(Core& core, const SegmentOut& out) {
  if (out.payload_bytes % out.segment_bytes != 0) core.snd.small_end = out.seq + out.payload_bytes;
}

/// Data leaves, new or repeated.
void count_sent(Core& core, std::uint32_t bytes, Nanos now) {
  core.snd.last_sent = now;
  pace(core, bytes, now);
  if (core.recovery.phase == Phase::recovery) core.recovery.reduction.sent(bytes);
}

/// Repeats up to `most` bytes from `seq` on.
void repeat(Core& core, SegmentOut& out, const Sent& piece, std::uint32_t most, Nanos now, bool probe = false) {
  const Seq seq = piece.seq;
  header(core, out, seq, now);
  const std::uint32_t packet = out.segment_bytes;
  most = std::min({most, kMostPayloadBytes, paced_length(core, packet)}) / packet * packet;
  std::uint32_t bytes = std::min(piece.bytes, std::max(most, packet));
  const std::uint32_t data = std::min(bytes, core.snd.data_end() - seq);
  const bool fin = core.snd.fin_sent() && seq + bytes == core.snd.data_end() + 1;
  fill(core, out, data, fin);
  bytes = out.payload_bytes + ((out.flags & kFin) != 0 ? 1 : 0);
  note_repeat(core, out.payload_bytes, now, probe);
  core.counters.data_packets_out += (out.payload_bytes + out.segment_bytes - 1) / out.segment_bytes;
  core.board.repeat(seq, bytes, out.segment_bytes, now);
  count_sent(core, bytes, now);
  core.recovery.repeat_at_once = false;
  // As on Linux: the time-out is that of the first packet, which has just left.
  if (!probe && seq == core.snd.una) core.deadlines.stop(Deadlines::rto);
  arm_retransmission(core, Arming::data_left, now);
}

bool next_repeat(Core& core, SegmentOut& out, Nanos now) {
  const Sent* lost = core.board.first_lost();
  if (lost == nullptr) return false;
  const std::uint32_t flight = core.in_flight();
  const std::uint32_t room = core.window.cwnd > flight ? core.window.cwnd - flight : 0;
  if (room < std::min<std::uint32_t>(core.full_mss(), lost->bytes) && !core.recovery.repeat_at_once) return false;
  repeat(core, out, *lost, room, now);
  return true;
}

/// What the peer's window leaves for new data; a window that has shrunk leaves nothing.
std::uint32_t peer_room(const Core& core) {
  const std::int32_t room = distance(core.snd.nxt, core.snd.una + core.snd.wnd);
  return static_cast<std::uint32_t>(std::max(room, 0));
}

/// What both windows leave for new data. Notes which one is the limit.
std::uint32_t usable(Core& core) {
  SendSide& snd = core.snd;
  const std::uint32_t peer = peer_room(core);
  const std::uint32_t flight = core.in_flight();
  std::uint32_t own = core.window.cwnd > flight ? core.window.cwnd - flight : 0;
  const std::uint32_t unsent = snd.unsent();
  if (own < core.full_mss() && own < unsent && flight != 0) own = 0;
  snd.cwnd_limited = own < unsent && own <= peer;
  return std::min(own, peer);
}

/// Nagle in Minshall's variant, TCP_CORK and MSG_MORE: whether the end of the queue, shorter than a packet, leaves.
bool may_send_tail(Core& core, Nanos now) {
  SendSide& snd = core.snd;
  if (snd.fin_queued || snd.send_small || core.recovery.probe_due) return true;
  if (snd.urgent && before(snd.next_data(), snd.urgent_end)) return true;
  if (core.set.cork || snd.more) {
    if (!core.deadlines.runs(Deadlines::cork))
      core.deadlines.at[Deadlines::cork] = now + std::chrono::milliseconds(200);
    return false;
  }
  return core.set.nodelay || core.board.empty() || !before(snd.una, snd.small_end);
}

/// Sender's silly window avoidance (RFC 9293, 3.8.6.2.1). Returns how many bytes leave in one descriptor.
std::uint32_t piece_length(Core& core, std::uint32_t packet, std::uint32_t room, Nanos now) {
  SendSide& snd = core.snd;
  const std::uint32_t unsent = snd.unsent();
  std::uint32_t bytes = std::min({unsent, room, kMostPayloadBytes, paced_length(core, packet)});
  if (core.cwr_due || (snd.urgent && before(snd.next_data(), snd.urgent_end))) bytes = std::min(bytes, packet);
  const std::uint32_t whole = bytes / packet * packet;
  if (whole == bytes || snd.send_small) return bytes;
  if (bytes == unsent) return may_send_tail(core, now) ? bytes : whole;
  if (whole != 0) return whole;
  return bytes != 0 && bytes >= snd.max_window / 2 ? bytes : 0;
}

/// A window that was not used tells less about the path with each time-out (RFC 2861, 3.2, as Linux): it is halved,
/// down to the initial window (RFC 5681, 4.1). The threshold keeps three quarters.
void restart_after_idle(Core& core, Nanos now) {
  Nanos idle = now - core.snd.last_sent;
  if (idle <= RttEstimator::kLeastRto || !core.board.empty() || core.snd.last_sent == Nanos{}) return;
  const Nanos rto = core.rtt.rto();
  if (idle <= rto) return;
  CongestionWindow& window = core.window;
  const std::uint32_t least = std::min(window.cwnd, initial_window(core.full_mss()));
  window.ssthresh = std::max(window.ssthresh, window.cwnd / 4 * 3);
  while ((idle -= rto) > Nanos{} && window.cwnd > least) window.cwnd /= 2;
  window.cwnd = std::max(window.cwnd, least);
}

/// Data waits, nothing is in flight, and the peer's window is the reason.
void wait_for_window(Core& core, Nanos now) {
  if (!core.board.empty() || core.snd.unsent() == 0 || core.deadlines.runs(Deadlines::persist)) return;
  if (peer_room(core) >= core.snd.unsent()) return;
  core.deadlines.at[Deadlines::persist] = now + core.rtt.rto();
}

void sent_new(Core& core, const SegmentOut& out, Nanos now) {
  SendSide& snd = core.snd;
  const std::uint32_t bytes = out.payload_bytes + ((out.flags & kFin) != 0 ? 1 : 0);
  if (core.board.empty()) core.stalled_since = now;
  core.board.add(out.seq, bytes, out.segment_bytes, now);
  snd.nxt = out.seq + bytes;
  snd.send_small = false;
  const std::uint32_t flight = core.board.total_bytes();
  if (flight > snd.most_flight || at_or_before(snd.most_flight_end, snd.una)) {
    snd.most_flight = flight;
    snd.most_flight_end = snd.nxt;
  }
  if (core.in_flight() + core.full_mss() > core.window.cwnd) snd.cwnd_limited = true;  // no other packet fits
  count_sent(core, bytes, now);
  if (now - core.ack.last_data < AckPolicy::kDelay) core.ack.interactive = true;
  core.counters.bytes_sent += out.payload_bytes;
  core.counters.data_packets_out += (out.payload_bytes + out.segment_bytes - 1) / out.segment_bytes;
  core.deadlines.stop(Deadlines::persist);
  if (snd.unsent() == 0) core.deadlines.stop(Deadlines::cork);
  if (snd.blocked) tell_writable(core);  // TCP_NOTSENT_LOWAT counts what has not left
  if (core.recovery.probe_due) {
    core.recovery.probe_due = false;
    core.recovery.probe_out = true;
    core.recovery.probe_repeats = false;
    core.recovery.probe_end = snd.nxt;
  }
  arm_retransmission(core, Arming::data_left, now);
}

bool next_new(Core& core, SegmentOut& out, Nanos now) {
  SendSide& snd = core.snd;
  const bool fin = snd.fin_queued && !snd.fin_sent();
  const std::uint32_t unsent = snd.unsent();
  if ((unsent == 0 && !fin) || core.board.full()) return false;
  restart_after_idle(core, now);
  try_larger_packets(core, now);
  std::uint32_t room = usable(core);
  if (core.recovery.probe_due) room = std::max(room, std::min(core.full_mss(), peer_room(core)));
  const std::uint32_t packet = core.path_mss() - option_length(core);
  const std::uint32_t bytes = piece_length(core, packet, room, now);
  if (bytes == 0 && unsent != 0) {
    wait_for_window(core, now);
    return false;
  }
  header(core, out, snd.next_data(), now);
  fill(core, out, bytes, fin);
  if (snd.send_small && bytes != 0) out.flags |= kPsh;
  out.ecn_capable = core.ecn && out.payload_bytes != 0;
  if (core.ecn && std::exchange(core.cwr_due, false)) out.flags |= kCwr;
  note_small(core, out);
  sent_new(core, out, now);
  return true;
}

/// RFC 8985, 7.3: new data when there is some, otherwise the last packet again.
bool next_probe(Core& core, SegmentOut& out, Nanos now) {
  Recovery& recovery = core.recovery;
  if (!recovery.probe_due) return false;
  if (core.snd.unsent() != 0 && next_new(core, out, now)) return true;
  recovery.probe_due = false;
  const Sent* last = core.board.last_unsacked();
  if (last == nullptr) return false;
  Sent tail = *last;
  const std::uint32_t keep = (tail.bytes - 1) / tail.unit * tail.unit;
  tail.seq += keep;
  tail.bytes -= keep;
  recovery.probe_out = recovery.probe_repeats = true;
  recovery.probe_end = core.snd.nxt;
  recovery.probe_stamp = core.stamp(now);
  repeat(core, out, tail, tail.bytes, now, true);
  return true;
}

/// An old number, which the peer must answer. It uses nothing of such a segment: an acknowledgement that is due, or a
/// window that has opened, leaves in another one.
void make_probe(Core& core, SegmentOut& out, Nanos now) {
  core.probe_due = false;
  const bool owed = core.ack.now || core.deadlines.runs(Deadlines::ack);
  const Seq edge = core.rcv.wup + core.rcv.wnd;
  header(core, out, core.snd.una - 1, now);
  core.ack.now = owed || distance(edge, core.rcv.wup + core.rcv.wnd) >= core.rcv.mss;
}

bool next_data_segment(Core& core, SegmentOut& out, Nanos now) {
  if (!core.may_send_data() || waits_for_pace(core, now)) return false;
  if (core.recovery.spurious == Recovery::Spurious::second_ack) {  // new data shows whether the time-out was needless
    if (next_new(core, out, now)) return true;
    if (core.snd.nxt != core.recovery.high) return false;
    core.recovery.spurious = Recovery::Spurious::no;
  }
  if (next_repeat(core, out, now) || next_probe(core, out, now)) return true;
  return core.board.lost_bytes() == 0 && next_new(core, out, now);
}

}  // namespace

std::uint32_t free_window(const Core& core) {
  const std::size_t used = core.rcv.queue.in_order.size() + core.rcv.lent;
  return core.rcv.buffer > used ? core.rcv.buffer - static_cast<std::uint32_t>(used) : 0;
}

void note_repeat(Core& core, std::uint32_t bytes, Nanos now, bool probe) {
  const std::uint32_t packets = std::max(1u, (bytes + core.full_mss() - 1) / core.full_mss());
  core.counters.total_retransmits += packets;
  core.counters.bytes_retransmitted += bytes;
  if (probe) return;  // has its own judgement
  core.recovery.repeats += packets;
  if (core.recovery.first_repeat_stamp == 0) core.recovery.first_repeat_stamp = core.stamp(now);
}

bool has_nothing_to_send(const Core& core) {
  const SendSide& snd = core.snd;
  const bool control = core.ack.now || core.syn_due || core.probe_due || core.recovery.probe_due || core.reset_due;
  return !control && core.board.lost_bytes() == 0 && snd.unsent() == 0 && (!snd.fin_queued || snd.fin_sent());
}

bool produce_segment(Core& core, SegmentOut& out, Nanos now) {
  if (core.reset_due) {
    out = *std::exchange(core.reset_due, std::nullopt);
    return true;
  }
  if (core.syn_due) {
    make_syn(core, out, now);
    return true;
  }
  if (next_data_segment(core, out, now)) return true;
  if (core.probe_due) {
    make_probe(core, out, now);
    return true;
  }
  if (core.ack.now) header(core, out, core.snd.nxt, now);
  return out.flags != 0;
}

}  // namespace ringsock::engine::tcp
