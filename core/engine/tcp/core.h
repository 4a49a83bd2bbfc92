// The parts of a connection, for the files of this folder only.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "core/engine/tcp/byte_queue.h"
#include "core/engine/tcp/congestion.h"
#include "core/engine/tcp/options.h"
#include "core/engine/tcp/prr.h"
#include "core/engine/tcp/receive_queue.h"
#include "core/engine/tcp/rtt.h"
#include "core/engine/tcp/scoreboard.h"
#include "core/engine/tcp/segment.h"
#include "core/engine/tcp/settings.h"
#include "core/engine/tcp/slow_start.h"

namespace ringsock::engine::tcp {

inline constexpr std::uint16_t kDefaultMss = 536;
inline constexpr std::uint16_t kLeastMss = 48;
/// Between answers to segments that may be forged (RFC 5961, 7).
inline constexpr Nanos kChallengePause = std::chrono::milliseconds(500);
inline constexpr Nanos kTimestampUnit = std::chrono::milliseconds(1);

/// The sending half (RFC 9293, 3.3.1: SND.*).
struct SendSide {
  Seq iss = 0;
  Seq una = 0;
  Seq nxt = 0;
  Seq end = 0;  ///< behind the last byte of the queue
  std::uint32_t wnd = 0;
  Seq wl1 = 0;
  Seq wl2 = 0;
  std::uint32_t max_window = 0;
  std::uint16_t mss = kDefaultMss;  ///< what the peer takes, without options
  std::uint8_t scale = 0;
  Seq small_end = 0;  ///< end of the last segment that was not full (Minshall's variant of Nagle)
  Seq urgent_end = 0;
  bool urgent = false;
  bool syn_acked = false;
  bool fin_queued = false;
  bool fin_acked = false;
  bool more = false;     ///< MSG_MORE
  bool blocked = false;  ///< the application may wait for room (Core::has_room())
  bool cwnd_limited = false;
  std::uint32_t most_flight = 0;  ///< bytes that were unacknowledged at once, in the round that ends at most_flight_end
  Seq most_flight_end = 0;
  bool asked_ecn = false;    ///< by our SYN
  bool syn_again = false;    ///< the peer asked for our SYN again: which one it answers is not known
  bool send_small = false;   ///< the next piece leaves whatever its length
  std::uint32_t buffer = 0;  ///< bytes of queue
  Nanos last_sent{};
  ByteQueue queue;

  [[nodiscard]] Seq data_start() const { return end - static_cast<Seq>(queue.size()); }
  [[nodiscard]] Seq data_end() const { return end; }
  [[nodiscard]] Seq next_data() const { return syn_acked ? nxt : iss + 1; }
  [[nodiscard]] bool fin_sent() const { return before(end, nxt); }
  [[nodiscard]] std::uint32_t unsent() const {
    const std::int32_t bytes = distance(next_data(), end);
    return bytes > 0 ? static_cast<std::uint32_t>(bytes) : 0;
  }
};

/// The receiving half (RCV.*).
struct ReceiveSide {
  Seq irs = 0;
  Seq nxt = 0;
  Seq wup = 0;  ///< nxt when the window was told
  std::uint32_t wnd = 0;
  std::uint8_t scale = 0;
  std::uint32_t buffer = 0;
  std::uint16_t mss = kDefaultMss;  ///< largest packet so far: a narrow path makes them shorter than the MSS
  std::uint32_t ts_recent = 0;
  Nanos ts_recent_at{};
  bool fin = false;  ///< in order
  bool fin_known = false;
  Seq fin_seq = 0;
  bool urgent = false;  ///< the mark is ahead of the reader, or at it
  bool urgent_taken = false;
  Seq urgent_seq = 0;  ///< of the urgent byte
  bool echo_ce = false;
  std::optional<SackBlock> duplicate;  ///< to be reported once (RFC 2883)
  ReceiveQueue queue;
  Nanos rtt{};  ///< as seen by the timestamps of data; 0 unknown
  Nanos tuned_at{};
  std::uint64_t read_since = 0;
  std::size_t lent = 0;  ///< bytes that the application has read, and that still take room of the buffer

