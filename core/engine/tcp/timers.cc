// What happens when nothing happens.
#include <cerrno>

#include "core/engine/tcp/core.h"

namespace ringsock::engine::tcp {
namespace {

/// Linux's tcp_orphan_retries, and how long a closed socket keeps bytes for a peer with a closed window.
constexpr std::uint8_t kOrphanRetries = 8;
constexpr Nanos kOrphanPatience = std::chrono::seconds(120);

/// Returns whether a timer was due, and stops it.
bool take(Core& core, Deadlines::Kind kind, Nanos now) {
  if (core.deadlines.at[kind] > now) return false;
  core.deadlines.stop(kind);
  return true;
}

/// A peer that closes its window and answers is alive (RFC 9293, 3.8.6.1), but a closed socket does not wait for ever.
bool gave_up(const Core& core, Nanos now) {
  const Nanos stalled = now - core.stalled_since;
  if (core.set.user_timeout != Nanos{}) return stalled >= core.set.user_timeout;
  const bool closed_window = core.snd.wnd == 0;
  if (core.app_gone && (core.retries > kOrphanRetries || (closed_window && stalled >= kOrphanPatience))) return true;
  if (closed_window && !core.board.empty()) return now - core.last_received > RttEstimator::kMostRto;
  return core.retries > core.set.retries;
}

void repeat_syn(Core& core, Nanos now) {
  ++core.retries;
  const bool late = core.set.user_timeout != Nanos{} && now - core.stalled_since >= core.set.user_timeout;
  if (core.retries > core.set.syn_retries || late) return fail(core, ETIMEDOUT);
  core.rtt.back_off();
  core.syn_due = true;
}

void time_out(Core& core, Nanos now) {
  if (core.state == State::syn_sent || core.state == State::syn_received) return repeat_syn(core, now);
  if (core.board.empty()) return;
  ++core.retries;
  ++core.counters.time_outs;
  if (gave_up(core, now)) return fail(core, ETIMEDOUT);
  core.rtt.back_off();
  suspect_black_hole(core, now);
  enter_loss(core, now);
}

void probe_tail(Core& core, Nanos now) {
  if (core.board.empty()) return;
  core.recovery.probe_due = true;
  ++core.counters.loss_probes;
  core.deadlines.at[Deadlines::rto] = now + core.rtt.rto();
}

/// RFC 9293, 3.8.6.1. A window that is open but small takes what fits.
void probe_window(Core& core, Nanos now) {
  if (core.snd.unsent() == 0 || !core.board.empty()) return;
  ++core.retries;
  if (gave_up(core, now)) return fail(core, ETIMEDOUT);
  if (distance(core.snd.nxt, core.snd.una + core.snd.wnd) > 0)
    core.snd.send_small = true;
  else
    core.probe_due = true;
  core.rtt.back_off();
  core.deadlines.at[Deadlines::persist] = core.repeat_due(now);
}

/// RFC 9293, 3.8.4.
void probe_idle(Core& core, Nanos now) {
  if (!core.set.keepalive || !core.synchronized() || core.state == State::time_wait) return;
  const Nanos due = core.last_received + core.set.keepalive_idle;
  if (!core.board.empty() || core.snd.unsent() != 0 || now < due) {
    core.deadlines.at[Deadlines::keepalive] = due > now ? due : now + std::chrono::seconds(1);
    return;
  }
  const bool late = core.set.user_timeout != Nanos{}
                        ? now - core.last_received >= core.set.user_timeout && core.keepalive_probes > 0
                        : core.keepalive_probes >= core.set.keepalive_probes;
  if (late) {
    core.error = ETIMEDOUT;
    return reset_peer(core, now);
  }
  ++core.keepalive_probes;
  core.probe_due = true;
  core.deadlines.at[Deadlines::keepalive] = now + core.set.keepalive_interval;
}

}  // namespace

void touch_keepalive(Core& core, Nanos now) {
  if (!core.set.keepalive || !core.synchronized()) return core.deadlines.stop(Deadlines::keepalive);
  core.deadlines.at[Deadlines::keepalive] = std::max(now, core.last_received + core.set.keepalive_idle);
}

void run_timers(Core& core, Nanos now) {
  if (take(core, Deadlines::linger, now)) return enter(core, State::closed, now);
  if (take(core, Deadlines::ack, now)) {
    core.ack.now = true;
    core.ack.interactive = false;  // nobody has answered
  }
  if (take(core, Deadlines::cork, now)) core.snd.send_small = true;
  (void)take(core, Deadlines::pacing, now);
  if (take(core, Deadlines::reordering, now)) detect_losses(core, now);
  if (take(core, Deadlines::tail_probe, now)) probe_tail(core, now);
  if (take(core, Deadlines::rto, now)) time_out(core, now);
  if (take(core, Deadlines::persist, now)) probe_window(core, now);
  if (take(core, Deadlines::keepalive, now)) probe_idle(core, now);
}

}  // namespace ringsock::engine::tcp
