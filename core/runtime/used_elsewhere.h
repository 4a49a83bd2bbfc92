// Connections that another process of the family uses since a fork.
#pragma once

#include <cstdint>

namespace ringsock::runtime {

class Endpoint;

/// Beside the EPOLL* bits of Readiness::ready(), which say what the next call may do: another process uses the
/// connection, so this process does not know its state. A caller that tells the application first calls
/// follow_user().
inline constexpr std::uint32_t kUsedElsewhere = 1U << 20;

/// Moves the connection to the kernel, where its user has moved it or does so now. Returns whether it has left to the
/// kernel; if not, ready() reports an error from then on. Not inside a read-side section, and without locks.
bool follow_user(Endpoint& endpoint) noexcept;

/// Brings the function that follow_user() calls. Threads: constructors.
void bring_follow_user(bool (*follow)(Endpoint&) noexcept);

}  // namespace ringsock::runtime
