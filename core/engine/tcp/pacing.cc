// Pacing: data leaves in small bursts at a rate (SO_MAX_PACING_RATE).
#include "core/engine/tcp/core.h"

namespace ringsock::engine::tcp {

/// As on Linux: twice the window in a round trip during slow start, 1.2 times later, and never above the limit.
std::uint64_t pacing_rate(const Core& core) {
  const std::uint64_t most = core.set.most_pacing_rate;
  if (most == 0 || !core.rtt.measured()) return most;
  const std::uint64_t percent = core.window.in_slow_start() ? 200 : 120;
  const auto rtt = static_cast<std::uint64_t>(std::max<std::int64_t>(core.rtt.smoothed().count(), 1000));
  return std::clamp<std::uint64_t>(core.window.cwnd * percent * 10'000'000u / rtt, 1, most);
}

/// What leaves in a millisecond, two packets at least.
std::uint32_t paced_length(const Core& core, std::uint32_t packet) {
  const std::uint64_t rate = pacing_rate(core);
  if (rate == 0) return kMostPayloadBytes;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(rate / 1000, 2ull * packet, kMostPayloadBytes));
}

bool waits_for_pace(Core& core, Nanos now) {
  if (core.set.most_pacing_rate == 0 || core.paced_until <= now) return false;
  const bool wants = core.board.lost_bytes() != 0 || core.snd.unsent() != 0 || core.recovery.probe_due;
  if (wants) core.deadlines.at[Deadlines::pacing] = core.paced_until;
  return wants;
}

void pace(Core& core, std::uint32_t bytes, Nanos now) {
  const std::uint64_t rate = pacing_rate(core);
  if (rate == 0) return;
  core.paced_until =
      std::max(core.paced_until, now) + Nanos(static_cast<std::int64_t>(bytes * 1'000'000'000ull / rate));
}

}  // namespace ringsock::engine::tcp
