#include "core/engine/tcp/scoreboard.h"

#include <algorithm>

namespace ringsock::engine::tcp {

void Scoreboard::add(Seq seq, std::uint32_t bytes, std::uint16_t unit, Nanos now) {
  pieces_.push_back({.seq = seq, .bytes = bytes, .sent_at = now, .unit = std::max<std::uint16_t>(unit, 1)});
  total_ += bytes;
}

/// RFC 8985, 6.2, steps 1 to 3. An answer to a repeated piece that comes too early belongs to its first copy.
void Scoreboard::delivered(const Sent& piece, Nanos now, Nanos min_rtt, Delivered& out) {
  const Nanos rtt = now - piece.sent_at;
  out.packets += piece.packets();
  if (!piece.repeated) {
    if (!out.fresh_end || before(piece.end(), *out.fresh_end)) out.fresh_end = piece.end();
    if (out.rtt < Nanos(0) || rtt < out.rtt) out.rtt = rtt;
    if (has_furthest_ && before(piece.end(), furthest_)) out.reordered = true;
  }
  if (!has_furthest_ || before(furthest_, piece.end())) furthest_ = piece.end();
  has_furthest_ = true;
  if (piece.repeated && rtt < min_rtt) return;
  if (piece.sent_at < rack_sent_ || (piece.sent_at == rack_sent_ && before(piece.end(), rack_end_))) return;
  rack_sent_ = piece.sent_at;
  rack_end_ = piece.end();
  rack_rtt_ = rtt;
}

/// Takes the first bytes of a piece away.
void Scoreboard::acknowledge_piece(Sent& piece, std::uint32_t bytes, Nanos now, Nanos min_rtt, Delivered& out) {
  Sent part = piece;
  part.bytes = bytes;
  if (!piece.sacked) {
    delivered(part, now, min_rtt, out);
    out.bytes += bytes;
    if (!piece.repeated) out.acked_rtt = std::max(out.acked_rtt, now - piece.sent_at);
  }
  out.repeated |= piece.repeated;
  out.acked_bytes += bytes;
  if (piece.lost) lost_ -= bytes;
  if (piece.sacked) sacked_ -= bytes;
  total_ -= bytes;
  piece.seq += bytes;
  piece.bytes -= bytes;
}

void Scoreboard::acknowledge(Seq ack, Nanos now, Nanos min_rtt, Delivered& out) {
  while (!empty() && before(pieces_[head_].seq, ack)) {
    Sent& piece = pieces_[head_];
    const bool whole = at_or_before(piece.end(), ack);
    acknowledge_piece(piece, whole ? piece.bytes : ack - piece.seq, now, min_rtt, out);
    if (whole) ++head_;
  }
  compact();
}

/// Gives the memory of an idle connection back, and closes the room before head_ now and then.
void Scoreboard::compact() {
  if (empty()) {
    head_ = 0;
    if (pieces_.capacity() > 32)
      std::vector<Sent>().swap(pieces_);
    else
      pieces_.clear();
    has_furthest_ = false;
  } else if (head_ > 64 && head_ > pieces_.size() / 2) {
    pieces_.erase(pieces_.begin(), pieces_.begin() + static_cast<std::ptrdiff_t>(head_));
    head_ = 0;
  }
}

void Scoreboard::sack(Seq begin, Seq end, Nanos now, Nanos min_rtt, Delivered& out) {
  const auto first = std::partition_point(pieces_.begin() + static_cast<std::ptrdiff_t>(head_), pieces_.end(),
                                          [=](const Sent& piece) { return at_or_before(piece.end(), begin); });
  for (auto at = static_cast<std::size_t>(first - pieces_.begin()); at < pieces_.size(); ++at) {
    if (at_or_before(end, pieces_[at].seq)) return;
    if (pieces_[at].sacked) continue;
    if (before(pieces_[at].seq, begin)) {
      const std::uint32_t unit = pieces_[at].unit;
      const std::uint32_t keep = (begin - pieces_[at].seq + unit - 1) / unit * unit;
      if (keep >= pieces_[at].bytes || full()) continue;
      cut(at, keep);
      continue;
    }
    if (before(end, pieces_[at].end())) {
      const std::uint32_t covered = (end - pieces_[at].seq) / pieces_[at].unit * pieces_[at].unit;
      if (covered == 0 || full()) return;
      cut(at, covered);
    }
    delivered(pieces_[at], now, min_rtt, out);
    if (!pieces_[at].repeated) out.sacked_rtt = std::max(out.sacked_rtt, now - pieces_[at].sent_at);
    set_lost(pieces_[at], false);
    pieces_[at].sacked = out.sacked = true;
    sacked_ += pieces_[at].bytes;
    out.bytes += pieces_[at].bytes;
  }
}

Nanos Scoreboard::detect_losses(Nanos reordering, Nanos now, bool& found) {
  Nanos wait{};
  if (rack_sent_ < Nanos(0)) return wait;
  for (std::size_t at = head_; at < pieces_.size(); ++at) {
    Sent& piece = pieces_[at];
    if (piece.sacked || piece.lost || piece.sent_at > rack_sent_) continue;
    if (piece.sent_at == rack_sent_ && !before(piece.end(), rack_end_)) continue;
    const Nanos left = piece.sent_at + rack_rtt_ + reordering - now;
    if (left <= Nanos(0)) {
      set_lost(piece, true);
      found = true;
    } else {
      wait = std::max(wait, left);
    }
  }
  return wait;
}

void Scoreboard::set_lost(Sent& piece, bool lost) {
  if (piece.lost == lost) return;
  piece.lost = lost;
  if (lost) ++losses_;
  lost_ = lost ? lost_ + piece.bytes : lost_ - piece.bytes;
}

/// Without SACK one packet is known to be missing, the first.
void Scoreboard::mark_first_lost() {
  if (empty() || pieces_[head_].sacked) return;
  if (pieces_[head_].bytes > pieces_[head_].unit && !full()) cut(head_, pieces_[head_].unit);
  set_lost(pieces_[head_], true);
}

void Scoreboard::mark_timed_out(Nanos now) {
  for (std::size_t at = head_; at < pieces_.size(); ++at)
    if (!pieces_[at].sacked && (at == head_ || pieces_[at].sent_at + rack_rtt_ <= now)) set_lost(pieces_[at], true);
}

void Scoreboard::mark_longer_lost(std::uint32_t bytes) {
  for (std::size_t at = head_; at < pieces_.size(); ++at)
    if (!pieces_[at].sacked && std::min<std::uint32_t>(pieces_[at].unit, pieces_[at].bytes) > bytes)
      set_lost(pieces_[at], true);
}

void Scoreboard::unmark_lost() {
  for (std::size_t at = head_; at < pieces_.size(); ++at) set_lost(pieces_[at], false);
}

void Scoreboard::forget_sacks() {
  for (std::size_t at = head_; at < pieces_.size(); ++at) pieces_[at].sacked = false;
  sacked_ = 0;
}

std::uint32_t Scoreboard::repeated_bytes() const {
  std::uint32_t bytes = 0;
  for (std::size_t at = head_; at < pieces_.size(); ++at)
    if (pieces_[at].repeated && !pieces_[at].sacked && !pieces_[at].lost) bytes += pieces_[at].bytes;
  return bytes;
}

bool Scoreboard::has_sacked(std::uint32_t packets) const {
  std::uint32_t found = 0;
  for (std::size_t at = head_; at < pieces_.size() && found < packets && sacked_ != 0; ++at)
    if (pieces_[at].sacked) found += pieces_[at].packets();
  return found >= packets;
}

bool Scoreboard::has_missing() const { return lost_ != 0 || repeated_bytes() != 0; }

const Sent* Scoreboard::first_lost() const {
  if (lost_ == 0) return nullptr;
  for (std::size_t at = head_; at < pieces_.size(); ++at)
    if (pieces_[at].lost) return &pieces_[at];
  return nullptr;
}

const Sent* Scoreboard::last_unsacked() const {
  for (std::size_t at = pieces_.size(); at > head_; --at)
    if (!pieces_[at - 1].sacked) return &pieces_[at - 1];
  return nullptr;
}

void Scoreboard::repeat(Seq seq, std::uint32_t most, std::uint16_t unit, Nanos now) {
  const auto found = std::partition_point(pieces_.begin() + static_cast<std::ptrdiff_t>(head_), pieces_.end(),
                                          [=](const Sent& piece) { return at_or_before(piece.end(), seq); });
  if (found == pieces_.end()) return;
  const auto at = static_cast<std::size_t>(found - pieces_.begin());
  if (before(pieces_[at].seq, seq)) {
    cut(at, seq - pieces_[at].seq);
    return repeat(seq, most, unit, now);
  }
  if (pieces_[at].bytes > most) cut(at, most);
  set_lost(pieces_[at], false);
  pieces_[at].unit = std::max<std::uint16_t>(unit, 1);
  pieces_[at].repeated = true;
  pieces_[at].sent_at = now;
}

void Scoreboard::cut(std::size_t at, std::uint32_t first_bytes) {
  Sent rest = pieces_[at];
  rest.seq += first_bytes;
  rest.bytes -= first_bytes;
  pieces_[at].bytes = first_bytes;
  pieces_.insert(pieces_.begin() + static_cast<std::ptrdiff_t>(at) + 1, rest);
}

}  // namespace ringsock::engine::tcp
