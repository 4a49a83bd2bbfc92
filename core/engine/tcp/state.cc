// Changes of state that several parts need.
#include <cerrno>

#include "core/engine/tcp/core.h"

namespace ringsock::engine::tcp {

void start_connection(Core& core, Nanos now) {
  core.snd.buffer = core.set.send_bytes;
  core.rcv.buffer = core.set.receive_bytes;
  core.snd.queue = ByteQueue(core.set.mtu_payload > 4096 ? 16'384 : 4096, core.set.spare_chunks);
  core.rcv.queue.in_order = ByteQueue(4096, core.set.spare_chunks);
  core.congestion = make_congestion_control(core.set.algorithm);
  core.rcv.tuned_at = core.last_received = core.stalled_since = now;
}

void enter(Core& core, State state, Nanos now) {
  core.state = state;
  if (state == State::time_wait) {
    core.deadlines = {};
    core.deadlines.at[Deadlines::linger] = now + std::chrono::seconds(60);
    core.events |= kClosed;
  }
  if (state == State::fin_wait_2 && core.app_gone) core.deadlines.at[Deadlines::linger] = now + core.set.fin_wait_2;
  if (state == State::closed) {
    core.deadlines = {};
    core.events |= kClosed;
  }
}

void fail(Core& core, int error) {
  core.error = error;
  core.events |= kFailed | kReadable | kWritable;
  core.snd.queue.clear();
  core.board = {};
  core.snd.una = core.snd.end = core.snd.nxt;
  core.rcv.queue.drop_ranges();
  core.syn_due = core.probe_due = core.ack.now = false;
  enter(core, State::closed, Nanos{});
}

void reset_peer(Core& core, Nanos now) {
  SegmentOut out;
  out.seq = core.snd.nxt;
  out.ack = core.rcv.nxt;
  out.flags = kRst | kAck;
  if (core.timestamps) {  // RFC 7323, 3.2
    Options options;
    options.timestamps = true;
    options.ts_value = core.stamp(now);
    options.ts_echo = core.rcv.ts_recent;
    out.option_bytes = emit_options(options, out.options);
  }
  const bool told = core.state != State::closed && core.state != State::syn_sent && core.state != State::time_wait;
  const int error = core.error;
  fail(core, 0);
  core.error = error;
  core.rcv.queue.in_order.clear();
  if (told) core.reset_due = out;
}

void enter_established(Core& core, Nanos now) {
  core.snd.syn_acked = true;
  ++core.counters.delivered;
  // RFC 6928, 2, and RFC 6298, 5.7: the network has shown that it is slow or full.
  core.window.cwnd = core.retries > 1 ? core.full_mss() : initial_window(core.full_mss());
  if (core.retries != 0) core.rtt.distrust();
  core.retries = 0;
  core.deadlines.stop(Deadlines::rto);
  core.rtt.end_backoff();
  core.events |= kConnected | kWritable;
  enter(core, core.snd.fin_queued ? State::fin_wait_1 : State::established, now);
  touch_keepalive(core, now);
}

void schedule_ack(Core& core, Nanos now, bool at_once) {
  if (at_once) {
    core.ack.now = true;
  } else if (!core.deadlines.runs(Deadlines::ack)) {
    core.deadlines.at[Deadlines::ack] = now + AckPolicy::kDelay;
  }
}

void tell_writable(Core& core) {
  if (!core.has_room()) return;
  core.snd.blocked = false;
  core.events |= kWritable;
}

void challenge(Core& core, Nanos now) {
  if (core.ack.challenged && now - core.ack.last_challenge < kChallengePause) return;
  core.ack.challenged = true;
  core.ack.last_challenge = now;
  core.ack.now = true;
  ++core.counters.challenge_acks;
}

}  // namespace ringsock::engine::tcp
