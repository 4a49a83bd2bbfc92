// The maximum sizes of the embedded device's queues.
#pragma once

#include <cstdint>

namespace ringsock::soft {

inline constexpr int kMaxSendSge = 32;
inline constexpr int kMaxReceiveSge = 32;
inline constexpr int kMaxQueueEntries = 1 << 17;
inline constexpr int kMaxCqEntries = 1 << 22;
/// Inline payloads are copied inside ibv_post_send() like all others, so only the length field limits them.
inline constexpr std::uint32_t kMaxInlineBytes = 1U << 30;

}  // namespace ringsock::soft
