// The segments of one connection as lines that a person reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/engine/tcp/segment.h"
#include "core/engine/tcp/settings.h"

namespace ringsock::vma {

/// Keeps what vma_stats(8) has asked for until the service thread writes it to the log: a segment costs a copy of some
/// numbers. Threads: one at a time; CarriedConnection holds its lock.
class TcpTrace {
 public:
  /// Segments that wait to be written. Further ones are only counted.
  static constexpr std::size_t kMostWaiting = 4096;

  /// @param segments  how many are traced from `now` on
  TcpTrace(std::uint32_t segments, Nanos now);

  void received(const engine::tcp::SegmentIn& segment, const engine::tcp::Info& info, Nanos now) noexcept;
  void sent(const engine::tcp::SegmentOut& segment, const engine::tcp::Info& info, Nanos now) noexcept;

  /// Takes the lines of what has been noted since the last call.
  std::vector<std::string> take_lines();
  /// Returns whether all segments have been noted.
  [[nodiscard]] bool is_over() const { return left_ == 0; }
  /// Traces so many from now on.
  void go_on(std::uint32_t segments) { left_ = segments; }

 private:
  struct Segment {
    Nanos time{};
    std::uint32_t seq = 0, ack = 0;  ///< from the first segment on
    std::uint32_t window = 0;        ///< bytes
    std::uint32_t bytes = 0;
    std::uint32_t cwnd = 0, in_flight = 0, rtt_us = 0;
    std::uint8_t flags = 0;
    bool is_sent = false;
    bool is_repeated = false;
    engine::tcp::State state{};
  };
  /// What the first segment has, from which the numbers count.
  struct Origin {
    std::uint32_t ours, theirs;
  };

  void note(Segment segment, const engine::tcp::Info& info, Nanos now) noexcept;
  static std::string line_of(const Segment& segment);

  std::vector<Segment> waiting_;
  std::uint32_t left_;
  std::uint32_t lost_ = 0;
  const Nanos start_;
  std::optional<Origin> origin_;
  std::uint32_t sent_up_to_ = 0;
};

}  // namespace ringsock::vma
