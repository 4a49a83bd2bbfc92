// Loss recovery: RACK-TLP (RFC 8985), NewReno without SACK (RFC 6582), the window meanwhile (RFC 9937) and ECN.
#include <utility>

#include "core/engine/tcp/core.h"

namespace ringsock::engine::tcp {
void save_prior(Core& core) {
  Recovery& recovery = core.recovery;
  recovery.prior = core.window;
  recovery.may_undo = true;
  recovery.repeats = 0;
  recovery.first_repeat_stamp = 0;
  recovery.start = core.snd.una;
  recovery.high = core.snd.nxt;
}

void reduce(Core& core) {
  core.cwr_due = core.ecn;  // RFC 3168, 6.1.2: whatever the cause is
  core.window.ssthresh = core.congestion->reduced(core.window, core.full_mss());
}

namespace {

void enter_recovery(Core& core) {
  save_prior(core);
  if (!core.reduced) reduce(core);  // once for a window of data
  Recovery& recovery = core.recovery;
  recovery.probe_out = recovery.probe_repeats = false;
  const std::uint32_t flight = core.board.total_bytes() - core.board.sacked_bytes() + recovery.delivered_now;
  recovery.reduction.begin(flight - std::min(recovery.duplicate_bytes, flight));
  core.window.cwnd = core.in_flight() + core.full_mss();
  recovery.phase = Phase::recovery;
  recovery.repeat_at_once = true;
  core.deadlines.stop(Deadlines::tail_probe);
}

void leave_recovery(Core& core) {
  Recovery& recovery = core.recovery;
  recovery.guarded = !core.sack && core.snd.una == recovery.high;
  if (recovery.phase == Phase::recovery) core.window.cwnd = std::max(core.window.ssthresh, 2 * core.full_mss());
  recovery.phase = Phase::open;
  recovery.spurious = Recovery::Spurious::no;
  recovery.duplicate_acks = recovery.duplicate_bytes = 0;
  recovery.repeat_at_once = false;
  if (recovery.reordering_persists > 0 && --recovery.reordering_persists == 0) recovery.reordering_factor = 1;
}

/// RFC 6582 with the counting of RFC 3042.
void count_duplicates(Core& core, const AckSummary& ack) {
  Recovery& recovery = core.recovery;
  const std::uint32_t mss = core.full_mss();
  if (ack.duplicate) {
    if (recovery.phase == Phase::loss) return;  // they tell of what left before the time-out
    ++recovery.duplicate_acks;
    recovery.duplicate_bytes = std::min(recovery.duplicate_bytes + mss, core.board.total_bytes());
    if (recovery.phase == Phase::open && recovery.duplicate_acks == 3 && !recovery.guarded) {
      core.board.mark_first_lost();
      enter_recovery(core);
    }
    return;
  }
  const std::uint32_t acked = ack.delivered.acked_bytes;
  if (acked == 0) return;
  if (recovery.phase == Phase::open) recovery.duplicate_acks = recovery.duplicate_bytes = 0;
  recovery.duplicate_bytes -= std::min(recovery.duplicate_bytes, acked);
  if (recovery.phase == Phase::recovery && before(core.snd.una, recovery.high)) {
    core.board.mark_first_lost();
    recovery.repeat_at_once = true;
  }
}

/// What an ACK has delivered, in whole packets; a duplicate without SACK stands for a packet, once.
std::uint32_t delivered_bytes(const Core& core, const AckSummary& ack) {
  if (core.sack) return ack.delivered.packets * core.full_mss();
  if (ack.duplicate) return core.full_mss();
  return ack.delivered.acked_bytes - std::min(ack.delivered.acked_bytes, core.recovery.duplicate_bytes);
}

/// RFC 8985, 6.2, step 4: once in a round trip, for the time of 16 recoveries.
void widen_reordering(Core& core, const AckSummary& ack) {
  Recovery& recovery = core.recovery;
  if (recovery.in_dsack_round && at_or_before(recovery.dsack_round, core.snd.una)) recovery.in_dsack_round = false;
  if (!ack.duplicate_sack || recovery.in_dsack_round) return;
  recovery.in_dsack_round = true;
  recovery.dsack_round = core.snd.nxt;
  recovery.reordering_factor = std::min(recovery.reordering_factor + 1, 16);
  recovery.reordering_persists = 16;
}

/// RFC 8985, 7.4: the ACK of a repeated tail may be that of its first copy. A second answer says so, new data that is
/// acknowledged without one says that the probe has repaired a loss.
void judge_probe(Core& core, const AckSummary& ack) {
  Recovery& recovery = core.recovery;
  if (!recovery.probe_out || before(core.snd.una, recovery.probe_end)) return;
  const bool old_echo = ack.echo.value_or(0) != 0 && before(*ack.echo, recovery.probe_stamp);
  const bool needless = ack.duplicate_sack || ack.duplicate || old_echo;
  if (recovery.probe_repeats && !needless && core.snd.una == recovery.probe_end) return;
  recovery.probe_out = false;
  if (!std::exchange(recovery.probe_repeats, false) || needless || recovery.phase != Phase::open) return;
  save_prior(core);  // the probe has repaired a loss that nothing else has shown
  reduce(core);
  core.window.cwnd = core.window.ssthresh;
  recovery.may_undo = false;
}

/// RFC 7661, 4.2, as Linux reads it: in slow start half of the window is enough.
bool fills_window(const Core& core) {
  if (core.snd.cwnd_limited) return true;
  return core.window.in_slow_start() && core.window.cwnd < 2ull * core.snd.most_flight;
}

/// Grows by what has arrived: what was SACKed before has had its turn.
void grow_window(Core& core, const AckSummary& ack, Nanos now) {
  if (ack.delivered.acked_bytes == 0 || !fills_window(core)) return;
  if (core.reduced && core.recovery.phase == Phase::open) return;
  std::uint32_t acked = core.sack ? ack.delivered.bytes : core.recovery.delivered_now;
  CongestionWindow& window = core.window;
  if (window.ssthresh == UINT32_MAX) {
    window.cwnd += core.slow_start.grow(acked, ack.delivered.rtt, core.snd.una, core.snd.nxt);
    if (core.slow_start.ended()) window.ssthresh = window.cwnd;
    acked = 0;
  } else if (window.in_slow_start()) {
    const std::uint32_t step = std::min(acked, window.ssthresh - window.cwnd);
    window.cwnd += step;
    acked -= step;
  }
  if (acked != 0) core.congestion->avoid(window, acked, core.full_mss(), core.rtt.smoothed(), now);
  window.cwnd = std::min(window.cwnd, 1u << 30);
}

/// 6.2, step 4: until reordering was seen, three packets beyond a gap are proof enough.
Nanos reordering_window(const Core& core) {
  const Recovery& recovery = core.recovery;
  const bool proof = recovery.phase != Phase::open || core.board.has_sacked(3);
  if (!recovery.reordering_seen && proof) return Nanos{};
  return std::min(core.rtt.least() / 4 * recovery.reordering_factor, core.rtt.smoothed());
}

}  // namespace

void heed_echo(Core& core, const SegmentIn& in) {
  if (core.reduced && at_or_before(core.reduced_until, core.snd.una)) core.reduced = false;
  if (!core.ecn || (in.flags & kEce) == 0 || core.reduced) return;
  core.reduced = core.cwr_due = true;
  core.reduced_until = core.snd.nxt;
  if (core.recovery.phase != Phase::open) return;  // a loss has reduced it
  reduce(core);
  core.window.cwnd = core.window.ssthresh;
  ++core.counters.congestion_echoes;
}

void detect_losses(Core& core, Nanos now) {
  core.deadlines.stop(Deadlines::reordering);
  if (!core.sack || (core.board.sacked_bytes() == 0 && core.recovery.phase == Phase::open)) return;
  bool found = false;
  const Nanos wait = core.board.detect_losses(reordering_window(core), now, found);
  if (found && core.recovery.phase == Phase::open) enter_recovery(core);
  if (wait > Nanos{}) core.deadlines.at[Deadlines::reordering] = now + wait;
}

void recover(Core& core, const AckSummary& ack, Nanos now) {
  Recovery& recovery = core.recovery;
  if (ack.delivered.reordered && !recovery.reordering_seen) {
    recovery.reordering_seen = true;
    ++core.counters.reorderings;
  }
  widen_reordering(core, ack);
  const std::uint32_t losses = core.board.losses();
  // Without a gap nobody asks.
  const bool is_plain = core.sack && recovery.phase == Phase::open && core.board.sacked_bytes() == 0;
  recovery.delivered_now = is_plain ? 0 : delivered_bytes(core, ack);
  recovery.guarded = recovery.guarded && core.snd.una == recovery.high;
  judge_probe(core, ack);
  undo_needless(core, ack);
  const bool is_over = recovery.phase != Phase::open && at_or_before(recovery.high, core.snd.una);
  if (is_over) leave_recovery(core);
  if (recovery.phase != Phase::recovery) grow_window(core, ack, now);
  // RFC 5681, 4.3: a loss of what left after the first one is a second sign of congestion, though its repeat is out.
  if (is_over && core.sack && core.board.has_missing()) enter_recovery(core);
  if (!core.sack) count_duplicates(core, ack);
  if (ack.delivered.bytes != 0) detect_losses(core, now);  // the timer sees to the rest
  if (recovery.phase == Phase::recovery && recovery.delivered_now != 0)
    core.window.cwnd =
        recovery.reduction.window(recovery.delivered_now, core.in_flight(), core.window.ssthresh, core.full_mss(),
                                  ack.delivered.acked_bytes != 0 && losses == core.board.losses());
  recovery.delivered_now = 0;
  if (!core.board.empty() && (ack.delivered.bytes != 0 || ack.delivered.acked_bytes != 0))
    arm_retransmission(core, Arming::ack_came, now);
}

void enter_loss(Core& core, Nanos now) {
  Recovery& recovery = core.recovery;
  if (!core.board.empty() && core.board.front().sacked) core.board.forget_sacks();
  if (recovery.phase == Phase::open) {  // a recovery has saved and reduced the window already
    save_prior(core);
    if (!core.reduced) reduce(core);
  }
  recovery.high = core.snd.nxt;
  recovery.spurious = recovery.phase == Phase::open ? Recovery::Spurious::first_ack : Recovery::Spurious::no;
  recovery.phase = Phase::loss;
  recovery.duplicate_acks = recovery.duplicate_bytes = 0;
  recovery.probe_out = recovery.probe_due = recovery.probe_repeats = false;
  core.window.cwnd = core.full_mss();
  core.board.mark_timed_out(now);
  core.snd.cwnd_limited = true;
  core.deadlines.stop(Deadlines::reordering);
  core.deadlines.at[Deadlines::rto] = core.repeat_due(now);
}

/// Starts the time-out when data is in flight, and the tail loss probe before it (RFC 8985, 7.2).
void arm_retransmission(Core& core, Arming why, Nanos now) {
  Deadlines& deadlines = core.deadlines;
  deadlines.stop(Deadlines::tail_probe);
  if (core.board.empty()) return deadlines.stop(Deadlines::rto);
  if (!deadlines.runs(Deadlines::rto)) deadlines.at[Deadlines::rto] = core.repeat_due(now);
  const Recovery& recovery = core.recovery;
  if (!core.sack || recovery.phase != Phase::open || recovery.probe_out || core.board.sacked_bytes() != 0) return;
  Nanos wait = core.rtt.measured() ? 2 * core.rtt.smoothed() : std::chrono::seconds(1);
  wait += core.board.total_bytes() <= core.full_mss() ? RttEstimator::kLeastRto : std::chrono::milliseconds(2);
  Nanos latest = deadlines.at[Deadlines::rto];
  // As on Linux the time-out counts from when the first packet has left.
  if (const Nanos left = core.board.front().sent_at; why == Arming::data_left && left != now) {
    const Nanos time_out = left + core.rtt.rto();
    if (time_out > now) latest = std::min(latest, time_out);
  }
  deadlines.at[Deadlines::tail_probe] = std::min(now + wait, latest);
}

}  // namespace ringsock::engine::tcp
