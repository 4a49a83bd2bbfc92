// SO_VMA_RING_ALLOC_LOGIC: the option that chooses a socket's rings.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstdint>

#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/runtime/ring_choice.h"

namespace ringsock::vma {

/// The argument, which the application fills in as a struct vma_ring_alloc_logic_attr.
struct RingAllocLogic {
  runtime::RingLogic logic = runtime::RingLogic::per_interface;
  std::uint32_t user_id = 0;
  std::uint32_t profile_key = 0;  ///< 0: none
  bool for_receiving = false;
  bool for_sending = false;
};
/// Errors: EINVAL wrong length, no known bit, or no such logic.
Result<RingAllocLogic> parse_ring_alloc_logic(const void* value, socklen_t length);

/// The logic that a socket of a SharedRing (shared_ring.h) has instead of the process's. Threads: any.
class RingWish {
 public:
  /// setsockopt(2). Only the choice of rings to receive from has an effect. Errors: EINVAL wrong length, value or
  /// profile; EFAULT.
  Status set_option(const void* value, socklen_t length);
  [[nodiscard]] bool is_set() const noexcept { return wish_.load(std::memory_order_relaxed) != 0; }
  /// An accepted connection has its listener's.
  void inherit(const RingWish& listener) noexcept {
    wish_.store(listener.wish_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
  /// Returns the ring of a socket with that number and local address that the calling thread uses.
  [[nodiscard]] runtime::RingKey key(runtime::RingLogic by_default, std::uint64_t socket,
                                     const SocketAddress& local) const;

 private:
  std::atomic<std::uint64_t> wish_{0};  ///< the logic plus one, and 32 bits of the user id; 0: none
};

}  // namespace ringsock::vma
