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
#include "core/runtime/description_values.h"
#include "core/runtime/references.h"
#include "core/runtime/roles.h"

namespace ringsock::transports {
class ChosenSocket;
class Way;
}  // namespace ringsock::transports

namespace ringsock::runtime {

class Endpoint;
class EpollSet;
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
  /// Returns whether this is a call that takes what it waits for, so that nothing is left for the others (accept(2)),
  /// or an epoll set that waits in turn with others (EPOLLEXCLUSIVE).
  [[nodiscard]] virtual bool is_taker() const noexcept { return false; }
  /// Returns, of such a taker, whether endpoint_changed() wakes a thread: otherwise one that looks later is told.
  [[nodiscard]] virtual bool is_asleep() const noexcept { return true; }

 protected:
  ~Watch() = default;

 private:
  friend class Endpoint;
  static constexpr std::uint32_t kAlwaysTold = EPOLLERR | EPOLLHUP | EPOLLRDHUP;
  std::uint32_t interest_;
};

/// The object behind a descriptor of the library: the roles of roles.h, and what all implementations share (references,
/// watches, O_NONBLOCK, time limits). Operations never sleep; the caller waits with retry_until_ready() (wait.h) and
/// tries again. So blocking, O_NONBLOCK, MSG_DONTWAIT, SO_RCVTIMEO and the pollers share one implementation of each
/// operation. Lifetime: intrusive reference count (Ref below); the descriptor table holds one reference, sleepers and
/// epoll sets others.
class alignas(64) Endpoint : public Transfer,
                             public Readiness,
                             public Setup,
                             public DescriptorLife,
                             public ProcessLife,
                             public ListNode<ForkRegistry> {
 public:
  /// Whether receives keep the boundaries of sends.
  enum class Carries : bool { bytes, datagrams };
  explicit Endpoint(Carries carries = Carries::bytes);
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  virtual ~Endpoint();

  References references;

 private:
  // Each call uses the cache line that begins here, and the start of `values`.
  friend class Calls;
  friend class FdTable;
  friend class ForkRegistry;
  std::atomic<std::uint64_t> activity_{0};
  std::atomic<std::uint32_t> descriptors_{0};
  const Carries carries_;
  std::atomic<bool> has_watches_{false};
  std::atomic<bool> is_closed_{false};
  std::atomic<bool> has_left_to_kernel_{false};
  Mutex watches_lock_;
  IntrusiveList<Watch, Endpoint> watches_;

 public:
  /// What the open file description keeps, for all processes that have it.
  DescriptionValues values;

  // -- life
  /// Called by a C edge once the last descriptor has left the table (has_descriptors()). Calls closed(), wakes every
  /// sleeper and removes the endpoint from epoll sets. Harmless when called twice.
  void retire() noexcept;
  [[nodiscard]] bool is_closed() const { return is_closed_.load(std::memory_order_acquire); }
  /// Returns whether its descriptors have become kernel sockets. Calls that were inside and got EBADF then start again
  /// on the kernel socket.
  [[nodiscard]] bool has_left_to_kernel() const { return has_left_to_kernel_.load(std::memory_order_acquire); }
  /// Called around the sleep of a call that moves bytes.
  void begin_sleep() { sleeping_calls_.fetch_add(1, std::memory_order_relaxed); }
  void end_sleep() { sleeping_calls_.fetch_sub(1, std::memory_order_relaxed); }
  [[nodiscard]] int sleeping_calls() const { return sleeping_calls_.load(std::memory_order_relaxed); }
  /// Returns whether a descriptor in the table (fd_table.h) still refers to this endpoint; there are several after
  /// dup(2).
  [[nodiscard]] bool has_descriptors() const { return descriptors_.load(std::memory_order_acquire) != 0; }
  /// Returns O_NONBLOCK of the open file description.
  [[nodiscard]] bool is_nonblocking() const { return values.get(DescriptionValues::nonblocking) != 0; }
  void set_nonblocking(bool on) { values.set(DescriptionValues::nonblocking, on); }
  /// SO_RCVTIMEO and SO_SNDTIMEO; Nanos::max() means for ever.
  [[nodiscard]] Nanos receive_timeout() const { return values.time(DescriptionValues::receive_timeout); }
  [[nodiscard]] Nanos send_timeout() const { return values.time(DescriptionValues::send_timeout); }
  void set_receive_timeout(Nanos t) { values.set(DescriptionValues::receive_timeout, t.count()); }
  void set_send_timeout(Nanos t) { values.set(DescriptionValues::send_timeout, t.count()); }
  /// Returns SO_RCVLOWAT of a stream: a receive that may block waits for that many bytes.
  [[nodiscard]] std::uint32_t receive_low_mark() const {
    return static_cast<std::uint32_t>(values.get(DescriptionValues::receive_low_mark));
  }
  void set_receive_low_mark(std::uint32_t bytes) { values.set(DescriptionValues::receive_low_mark, bytes); }

  void add_ref() { references.add(); }
  void drop_ref() {
    if (references.drop()) delete this;
  }

  /// Adds a reference for a caller that knows the address but holds none. Returns false when the count had already
  /// reached zero.
  bool try_add_ref() { return references.try_add(); }

  /// Returns the counters of this endpoint, or null.
  virtual SocketStatistics* statistics() noexcept { return nullptr; }
  /// Returns what carries this endpoint instead of the kernel (core/transports), or null.
  virtual transports::Way* way() noexcept { return nullptr; }
  /// Returns this endpoint as a kernel socket with a way beside it (core/transports), or null.
  virtual transports::ChosenSocket* as_chosen_socket() noexcept { return nullptr; }
  /// Returns this endpoint as an epoll set (epoll_set.h), or null.
  virtual EpollSet* as_epoll_set() noexcept { return nullptr; }

  // -- the endpoint's own part of fork(2), which overriders call, too
  void add_fork_locks(ForkLocks& locks) override;
  void after_fork(ForkSide side) noexcept override;

  // -- those who watch
  /// Makes the sleepers and epoll sets that watch this endpoint look again. The implementation calls it, without
  /// holding its own locks, whenever work on behalf of one caller (polling completions in receive(), for example) may
  /// have made ready() report more. Costs one relaxed load while there are no watchers.
  /// @param changed EPOLL* bits that may be new; only watchers of these are notified
  void notify_watchers(std::uint32_t changed = ~0U) {
    if (has_watches_.load(std::memory_order_relaxed)) notify_watchers_slow(changed);
  }
  /// As notify_watchers() where one item has arrived that one thread will take: of the watches that are takers, only
  /// the next one in turn that sleeps is notified, and those before it, which do not. When a call has taken an item and
  /// others are left, the implementation calls notify_a_taker().
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

  /// Returns the number of arrivals (lower half) and of times that space became free (upper half); both wrap.
  /// Edge-triggered epoll reports a change of these as a new edge although ready() is the same.
  [[nodiscard]] std::uint64_t activity() const { return activity_.load(std::memory_order_acquire); }
  static constexpr std::uint64_t kArrival = 1;
  static constexpr std::uint64_t kOpening = std::uint64_t{1} << 32;

  // -- for the implementation and its way
  /// Called with EPOLLIN when new data, a connection or an error arrived, and with EPOLLOUT when space for sending
  /// became free.
  void note_activity(std::uint32_t events = EPOLLIN | EPOLLOUT) {
    activity_.fetch_add(((events & EPOLLIN) != 0 ? kArrival : 0) + ((events & EPOLLOUT) != 0 ? kOpening : 0),
                        std::memory_order_release);
  }
  /// Hands the descriptors over to the kernel in epoll sets, and makes sleepers look again. An implementation whose
  /// descriptors become kernel sockets calls it, without holding its own locks.
  /// @param fd  one of the descriptors, -1 if none is left
  void leave_to_kernel(int fd) noexcept;

 protected:
  /// Called, without locks, when a member of this epoll set was closed.
  virtual void member_closed(Endpoint& member) noexcept;
  /// Called, without locks, when a member's descriptors have become kernel sockets.
  /// @param fd  one of these descriptors, -1 if none is left
  virtual void member_left_to_kernel(Endpoint& member, int fd) noexcept;

 private:
  Ref first_owner();
  void notify_watchers_slow(std::uint32_t changed);

  std::atomic<int> sleeping_calls_{0};
  bool prepared_for_fork_ = false;  ///< for ForkRegistry
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
