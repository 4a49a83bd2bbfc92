#include "core/transports/hand_overs.h"

#include <atomic>
#include <cerrno>
#include <new>

#include "core/base/process_state.h"
#include "core/runtime/fork_registry.h"
#include "core/runtime/used_elsewhere.h"

namespace ringsock::transports {

namespace {

class NoHandOvers final : public HandOvers {};

struct ProcessHandOvers {
  static constexpr ProcessPart kPart = ProcessPart::hand_overs;
  NoHandOvers none;
  std::atomic<const HandOvers*> brought{&none};
};
ProcessHandOvers& process_hand_overs() { return process_state<ProcessHandOvers>(); }

[[gnu::constructor]] void start() { process_hand_overs(); }

bool follow_user(runtime::Endpoint& endpoint) noexcept {
  try {
    return hand_overs().follow(endpoint) && endpoint.has_left_to_kernel();
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace

Result<std::vector<UniqueFd>> HandOvers::hand_over(std::span<const HandOver>) const {
  return Error{ENOTCONN, "hand-over"};
}

Result<std::vector<UniqueFd>> HandOvers::hand_over_for_good(std::span<const runtime::Ref>) const {
  return Error{ENOTCONN, "hand-over"};
}

Status HandOvers::become_unconnected(runtime::Endpoint&) const { return Error{EISCONN, "connect: on a way"}; }

const HandOvers& hand_overs() { return *process_hand_overs().brought.load(std::memory_order_acquire); }

bool become_kernels(const runtime::Ref& endpoint) {
  return endpoint->become_kernels() || hand_overs().become_kernels(endpoint);
}

void give_everything_to_kernel() {
  for (const runtime::Ref& endpoint : runtime::fork_registry().endpoints()) endpoint->become_kernels();
  hand_overs().hand_over_everything();
}

void bring_hand_overs(const HandOvers& hand_overs) {
  process_hand_overs().brought.store(&hand_overs, std::memory_order_release);
  runtime::bring_follow_user(follow_user);
}

}  // namespace ringsock::transports
