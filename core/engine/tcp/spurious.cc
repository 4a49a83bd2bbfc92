// Recoveries that were needless are undone: by timestamps (RFC 3522), DSACK (RFC 3708) and F-RTO (RFC 5682).
#include "core/engine/tcp/core.h"

namespace ringsock::engine::tcp {
namespace {

void undo(Core& core) {
  Recovery& recovery = core.recovery;
  core.window.cwnd = std::max(core.window.cwnd, recovery.prior.cwnd);
  core.window.ssthresh = std::max(core.window.ssthresh, recovery.prior.ssthresh);
  core.congestion->undo();
  if (!core.reduced) core.cwr_due = false;
  core.board.unmark_lost();
  recovery.phase = Phase::open;
  recovery.spurious = Recovery::Spurious::no;
  recovery.may_undo = false;
  recovery.duplicate_acks = recovery.duplicate_bytes = 0;
  ++core.counters.undone_recoveries;
}

/// Returns whether all that was repeated had arrived the first time.
bool was_needless(Core& core, const AckSummary& ack) {
  Recovery& recovery = core.recovery;
  if (!recovery.may_undo || recovery.repeats == 0) return false;
  const bool old_echo = ack.echo.value_or(0) != 0 && before(*ack.echo, recovery.first_repeat_stamp);
  if (ack.delivered.repeated && old_echo) {  // RFC 3522: the first copy was acknowledged
    recovery.reordering_seen |= recovery.phase == Phase::recovery;
    return true;
  }
  if (!ack.duplicate_sack || before(ack.duplicate_sack->begin, recovery.start) ||
      before(recovery.high, ack.duplicate_sack->end))
    return false;
  const std::uint32_t bytes = ack.duplicate_sack->end - ack.duplicate_sack->begin;
  recovery.repeats -= std::min(recovery.repeats, (bytes + core.full_mss() - 1) / core.full_mss());
  return recovery.repeats == 0;
}

/// RFC 5682, 3.1, and 2.1 without SACK: after a time-out, data that was never repeated arrives. The first ACK that
/// advances is answered by new data, for the second one to show whether the first was luck.
bool time_out_was_needless(Core& core, const AckSummary& ack) {
  Recovery& recovery = core.recovery;
  if (recovery.phase != Phase::loss || recovery.spurious == Recovery::Spurious::no) return false;
  const bool proves = core.sack || !ack.delivered.repeated;  // without SACK the repeat may have filled a gap
  if (proves && ack.delivered.fresh_end && at_or_before(*ack.delivered.fresh_end, recovery.high)) return true;
  if (recovery.spurious == Recovery::Spurious::second_ack) {
    if (ack.delivered.sacked || ack.duplicate) {
      recovery.spurious = Recovery::Spurious::no;
      recovery.repeat_at_once = true;
    }
  } else if (ack.delivered.acked_bytes != 0 && before(core.snd.una, recovery.high)) {
    const bool may_send = core.snd.unsent() != 0 && before(core.snd.nxt, core.snd.una + core.snd.wnd);
    recovery.spurious = may_send ? Recovery::Spurious::second_ack : Recovery::Spurious::no;
  } else if (ack.duplicate || ack.delivered.sacked) {
    recovery.spurious = Recovery::Spurious::no;
  }
  return false;
}

}  // namespace

void undo_needless(Core& core, const AckSummary& ack) {
  if (was_needless(core, ack) || time_out_was_needless(core, ack)) undo(core);
}

}  // namespace ringsock::engine::tcp
