// Received bytes: in order for the application, and ranges that wait for a gap to be filled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/engine/tcp/byte_queue.h"
#include "core/engine/tcp/options.h"

namespace ringsock::engine::tcp {

/// The receive queue. Of bytes that arrive twice the first ones count. At most kMostRanges ranges wait; a segment that
/// would need another one is dropped, the peer repeats it. Threads: one at a time.
class ReceiveQueue {
 public:
  static constexpr std::size_t kMostRanges = 64;

  /// Takes bytes that begin at or after `next`, the number expected next.
  /// Returns how far the stream in order has grown, in bytes.
  std::uint32_t add(Seq seq, Seq next, std::span<const std::byte> bytes);
  /// Describes the waiting ranges, the one that grew last first (RFC 2018, 4). Fills from options.sack_count on.
  void report(Options& options) const;
  /// Returns the first part of the bytes from `seq` to `end` that waits already.
  [[nodiscard]] std::optional<SackBlock> first_overlap(Seq seq, Seq end) const;
  void drop_ranges() { ranges_.clear(); }
  [[nodiscard]] bool reaches_beyond(Seq end) const { return has_gap() && before(end, ranges_.back().end); }
  [[nodiscard]] bool has_gap() const { return !ranges_.empty(); }
  [[nodiscard]] std::size_t ranges() const { return ranges_.size(); }
  [[nodiscard]] std::size_t waiting_bytes() const;
  [[nodiscard]] std::size_t memory_bytes() const;

  ByteQueue in_order;

 private:
  struct Range {
    Seq begin;
    Seq end;
    std::uint32_t grown;  ///< larger: later
    ByteQueue bytes;
  };
  void store(Seq seq, Seq end, std::span<const std::byte> bytes);
  void store_piece(std::size_t at, Seq seq, Seq end, std::span<const std::byte> bytes);
  void join(std::size_t at);
  std::uint32_t release(Seq next);

  std::vector<Range> ranges_;  ///< ascending, with gaps between
  std::uint32_t growths_ = 0;
};

}  // namespace ringsock::engine::tcp
