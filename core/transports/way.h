// What carries a socket instead of the kernel.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "core/runtime/endpoint.h"
#include "core/statistics/statistics.h"
#include "core/transports/kept_options.h"

namespace ringsock::transports {

/// The answer of a call that is to begin anew at the kernel's socket.
inline constexpr Error kAskKernel{EIO, "a socket that several processes have"};

/// The role of a way that can listen beside the kernel's listener, which has the same port (ChosenSocket). Errors and
/// threads: as in roles.h.
class Listening {
 public:
  /// Undoes listen(). As after a failed connect, any operation may be tried again.
  virtual void stop_listening() = 0;
  /// Refuses waiting and new clients after shutdown(2) of a listener, until forget_listening().
  virtual void refuse_clients() = 0;
  [[nodiscard]] virtual bool refuses_clients() = 0;
  /// Returns the socket to its state before listen(2).
  virtual void forget_listening() = 0;
  /// Ends listening by this way in all processes that have the listener. Clients that were answered can still be
  /// accepted; others are refused. A process that could call listen_in_family() ends it also for those that do so
  /// later.
  virtual void end_for_all() = 0;
  /// Listens as listen(2) does on a socket that was bound before fork(2), in one of the processes that have it since.
  /// Any of these may do so, also after another one, and each gets some of the clients. Errors: EOPNOTSUPP.
  virtual Status listen_in_family(int /*backlog*/) { return Error{EOPNOTSUPP, "listen: other processes have it"}; }
  /// Returns whether any process that has this listener has done so.
  [[nodiscard]] virtual bool has_ended_for_all() const noexcept = 0;
  /// Returns true when no client waits at a listener that several threads accept from, nor at the descriptor `also`.
  /// Takes no lock, for which those threads would wait in turn. May return false although no client waits.
  [[nodiscard]] virtual bool nobody_waits(int also) = 0;
  /// Returns whether a listener has clients that were answered but have not confirmed.
  [[nodiscard]] virtual bool has_half_open() = 0;
  /// Accepts a client that has been answered already. Error: EAGAIN when there is none.
  virtual Result<int> accept_waiting(SocketAddress& peer, int flags) = 0;
  /// Returns whether another program, which does not know this way, may accept() at the kernel's listener.
  [[nodiscard]] virtual bool is_strangers_too() const noexcept = 0;

 protected:
  ~Listening() = default;
};

/// One way by which the bytes of a socket may go: an RDMA stream now. It hands out
/// the parts that play the roles of an endpoint to the endpoint that has it: EndpointOf (endpoint_of.h) where it is the
/// only one, ChosenSocket (chosen_socket.h) where a kernel socket stands beside it. A way knows nothing of other ways.
/// Lifetime: the endpoint owns it, and enters itself into the ForkRegistry at the end of its constructor; the way's
/// destructor begins with ForkRegistry::leave().
class Way {
 public:
  Way(const Way&) = delete;
  Way& operator=(const Way&) = delete;
  virtual ~Way() = default;

  /// Returns the parts that play the roles of an endpoint.
  virtual runtime::Roles roles() noexcept = 0;
  /// Returns the endpoint by which the application knows it.
  [[nodiscard]] runtime::Endpoint& endpoint() const { return endpoint_; }
  /// Returns the endpoint's descriptor number; that of a duplicate after the first one was closed.
  [[nodiscard]] virtual int descriptor() const = 0;
  /// Returns its counters, or null.
  virtual runtime::SocketStatistics* statistics() noexcept { return nullptr; }

  // -- beside a kernel socket
  /// Returns why a connection to `destination` cannot use this way, or nothing when it is to be tried.
  /// @param by_kernel_first  the kernel's connection may move to this way later (Mover)
  virtual std::optional<runtime::KernelReason> why_not_to(const SocketAddress& destination, bool by_kernel_first) = 0;
  /// Returns whether only the way knows this option.
  [[nodiscard]] virtual bool has_own_option(int /*level*/, int /*name*/) const { return false; }
  /// Called when bind(2) has given the kernel socket a port: no other socket gets it while this one is connected.
  virtual void hold_port() {}
  [[nodiscard]] virtual bool is_connecting() const = 0;
  /// After a failed connect ready() returns EPOLLHUP.
  [[nodiscard]] virtual bool has_failed_to_connect() const = 0;
  /// Returns the error of a failed connect until it is reported.
  [[nodiscard]] virtual int connect_error() const = 0;
  /// Copies the options that an accepted socket inherits from its listener, which has a way of the same kind.
  virtual void inherit_options(const Way& listener) = 0;
  /// Returns the role of a way that can listen, or null.
  virtual Listening* listening() noexcept { return nullptr; }

  /// The options that are not the way's (is_ways_option()).
  KeptOptions kept_options;

  // -- flags of the application's descriptor, which the kernel's does not have
  /// FD_CLOEXEC as the application sees it. The descriptor itself is always closed on exec: a program that does not
  /// know the connection must not keep it alive.
  std::atomic<bool> close_on_exec{false};
  /// F_SETOWN or F_SETSIG was called.
  std::atomic<bool> has_signal_owner{false};
  /// The process that last marked a descriptor to be kept over exec(2), or made such a descriptor. If a child does so
  /// after fork(2), it intends the descriptor for its next program; a descriptor that merely stays open may be a leak.
  std::atomic<pid_t> keeper{0};

 protected:
  explicit Way(runtime::Endpoint& endpoint) : endpoint_(endpoint) {}

 private:
  runtime::Endpoint& endpoint_;
};

}  // namespace ringsock::transports
