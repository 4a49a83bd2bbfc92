// Sends a UDP socket's datagrams by the ring of the interface that the path leaves by, or by the kernel's socket.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/biased_mutex.h"
#include "core/ethernet/destination.h"
#include "core/ethernet/destination_cache.h"
#include "core/ethernet/ring.h"
#include "core/runtime/ring_choice.h"
#include "libvmacompat/udp/flows.h"
#include "libvmacompat/udp/pacer.h"
#include "libvmacompat/udp/send_control.h"

namespace ringsock::vma {

class Inheritance;

/// Locks: lock() guards destinations, options and the choice of rings. The
/// setup lock is only tried when lock() is held, because its holder may wait for lock(). Ring::send_lock_ is taken
/// inside. Threads: any.
class Sender {
 public:
  Sender(KernelSocket& kernel, PolledRings& rings, Flows& flows, Inheritance& inheritance, runtime::Endpoint& endpoint,
         runtime::VmaSocketStatistics& statistics, runtime::RingChoice choice)
      : kernel_(kernel),
        rings_(rings),
        flows_(flows),
        inheritance_(inheritance),
        statistics_(statistics),
        slot_(statistics.slot()),
        choice_(choice),
        pacer_(endpoint, statistics) {}

  BiasedMutex& lock() { return lock_; }
  SendConditions& conditions() { return conditions_; }

  /// sendmsg(2) without waiting.
  Result<ssize_t> send(const msghdr& message, int flags);

  /// Runs the path of a send to the peer, for the caches. Nothing leaves; where the kernel sends, nothing happens.
  void load_caches();
  /// From now on the kernel sends, because of an option.
  void leave_to_kernel() { kernel_sends_.fetch_or(kAlways, std::memory_order_relaxed); }
  /// UDP_SEGMENT was set; 0: no segments.
  void set_segment_bytes(std::uint16_t bytes) { segment_bytes_.store(bytes, std::memory_order_relaxed); }
  void set_logic(runtime::RingLogic logic, std::uint64_t user_id);
  [[nodiscard]] std::uint64_t ring_user_id() const { return choice_.user_id(); }

  // -- SO_MAX_PACING_RATE
  void set_pace(const PacingRate& rate);
  /// Returns whether it holds for what this socket sends.
  [[nodiscard]] bool is_paced() const;
  Pacer& pacer() { return pacer_; }

  // -- for the Extra API
  /// Returns the ring by which datagrams to `address` leave, or null when the kernel sends them.
  std::shared_ptr<ethernet::Ring> ring_to(const SocketAddress& address);
  /// Returns the headers of a datagram without payload to the peer. Empty when there is no peer, or the kernel sends.
  std::vector<std::byte> headers_to_peer();

  /// The socket ends: forgets the destinations and their rings.
  void end() noexcept { destinations_.clear(); }
  /// Called in a forked child: the destinations' rings are the parent's.
  void forget_after_fork() noexcept;

 private:
  Result<ssize_t> send_either_way(const msghdr& message, int flags);
  Result<ssize_t> send_by_kernel(const msghdr& message, int flags);
  Result<ssize_t> send_paced(const msghdr& message, int flags);
  Result<ssize_t> hand_to_kernel(const msghdr& message, int flags);
  Result<ssize_t> send_dummy(const msghdr& message, int flags);
  int rehearse(const msghdr& message, std::size_t payload, const SendControl* control);
  [[nodiscard]] std::size_t frame_bytes(const msghdr& message, std::size_t payload, std::size_t segment_bytes);
  [[nodiscard]] bool goes_to_v4(const msghdr& message);
  [[nodiscard]] bool may_send_by_ring(const msghdr& message, int flags, unsigned ignored = 0) const;
  std::optional<int> send_by_ring(const msghdr& message, std::size_t payload, const SendControl* control);
  std::optional<int> send_with_control(const msghdr& message, std::size_t payload);
  static int hand_to_ring(ethernet::Destination& destination, const msghdr& message, std::size_t payload,
                          std::uint16_t segment_bytes, bool may_wait);
  // lock() held
  ethernet::Destination* destination_for(const msghdr& message, const SendControl* control);
  ethernet::Destination* look_up_destination(const msghdr& message, const SendControl* way);
  ethernet::Destination* current_destination(const SocketAddress& address);
  ethernet::Destination* destination_for(const SocketAddress& address, const ethernet::WayControl* control);
  bool make_current(ethernet::Destination& destination);
  bool find_way(ethernet::Destination& destination);
  bool take_known_way(ethernet::Destination& destination);
  [[nodiscard]] bool is_left_to_kernel_by_rule(const ethernet::Destination& destination) const;
  const ethernet::SendOptions& options(int family);
  void count_sent(std::size_t payload);

  KernelSocket& kernel_;
  PolledRings& rings_;
  Flows& flows_;
  Inheritance& inheritance_;
  runtime::VmaSocketStatistics& statistics_;
  runtime::VmaSocketSlot& slot_;  ///< of statistics_

  SendConditions conditions_;
  BiasedMutex lock_;
  ethernet::Ethernet* ethernet_ = nullptr;  ///< of flows_, once a destination has asked for it
  runtime::RingChoice choice_;
  ethernet::DestinationCache destinations_;
  std::array<std::optional<ethernet::SendOptions>, 2> options_;  ///< for IPv4 and IPv6
  std::uint32_t options_generation_ = 0;                         ///< flows_.generation() of options_
  std::uint64_t last_error_look_ = 0;  ///< tick() of the last look for an error on the kernel's socket (ICMP)
  std::atomic<std::uint16_t> segment_bytes_{0};
  /// Why the kernel sends: because of an option, or because it has the first part of a datagram (MSG_MORE). Or why it
  /// may have to, so that other sockets do not look for that: there is a pace.
  enum KernelSends : std::uint8_t { kAlways = 1, kForNow = 2, kPaced = 4 };
  std::atomic<std::uint8_t> kernel_sends_{0};
  Pacer pacer_;
};

}  // namespace ringsock::vma
