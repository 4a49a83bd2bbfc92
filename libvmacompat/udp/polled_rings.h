// The rings that a UDP socket receives from, and the descriptors that a thread sleeps on for them.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "core/base/clock.h"
#include "core/base/unique_fd.h"
#include "core/ethernet/ring.h"
#include "core/runtime/endpoint.h"
#include "libvmacompat/udp/datagram_queue.h"
#include "libvmacompat/udp/kernel_socket.h"
#include "libvmacompat/udp/send_conditions.h"

namespace ringsock::vma {

/// The rings are read without a lock: a count, places that are written once and keep their rings as long as the socket
/// lives, and a mask of the places in use. Locks: functions that change the rings, and the bell, which is made on
/// demand, are called with the socket's setup lock held. Threads: any.
class PolledRings {
 public:
  /// @param drain_interval  of drain(); zero: only calls that find no datagram waiting poll the rings
  PolledRings(KernelSocket& kernel, runtime::Endpoint& endpoint, SendConditions& conditions, Nanos drain_interval)
      : kernel_(kernel), endpoint_(endpoint), conditions_(conditions), drain_interval_(drain_interval) {}

  /// Declared before the locks of a function that may add rings. Its destructor tells threads that sleep on the socket
  /// about new rings, after the locks have been released.
  class News {
   public:
    explicit News(PolledRings& rings) : rings_(rings) {}
    News(const News&) = delete;
    News& operator=(const News&) = delete;
    ~News() {
      if (rings_.conditions_.has_new_rings.load(std::memory_order_relaxed)) [[unlikely]]
        rings_.tell();
    }

   private:
    PolledRings& rings_;
  };

  /// Tells the threads that sleep on the socket to look again. Called without locks; most callers use News.
  void tell();

  /// Returns whether the socket has, or had, rings.
  [[nodiscard]] bool any() const { return count_.load(std::memory_order_acquire) != 0; }
  /// Polls all rings, even when the first has served the call, so that none is neglected. Returns `nothing` only if all
  /// are empty.
  [[gnu::always_inline]] ethernet::Ring::Look poll(ethernet::WaitingCall* waiting) noexcept {
    auto found = ethernet::Ring::Look::nothing;
    for_each([&](ethernet::Ring& ring) { found = std::max(found, ring.poll(waiting)); });
    return found;
  }
  [[nodiscard]] bool are_drained() const { return drain_interval_ != Nanos::zero(); }
  /// Called while datagrams wait: polls the rings, so that the device has room for more, when the interval is over.
  void drain() noexcept;
  /// Polls on until the queue has an arrival or something for the callback, the call is served, or the rings are empty:
  /// a datagram for this socket may be behind datagrams for others, or another thread may be handling it.
  void catch_up(ethernet::WaitingCall* waiting, ReceiveQueue& queue) noexcept;

  /// Returns false when the socket has too many rings. setup lock held.
  bool add(const std::shared_ptr<ethernet::Ring>& ring);
  /// Stops polling the rings of which `is_used` says no. They stay in their places, because other threads may be
  /// looking at them. setup lock held.
  void leave_where_not(const std::function<bool(const std::shared_ptr<ethernet::Ring>&)>& is_used);

  /// Arms the rings and returns what to sleep on. setup lock held.
  runtime::WaitFds arm() noexcept;
  /// Called after a sleep. Calls the rings.
  void woken() noexcept;
  /// Returns whether the last arm() found no descriptor for a bell: nothing announces datagrams of rings.
  [[nodiscard]] bool is_deaf() const { return is_deaf_.load(std::memory_order_relaxed); }
  /// The kernel's socket may be written to again: only its datagrams ring the bell. setup lock held.
  void stop_waiting_for_room() noexcept { watch_kernel(EPOLLIN); }

  /// Called in a forked child: the rings are the parent's.
  void forget_after_fork() noexcept;

 private:
  static constexpr std::size_t kMostRings = 16;

  /// Visits the rings that are in use.
  template <class Visit>
  void for_each(Visit visit) {
    for (std::uint32_t left = polled_.load(std::memory_order_acquire); left != 0; left &= left - 1)
      visit(*rings_[static_cast<std::size_t>(std::countr_zero(left))]);
  }
  bool make_bell() noexcept;
  void watch_kernel(std::uint32_t events) noexcept;

  KernelSocket& kernel_;
  runtime::Endpoint& endpoint_;
  SendConditions& conditions_;
  const Nanos drain_interval_;
  std::atomic<Nanos> last_drain_{};
  std::array<std::shared_ptr<ethernet::Ring>, kMostRings> rings_;
  std::atomic<std::size_t> count_{0};
  std::atomic<std::uint32_t> polled_{0};  ///< a bit for each place
  UniqueFd bell_;                         ///< epoll: the kernel socket and the rings' channels
  std::atomic<bool> is_deaf_{false};
};

}  // namespace ringsock::vma
