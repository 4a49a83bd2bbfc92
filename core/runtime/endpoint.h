// What a descriptor is, to the C edges, the preload table and the poller.
#pragma once

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/base/clock.h"
#include "core/base/intrusive_list.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/base/socket_address.h"

namespace ringsock::runtime {

class Endpoint;
class EpollSet;
class ForkLocks;
class ForkRegistry;
class Ref;
class SocketStatistics;

/// Somebody who wants to hear that an endpoint's readiness may have changed: a sleeper (sleeper.h) or an epoll set's
/// member (epoll_set.h). Leaves with Endpoint::remove_watch() before it is destroyed.
class Watch : public ListNode<Endpoint> {
 public:
  /// @param interest  EPOLL* bits worth telling; EPOLLERR, EPOLLHUP and EPOLLRDHUP always are.
  explicit Watch(std::uint32_t interest = ~0U) : interest_(interest | kAlwaysTold) {}

  /// ready() may report more than before, or the endpoint was closed. Called under the endpoint's watch lock, from any
  /// thread: must not sleep, call the endpoint, or take a lock that is held around add_watch() or remove_watch().
  virtual void endpoint_changed() noexcept = 0;
  /// The epoll set whose member this is, empty for a sleeper (or when the set is being destroyed). Same context.
  virtual Ref owner() noexcept;
  /// Whether it is on the stack of a thread, which a forked child does not have.
  [[nodiscard]] virtual bool belongs_to_thread() const noexcept { return true; }

 protected:
  ~Watch() = default;

 private:
  friend class Endpoint;
  static constexpr std::uint32_t kAlwaysTold = EPOLLERR | EPOLLHUP | EPOLLRDHUP;
  std::uint32_t interest_;
};

/// The kernel descriptors to sleep on for one endpoint: all for input. At most two.
struct WaitFds {
  std::array<int, 2> fd{-1, -1};
  /// Where other processes wait for the same (a listener after fork(2)), for a call that sleeps: the same descriptors,
  /// those that all have and the one that only this process has (sleep_in_turn()).
  std::array<int, 2> shared{-1, -1};
  int own = -1;
};

/// An object behind a descriptor of ours. The operations are attempts: none sleeps, ever; what would block answers
/// EAGAIN (connect: EINPROGRESS) and the caller waits with retry_until_ready() (wait.h) and tries again. So blocking,
/// O_NONBLOCK, MSG_DONTWAIT, SO_RCVTIMEO and the pollers share one implementation of each operation. Errors are the
/// errno values of the Linux socket call of the same name. Threads: every function may be called from any thread at any
/// time, also while another thread closes the descriptor. Lifetime: intrusive reference count (Ref below); the
/// descriptor table holds one reference, sleepers and epoll sets others.
class Endpoint : public ListNode<ForkRegistry> {
 public:
  /// What one send is to receives.
  enum class Carries { bytes, datagrams };
  explicit Endpoint(Carries carries = Carries::bytes);
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  virtual ~Endpoint();

  // -- socket operations
  // ------------------------------------------------------------------------------------------------
  virtual Status bind(const sockaddr* address, socklen_t length);
  virtual Status listen(int backlog);
  /// The new descriptor. `flags` as accept4(2). Fills `peer` as getpeername does.
  virtual Result<int> accept(SocketAddress& peer, int flags);
  /// EINPROGRESS once started; called again: EALREADY while pending, EISCONN or the failure afterwards (as connect(2)).
  virtual Status connect(const sockaddr* address, socklen_t length);
  virtual Status shutdown(int how);
  virtual Result<SocketAddress> local_name();
  virtual Result<SocketAddress> peer_name();
  virtual Status set_option(int level, int name, const void* value, socklen_t length);
  virtual Status get_option(int level, int name, void* value, socklen_t* length);
  /// Scatter receive: message.msg_iov is filled in order; msg_name, msg_control and msg_flags are set as recvmsg(2)
  /// does.
  virtual Result<ssize_t> receive(msghdr& message, int flags);
  virtual Result<ssize_t> send(const msghdr& message, int flags);
  /// The same for one buffer; the hot path. Default: receive()/send() with a one-element msghdr.
  virtual Result<ssize_t> receive_bytes(void* data, std::size_t length, int flags);
  virtual Result<ssize_t> send_bytes(const void* data, std::size_t length, int flags);
  /// The error of an attempt that the caller does not tell, because attempts before it have moved bytes: if it was
  /// taken from the endpoint, the next call tells it.
  virtual void keep_error(int /*code*/) noexcept {}
  /// FIONREAD and SIOCOUTQ.
  virtual Result<int> unread_bytes();
  virtual Result<int> unsent_bytes();

