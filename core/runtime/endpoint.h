// The object behind a descriptor, as the C edges, the preload table and the poller use it.
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

/// Is notified when an endpoint's readiness may have changed: a sleeper (sleeper.h) or a member of an epoll set
/// (epoll_set.h). It must be removed by Endpoint::remove_watch() before it is destroyed.
class Watch : public ListNode<Endpoint> {
 public:
  /// @param interest EPOLL* bits to be notified of; EPOLLERR, EPOLLHUP and EPOLLRDHUP are always among them
  explicit Watch(std::uint32_t interest = ~0U) : interest_(interest | kAlwaysTold) {}

  /// ready() may report more than before, or the endpoint was closed. Called under the endpoint's watch lock, from any
  /// thread: must not sleep, call the endpoint, or take a lock that is held around add_watch() or remove_watch().
  virtual void endpoint_changed() noexcept = 0;
  /// Returns the epoll set whose member this is, empty for a sleeper (or when the set is being destroyed). Called in
  /// the same context.
  virtual Ref owner() noexcept;
  /// Returns whether it is on the stack of a thread, which a forked child does not have.
  [[nodiscard]] virtual bool belongs_to_thread() const noexcept { return true; }
  /// Returns whether this is a call that takes what it waits for, so that nothing is left for the others (accept(2)).
  [[nodiscard]] virtual bool is_taker() const noexcept { return false; }

 protected:
  ~Watch() = default;

 private:
  friend class Endpoint;
  static constexpr std::uint32_t kAlwaysTold = EPOLLERR | EPOLLHUP | EPOLLRDHUP;
  std::uint32_t interest_;
};

/// The kernel descriptors to sleep on for one endpoint, at most two, all for input.
struct WaitFds {
  std::array<int, 2> fd{-1, -1};
  /// For an endpoint on which other threads or processes wait, too (a listener): the same descriptors for a call that
  /// sleeps, those that all processes have in `shared`, that of this process only in `own` (sleep_in_turn()). An event
  /// of `own` wakes all threads that sleep on it, so one thread at a time does (`sleeps_on_own`).
  std::array<int, 2> shared{-1, -1};
  int own = -1;
  bool sleeps_on_own = true;
};

/// The object behind a descriptor of the library. Operations never sleep: one that would block fails with EAGAIN
/// (connect: EINPROGRESS), and the caller waits with retry_until_ready() (wait.h) and tries again. So blocking,
/// O_NONBLOCK, MSG_DONTWAIT, SO_RCVTIMEO and the pollers share one implementation of each operation. Errors are the
/// errno values of the Linux socket call of the same name. Threads: every function may be called from any thread at any
/// time, also while another thread closes the descriptor. Lifetime: intrusive reference count (Ref below); the
/// descriptor table holds one reference, sleepers and epoll sets others.
class Endpoint : public ListNode<ForkRegistry> {
 public:
  /// Whether receives keep the boundaries of sends.
  enum class Carries { bytes, datagrams };
  explicit Endpoint(Carries carries = Carries::bytes);
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  virtual ~Endpoint();

  // -- socket operations
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
  /// Scatter receive: message.msg_iov is filled in order; msg_name, msg_control and msg_flags are set as recvmsg(2)
  /// does.
  virtual Result<ssize_t> receive(msghdr& message, int flags);
  virtual Result<ssize_t> send(const msghdr& message, int flags);
  /// The same for one buffer; the hot path. Default: receive()/send() with a one-element msghdr.
  virtual Result<ssize_t> receive_bytes(void* data, std::size_t length, int flags);
  virtual Result<ssize_t> send_bytes(const void* data, std::size_t length, int flags);
  /// Keeps the error of an attempt for the next call. The caller does not report it, because earlier attempts of the
  /// call have moved bytes.
  virtual void keep_error(int /*code*/) noexcept {}
  /// unread_bytes() answers FIONREAD, unsent_bytes() SIOCOUTQ.
  virtual Result<int> unread_bytes();
  virtual Result<int> unsent_bytes();

  // -- readiness
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

