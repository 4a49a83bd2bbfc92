// Connects that are under way on a ring, before the socket must be one thing or the other.
#pragma once

#include "core/base/clock.h"
#include "core/transports/chosen_socket.h"

namespace ringsock::rs {

/// The time that a listener has to answer: its service thread does so after a millisecond when its application is busy.
inline constexpr Nanos kAnswerPatience = std::chrono::milliseconds(10);

/// Returns whether a connect is under way on a ring of memory that is shared on this host. Threads: any.
bool connects_to_this_host(transports::ChosenSocket& socket);
/// Ends a connect that is under way on a ring. Without an answer until `end` the kernel connects.
void settle_connect(transports::ChosenSocket& socket, Nanos end);
/// Ends the connects that are under way on a ring, before the process forks: each of the processes then has a socket
/// that is connected, or that the kernel connects. Waits kAnswerPatience at most. Not inside a read-side section.
void settle_connects() noexcept;

}  // namespace ringsock::rs