  // -- readiness
  // --------------------------------------------------------------------------------------------------------
  /// Does pending work (polls completions, drives a connect) and tells which EPOLL* conditions hold now:
  /// level-triggered, not masked with what anybody asked for. EPOLLERR and EPOLLHUP included. Never sleeps.
  virtual std::uint32_t ready() noexcept = 0;
  /// Announces that somebody is about to sleep: from now on any change that could make ready() report more makes a
  /// descriptor of the result readable. The caller looks at ready() once more before it sleeps (a completion that
  /// landed in between would wake nobody). Harmless when nobody then sleeps. Several endpoints may have a descriptor in
  /// common: then woken() of any of them tells the watchers of those for whom something has come.
  virtual WaitFds arm() noexcept = 0;
  /// After a descriptor of arm() was readable: takes what made it so, so that it does not stay readable.
  virtual void woken() noexcept = 0;
  /// When ready() wants to be called although all is quiet (a connect's time-out), or Nanos::max().
  virtual Nanos deadline() noexcept { return Nanos::max(); }

  // -- life
  // -------------------------------------------------------------------------------------------------------------
  /// What a C edge calls once the last descriptor has left the table (has_descriptors()): closed(), then every sleeper
  /// looks again and epoll sets forget the endpoint. Harmless when called twice.
  void close() noexcept;
  /// The descriptor has been closed: start the protocol's close. Called once, by close(), after no new caller can find
  /// the endpoint. Operations that are still running or woken up by it see EBADF. The destructor comes later.
  virtual void closed() noexcept = 0;
  /// One of several descriptors was closed (its number is out of the table, but not yet free): others still mean this
  /// endpoint.
  virtual void descriptor_closed(int /*fd*/) noexcept {}
  [[nodiscard]] bool is_closed() const { return is_closed_.load(std::memory_order_acquire); }
  /// Whether its descriptors go on as the kernel's: calls that are still inside, and see EBADF, start anew there.
  [[nodiscard]] bool has_left_to_kernel() const { return has_left_to_kernel_.load(std::memory_order_acquire); }
  /// Around the sleep of a call that moves bytes.
  void begin_sleep() { sleeping_calls_.fetch_add(1, std::memory_order_relaxed); }
  void end_sleep() { sleeping_calls_.fetch_sub(1, std::memory_order_relaxed); }
  [[nodiscard]] bool has_sleeping_calls() const { return sleeping_calls_.load(std::memory_order_relaxed) > 0; }
  /// Whether a descriptor in the table (fd_table.h) still means this endpoint; more than one after dup(2).
  [[nodiscard]] bool has_descriptors() const { return descriptors_.load(std::memory_order_acquire) != 0; }
  /// How long close(2) should wait first because of SO_LINGER: 0 not at all. Waits for EPOLLOUT-like `is_drained()`.
  virtual Nanos linger() noexcept { return Nanos::zero(); }
  virtual bool is_drained() noexcept { return true; }

  /// Whether descriptor `fd` is closed by the endpoint's destructor, not by whoever takes it out of the table: then no
  /// thread that is still inside meets a number that belongs to something else by now.
  virtual bool owns_descriptor(int /*fd*/) const noexcept { return false; }
  /// Such a number is wanted for something else (dup2): the endpoint, which is closed, goes on under another one.
  virtual void give_up_descriptor() noexcept {}

