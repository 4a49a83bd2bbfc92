// SO_VMA_RING_ALLOC_LOGIC: the option that chooses a socket's rings.
#pragma once

#include <sys/socket.h>

#include <cstdint>

#include "core/base/result.h"
#include "core/ethernet/ring_choice.h"

namespace ringsock::vma {

/// The option, and its argument as the application fills it in: struct vma_ring_alloc_logic_attr.
inline constexpr int kRingAllocLogicOption = 2810;
struct RingAllocLogic {
  ethernet::RingLogic logic = ethernet::RingLogic::per_interface;
  std::uint32_t user_id = 0;
  bool for_receiving = false;
  bool for_sending = false;
};
/// Errors: EINVAL wrong length, no known bit, or no such logic.
Result<RingAllocLogic> parse_ring_alloc_logic(const void* value, socklen_t length);

}  // namespace ringsock::vma
