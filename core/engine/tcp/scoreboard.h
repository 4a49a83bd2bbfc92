// What was sent and is not yet acknowledged, and which of it is delivered, lost or repeated (RFC 6675, RFC 8985).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/clock.h"
#include "core/engine/tcp/sequence.h"

namespace ringsock::engine::tcp {

/// A piece of the stream that left in one descriptor.
struct Sent {
  Seq seq;
  std::uint32_t bytes;  ///< a FIN counts as one
  Nanos sent_at;        ///< the last time
  std::uint16_t unit;   ///< payload bytes of a packet
  bool sacked = false;
  bool lost = false;  ///< and not repeated since
  bool repeated = false;
  [[nodiscard]] Seq end() const { return seq + bytes; }
  [[nodiscard]] std::uint32_t packets() const { return (bytes + unit - 1) / unit; }
};

/// What one acknowledgement has delivered.
struct Delivered {
  std::uint32_t bytes = 0;        ///< newly acknowledged or newly sacked
  std::uint32_t acked_bytes = 0;  ///< newly acknowledged cumulatively
  std::uint32_t packets = 0;      ///< as `bytes`
  bool repeated = false;          ///< a repeated piece was acknowledged cumulatively
  bool sacked = false;            ///< something was newly sacked
  std::optional<Seq> fresh_end;   ///< of the first piece delivered that was never repeated
  bool reordered = false;         ///< a piece that was never repeated arrived after a later one
  // Of pieces that were never repeated; under 0: there is none.
  Nanos rtt{-1};         ///< the shortest
  Nanos acked_rtt{-1};   ///< the longest of those acknowledged cumulatively: with what a delayed ACK takes
  Nanos sacked_rtt{-1};  ///< the longest of those newly sacked
};

/// The record of pieces in flight, at most kMostPieces, and RACK's view of it. Threads: one at a time.
class Scoreboard {
 public:
  static constexpr std::size_t kMostPieces = 8192;

  void add(Seq seq, std::uint32_t bytes, std::uint16_t unit, Nanos now);
  /// Removes what is before `ack`.
  void acknowledge(Seq ack, Nanos now, Nanos min_rtt, Delivered& out);
  /// Marks what a SACK block covers, whole packets only.
  void sack(Seq begin, Seq end, Nanos now, Nanos min_rtt, Delivered& out);
  /// Marks as lost what left before the latest delivered piece, by more than rtt + `reordering` ago. Returns the time
  /// until the next piece is due, or 0.
  Nanos detect_losses(Nanos reordering, Nanos now, bool& found);
  void mark_first_lost();
  /// A time-out: marks the first packet, and all that left more than a round trip ago (RFC 8985, 6.3).
  void mark_timed_out(Nanos now);
  /// Marks pieces whose packets are longer than `bytes`.
  void mark_longer_lost(std::uint32_t bytes);
  void unmark_lost();
  /// Forgets all SACK marks: the peer may have dropped what it reported (RFC 2018, 8).
  void forget_sacks();
  /// Returns the first lost piece, or null.
  [[nodiscard]] const Sent* first_lost() const;
  /// Returns the last piece that was not sacked, or null.
  [[nodiscard]] const Sent* last_unsacked() const;
  /// Counts up to `most` bytes from the start of the piece at `seq` as sent again, in packets of `unit` bytes. Splits
  /// the piece when it is longer.
  void repeat(Seq seq, std::uint32_t most, std::uint16_t unit, Nanos now);

  [[nodiscard]] bool empty() const { return total_ == 0; }
  [[nodiscard]] bool full() const { return pieces_.size() - head_ >= kMostPieces; }
  [[nodiscard]] const Sent& front() const { return pieces_[head_]; }
  [[nodiscard]] std::uint32_t in_flight() const { return total_ - sacked_ - lost_; }
  [[nodiscard]] std::uint32_t sacked_bytes() const { return sacked_; }
  [[nodiscard]] std::uint32_t lost_bytes() const { return lost_; }
  [[nodiscard]] std::uint32_t total_bytes() const { return total_; }
  /// Counts what has left again and is neither acknowledged nor lost once more.
  [[nodiscard]] std::uint32_t repeated_bytes() const;
  /// Returns whether so many packets are sacked. Looks at pieces until there are.
  [[nodiscard]] bool has_sacked(std::uint32_t packets) const;
  /// Returns whether something is lost, or its repeat is under way.
  [[nodiscard]] bool has_missing() const;
  [[nodiscard]] std::size_t memory_bytes() const { return pieces_.capacity() * sizeof(Sent); }
  /// Returns how often a piece was marked as lost.
  [[nodiscard]] std::uint32_t losses() const { return losses_; }
  [[nodiscard]] Nanos rack_rtt() const { return rack_rtt_; }

 private:
  void acknowledge_piece(Sent& piece, std::uint32_t bytes, Nanos now, Nanos min_rtt, Delivered& out);
  void delivered(const Sent& piece, Nanos now, Nanos min_rtt, Delivered& out);
  void set_lost(Sent& piece, bool lost);
  void cut(std::size_t at, std::uint32_t first_bytes);
  void compact();

  std::vector<Sent> pieces_;  ///< ascending, from head_ on
  std::size_t head_ = 0;
  std::uint32_t total_ = 0;
  std::uint32_t sacked_ = 0;
  std::uint32_t lost_ = 0;
  std::uint32_t losses_ = 0;
  Nanos rack_sent_{-1};  ///< when the latest delivered piece had left
  Seq rack_end_ = 0;
  Nanos rack_rtt_{};
  Seq furthest_ = 0;  ///< highest end that was delivered
  bool has_furthest_ = false;
};

}  // namespace ringsock::engine::tcp