  /// Whether the kernel's socket under the number is all that a process without our state needs: in a child that was
  /// made without our fork handlers the descriptor then is the kernel's. Asked without locks, at any moment.
  [[nodiscard]] virtual bool is_kernels_too() const noexcept { return false; }

  /// O_NONBLOCK of the open file description.
  [[nodiscard]] bool is_nonblocking() const { return nonblocking_.load(std::memory_order_relaxed); }
  void set_nonblocking(bool on) { nonblocking_.store(on, std::memory_order_relaxed); }
  /// SO_RCVTIMEO and SO_SNDTIMEO; Nanos::max() means for ever.
  [[nodiscard]] Nanos receive_timeout() const { return receive_timeout_.load(std::memory_order_relaxed); }
  [[nodiscard]] Nanos send_timeout() const { return send_timeout_.load(std::memory_order_relaxed); }
  void set_receive_timeout(Nanos t) { receive_timeout_.store(t, std::memory_order_relaxed); }
  void set_send_timeout(Nanos t) { send_timeout_.store(t, std::memory_order_relaxed); }

  void add_ref() { refs_.fetch_add(1, std::memory_order_relaxed); }
  void drop_ref() {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  /// For who knows the address but holds no reference: false when the count had already reached zero.
  bool try_add_ref() {
    std::uint32_t refs = refs_.load(std::memory_order_relaxed);
    while (refs != 0 && !refs_.compare_exchange_weak(refs, refs + 1, std::memory_order_relaxed)) {
    }
    return refs != 0;
  }

  /// Where what happens to this endpoint is counted, or null.
  virtual SocketStatistics* statistics() noexcept { return nullptr; }
  /// Whether ready() asks the kernel, which costs a system call, and arm() costs nothing: pollers then do not spin on
  /// it but wait for its descriptors.
  [[nodiscard]] virtual bool asks_kernel() const noexcept { return false; }

  /// Whether each arrival makes a descriptor of arm() ring anew, be the last one taken or not, and by whatever process.
  /// So a set registers it once, and takes each ring for news: registering it again would ring for what is known.
  [[nodiscard]] virtual bool rings_for_each_arrival() const noexcept { return false; }

  /// This endpoint as an epoll set (epoll_set.h), or null.
  virtual EpollSet* as_epoll_set() noexcept { return nullptr; }

  // -- fork(2): see ForkRegistry, which calls these for endpoints that are entered there
  // ---------------------------------------------------------------------------------------------------------------
  enum class ForkSide {
    parent,
    child,
    unprepared_child,  ///< came during before_fork(), or nobody held a reference: a thread may be at work on it
  };
  /// Names the locks without which another thread could be in the middle of something.
  virtual void add_fork_locks(ForkLocks& locks);
  /// All those locks, of all endpoints, are held, and after_fork() is called before they are released.
  virtual void before_fork() noexcept {}
  virtual void after_fork(ForkSide side) noexcept;
  /// The process is about to end, or to become another program: nothing of it is used here any more. Nothing is waited
  /// for.
  virtual void process_ends() noexcept {}
  /// The process is about to become another program, unless that fails. May take the endpoint's locks.
  virtual void before_exec() noexcept {}
  /// A descriptor of this endpoint is about to be given to another process, other than by fork(2). The same.
  virtual void passed_on() noexcept {}
  /// It did not become another program after all.
  virtual void process_goes_on() noexcept {}

  // -- those who watch
  // ----------------------------------------------------------------------------------------------------
  /// To be called by the implementation, without its own locks held, whenever work done on behalf of one caller
  /// (polling completions in receive(), say) may have made ready() report more: sleepers and epoll sets that watch this
  /// endpoint look again. One relaxed load while nobody does.
  /// @param changed  EPOLL* bits that may be new; those who wait for others are left in peace.
  void notify_watchers(std::uint32_t changed = ~0U) {
    if (has_watches_.load(std::memory_order_relaxed)) notify_watchers_slow(changed);
  }
  /// Whether anybody is entered now.
  [[nodiscard]] bool is_watched() const { return has_watches_.load(std::memory_order_relaxed); }
  /// @return false when the endpoint is closed: not entered.
  bool add_watch(Watch& watch);
  /// No call of the watch runs or comes after return. Harmless when it is not entered.
  void remove_watch(Watch& watch);

  /// Whether each send and each receive is one datagram: none of 0 bytes is an end, and no call goes on where another
  /// one stopped.
  [[nodiscard]] bool is_datagram() const noexcept { return carries_ == Carries::datagrams; }

  /// Whether other processes take what this waits for, each when it is its turn: a call waits asleep, since who spins
  /// would take the CPU from them. Then its number, which no other endpoint of this process ever has; else 0.
  [[nodiscard]] virtual std::uint64_t taken_in_turns() const noexcept { return 0; }
  /// Whether what this waits for is brought by something that needs a CPU of this host, one that a caller who polls
  /// without ever sleeping may be taking from it.
  [[nodiscard]] virtual bool waits_for_our_cpus() const noexcept { return false; }

  /// How often something arrived, or space came free: what edge-triggered epoll reports as a new edge although ready()
  /// says the same as before. Wraps.
  [[nodiscard]] std::uint32_t activity() const { return activity_.load(std::memory_order_acquire); }

 protected:
  /// To be called by the implementation when new data (a connection, an error) arrived or space for sending came free.
  void note_activity() { activity_.fetch_add(1, std::memory_order_release); }
  /// A member of this epoll set was closed. Called without locks.
  virtual void member_closed(Endpoint& member) noexcept;
  /// A member's descriptors are the kernel's from now on. Called without locks.
  virtual void member_left_to_kernel(Endpoint& member) noexcept;
  /// To be called by an implementation whose descriptors go on as the kernel's: epoll sets hand them over, and sleepers
  /// look again. Without its own locks held.
  void leave_to_kernel() noexcept;

 private:
  friend class FdTable;
  friend class ForkRegistry;
  Ref first_owner();
  void notify_watchers_slow(std::uint32_t changed);

  std::atomic<std::uint32_t> refs_{1};
  std::atomic<std::uint32_t> descriptors_{0};
  std::atomic<std::uint32_t> activity_{0};
  const Carries carries_;
  std::atomic<bool> nonblocking_{false};
  std::atomic<bool> has_watches_{false};
  std::atomic<bool> is_closed_{false};
  std::atomic<bool> has_left_to_kernel_{false};
  std::atomic<int> sleeping_calls_{0};
  bool prepared_for_fork_ = false;  ///< ForkRegistry's
  std::atomic<Nanos> receive_timeout_{Nanos::max()};
  std::atomic<Nanos> send_timeout_{Nanos::max()};
  Mutex watches_lock_;
  IntrusiveList<Watch, Endpoint> watches_;
};

/// A counted reference to an endpoint.
class Ref {
 public:
  Ref() = default;
  /// Takes over one reference.
  explicit Ref(Endpoint* adopted) : endpoint_(adopted) {}
  static Ref share(Endpoint& endpoint) {
    endpoint.add_ref();
    return Ref(&endpoint);
  }
  Ref(Ref&& other) noexcept : endpoint_(other.endpoint_) { other.endpoint_ = nullptr; }
  Ref& operator=(Ref&& other) noexcept {
    std::swap(endpoint_, other.endpoint_);
    return *this;
  }
  ~Ref() {
    if (endpoint_) endpoint_->drop_ref();
  }
  [[nodiscard]] Endpoint* get() const { return endpoint_; }
  /// Gives the reference to the caller.
  [[nodiscard]] Endpoint* release() { return std::exchange(endpoint_, nullptr); }
  Endpoint* operator->() const { return endpoint_; }
  Endpoint& operator*() const { return *endpoint_; }
  explicit operator bool() const { return endpoint_ != nullptr; }

 private:
  Endpoint* endpoint_ = nullptr;
};

}  // namespace ringsock::runtime
