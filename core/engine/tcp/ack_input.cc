// The ACK of a segment: what it delivers, the peer's window, the ends of our stream.
#include "core/engine/tcp/core.h"

namespace ringsock::engine::tcp {
namespace {

/// RFC 2883, 4: the first block tells of a duplicate when it is acknowledged already, or lies in the second one.
bool reports_duplicate(const Core& core, const Options& options, Seq ack) {
  const SackBlock first = options.sack[0];
  if (!before(first.begin, first.end) || before(core.snd.nxt, first.end)) return false;
  if (at_or_before(first.end, ack)) return true;
  const SackBlock second = options.sack[1];
  return options.sack_count > 1 && at_or_before(second.begin, first.begin) && at_or_before(first.end, second.end);
}

void take_sacks(Core& core, const SegmentIn& in, const Options& options, AckSummary& out, Nanos now) {
  if (!core.sack || options.sack_count == 0) return;
  if (reports_duplicate(core, options, in.ack)) out.duplicate_sack = options.sack[0];
  if (out.duplicate_sack) ++core.counters.duplicate_sacks;
  for (std::size_t i = out.duplicate_sack ? 1 : 0; i < options.sack_count; ++i) {
    const auto [begin, end] = options.sack[i];
    if (!before(begin, end) || before(begin, core.snd.una) || before(core.snd.nxt, end)) continue;
    core.board.sack(begin, end, now, core.rtt.least(), out.delivered);
  }
}

/// RFC 9293: SND.WL1 and SND.WL2 keep an old segment from changing the window. Returns whether it has changed.
bool update_window(Core& core, const SegmentIn& in) {
  SendSide& snd = core.snd;
  const std::uint32_t window = std::uint32_t{in.window} << snd.scale;
  const bool newer = before(snd.wl1, in.seq) || (snd.wl1 == in.seq && at_or_before(snd.wl2, in.ack));
  if (!newer && in.ack == snd.una) return false;
  if (!newer && !before(snd.wl2, in.ack)) return false;
  const bool changed = snd.wnd != window;
  if (snd.wnd == 0 && window != 0 && core.deadlines.runs(Deadlines::persist)) {
    core.deadlines.stop(Deadlines::persist);
    core.rtt.end_backoff();  // of the probes
  }
  snd.wnd = window;
  snd.wl1 = in.seq;
  snd.wl2 = in.ack;
  snd.max_window = std::max(snd.max_window, window);
  return changed;
}

/// Takes acknowledged bytes out of the queue.
void advance(Core& core, Seq ack, Nanos now) {
  SendSide& snd = core.snd;
  const Seq end = snd.data_end();
  const bool fin = snd.fin_queued && !snd.fin_acked && ack == end + 1;
  const std::uint32_t bytes = ack - snd.una - (fin ? 1 : 0);
  snd.queue.drop_front(bytes);
  snd.una = ack;
  snd.fin_acked |= fin;
  if (snd.urgent && at_or_before(snd.urgent_end, ack)) snd.urgent = false;
  if (before(snd.small_end, ack)) snd.small_end = ack;
  core.counters.bytes_acked += bytes;
  core.stalled_since = now;
  core.retries = 0;
}

/// The send buffer follows the congestion window, unless the application has set it.
void tune_buffer(Core& core) {
  const std::uint32_t wanted = std::min(2 * core.window.cwnd, core.set.most_send_bytes);  // cwnd is at most 2^30
  core.snd.buffer = std::max(core.snd.buffer, wanted);
}

void sample_rtt(Core& core, const AckSummary& ack, Nanos now) {
  // What arrived long before its ACK, which a gap held back, comes with a repeated piece.
  const Nanos acked = ack.delivered.repeated ? Nanos(-1) : ack.delivered.acked_rtt;
  if (const Nanos rtt = acked >= Nanos(0) ? acked : ack.delivered.sacked_rtt; rtt >= Nanos(0)) {
    core.rtt.sample(rtt, core.snd.una, core.snd.nxt);
    if (ack.delivered.rtt != rtt) core.rtt.note_least(ack.delivered.rtt);
  } else if (ack.delivered.acked_bytes != 0 && ack.echo.value_or(0) != 0) {
    const std::int32_t units = distance(*ack.echo, core.stamp(now));
    if (units >= 0) core.rtt.sample(kTimestampUnit * std::max(units, 1), core.snd.una, core.snd.nxt);
  }
}

/// Our FIN was acknowledged.
void after_fin(Core& core, Nanos now) {
  if (core.state == State::fin_wait_1) enter(core, State::fin_wait_2, now);
  if (core.state == State::closing) enter(core, State::time_wait, now);
  if (core.state == State::last_ack) enter(core, State::closed, now);
}

}  // namespace

void process_ack(Core& core, const SegmentIn& in, const Options& options, Nanos now) {
  SendSide& snd = core.snd;
  AckSummary ack;
  if (core.timestamps && options.timestamps) ack.echo = options.ts_echo;
  if (before(in.ack, snd.una)) return;
  const bool window_changed = update_window(core, in);
  ack.duplicate = in.ack == snd.una && in.payload.empty() && (in.flags & kFin) == 0 && !window_changed;
  core.retries = core.board.empty() ? std::uint8_t{0} : core.retries;  // an answer to a probe
  const bool was_limited = snd.cwnd_limited;
  if (in.ack != snd.una) {
    core.board.acknowledge(in.ack, now, core.rtt.least(), ack.delivered);
    advance(core, in.ack, now);
    if (ack.delivered.acked_bytes != 0) core.deadlines.stop(Deadlines::rto);  // recover() starts it again
  }
  take_sacks(core, in, options, ack, now);
  core.counters.delivered += ack.delivered.packets;
  sample_rtt(core, ack, now);
  heed_echo(core, in);
  snd.cwnd_limited = was_limited;
  if (!core.board.empty() || ack.delivered.acked_bytes != 0 || core.recovery.probe_out || ack.duplicate_sack)
    recover(core, ack, now);
  if (ack.delivered.acked_bytes != 0) {
    tune_buffer(core);
    if (core.board.empty()) arm_retransmission(core, Arming::ack_came, now);
  }
  if (snd.blocked) tell_writable(core);
  if (snd.fin_acked) after_fin(core, now);
}

}  // namespace ringsock::engine::tcp
