#include "core/transports/hand_overs.h"

#include <atomic>
#include <cerrno>
#include <new>

#include "core/runtime/used_elsewhere.h"

namespace ringsock::transports {

namespace {

class NoHandOvers final : public HandOvers {};

constinit NoHandOvers none;
constinit std::atomic<HandOvers*> brought{&none};

bool follow_user(runtime::Endpoint& endpoint) noexcept {
  try {
    return hand_overs().follow(endpoint) && endpoint.has_left_to_kernel();
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace

Result<std::vector<UniqueFd>> HandOvers::hand_over(std::span<const HandOver>) { return Error{ENOTCONN, "hand-over"}; }

Result<std::vector<UniqueFd>> HandOvers::hand_over_for_good(std::span<const runtime::Ref>) {
  return Error{ENOTCONN, "hand-over"};
}

Status HandOvers::become_unconnected(ChosenSocket&) { return Error{EISCONN, "connect: on a way"}; }

HandOvers& hand_overs() { return *brought.load(std::memory_order_acquire); }

void bring_hand_overs(HandOvers& hand_overs) {
  brought.store(&hand_overs, std::memory_order_release);
  runtime::bring_follow_user(follow_user);
}

}  // namespace ringsock::transports