  // -- life
  /// Called by a C edge once the last descriptor has left the table (has_descriptors()). Calls closed(), wakes every
  /// sleeper and removes the endpoint from epoll sets. Harmless when called twice.
  void close() noexcept;
  /// Starts the protocol's close. Called once, by close(), when no new caller can find the endpoint. Operations that
  /// are still running or are woken by it fail with EBADF. The destructor runs later.
  virtual void closed() noexcept = 0;
  /// Called when one of several descriptors was closed: its number has left the table but is not yet free, and others
  /// still refer to this endpoint.
  virtual void descriptor_closed(int /*fd*/) noexcept {}
  /// Called when the number, which has left the table, refers to another file by now and must not be used.
  virtual void descriptor_vanished(int /*fd*/) noexcept {}
  [[nodiscard]] bool is_closed() const { return is_closed_.load(std::memory_order_acquire); }
  /// Returns whether its descriptors have become kernel sockets. Calls that were inside and got EBADF then start again
  /// on the kernel socket.
  [[nodiscard]] bool has_left_to_kernel() const { return has_left_to_kernel_.load(std::memory_order_acquire); }
  /// Called around the sleep of a call that moves bytes.
  void begin_sleep() { sleeping_calls_.fetch_add(1, std::memory_order_relaxed); }
  void end_sleep() { sleeping_calls_.fetch_sub(1, std::memory_order_relaxed); }
  [[nodiscard]] int sleeping_calls() const { return sleeping_calls_.load(std::memory_order_relaxed); }
  /// Before ready() is asked by a call that does not sleep: whether the peer has gone, where ready() alone would learn
  /// it only after many calls. Cheap when it was done of late.
  virtual void look_for_end() noexcept {}

  /// Returns whether a descriptor in the table (fd_table.h) still refers to this endpoint; there are several after
  /// dup(2).
  [[nodiscard]] bool has_descriptors() const { return descriptors_.load(std::memory_order_acquire) != 0; }
  /// Returns how long close(2) must first wait for is_drained() because of SO_LINGER, 0 for not at all.
  virtual Nanos linger() noexcept { return Nanos::zero(); }
  virtual bool is_drained() noexcept { return true; }

  /// Returns whether the endpoint's destructor closes descriptor `fd`, instead of the code that removes it from the
  /// table. A thread that is still inside then never uses a number that was assigned anew.
  virtual bool owns_descriptor(int /*fd*/) const noexcept { return false; }
  /// Frees such a number for another use (dup2): the endpoint, which is closed, continues under another number.
  virtual void give_up_descriptor() noexcept {}

  /// Returns whether the kernel socket under the number is sufficient for a process without our state. In a child that
  /// was made without our fork handlers the descriptor then is that kernel socket. Called without locks, at any moment.
  [[nodiscard]] virtual bool is_kernels_too() const noexcept { return false; }

  /// Returns O_NONBLOCK of the open file description.
  [[nodiscard]] bool is_nonblocking() const { return nonblocking_.load(std::memory_order_relaxed); }
  void set_nonblocking(bool on) { nonblocking_.store(on, std::memory_order_relaxed); }
  /// SO_RCVTIMEO and SO_SNDTIMEO; Nanos::max() means for ever.
  [[nodiscard]] Nanos receive_timeout() const { return receive_timeout_.load(std::memory_order_relaxed); }
  [[nodiscard]] Nanos send_timeout() const { return send_timeout_.load(std::memory_order_relaxed); }
  void set_receive_timeout(Nanos t) { receive_timeout_.store(t, std::memory_order_relaxed); }
  void set_send_timeout(Nanos t) { send_timeout_.store(t, std::memory_order_relaxed); }
  /// Returns SO_RCVLOWAT of a stream: a receive that may block waits for that many bytes.
  [[nodiscard]] std::uint32_t receive_low_mark() const { return receive_low_mark_.load(std::memory_order_relaxed); }
  void set_receive_low_mark(std::uint32_t bytes) { receive_low_mark_.store(bytes, std::memory_order_relaxed); }

