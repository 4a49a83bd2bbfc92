// A connection that several processes have since a fork, and that none of them has used since.
#pragma once

#include "librsocket/inheritance.h"
#include "librsocket/stream_core.h"

namespace ringsock::rs {

/// Returns whether the peer's end of the stream has come to such a connection; false for others. Takes nothing.
/// Threads: any.
bool is_end_waiting(const StreamCore& core, const Inheritance& inheritance) noexcept;
/// Returns whether the peer has left such a connection, so that nobody loses anything by a claim; false for others.
/// Costs a system call. Threads: any.
bool has_peer_left(const StreamCore& core, const Inheritance& inheritance) noexcept;

}  // namespace ringsock::rs
