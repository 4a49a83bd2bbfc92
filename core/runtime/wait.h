// Sleeping until an endpoint is ready: spin, arm, look once more, sleep.
#pragma once

#include <cstdint>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/runtime/endpoint.h"
#include "core/runtime/fd_table.h"

namespace ringsock::runtime {

/// Spins `attempt` and then sleeps until it answers something else than EAGAIN. `attempt` is called as
/// Result<T>(); the endpoint must be pinned.
/// @param deadline  CLOCK_MONOTONIC, Nanos::max() for ever.
/// @return the attempt's answer; EAGAIN once the deadline has passed; EINTR when a signal handler ran.
template <class Attempt>
auto retry_until_ready(Endpoint& endpoint, std::uint32_t interest, Nanos deadline, Attempt attempt)
    -> decltype(attempt());

/// How blocking calls spend their time before they sleep (design D3). Set from the configuration.
struct SpinPolicy {
  Nanos polling_time{10'000};
};
void set_spin_policy(SpinPolicy policy);

}  // namespace ringsock::runtime
