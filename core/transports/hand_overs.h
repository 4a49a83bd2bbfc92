// How connections on a way become kernel sockets.
#pragma once

#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/runtime/endpoint.h"
#include "core/transports/chosen_socket.h"

namespace ringsock::transports {

struct HandOver {
  int fd;        ///< one descriptor of the connection
  bool at_once;  ///< whether the other program may use it while this process, or another one, has it open
};

/// Carries out what the kernel does for descriptors and a way cannot: give them to programs and processes that do not
/// know the way, or to requests that the kernel serves unseen. The library that brings a way brings its hand-overs
/// (bring_hand_overs()). An endpoint without a way, or whose way has no hand-overs, stays as it is. Threads: any; none
/// may be called inside a read-side section, unless stated otherwise.
class HandOvers {
 public:
  /// Returns whether the endpoint is a connection that a way carries, which must be handed over. Threads: also inside a
  /// read-side section.
  virtual bool is_connection(runtime::Endpoint& /*endpoint*/) const { return false; }

  /// Returns whether the endpoint is a connection that a way carries, and that a living process other than this one has
  /// by fork(2). Threads: as is_connection().
  virtual bool has_other_processes(runtime::Endpoint& /*endpoint*/) const { return false; }

  /// Returns whether the descriptor, which came from another process, is under a connection that a way carries there:
  /// it is not the socket that it was in that process. Threads: as is_connection().
  virtual bool is_under_connection(int /*fd*/) const noexcept { return false; }

  /// Makes kernel sockets, close-on-exec, that stand for these connections, in their order. Another process moves the
  /// bytes. The connections stay open in this process; closing them lets that process begin with those that are not
  /// `at_once`. Errors: those of socket(2) and fork(2); EBUSY: another process uses one of them. An error has no
  /// effect.
  virtual Result<std::vector<UniqueFd>> hand_over(std::span<const HandOver> connections) const;
  /// Moves these connections to the kernel, under the same numbers and in the same epoll sets. A connection that
  /// another process has used since a fork becomes what it is there. Returns the kernel sockets of those that were
  /// handed over, in their order. Errors: those of hand_over() and of follow().
  virtual Result<std::vector<UniqueFd>> hand_over_for_good(std::span<const runtime::Ref> connections) const;
  /// Calls hand_over_for_good() for all connections that this process may use, for example before a seccomp filter that
  /// forbids what ways need.
  virtual void hand_over_everything() const {}
  /// Moves a connection that another process uses to the kernel in this process, too, under the same numbers. Errors:
  /// those of hand_over_for_good(), and that the other process does not answer; calls on the connection then fail with
  /// EIO.
  virtual Status follow(runtime::Endpoint& /*endpoint*/) const { return ok(); }
  /// Returns whether a connection that other processes have, too, can be used here: after a call that another process
  /// kept from it, whether the call may begin anew.
  virtual bool has_come_back(runtime::Endpoint& /*endpoint*/) const { return false; }
  /// Returns when other threads have given a connection's numbers to the kernel's socket, which they have begun to do
  /// (Endpoint::has_left_to_kernel()).
  virtual void wait_for_moves() const {}

  /// Carries out connect(2) with AF_UNSPEC: resets a connection on a way, or gives up one that is under way, and puts
  /// an unconnected kernel socket with the same options under its numbers. Errors: EISCONN another process has the
  /// connection, too; those of socket(2).
  virtual Status become_unconnected(runtime::Endpoint& connection) const;
  /// Ends a blocking connect(2) that a signal has interrupted, where the kernel's connect would not have waited,
  /// because the peer is on this host: the kernel connects, if the way does not within milliseconds. Does nothing
  /// otherwise.
  virtual void finish_connect(ChosenSocket& /*socket*/) const {}
  /// Returns whether a connection that a way carried has ended, so that the kernel would bind its socket anew.
  virtual bool may_bind_again(runtime::Endpoint& /*endpoint*/) const { return false; }
  /// Leaves a socket that is on no way yet to the kernel, with O_NONBLOCK as the application set it. A listener ends
  /// for the way in all processes that have it, and clients that it has answered move to the kernel's backlog.
  virtual void give_to_kernel(ChosenSocket& socket) const { socket.give_up_way(); }
  /// Leaves all descriptors of a socket to the kernel, for what a way cannot do. Returns false when that fails, without
  /// any effect.
  virtual bool become_kernels(const runtime::Ref& /*endpoint*/) const { return false; }

  /// Called after accept(2) has returned a connection: leaves listeners to the kernel whose connections do not stay on
  /// their way.
  virtual void has_accepted() const {}
  /// Called before FD_CLOEXEC of `fd` is cleared. When a forked child does that to a listener, the child's next program
  /// is to accept, and the listener must end for the way in all processes (prepare_exec()). It ends now, because a
  /// program that closes all other descriptors before exec(2), as Python does, closes the way's, too.
  virtual void listener_is_prepared(ChosenSocket& /*socket*/, int /*fd*/) const {}
  /// Prepares sockets for exec(2): those that the program inherits become kernel sockets where possible, and the
  /// kernel's flags become those that the application set. Errors: EMFILE, ENFILE, ENOMEM for a connection that is
  /// meant for the program; the process goes on.
  virtual Status prepare_exec() const { return ok(); }
  /// Called before this process ends, or becomes another program. Waits until the connections that other processes have
  /// asked for are theirs, 5 s at most; further questions wait for answer_again(). Needs no lock that the calling
  /// thread may hold, which may be in a signal handler.
  virtual void finish_answers() const noexcept {}
  /// exec(2) has failed: the process goes on.
  virtual void answer_again() const noexcept {}

 protected:
  ~HandOvers() = default;
};

/// Returns those of the ways that this process has. Threads: any.
const HandOvers& hand_overs();
/// Leaves all descriptors of a socket to the kernel, for what its way, or the endpoint itself, cannot do. Returns false
/// when that fails, without any effect. Threads: as HandOvers.
bool become_kernels(const runtime::Ref& endpoint);
/// Makes all connections of this process the kernel's, as far as possible. Threads: as HandOvers.
void give_everything_to_kernel();
/// Threads: constructors.
void bring_hand_overs(const HandOvers& hand_overs);

}  // namespace ringsock::transports
