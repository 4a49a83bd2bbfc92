// What the object behind a descriptor does, in roles. An implementation overrides what it has to say; the other
// functions answer as for an object that lacks the operation.
#pragma once

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/base/socket_address.h"

namespace ringsock::vma {
class ApiSocket;
class PolledRing;
}  // namespace ringsock::vma

namespace ringsock::runtime {

class ForkLocks;
class Listable;

/// The kernel descriptors to sleep on for one endpoint, at most two, for input unless it says otherwise.
struct WaitFds {
  std::array<int, 2> fd{-1, -1};
  /// The first one is the kernel's socket that carries the endpoint: a call that waits for room waits for POLLOUT.
  bool tells_of_room = false;
  /// For an endpoint on which other threads or processes wait, too (a listener): the same descriptors for a call that
  /// sleeps, those that all processes have in `shared`, that of this process only in `own` (sleep_in_turn()). An event
  /// of `own` wakes all threads that sleep on it, so one thread at a time does (`sleeps_on_own`).
  std::array<int, 2> shared{-1, -1};
  int own = -1;
  bool sleeps_on_own = true;
};

// Operations never sleep: one that would block fails with EAGAIN (connect: EINPROGRESS). Errors are the errno values of
// the Linux socket call of the same name. Threads: every function may be called from any thread at any time, also while
// another thread closes the descriptor.

/// Takes bytes that have been received to another place.
class BytesTaker {
 public:
  /// Returns how many of `bytes` it has taken, which it does in their order. Called with locks of the socket held, so
  /// it must not wait, nor use the socket.
  virtual std::size_t take(std::span<std::byte> bytes) noexcept = 0;

 protected:
  ~BytesTaker() = default;
};

/// Moves bytes.
class Transfer {
 public:
  /// Scatter receive: message.msg_iov is filled in order; msg_name, msg_control and msg_flags are set as recvmsg(2)
  /// does.
  virtual Result<ssize_t> receive(msghdr& message, int flags);
  virtual Result<ssize_t> send(const msghdr& message, int flags);
  /// Receives by a call of the kernel's that waits, with its time-out. The endpoint is pinned. Returns nothing where
  /// something else than the kernel's socket may bring what the call waits for; the caller then calls receive() until
  /// that has something.
  virtual std::optional<Result<ssize_t>> receive_waiting(msghdr& /*message*/, int /*flags*/) { return std::nullopt; }
  /// The same as receive() and send() for one buffer; the hot path. Default: receive()/send() with a one-element
  /// msghdr.
  virtual Result<ssize_t> receive_bytes(void* data, std::size_t length, int flags);
  virtual Result<ssize_t> send_bytes(const void* data, std::size_t length, int flags);
  /// Shows received bytes to `taker`, as many as `room` has place for. Those that it takes leave the socket. A stream
  /// that a way carries lets no other thread or process receive in between; the default, for others, is a peek and then
  /// a receive. Errors: those of receive(); EAGAIN also where `taker` takes nothing.
  virtual Result<ssize_t> receive_by(BytesTaker& taker, std::span<std::byte> room, int flags);
  /// Keeps the error of an attempt for the next call. The caller does not report it, because earlier attempts of the
  /// call have moved bytes.
  virtual void keep_error(int /*code*/) noexcept {}
  /// unread_bytes() answers FIONREAD, unsent_bytes() SIOCOUTQ.
  virtual Result<int> unread_bytes();
  virtual Result<int> unsent_bytes();
  /// Returns how many bytes a send would take now, 0: the implementation does not know.
  virtual std::size_t room_to_send() noexcept { return 0; }
  /// Answers ioctl(2) with SIOCATMARK or SIOCOUTQNSD. EOPNOTSUPP, the default: the kernel's socket knows.
  virtual Result<int> ask(unsigned long request);
  /// Returns the part of it that answers VMA's Extra API (core/extra_api/api_socket.h), or null: the kernel has the
  /// socket.
  virtual vma::ApiSocket* as_api_socket() noexcept { return nullptr; }
  /// Returns it as a ring that programs poll by that API (core/extra_api/polled_ring.h), or null.
  virtual vma::PolledRing* as_polled_ring() noexcept { return nullptr; }