  [[nodiscard]] Seq read_seq() const { return nxt - (fin ? 1 : 0) - static_cast<Seq>(queue.in_order.size()); }
  /// Bytes of the window as told that are left.
  [[nodiscard]] std::uint32_t left() const {
    const auto bytes = distance(nxt, wup + wnd);
    return bytes > 0 ? static_cast<std::uint32_t>(bytes) : 0;
  }
};

/// When acknowledgements leave.
struct AckPolicy {
  static constexpr Nanos kDelay = std::chrono::milliseconds(40);
  static constexpr int kQuickAcks = 16;
  bool now = false;
  bool interactive = false;  ///< the application answers: acknowledgements ride on data
  int quick_left = kQuickAcks;
  Seq last_sent = 0;
  Nanos last_data{};       ///< when data came last
  Nanos last_challenge{};  ///< or an answer to a segment outside the window
  bool challenged = false;
};

enum class Phase : std::uint8_t { open, recovery, loss };

/// Loss recovery beside the scoreboard.
struct Recovery {
  Phase phase = Phase::open;
  Seq high = 0;  ///< recovery ends when this is acknowledged
  std::uint32_t duplicate_acks = 0;
  std::uint32_t duplicate_bytes = 0;  ///< without SACK: what the duplicate ACKs stand for
  bool repeat_at_once = false;
  bool reordering_seen = false;
  int reordering_factor = 1;  ///< quarters of the least RTT
  // Undo.
  bool may_undo = false;
  CongestionWindow prior;
  std::uint32_t repeats = 0;
  std::uint32_t first_repeat_stamp = 0;
  Seq start = 0;  ///< SND.UNA when it began
  RateReduction reduction;
  std::uint32_t delivered_now = 0;  ///< bytes that the ACK in hand has delivered
  // F-RTO (RFC 5682).
  enum class Spurious : std::uint8_t { no, first_ack, second_ack } spurious = Spurious::no;
  // How long a wider reordering window lasts (RFC 8985, 6.2, step 4).
  int reordering_persists = 0;
  bool in_dsack_round = false;
  Seq dsack_round = 0;
  bool guarded = false;  ///< without SACK: it ended at exactly `high`, whose duplicates tell nothing (RFC 6582, 4)
  // Tail loss probe.
  bool probe_out = false;
  bool probe_repeats = false;
  bool probe_due = false;
  Seq probe_end = 0;
  std::uint32_t probe_stamp = 0;
};

/// Deadlines; Nanos::max() is off.
struct Deadlines {
  enum Kind : std::uint8_t { rto, tail_probe, reordering, ack, persist, keepalive, linger, cork, pacing, count };
  std::array<Nanos, count> at;
  Deadlines() { at.fill(Nanos::max()); }
  void stop(Kind kind) { at[kind] = Nanos::max(); }
  [[nodiscard]] bool runs(Kind kind) const { return at[kind] != Nanos::max(); }
  [[nodiscard]] Nanos first() const { return *std::min_element(at.begin(), at.end()); }
};

/// All of a connection. Input, output and timers are functions over it.
struct Core {
  explicit Core(const Settings& wanted) : set(wanted) {}

  Settings set;
  State state = State::closed;
  std::uint8_t events = 0;
  int error = 0;
  bool app_gone = false;
  bool window_scaling = false;
  bool sack = false;
  bool timestamps = false;
  bool ecn = false;
  std::uint32_t stamp_offset = 0;
  SendSide snd;
  ReceiveSide rcv;
  Scoreboard board;
  RttEstimator rtt;
  CongestionWindow window;
  HyStart slow_start;
  std::unique_ptr<CongestionControl> congestion;
  Recovery recovery;
  AckPolicy ack;
  Deadlines deadlines;
  Info counters{};  ///< only its counters are kept up to date
  bool syn_due = false;
  bool probe_due = false;  ///< of a closed window or of keepalive
  std::optional<SegmentOut> reset_due;
  bool reduced = false;  ///< for congestion that the peer has echoed, until SND.UNA is at reduced_until
  Seq reduced_until = 0;
  bool cwr_due = false;          ///< the next new data tells so
  std::uint16_t path_limit = 0;  ///< as mtu_payload, found by black-hole detection; 0: none
  Nanos path_limit_until{};
  Nanos path_limit_pause = std::chrono::seconds(600);
  Nanos paced_until{};
  std::uint8_t retries = 0;  ///< time-outs or probes without an answer
  std::uint8_t keepalive_probes = 0;
  Nanos stalled_since{};  ///< since when nothing was acknowledged
  Nanos last_received{};

