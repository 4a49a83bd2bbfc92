#include "core/runtime/used_elsewhere.h"

#include <atomic>

#include "core/base/process_state.h"

namespace ringsock::runtime {

namespace {
struct UserFollower {
  static constexpr ProcessPart kPart = ProcessPart::user_follower;
  std::atomic<bool (*)(Endpoint&) noexcept> follow{nullptr};
};

[[gnu::constructor]] void start() { process_state<UserFollower>(); }
}  // namespace

bool follow_user(Endpoint& endpoint) noexcept {
  const auto follow = process_state<UserFollower>().follow.load(std::memory_order_acquire);
  return follow != nullptr && follow(endpoint);
}

void bring_follow_user(bool (*follow)(Endpoint&) noexcept) {
  process_state<UserFollower>().follow.store(follow, std::memory_order_release);
}

}  // namespace ringsock::runtime
