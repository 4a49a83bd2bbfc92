#include "core/engine/tcp/connection.h"

#include <bit>
#include <cerrno>
#include <utility>

#include "core/engine/tcp/core.h"
#include "core/engine/tcp/lending.h"

namespace ringsock::engine::tcp {
namespace {

/// The smallest shift with which the largest buffer fits into the window field.
std::uint8_t scale_for(const Settings& set) {
  if (!set.window_scaling) return 0;
  std::uint8_t scale = 0;
  while (scale < 14 && (std::max(set.receive_bytes, set.most_receive_bytes) >> scale) > 65'535) ++scale;
  return scale;
}

bool is_possible(const Established& state) {
  const auto sent = distance(state.snd_una, state.snd_nxt);
  return sent >= 0 && static_cast<std::size_t>(sent) <= state.send_queue.size() && state.snd_scale <= 14 &&
         state.rcv_scale <= 14 && state.mss >= kLeastMss && state.send_queue.size() < (1u << 30) &&
         state.receive_queue.size() < (1u << 30) && distance(state.rcv_wup, state.rcv_nxt) >= 0 &&
         state.rcv_wnd <= (1u << 30) && state.snd_wnd <= (1u << 30) &&
         (state.window_scaling || (state.snd_scale == 0 && state.rcv_scale == 0));
}

void restore_send(Core& core, const Established& state) {
  SendSide& snd = core.snd;
  snd.syn_acked = true;
  snd.iss = state.snd_una - 1;
  snd.una = snd.wl2 = snd.small_end = state.snd_una;
  snd.nxt = state.snd_nxt;
  snd.wnd = state.snd_wnd;
  snd.wl1 = state.snd_wl1;
  snd.max_window = std::max(state.max_window, state.snd_wnd);
  snd.mss = state.mss;
  snd.scale = state.snd_scale;
  snd.queue.append(state.send_queue);
  snd.end = state.snd_una + static_cast<Seq>(state.send_queue.size());
}

void restore_receive(Core& core, const Established& state, Nanos now) {
  ReceiveSide& rcv = core.rcv;
  rcv.nxt = state.rcv_nxt;
  rcv.irs = state.rcv_nxt - 1;
  rcv.wup = state.rcv_wup;
  rcv.wnd = state.rcv_wnd;
  rcv.scale = state.rcv_scale;
  rcv.ts_recent = state.ts_recent;
  rcv.ts_recent_at = now;
  rcv.fin = rcv.fin_known = state.peer_closed;
  rcv.fin_seq = state.rcv_nxt - 1;
  rcv.buffer = std::max(rcv.buffer, static_cast<std::uint32_t>(state.receive_queue.size()) + state.rcv_wnd);
  rcv.queue.in_order.append(state.receive_queue);
  core.ack.last_sent = state.rcv_wup;
}

/// What read() may take: bytes to pass over, and bytes behind them up to the mark.
struct Readable {
  std::size_t skip = 0;
  std::size_t bytes = 0;
};

Readable readable_now(const Core& core) {
  const ReceiveSide& rcv = core.rcv;
  const std::size_t size = rcv.queue.in_order.size();
  if (!rcv.urgent) return {0, size};
  const std::size_t mark = rcv.urgent_seq - rcv.read_seq();
  if (mark >= size) return {0, size};
  if (mark != 0) return {0, mark};
  return core.set.urgent_inline ? Readable{0, size} : Readable{1, size - 1};
}

/// RFC 9293, 3.8.6.2.2: tells the peer of a window that has opened by much. As on Linux: of one that was less than half
/// of the buffer and is twice as large now; data that comes is acknowledged with the window anyway.
void tell_window(Core& core, Nanos now) {
  if (!core.synchronized() || core.rcv.fin || core.state == State::time_wait) return;
  const std::uint32_t free = free_window(core);
  const std::uint32_t left = core.rcv.left();
  const std::uint32_t step = std::min<std::uint32_t>(2u * core.rcv.mss, core.rcv.buffer / 2);
  if (free >= left + step && free >= 2 * left && 2 * left <= core.rcv.buffer) schedule_ack(core, now, true);
}

/// The buffer follows what the application reads in a round trip, twice over for a sender in slow start.
void tune_receive(Core& core, std::size_t bytes, Nanos now) {
  ReceiveSide& rcv = core.rcv;
  rcv.read_since += bytes;
  const Nanos rtt = rcv.rtt != Nanos{} ? rcv.rtt : core.rtt.measured() ? core.rtt.smoothed() : AckPolicy::kDelay;
  if (now - rcv.tuned_at < rtt) return;
  const std::uint64_t wanted = 2 * rcv.read_since + 16ull * rcv.mss;
  const std::uint32_t most = std::min(core.set.most_receive_bytes, 65'535u << rcv.scale);
  if (wanted > rcv.buffer && rcv.buffer < most)
    rcv.buffer = static_cast<std::uint32_t>(std::min<std::uint64_t>(wanted, most));
  rcv.read_since = 0;
  rcv.tuned_at = now;
}

/// `bytes` have left the queue.
void note_taken(Core& core, std::size_t bytes, Nanos now) {
  ReceiveSide& rcv = core.rcv;
  if (rcv.urgent && before(rcv.urgent_seq, rcv.read_seq())) rcv.urgent = false;
  tune_receive(core, bytes, now);
}

void take_bytes(Core& core, std::size_t bytes, Nanos now) {
  core.rcv.queue.in_order.drop_front(bytes);
  note_taken(core, bytes, now);
  tell_window(core, now);
}

void limit(Settings& set) {
  set.mtu_payload = std::max<std::uint16_t>(set.mtu_payload, kLeastMss);
  if (set.most_mss != 0) set.most_mss = std::max(set.most_mss, kLeastMss);
  set.receive_bytes = std::clamp<std::uint32_t>(set.receive_bytes, 2048, 1u << 30);
  set.send_bytes = std::clamp<std::uint32_t>(set.send_bytes, 2048, 1u << 30);
}

/// The way has become too short for what is in flight.
void shorten_packets(Core& core) {
  if (!core.synchronized() || core.board.empty()) return;
  core.board.mark_longer_lost(core.full_mss());  // too long for the path: not a sign of congestion
  core.recovery.repeat_at_once = true;
}

Result<std::size_t> append(Core& core, std::span<const std::byte> bytes, Nanos now) {
  SendSide& snd = core.snd;
  const bool open = core.state == State::syn_sent || core.state == State::syn_received ||
                    core.state == State::established || core.state == State::close_wait;
  if (!open || snd.fin_queued)
    return Error{snd.iss == 0 && snd.una == 0 && !snd.syn_acked ? ENOTCONN : EPIPE, "tcp: write"};
  const std::size_t room = snd.buffer > snd.queue.size() ? snd.buffer - snd.queue.size() : 0;
  const std::size_t count = std::min(room, bytes.size());
  if (snd.queue.empty()) core.stalled_since = now;
  snd.queue.append(bytes.first(count));
  snd.end += static_cast<Seq>(count);
  if (count < bytes.size() || !core.has_room()) snd.blocked = true;
  return count;
}

}  // namespace

TcpConnection::TcpConnection(const Settings& settings) : core_(std::make_unique<Core>(settings)) { limit(core_->set); }
TcpConnection::~TcpConnection() = default;
TcpConnection::TcpConnection(TcpConnection&&) noexcept = default;
TcpConnection& TcpConnection::operator=(TcpConnection&&) noexcept = default;

Status TcpConnection::begin(const Established& state, Nanos now) {
  if (!is_possible(state)) return Error{EINVAL, "tcp: begin"};
  Core& core = *core_;
  start_connection(core, now);
  core.window_scaling = state.window_scaling;
  core.sack = state.sack;
  core.timestamps = state.timestamps;
  core.ecn = state.ecn;
  core.stamp_offset = state.timestamp_now - static_cast<std::uint32_t>(now / kTimestampUnit);
  restore_send(core, state);
  restore_receive(core, state, now);
  core.rcv.mss = static_cast<std::uint16_t>(std::min<std::uint32_t>(core.full_mss(), kDefaultMss));
  core.window.cwnd = initial_window(core.full_mss());
  core.state = state.peer_closed ? State::close_wait : State::established;
  core.events = kConnected | kWritable;
  core.snd.blocked = !core.has_room();
  if (!state.receive_queue.empty() || state.peer_closed) core.events |= kReadable;
  if (const std::uint32_t flight = state.snd_nxt - state.snd_una; flight != 0)
    core.board.add(state.snd_una, flight, static_cast<std::uint16_t>(core.full_mss()), now);
  arm_retransmission(core, Arming::ack_came, now);
  touch_keepalive(core, now);
  core.ack.now = core.ack.last_sent != core.rcv.nxt;
  return {};
}

void TcpConnection::connect(Seq initial, Nanos now) {
  Core& core = *core_;
  start_connection(core, now);
  core.stamp_offset = std::rotl(initial, 11) * 2'654'435'761u;
  core.snd.iss = core.snd.una = core.snd.nxt = core.snd.small_end = initial;
  core.snd.end = initial + 1;
  core.rcv.scale = scale_for(core.set);
  core.state = State::syn_sent;
  core.syn_due = true;
}

Status TcpConnection::accept(const SegmentIn& syn, Seq initial, Nanos now) {
  if ((syn.flags & (kSyn | kAck | kRst | kFin)) != kSyn) return Error{EINVAL, "tcp: accept"};
  Core& core = *core_;
  connect(initial, now);
  core.ecn = core.set.ecn && (syn.flags & (kEce | kCwr)) == (kEce | kCwr);
  SegmentIn plain = syn;
  plain.payload = {};
  process_segment(core, plain, now);
  return {};
}

void TcpConnection::segment(const SegmentIn& in, Nanos now) { process_segment(*core_, in, now); }
std::optional<SegmentOut> TcpConnection::next_segment(Nanos now) {
  if (has_nothing_to_send(*core_)) return std::nullopt;
  std::optional<SegmentOut> out(std::in_place);
  if (!produce_segment(*core_, *out, now)) out.reset();
  return out;
}
void TcpConnection::timers(Nanos now) { run_timers(*core_, now); }
Nanos TcpConnection::next_timer() const { return core_->deadlines.first(); }

void TcpConnection::packet_too_big(std::uint16_t mtu_payload, Seq seq, Nanos) {
  Core& core = *core_;
  if (!core.synchronized() || before(seq, core.snd.una) || !before(seq, core.snd.nxt)) return;
  mtu_payload = std::max<std::uint16_t>(mtu_payload, 512);
  if (mtu_payload >= core.set.mtu_payload) return;
  core.set.mtu_payload = mtu_payload;
  shorten_packets(core);
}

Result<std::size_t> TcpConnection::write(std::span<const std::byte> bytes, Nanos now) {
  return append(*core_, bytes, now);
}

Result<std::size_t> TcpConnection::write_urgent(std::span<const std::byte> bytes, Nanos now) {
  auto count = append(*core_, bytes, now);
  if (!count || *count == 0) return count;
  core_->snd.urgent = true;
  core_->snd.urgent_end = core_->snd.data_end();
  return count;
}

void TcpConnection::more_follows(bool more) {
  core_->snd.more = more;
  if (!more && !core_->set.cork) core_->deadlines.stop(Deadlines::cork);
}

std::size_t TcpConnection::room() const {
  const SendSide& snd = core_->snd;
  return snd.buffer > snd.queue.size() ? snd.buffer - snd.queue.size() : 0;
}

bool TcpConnection::is_writable() const {
  const bool open = core_->state == State::established || core_->state == State::close_wait;
  if (!open || core_->snd.fin_queued) return core_->state != State::syn_sent && core_->state != State::syn_received;
  return core_->has_room();
}

std::size_t TcpConnection::readable() const { return readable_now(*core_).bytes; }

std::size_t TcpConnection::read(std::span<std::byte> out, Nanos now) {
  const Readable now_readable = readable_now(*core_);
  const std::size_t count = peek(out);
  if (count != 0 || (now_readable.skip != 0 && !out.empty())) take_bytes(*core_, now_readable.skip + count, now);
  return count;
}

std::size_t TcpConnection::peek(std::span<std::byte> out, std::size_t offset) const {
  const Readable now = readable_now(*core_);
  if (offset >= now.bytes) return 0;
  out = out.first(std::min(out.size(), now.bytes - offset));
  return core_->rcv.queue.in_order.copy(now.skip + offset, out);
}

void TcpConnection::consume(std::size_t bytes, Nanos now) {
  const Readable limits = readable_now(*core_);
  if (bytes != 0) take_bytes(*core_, limits.skip + std::min(bytes, limits.bytes), now);
}

ByteQueue::Piece Lending::lend(std::size_t most, Nanos now) {
  const Readable limits = readable_now(core_);
  if (limits.bytes == 0 || most == 0) return {};
  if (limits.skip != 0) take_bytes(core_, limits.skip, now);
  auto piece = core_.rcv.queue.in_order.take_front(std::min(most, limits.bytes));
  core_.rcv.lent += piece.bytes.size();
  note_taken(core_, piece.bytes.size(), now);
  return piece;
}

void Lending::put_front(std::span<const std::byte> bytes) { core_.rcv.queue.in_order.put_front(bytes); }

void Lending::take_back(std::size_t bytes, Nanos now) {
  core_.rcv.lent -= std::min(bytes, core_.rcv.lent);
  tell_window(core_, now);
}

bool TcpConnection::at_end() const {
  const bool ended = core_->rcv.fin || core_->state == State::closed;
  return ended && readable_now(*core_).bytes == 0;
}

bool TcpConnection::has_peers_end() const { return core_->rcv.fin && readable_now(*core_).bytes == 0; }

void TcpConnection::shutdown_send(Nanos now) {
  Core& core = *core_;
  if (core.snd.fin_queued) return;
  if (core.state == State::syn_sent) return enter(core, State::closed, now);
  core.snd.fin_queued = true;
  if (core.state == State::established) enter(core, State::fin_wait_1, now);
  if (core.state == State::close_wait) enter(core, State::last_ack, now);
}

void TcpConnection::close(Nanos now) {
  Core& core = *core_;
  core.app_gone = true;
  if (!core.rcv.queue.in_order.empty() && core.state != State::closed) return reset_peer(core, now);
  shutdown_send(now);
  if (core.state == State::fin_wait_2) enter(core, State::fin_wait_2, now);
}

void TcpConnection::abort(Nanos now) {
  const State state = core_->state;
  if (state == State::closed) return;
  reset_peer(*core_, now);
  // RFC 9293, 3.10.5: both FINs are out, and the peer has nothing left to lose.
  if (state == State::closing || state == State::last_ack) core_->reset_due.reset();
}

void TcpConnection::set_quick_ack(bool quick, Nanos) {
  AckPolicy& ack = core_->ack;
  ack.interactive = !quick;
  ack.quick_left = quick ? AckPolicy::kQuickAcks : 0;
  if (quick && core_->deadlines.runs(Deadlines::ack)) ack.now = true;
}

bool TcpConnection::at_mark() const { return core_->rcv.urgent && core_->rcv.urgent_seq == core_->rcv.read_seq(); }

bool TcpConnection::has_urgent_byte() const {
  const ReceiveSide& rcv = core_->rcv;
  return rcv.urgent && !rcv.urgent_taken && rcv.urgent_seq - rcv.read_seq() < rcv.queue.in_order.size();
}

Result<std::byte> TcpConnection::read_urgent(bool peek) {
  ReceiveSide& rcv = core_->rcv;
  if (!rcv.urgent || rcv.urgent_taken || core_->set.urgent_inline) return Error{EINVAL, "tcp: urgent"};
  std::byte byte{};
  if (rcv.queue.in_order.copy(rcv.urgent_seq - rcv.read_seq(), {&byte, 1}) == 0) return Error{EAGAIN, "tcp: urgent"};
  if (!peek) rcv.urgent_taken = true;
  return byte;
}

State TcpConnection::state() const { return core_->state; }
std::uint8_t TcpConnection::take_events() { return std::exchange(core_->events, std::uint8_t{0}); }
int TcpConnection::error() const { return core_->error; }
int TcpConnection::take_error() { return std::exchange(core_->error, 0); }
std::size_t TcpConnection::unacked() const { return core_->snd.queue.size(); }
std::size_t TcpConnection::unsent() const { return core_->snd.unsent(); }
const Settings& TcpConnection::settings() const { return core_->set; }

void TcpConnection::set(const Settings& settings, Nanos now) {
  Core& core = *core_;
  const Settings old = std::exchange(core.set, settings);
  limit(core.set);
  if (old.send_bytes != core.set.send_bytes) {
    core.snd.buffer = core.set.send_bytes;
    core.set.most_send_bytes = core.set.send_bytes;
  }
  if (old.receive_bytes != core.set.receive_bytes) {
    core.rcv.buffer = core.set.receive_bytes;
    core.set.most_receive_bytes = core.set.receive_bytes;
  }
  if ((core.set.nodelay && !old.nodelay) || (old.cork && !core.set.cork)) {  // Linux: what waits leaves now
    core.deadlines.stop(Deadlines::cork);
    core.snd.send_small = core.snd.unsent() != 0 && !core.set.cork;
  }
  if (core.set.mtu_payload < old.mtu_payload) shorten_packets(core);
  if (core.set.algorithm != old.algorithm && core.congestion)
    core.congestion = make_congestion_control(core.set.algorithm);
  if (core.synchronized()) touch_keepalive(core, now);
}

Info TcpConnection::info() const {
  const Core& core = *core_;
  Info info = core.counters;
  info.state = core.state;
  info.backoff = core.rtt.backoff();
  info.retransmits = core.retries;
  info.snd_scale = core.snd.scale;
  info.rcv_scale = core.rcv.scale;
  info.sack = core.sack;
  info.timestamps = core.timestamps;
  info.window_scaling = core.window_scaling;
  info.ecn = core.ecn;
  info.in_recovery = core.recovery.phase == Phase::recovery;
  info.in_loss = core.recovery.phase == Phase::loss;
  info.reduced = core.reduced;
  info.rto = core.rtt.rto();
  info.srtt = core.rtt.smoothed();
  info.rttvar = core.rtt.variation();
  info.min_rtt = core.rtt.least();
  info.pacing_rate = pacing_rate(core);
  info.snd_mss = core.full_mss();
  info.rcv_mss = core.rcv.mss;
  info.cwnd_bytes = core.window.cwnd;
  info.ssthresh_bytes = core.window.ssthresh;
  info.in_flight_bytes = core.in_flight();
  info.sacked_bytes = core.board.sacked_bytes();
  info.lost_bytes = core.board.lost_bytes();
  info.unacked_bytes = core.board.total_bytes();
  info.repeated_bytes = core.board.repeated_bytes();
  info.missing_bytes = info.lost_bytes + (core.recovery.phase == Phase::open ? 0 : info.repeated_bytes);
  info.unsent_bytes = core.snd.unsent();
  info.unread_bytes = static_cast<std::uint32_t>(core.rcv.queue.in_order.size());
  info.snd_wnd = core.snd.wnd;
  info.rcv_wnd = core.rcv.left();
  info.memory_bytes = static_cast<std::uint32_t>(sizeof core + core.snd.queue.memory_bytes() +
                                                 core.rcv.queue.memory_bytes() + core.board.memory_bytes());
  return info;
}

Result<Established> TcpConnection::save(Nanos now) {
  Core& core = *core_;
  const bool open = core.state == State::established || core.state == State::close_wait;
  if (!open || core.snd.fin_queued || core.snd.urgent) return Error{EBUSY, "tcp: save"};
  Established state;
  state.snd_una = core.snd.una;
  state.snd_nxt = core.snd.nxt;
  state.rcv_nxt = core.rcv.nxt;
  state.snd_wnd = core.snd.wnd;
  state.snd_wl1 = core.snd.wl1;
  state.max_window = core.snd.max_window;
  state.rcv_wnd = core.rcv.wnd;
  state.rcv_wup = core.rcv.wup;
  state.mss = core.snd.mss;
  state.snd_scale = core.snd.scale;
  state.rcv_scale = core.rcv.scale;
  state.window_scaling = core.window_scaling;
  state.sack = core.sack;
  state.timestamps = core.timestamps;
  state.ecn = core.ecn;
  state.peer_closed = core.rcv.fin;
  state.timestamp_now = core.stamp(now);
  state.ts_recent = core.rcv.ts_recent;
  state.send_queue.resize(core.snd.queue.size());
  core.snd.queue.copy(0, state.send_queue);
  state.receive_queue.resize(core.rcv.queue.in_order.size());
  core.rcv.queue.in_order.copy(0, state.receive_queue);
  // The mark is lost, and the byte with it: it is not part of the stream.
  const std::size_t mark = core.rcv.urgent_seq - core.rcv.read_seq();
  if (core.rcv.urgent && !core.set.urgent_inline && mark < state.receive_queue.size())
    state.receive_queue.erase(state.receive_queue.begin() + static_cast<std::ptrdiff_t>(mark));
  return state;
}

}  // namespace ringsock::engine::tcp
