// Payload, urgent mark and FIN of a segment.
#include <cerrno>

#include "core/engine/tcp/core.h"

namespace ringsock::engine::tcp {
namespace {

/// RFC 9293, 3.10.7.4, sixth check; the pointer is read as RFC 6093 says: behind the urgent byte.
void take_urgent(Core& core, const SegmentIn& in) {
  ReceiveSide& rcv = core.rcv;
  if ((in.flags & kUrg) == 0 || in.urgent == 0 || rcv.fin) return;
  const Seq mark = in.seq + in.urgent - 1;
  if (before(mark, rcv.read_seq()) || before(mark, rcv.nxt)) return;
  if (rcv.urgent && at_or_before(mark, rcv.urgent_seq)) return;
  rcv.urgent = true;
  rcv.urgent_taken = false;
  rcv.urgent_seq = mark;
  core.events |= kUrgent;
}

struct Piece {
  Seq seq;
  std::span<const std::byte> bytes;
  [[nodiscard]] Seq end() const { return seq + static_cast<Seq>(bytes.size()); }
};

/// Cuts what has arrived before and what is beyond the window.
Piece trim(Core& core, const SegmentIn& in) {
  ReceiveSide& rcv = core.rcv;
  Piece piece{in.seq, in.payload};
  if (before(piece.seq, rcv.nxt)) {
    const std::size_t known = std::min<std::size_t>(rcv.nxt - piece.seq, piece.bytes.size());
    if (known != 0) rcv.duplicate = SackBlock{piece.seq, piece.seq + static_cast<Seq>(known)};
    piece.bytes = piece.bytes.subspan(known);
    piece.seq = rcv.nxt;
  }
  Seq edge = rcv.nxt + rcv.left();
  if (rcv.fin_known && before(rcv.fin_seq, edge)) edge = rcv.fin_seq;
  const std::size_t room = before(piece.seq, edge) ? edge - piece.seq : 0;
  piece.bytes = piece.bytes.first(std::min(piece.bytes.size(), room));
  return piece;
}

/// The first segments, and those after a pause, are acknowledged at once: the peer is in slow start.
bool acks_at_once(Core& core, const SegmentIn& in, Nanos now) {
  AckPolicy& ack = core.ack;
  if (now - ack.last_data > core.rtt.base_rto()) ack.quick_left = std::max(ack.quick_left, AckPolicy::kQuickAcks);
  ack.last_data = now;
  const std::uint32_t waiting = core.rcv.nxt - ack.last_sent;
  // More than a full packet, as on Linux: a sender may hold back its last, short one until then (Nagle).
  if (in.merged > 1 || in.payload.size() > core.rcv.mss || waiting > core.rcv.mss) return true;
  if ((in.flags & kFin) != 0) return false;  // take_fin() decides
  return core.set.quick_ack || (ack.quick_left > 0 && !ack.interactive);
}

void measure(Core& core, const SegmentIn& in, const Options& options, Nanos now) {
  if (in.merged <= 1 && in.payload.size() > core.rcv.mss && in.payload.size() <= core.path_mss())
    core.rcv.mss = static_cast<std::uint16_t>(in.payload.size());
  if (!core.timestamps) return;
  const std::int32_t units = options.timestamps ? distance(options.ts_echo, core.stamp(now)) : -1;
  if (options.ts_echo == 0 || units < 0) return;
  const Nanos rtt = kTimestampUnit * std::max(units, 1);
  core.rcv.rtt = core.rcv.rtt == Nanos{} ? rtt : std::min(core.rcv.rtt + (rtt - core.rcv.rtt) / 8, rtt);
}

void take_bytes(Core& core, const SegmentIn& in, const Options& options, Nanos now) {
  ReceiveSide& rcv = core.rcv;
  core.counters.data_packets_in += in.merged;
  const Piece piece = trim(core, in);
  if (piece.bytes.empty()) {  // the peer repeats, and is in slow start again
    core.ack.quick_left = AckPolicy::kQuickAcks;
    core.ack.interactive = false;
    return schedule_ack(core, now, true);
  }
  const bool had_gap = rcv.queue.has_gap();
  if (had_gap && !before(in.seq, rcv.nxt))  // otherwise trim() has found the first duplicate part
    if (const auto part = rcv.queue.first_overlap(piece.seq, piece.end())) rcv.duplicate = part;
  const std::uint32_t grown = rcv.queue.add(piece.seq, rcv.nxt, piece.bytes);
  if (piece.seq != rcv.nxt) ++core.counters.out_of_order_segments;
  rcv.nxt += grown;
  core.counters.bytes_received += grown;
  if (grown != 0) core.events |= kReadable;
  measure(core, in, options, now);
  schedule_ack(core, now, acks_at_once(core, in, now) || had_gap || rcv.queue.has_gap() || rcv.duplicate.has_value());
}

/// As on Linux, the ACK of a FIN waits for our own FIN or data to ride on, unless we have closed before or no data
/// came.
void take_fin(Core& core, Nanos now) {
  core.rcv.fin = true;
  ++core.rcv.nxt;
  core.events |= kPeerClosed | kReadable;
  core.ack.interactive = true;
  const bool answers_data = core.state == State::established && core.counters.bytes_received != 0;
  schedule_ack(core, now, !answers_data || core.rcv.nxt - core.ack.last_sent > core.rcv.mss);
  if (core.state == State::established) enter(core, State::close_wait, now);
  if (core.state == State::fin_wait_1) enter(core, State::closing, now);
  if (core.state == State::fin_wait_2) enter(core, State::time_wait, now);
}

}  // namespace

void process_data(Core& core, const SegmentIn& in, const Options& options, Nanos now) {
  ReceiveSide& rcv = core.rcv;
  const Seq end = in.seq + static_cast<Seq>(in.payload.size());
  if (rcv.fin) {  // beyond the peer's FIN nothing counts
    if (!in.payload.empty() || (in.flags & kFin) != 0) core.ack.now = true;
    return;
  }
  if (core.app_gone && before(rcv.nxt, end)) {
    fail(core, ECONNRESET);
    SegmentOut out;  // 3.10.7.1: as if there were no connection
    out.seq = in.ack;
    out.flags = kRst;
    core.reset_due = out;
    return;
  }
  take_urgent(core, in);
  if (!in.payload.empty()) take_bytes(core, in, options, now);
  if ((in.flags & kFin) != 0 && (before(rcv.nxt, end) || rcv.queue.reaches_beyond(end))) core.ack.now = true;
  if ((in.flags & kFin) != 0 && !rcv.fin_known && at_or_before(rcv.nxt, end) && !rcv.queue.reaches_beyond(end)) {
    rcv.fin_known = true;
    rcv.fin_seq = end;
  }
  if (rcv.fin_known && rcv.nxt == rcv.fin_seq) take_fin(core, now);
}

}  // namespace ringsock::engine::tcp