  [[nodiscard]] std::uint32_t stamp(Nanos now) const {
    return stamp_offset + static_cast<std::uint32_t>(now / kTimestampUnit);
  }
  [[nodiscard]] bool synchronized() const { return state >= State::established; }
  [[nodiscard]] bool may_send_data() const {
    return synchronized() && state != State::fin_wait_2 && state != State::time_wait;
  }
  [[nodiscard]] std::uint32_t path_mss() const {
    std::uint32_t mss = std::min(snd.mss, set.mtu_payload);
    if (path_limit != 0) mss = std::min<std::uint32_t>(mss, path_limit);
    if (set.most_mss != 0) mss = std::min<std::uint32_t>(mss, set.most_mss);
    return std::max<std::uint32_t>(mss, kLeastMss);
  }
  /// Payload bytes of a full packet without SACK blocks.
  [[nodiscard]] std::uint32_t full_mss() const { return path_mss() - (timestamps ? 12 : 0); }
  /// When the next repeat is due after one that left now: not later than TCP_USER_TIMEOUT ends the connection.
  [[nodiscard]] Nanos repeat_due(Nanos now) const {
    const Nanos due = now + rtt.rto(), last = stalled_since + set.user_timeout;
    return set.user_timeout == Nanos{} || retries == 0 || due < last ? due : std::max(last, now + kTimestampUnit);
  }
  /// Linux's rule for POLLOUT.
  [[nodiscard]] bool has_room() const {
    const std::size_t queued = snd.queue.size();
    return queued <= snd.buffer && snd.buffer - queued >= snd.buffer / 3 && snd.unsent() < set.notsent_lowat;
  }
  [[nodiscard]] std::uint32_t in_flight() const {
    const std::uint32_t flight = board.in_flight();
    return flight > recovery.duplicate_bytes ? flight - recovery.duplicate_bytes : 0;
  }
};

// state.cc
void start_connection(Core& core, Nanos now);  ///< the first windows and the congestion control
void enter(Core& core, State state, Nanos now);
void fail(Core& core, int error);        ///< ends the connection without a segment
void reset_peer(Core& core, Nanos now);  ///< lets a RST leave and ends the connection
void enter_established(Core& core, Nanos now);
void schedule_ack(Core& core, Nanos now, bool at_once);
void tell_writable(Core& core);         ///< when there is room again; for a sender that may wait for it
void challenge(Core& core, Nanos now);  ///< RFC 5961: acknowledges, at most twice a second
// input.cc, ack_input.cc, data_input.cc
void process_segment(Core& core, const SegmentIn& in, Nanos now);
void process_ack(Core& core, const SegmentIn& in, const Options& options, Nanos now);
void process_data(Core& core, const SegmentIn& in, const Options& options, Nanos now);
// recovery.cc
struct AckSummary {
  Delivered delivered;
  bool duplicate = false;                   ///< RFC 5681, 2
  std::optional<SackBlock> duplicate_sack;  ///< the peer got it twice (RFC 2883)
  std::optional<std::uint32_t> echo;
};
void recover(Core& core, const AckSummary& ack, Nanos now);
void save_prior(Core& core);
void reduce(Core& core);
void heed_echo(Core& core, const SegmentIn& in);  ///< RFC 3168, 6.1.2
// spurious.cc
void undo_needless(Core& core, const AckSummary& ack);
void detect_losses(Core& core, Nanos now);
void enter_loss(Core& core, Nanos now);
/// Why the timers of data in flight are set.
enum class Arming { ack_came, data_left };
void arm_retransmission(Core& core, Arming why, Nanos now);
// output.cc
bool has_nothing_to_send(const Core& core);
bool produce_segment(Core& core, SegmentOut& out, Nanos now);  ///< `out` must be fresh
void note_repeat(Core& core, std::uint32_t bytes, Nanos now, bool probe);
std::uint32_t free_window(const Core& core);
// pacing.cc
std::uint64_t pacing_rate(const Core& core);                         ///< bytes/s; 0: no pacing
std::uint32_t paced_length(const Core& core, std::uint32_t packet);  ///< bytes that may leave in one descriptor
bool waits_for_pace(Core& core, Nanos now);
void pace(Core& core, std::uint32_t bytes, Nanos now);
// path.cc
void suspect_black_hole(Core& core, Nanos now);
void try_larger_packets(Core& core, Nanos now);
// timers.cc
void run_timers(Core& core, Nanos now);
void touch_keepalive(Core& core, Nanos now);

}  // namespace ringsock::engine::tcp
