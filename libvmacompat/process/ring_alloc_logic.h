// SO_VMA_RING_ALLOC_LOGIC: the option that chooses a socket's rings.
#pragma once

#include <sys/socket.h>

#include <cstdint>

#include "core/base/result.h"
#include "core/ethernet/ring_choice.h"

namespace ringsock::vma {

/// The argument, which the application fills in as a struct vma_ring_alloc_logic_attr.
struct RingAllocLogic {
  ethernet::RingLogic logic = ethernet::RingLogic::per_interface;
  std::uint32_t user_id = 0;
  std::uint32_t profile_key = 0;  ///< 0: none
  bool for_receiving = false;
  bool for_sending = false;
};
/// Errors: EINVAL wrong length, no known bit, or no such logic.
Result<RingAllocLogic> parse_ring_alloc_logic(const void* value, socklen_t length);

}  // namespace ringsock::vma