  void add_ref() { refs_.fetch_add(1, std::memory_order_relaxed); }
  void drop_ref() {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  /// Adds a reference for a caller that knows the address but holds none. Returns false when the count had already
  /// reached zero.
  bool try_add_ref() {
    std::uint32_t refs = refs_.load(std::memory_order_relaxed);
    while (refs != 0 && !refs_.compare_exchange_weak(refs, refs + 1, std::memory_order_relaxed)) {
    }
    return refs != 0;
  }

  /// Returns the counters of this endpoint, or null.
  virtual SocketStatistics* statistics() noexcept { return nullptr; }
  /// Returns whether ready() makes a system call while arm() costs nothing. Pollers then do not spin on the endpoint
  /// but wait for its descriptors.
  [[nodiscard]] virtual bool asks_kernel() const noexcept { return false; }

  /// Returns whether each arrival signals a descriptor of arm() anew, whether or not any process has taken the previous
  /// one. An epoll set then registers the descriptor once and treats each signal as a new event; registering it again
  /// would signal known events.
  [[nodiscard]] virtual bool rings_for_each_arrival() const noexcept { return false; }

  /// Returns this endpoint as an epoll set (epoll_set.h), or null.
  virtual EpollSet* as_epoll_set() noexcept { return nullptr; }

  // -- fork(2): see ForkRegistry, which calls these for endpoints that are entered there
  enum class ForkSide {
    parent,
    child,
    unprepared_child,  ///< was added during before_fork(), or had no reference: a thread may have been using it
  };
  /// Adds the locks that keep other threads out of the endpoint.
  virtual void add_fork_locks(ForkLocks& locks);
  /// Called with those locks of all endpoints held; after_fork() is called before they are released.
  virtual void before_fork() noexcept {}
  virtual void after_fork(ForkSide side) noexcept;
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

  // -- those who watch
  /// Makes the sleepers and epoll sets that watch this endpoint look again. The implementation calls it, without
  /// holding its own locks, whenever work on behalf of one caller (polling completions in receive(), for example) may
  /// have made ready() report more. Costs one relaxed load while there are no watchers.
  /// @param changed EPOLL* bits that may be new; only watchers of these are notified
  void notify_watchers(std::uint32_t changed = ~0U) {
    if (has_watches_.load(std::memory_order_relaxed)) notify_watchers_slow(changed);
  }
  /// As notify_watchers() where one item has arrived that one call will take: of the watches that are takers, only the
  /// next one in turn is notified. When a call has taken an item and others are left, the implementation calls
  /// notify_a_taker().
  void notify_watchers_of_one(std::uint32_t changed);
  void notify_a_taker();
  /// Whether anybody is entered now.
  [[nodiscard]] bool is_watched() const { return has_watches_.load(std::memory_order_relaxed); }
  /// @return false when the endpoint is closed and the watch was not added.
  bool add_watch(Watch& watch);
  /// After return no call of the watch is running or follows. Harmless when the watch was not added.
  void remove_watch(Watch& watch);

  /// Returns whether each send and each receive is one datagram: 0 bytes do not mean the end, and no call continues
  /// another one.
  [[nodiscard]] bool is_datagram() const noexcept { return carries_ == Carries::datagrams; }

  /// Returns a number, unique to this endpoint within the process, when several processes or threads take turns in
  /// accepting what it waits for; otherwise 0. A call then sleeps without spinning, because spinning would take the CPU
  /// from the others.
  [[nodiscard]] virtual std::uint64_t taken_in_turns() const noexcept { return 0; }
  /// Returns whether the arrival of what it waits for needs a CPU of this host, so that a caller that polls without
  /// sleeping may delay it.
  [[nodiscard]] virtual bool waits_for_our_cpus() const noexcept { return false; }

  /// Returns the number of arrivals (lower half) and of times that space became free (upper half); both wrap.
  /// Edge-triggered epoll reports a change of these as a new edge although ready() is the same.
  [[nodiscard]] std::uint64_t activity() const { return activity_.load(std::memory_order_acquire); }
  /// Returns the sender's order_stamp() (clock.h) of the first message that the last ready() or receive took in, 0 if
  /// unknown. It is a hint. From the first call on the device is asked for stamps.
  virtual std::uint32_t arrival_stamp() noexcept { return 0; }
  static constexpr std::uint64_t kArrival = 1;
  static constexpr std::uint64_t kOpening = std::uint64_t{1} << 32;

 protected:
  /// The implementation calls it with EPOLLIN when new data, a connection or an error arrived, and with EPOLLOUT when
  /// space for sending became free.
  void note_activity(std::uint32_t events = EPOLLIN | EPOLLOUT) {
    activity_.fetch_add(((events & EPOLLIN) != 0 ? kArrival : 0) + ((events & EPOLLOUT) != 0 ? kOpening : 0),
                        std::memory_order_release);
  }
  /// Called, without locks, when a member of this epoll set was closed.
  virtual void member_closed(Endpoint& member) noexcept;
  /// Called, without locks, when a member's descriptors have become kernel sockets.
  virtual void member_left_to_kernel(Endpoint& member) noexcept;
  /// Hands the descriptors over to the kernel in epoll sets, and makes sleepers look again. An implementation whose
  /// descriptors become kernel sockets calls it, without holding its own locks.
  void leave_to_kernel() noexcept;

 private:
  friend class FdTable;
  friend class ForkRegistry;
  Ref first_owner();
  void notify_watchers_slow(std::uint32_t changed);

  std::atomic<std::uint32_t> refs_{1};
  std::atomic<std::uint32_t> descriptors_{0};
  std::atomic<std::uint64_t> activity_{0};
  const Carries carries_;
  std::atomic<bool> nonblocking_{false};
  std::atomic<bool> has_watches_{false};
  std::atomic<bool> is_closed_{false};
  std::atomic<bool> has_left_to_kernel_{false};
  std::atomic<int> sleeping_calls_{0};
  bool prepared_for_fork_ = false;  ///< for ForkRegistry
  std::atomic<std::uint32_t> receive_low_mark_{1};
  std::atomic<Nanos> receive_timeout_{Nanos::max()};
  std::atomic<Nanos> send_timeout_{Nanos::max()};
  Mutex watches_lock_;
  IntrusiveList<Watch, Endpoint> watches_;
};

/// A counted reference to an endpoint.
class Ref {
 public:
  Ref() = default;
  /// Takes ownership of one reference.
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
