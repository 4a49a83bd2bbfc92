// Datagrams of a UDP socket that the application gets in their buffers: its callback, zero copy, programs that poll a
// ring, and cyclic buffers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/ethernet/arrival.h"
#include "core/ethernet/packet_sink.h"
#include "libvmacompat/udp/cyclic_buffer.h"

namespace ringsock::vma {

class ReceiveQueue;

/// A part of the socket's ReceiveQueue, with the same lock, which functions take unless they say otherwise. A callback
/// sees datagrams before they are queued; until then they are unseen, and newer than those in the queue. Threads: any.
class WholeDatagrams final : public ethernet::EventSource {
 public:
  explicit WholeDatagrams(ReceiveQueue& queue) : queue_(queue) {}

  // -- zero copy
  /// Takes a datagram as if it was received. Nothing: there is none.
  std::optional<ethernet::Arrival> take(int flags);

  // -- the callback
  /// From now on datagrams wait for the callback, or no longer: then those that wait are queued.
  void show_to_callback(bool on);
  /// A hint that changes with each datagram.
  [[nodiscard]] bool has_unseen() const { return has_unseen_.load(std::memory_order_relaxed); }
  /// Takes the oldest one that the callback has to see. Those that come while datagrams are queued are queued behind
  /// them, so that their order is kept; nothing is returned then.
  std::optional<ethernet::Arrival> take_unseen();
  /// Queues one that the callback has seen.
  void accept(ethernet::Arrival arrival);
  struct Waiting {
    std::uint32_t packets, bytes;
  };
  /// Returns what is queued.
  Waiting waiting();

  // -- a cyclic buffer
  /// From now on datagrams go into the buffer, and nowhere else.
  void put_into(std::unique_ptr<CyclicBuffer> buffer);
  [[nodiscard]] bool has_cyclic() const { return has_cyclic_.load(std::memory_order_acquire); }
  /// A hint: the buffer has datagrams that nobody has read.
  [[nodiscard]] bool cyclic_waits() const { return cyclic_waits_.load(std::memory_order_relaxed); }
  /// Calls `use(CyclicBuffer&)` while nothing is delivered. There must be one.
  template <class Use>
  auto with_cyclic(Use use);

  // -- programs that poll a ring
  std::size_t count_waiting() noexcept override;
  bool take_packet(ethernet::SinkEvent& out) noexcept override;
  /// The kernel's socket may have datagrams, which the program has to receive by recvfrom(2), or an error.
  bool look_elsewhere(ethernet::SinkEvent& out) noexcept override;
  /// Sets what such programs know the socket by; otherwise it is the descriptor.
  void set_user_data(std::uint64_t value) { user_data_.store(value, std::memory_order_relaxed), has_user_data_ = true; }

  // -- for ReceiveQueue, which holds the lock
  /// Delivers to a socket with a callback, or whose memberships do not accept all senders. Returns nothing when the
  /// datagram takes the usual way.
  std::optional<ethernet::Delivery> deliver(ethernet::Incoming& incoming);
  /// Gives a datagram to such a program, or queues it.
  ethernet::Delivery hand_out_or_keep(ethernet::Incoming& incoming);
  ethernet::Delivery put_into_cyclic(const ethernet::Packet& packet);
  void queue_unseen();
  /// Has the queue call deliver() if necessary.
  void note_special();
  void forget_after_fork() noexcept;

 private:
  /// Gives a datagram that has just come to the program that polls the ring for it, if none waits. Returns its bytes,
  /// nothing if it takes another way.
  std::optional<std::size_t> hand_out(ethernet::Incoming& incoming);
  [[nodiscard]] std::uint64_t user_data() const;

  ReceiveQueue& queue_;
  bool has_callback_ = false;
  ethernet::ArrivalQueue unseen_;
  std::atomic<bool> has_unseen_{false};
  std::unique_ptr<CyclicBuffer> cyclic_;
  std::atomic<bool> has_cyclic_{false};
  std::atomic<bool> cyclic_waits_{false};
  std::atomic<std::uint64_t> user_data_{0};
  std::atomic<bool> has_user_data_{false};
};

}  // namespace ringsock::vma
