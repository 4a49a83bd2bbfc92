// Black holes: routers that drop long packets and tell nobody (RFC 2923). Smaller packets are tried, as in RFC
// 4821, 7.7.
#include "core/engine/tcp/core.h"

namespace ringsock::engine::tcp {
namespace {
constexpr std::uint16_t kBasePayload = 1024;  // Linux's tcp_base_mss
constexpr std::uint16_t kLeastPayload = 512;
constexpr std::uint8_t kSuspicious = 3;  // time-outs in a row (tcp_retries1)
}  // namespace

/// After three time-outs in a row packets are 1,024 bytes, after six 512.
void suspect_black_hole(Core& core, Nanos now) {
  if (core.retries % kSuspicious != 0 || core.board.empty() || core.snd.wnd == 0) return;
  const Sent& first = core.board.front();
  const std::uint32_t packet = std::min<std::uint32_t>(first.unit, first.bytes);
  const std::uint16_t limit = core.retries == kSuspicious ? kBasePayload : kLeastPayload;
  if (packet <= limit || core.path_mss() <= limit) return;
  core.path_limit = limit;
  core.path_limit_until = now + core.path_limit_pause;
  ++core.counters.black_holes;
}

/// The path may have changed: after 10 minutes (RFC 8899, 5.1.1), then twice as long each time.
void try_larger_packets(Core& core, Nanos now) {
  if (core.path_limit == 0 || now < core.path_limit_until || !core.board.empty()) return;
  core.path_limit = 0;
  core.path_limit_pause = std::min<Nanos>(2 * core.path_limit_pause, std::chrono::hours(24));
}

}  // namespace ringsock::engine::tcp
