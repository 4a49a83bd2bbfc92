// What rings deliver to a UDP socket: straight to a waiting call, or into a queue.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "core/base/biased_mutex.h"
#include "core/base/result.h"
#include "core/ethernet/arrival.h"
#include "core/ethernet/packet_sink.h"
#include "core/runtime/endpoint.h"
#include "core/runtime/ring_choice.h"
#include "libvmacompat/udp/kernel_socket.h"
#include "libvmacompat/udp/memberships.h"
#include "libvmacompat/udp/receive_options.h"
#include "libvmacompat/udp/whole_datagrams.h"

namespace ringsock::vma {

/// recvmsg(2), as long as it waits for a datagram of a ring.
struct WaitingReceive : ethernet::WaitingCall {
  msghdr& message;
  int flags;
  ssize_t answer = 0;  ///< set when it is served
};

/// The sink of a socket's rings. Locks: lock_ guards all that is not atomic; no function is called with it held. A ring
/// calls deliver() under the ring's receive lock, and the setup lock may be held around any function. The atomic fields
/// are hints that are read without it. Threads: any.
class ReceiveQueue final : public ethernet::PacketSink {
 public:
  /// @param limit  the most bytes of payload that may wait
  ReceiveQueue(KernelSocket& kernel, runtime::Endpoint& endpoint, runtime::VmaSocketStatistics& statistics,
               runtime::RingChoice choice, std::size_t limit);

  // -- as a sink of rings
  [[nodiscard]] bool accepts(const wire::EndName& source) const noexcept override {
    return !is_connected_.load(std::memory_order_acquire) || peer_ == source;
  }
  ethernet::Delivery deliver(ethernet::Incoming& incoming, const wire::EndName& source) noexcept override;
  runtime::Endpoint& endpoint() noexcept override { return endpoint_; }
  [[nodiscard]] bool shares_port() const noexcept override { return shares_port_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool has_waiting() const noexcept override { return has_arrivals() || whole_.cyclic_waits(); }
  ethernet::EventSource* event_source() noexcept override { return &whole_; }
  /// SO_REUSEPORT was set.
  void share_port() { shares_port_.store(true, std::memory_order_relaxed); }
  /// Sets the only sender whose datagrams are accepted; nothing: all are. Not called while a ring may deliver, unless
  /// the peer stays the same.
  void set_peer(const std::optional<wire::EndName>& peer);
  [[nodiscard]] bool is_connected() const { return is_connected_.load(std::memory_order_acquire); }

  // -- receiving
  /// A hint that changes with each datagram.
  [[nodiscard]] bool has_arrivals() const { return has_arrivals_.load(std::memory_order_relaxed); }
  /// Returns whether datagrams wait that are older than those that the kernel's socket has.
  [[nodiscard]] bool has_older() const { return older_.load(std::memory_order_relaxed) != 0 && has_arrivals(); }
  /// Receives a datagram from the queue. Errors: EAGAIN.
  Result<ssize_t> take(msghdr& message, int flags);
  /// Returns the length of the first datagram in the queue.
  std::optional<int> next_bytes();
  /// Datagrams that are queued now are received before those that come by another way from now on.
  void put_first();
  /// Offers each queued datagram to `take`, oldest first, and drops those for which it returns true.
  void give_back(const std::function<bool(ethernet::Arrival&)>& take);
  /// A thread is about to sleep.
  void note_sleep() { has_slept_.store(true, std::memory_order_relaxed); }
  /// Those who get datagrams in their buffers.
  WholeDatagrams& whole() { return whole_; }
  /// Corrects SO_RXQ_OVFL in what the kernel's socket has received, if it is wanted.
  void correct_drops(msghdr& message, std::size_t room, int flags) const;

  // -- options
  /// Notes an option about control data that the kernel has accepted. Returns false for any other option.
  bool note_option(int level, int name, const void* value, socklen_t length);
  [[nodiscard]] bool wants_time();
  void set_limit(std::size_t bytes);
  [[nodiscard]] std::size_t limit();
  /// Sets the memberships that do not accept all senders.
  void set_source_filters(const std::vector<Membership>& memberships);

  // -- the choice of rings
  /// Returns whether the socket should move to the ring of another thread or CPU.
  [[nodiscard]] bool is_move_due() const { return is_move_due_.load(std::memory_order_relaxed); }
  void move_here();
  void forget_place();
  void set_logic(runtime::RingLogic logic, std::uint64_t user_id);
  runtime::RingKey key(const SocketAddress& local);
  [[nodiscard]] std::uint64_t ring_user_id();

  // -- fork(2)
  BiasedMutex& fork_lock() { return lock_; }
  void forget_after_fork() noexcept;

 private:
  friend class WholeDatagrams;
  // lock_ held
  ethernet::Delivery keep(ethernet::Incoming& incoming, ethernet::ArrivalQueue& where, std::atomic<bool>& hint);
  void pop_first(bool is_received);
  ssize_t give(const ethernet::Packet& datagram, msghdr& message, int flags);
  void count_received(std::size_t bytes);
  [[nodiscard]] bool is_filtered(const ethernet::Packet& datagram) const;
  void show();

  [[nodiscard]] std::uint32_t drops_of_rings() const;
  [[nodiscard]] std::uint32_t all_drops() const;  ///< those of rings and of the kernel

  KernelSocket& kernel_;
  runtime::Endpoint& endpoint_;
  runtime::VmaSocketStatistics& statistics_;
  const int domain_;
  std::atomic<bool> is_connected_{false};
  std::atomic<bool> shares_port_{false};
  wire::EndName peer_;  ///< written before is_connected_

  BiasedMutex lock_;
  bool is_special_ = false;  ///< has a callback or source filters, so that other sockets pay for one look
  ethernet::ArrivalQueue arrivals_;
  std::atomic<bool> has_arrivals_{false};
  std::atomic<std::size_t> older_{0};  ///< number of arrivals older than what the kernel socket has
  runtime::RingChoice choice_;
  ReceiveOptions options_;
  std::vector<Membership> source_filters_;
  std::size_t limit_;
  std::atomic<bool> tells_drops_{false};  ///< SO_RXQ_OVFL
  std::atomic<bool> is_move_due_{false};
  std::atomic<bool> has_slept_{false};  ///< since the last datagram
  WholeDatagrams whole_{*this};
};

template <class Use>
auto WholeDatagrams::with_cyclic(Use use) {
  const std::lock_guard guard(queue_.lock_);
  auto out = use(*cyclic_);
  cyclic_waits_.store(cyclic_->has_unread(), std::memory_order_relaxed);
  return out;
}

}  // namespace ringsock::vma
