// Hands connections on a ring to programs that do not know rings.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <span>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/base/sleep_while.h"
#include "core/base/unique_fd.h"
#include "core/runtime/endpoint.h"
#include "core/transports/chosen_socket.h"
#include "core/transports/hand_overs.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

using transports::ChosenSocket;
using transports::HandOver;

/// Returns the ring connection behind an endpoint, or null when it is the kernel's, or no connection.
StreamSocket* ring_connection(runtime::Endpoint& endpoint);

/// Makes kernel sockets, close-on-exec, that stand for these connections, in their order. A relay process (relay.h)
/// keeps the rings and moves the bytes. The connections stay open in this process; closing them lets the relay begin
/// with those that are not `at_once`. Errors: those of socket(2) and fork(2); EBUSY: another process uses one of them.
/// An error has no effect.
Result<std::vector<UniqueFd>> hand_over(std::span<const HandOver> connections);

/// Moves these connections to the kernel, under the same numbers and in the same epoll sets. A connection that another
/// process has used since a fork becomes what it is there (door.h). Returns the kernel sockets of those that were
/// handed over, in their order. Errors: those of hand_over() and of follow().
Result<std::vector<UniqueFd>> hand_over_for_good(std::span<const runtime::Ref> connections);
/// Carries out connect(2) with AF_UNSPEC: resets a connection on a ring, or gives up one that is under way, and puts an
/// unconnected kernel socket with the same options under its numbers. Errors: EISCONN another process has the
/// connection, too; those of socket(2). As in the kernel, the socket has the error of the reset. Not inside a read-side
/// section.
Status become_unconnected(StreamSocket& connection);
/// Returns whether a connection has ended, so that the kernel would bind its socket anew.
bool may_bind_again(StreamSocket& connection);
/// Leaves a socket that is on no ring yet to the kernel, with O_NONBLOCK as the application set it. A listener's ring
/// ends in all processes that have the listener, and clients that it has answered move to the kernel's backlog. Not
/// inside a read-side section.
void give_to_kernel(ChosenSocket& socket);
/// Leaves all descriptors of a socket to the kernel, for what a ring cannot do. Returns false when that fails, without
/// any effect.
bool become_kernels(const runtime::Ref& endpoint);
/// Leaves the listeners of this server to the kernel, in all processes that have them, where most of what it accepts
/// becomes the kernel's anyway. Not inside a read-side section.
void leave_listeners_if_in_vain();
/// Calls hand_over_for_good() for all connections that this process may use, for example before a seccomp filter that
/// forbids what rings need.
void hand_over_everything();

/// Repeats `attempt` while it fails with EBUSY: another process may begin to use one of the connections at any moment,
/// and another thread may be handing it on.
template <class Attempt>
auto unless_used_elsewhere(Attempt attempt) {
  constexpr int kMostTurns = 5000;
  constexpr Nanos kBetweenTurns = std::chrono::milliseconds(1);
  auto done = attempt();
  for (int turn = 1; !done && done.error().code == EBUSY && turn < kMostTurns; ++turn) {
    sleep_for(kBetweenTurns);
    done = attempt();
  }
  return done;
}

}  // namespace ringsock::rs