 protected:
  ~Transfer() = default;
};

/// Tells what can be done now, and prepares sleeps until more can be done.
class Readiness {
 public:
  /// Does pending work (polls completions, drives a connect) and returns the EPOLL* conditions that hold now:
  /// level-triggered, unmasked, including EPOLLERR and EPOLLHUP. Never sleeps.
  virtual std::uint32_t ready() noexcept = 0;
  /// Prepares a sleep: from now on any change that could make ready() report more makes a descriptor of the result
  /// readable. The caller must call ready() once more before it sleeps, because an earlier completion wakes nobody.
  /// Harmless when no sleep follows. Several endpoints may share a descriptor: then woken() of any of them notifies the
  /// watchers of all endpoints that have received something.
  virtual WaitFds arm() noexcept = 0;
  /// Called when a descriptor of arm() was readable: consumes the cause, so that the descriptor does not stay readable.
  virtual void woken() noexcept = 0;
  /// Returns the time at which ready() must be called even if no descriptor is readable (a connect's time-out), or
  /// Nanos::max().
  virtual Nanos deadline() noexcept { return Nanos::max(); }
  /// Before ready() is asked by a call that does not sleep: whether the peer has gone, where ready() alone would learn
  /// it only after many calls. Cheap when it was done of late.
  virtual void look_for_end() noexcept {}
  /// Returns whether ready() makes a system call while arm() costs nothing. Pollers then do not spin on the endpoint
  /// but wait for its descriptors.
  [[nodiscard]] virtual bool asks_kernel() const noexcept { return false; }
  /// Returns whether each arrival signals a descriptor of arm() anew, whether or not any process has taken the previous
  /// one. An epoll set then registers the descriptor once and treats each signal as a new event; registering it again
  /// would signal known events.
  [[nodiscard]] virtual bool rings_for_each_arrival() const noexcept { return false; }
  /// Returns itself as something whose peer can note its news in a map (listable.h), or null when it cannot now.
  virtual Listable* listable() noexcept { return nullptr; }
  /// Returns the sender's order_stamp() (clock.h) of the first message that the last ready() or receive took in, 0 if
  /// unknown. It is a hint. From the first call on the device is asked for stamps.
  virtual std::uint32_t arrival_stamp() noexcept { return 0; }
  /// Returns a number, unique to this object within the process, when several processes or threads take turns in
  /// accepting what it waits for; otherwise 0. A call then sleeps without spinning, because spinning would take the CPU
  /// from the others.
  [[nodiscard]] virtual std::uint64_t taken_in_turns() const noexcept { return 0; }
  /// Called when an epoll set waits for it with EPOLLEXCLUSIVE: from then on one thread or process takes what has
  /// arrived, so ready() takes nothing, and arm() fills in WaitFds::shared where the endpoint can.
  virtual void expect_turns() noexcept {}
  /// Returns whether nothing has come yet by what the library polls: receiving then has a polling time of its own.
  [[nodiscard]] virtual bool awaits_first() const noexcept { return false; }
  /// Returns whether the arrival of what it waits for needs a CPU of this host, so that a caller that polls without
  /// sleeping may delay it.
  [[nodiscard]] virtual bool waits_for_our_cpus() const noexcept { return false; }

 protected:
  ~Readiness() = default;
};

/// Sets a socket up: names, connecting, listening, options.
class Setup {
 public:
  virtual Status bind(const sockaddr* address, socklen_t length);
  virtual Status listen(int backlog);
  /// Returns the new descriptor. `flags` are those of accept4(2). Fills `peer` as getpeername(2) does.
  virtual Result<int> accept(SocketAddress& peer, int flags);
  /// Fails with EINPROGRESS once started. Later calls fail with EALREADY while the connect is pending, then with
  /// EISCONN or the failure (as connect(2)).
  virtual Status connect(const sockaddr* address, socklen_t length);
  virtual Status shutdown(int how);
  virtual Result<SocketAddress> local_name();
  virtual Result<SocketAddress> peer_name();
  virtual Status set_option(int level, int name, const void* value, socklen_t length);
  virtual Status get_option(int level, int name, void* value, socklen_t* length);

