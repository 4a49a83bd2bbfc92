#include "core/runtime/used_elsewhere.h"

#include <atomic>

namespace ringsock::runtime {

namespace {
constinit std::atomic<bool (*)(Endpoint&) noexcept> brought{nullptr};
}  // namespace

bool follow_user(Endpoint& endpoint) noexcept {
  const auto follow = brought.load(std::memory_order_acquire);
  return follow != nullptr && follow(endpoint);
}

void bring_follow_user(bool (*follow)(Endpoint&) noexcept) { brought.store(follow, std::memory_order_release); }

}  // namespace ringsock::runtime