 protected:
  ~Setup() = default;
};

/// Follows the descriptors under which the application knows the object, up to the last one's end.
class DescriptorLife {
 public:
  /// Starts the protocol's close. Called once, when no new caller can find the endpoint. Operations that are still
  /// running or are woken by it fail with EBADF. The destructor runs later.
  virtual void closed() noexcept = 0;
  /// Called when one of several descriptors was closed: its number has left the table but is not yet free, and others
  /// still refer to this endpoint.
  virtual void descriptor_closed(int /*fd*/) noexcept {}
  /// Called when the number, which has left the table, refers to another file by now and must not be used.
  virtual void descriptor_vanished(int /*fd*/) noexcept {}
  /// Returns how long close(2) must first wait for is_drained() because of SO_LINGER, 0 for not at all.
  virtual Nanos linger() noexcept { return Nanos::zero(); }
  virtual bool is_drained() noexcept { return true; }
  /// Returns whether the endpoint's destructor closes descriptor `fd`, instead of the code that removes it from the
  /// table. A thread that is still inside then never uses a number that was assigned anew.
  virtual bool owns_descriptor(int /*fd*/) const noexcept { return false; }
  /// Frees such a number for another use: the endpoint, which is closed or has calls inside, continues under another
  /// number.
  virtual void give_up_descriptor() noexcept {}
  /// Returns whether the kernel socket under the number is sufficient for a process without our state. In a child that
  /// was made without our fork handlers the descriptor then is that kernel socket. Called without locks, at any moment.
  [[nodiscard]] virtual bool is_kernels_too() const noexcept { return false; }
  /// Leaves the socket to the kernel for good, under the same descriptors, for what it cannot do itself. Returns
  /// whether the descriptors are the kernel's now. May take the endpoint's locks; not inside a read-side section.
  virtual bool become_kernels() noexcept { return false; }

 protected:
  ~DescriptorLife() = default;
};

/// Follows the life of the process: fork(2), exec(2), the end. ForkRegistry calls the first three for endpoints that
/// are entered there.
class ProcessLife {
 public:
  enum class ForkSide {
    parent,
    child,
    unprepared_child,  ///< was added during before_fork(), or had no reference: a thread may have been using it
  };
  /// Adds the locks that keep other threads out of the endpoint.
  virtual void add_fork_locks(ForkLocks& /*locks*/) {}
  /// Called with those locks of all endpoints held; after_fork() is called before they are released.
  virtual void before_fork() noexcept {}
  virtual void after_fork(ForkSide /*side*/) noexcept {}
  /// Called when the process is about to end or to execute another program, and no longer uses the endpoint. Must not
  /// wait.
  virtual void process_ends() noexcept {}
  /// Called before the process tries to execute another program. May take the endpoint's locks.
  virtual void before_exec() noexcept {}
  /// Called before a descriptor of this endpoint is given to another process other than by fork(2). May take the
  /// endpoint's locks.
  virtual void passed_on() noexcept {}
  /// Called when executing the program has failed.
  virtual void process_goes_on() noexcept {}
  /// Called before a socket that was forked undecided is connected, or listens. Returns whether no other living process
  /// has it.
  virtual bool is_alone() noexcept { return true; }

 protected:
  ~ProcessLife() = default;
};

/// The roles of one object, which may be played by several parts of it. The parts live as long as the object.
struct Roles {
  Transfer& transfer;
  Readiness& readiness;
  Setup& setup;
  DescriptorLife& descriptors;
  ProcessLife& process_life;
};

}  // namespace ringsock::runtime
