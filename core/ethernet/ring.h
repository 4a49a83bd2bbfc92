// A ring: a raw packet queue pair, its completion queues and buffers, and the sockets whose flows lead to it. A ring
// belongs to the embedded device (packet_ring.h) or to a network card (card_ring.h); its users need not know which.
#pragma once

#include <infiniband/verbs.h>
#include <sys/uio.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "core/base/biased_mutex.h"
#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/ethernet/adaptive_moderation.h"
#include "core/ethernet/incoming.h"
#include "core/ethernet/options.h"
#include "core/ethernet/packet_capture.h"
#include "core/ethernet/ring_counters.h"
#include "core/ethernet/sink_table.h"
#include "core/ethernet/spare_buffers.h"
#include "core/ethernet/told.h"
#include "core/ethernet/train.h"
#include "core/verbs/device.h"
#include "core/verbs/flow_rule.h"
#include "core/verbs/handles.h"

namespace ringsock::soft {
class DatagramRoom;
}  // namespace ringsock::soft

namespace ringsock::ethernet {

class Interface;

/// The thread that polls a ring delivers for all sockets of the ring. Threads: any.
class Ring : public std::enable_shared_from_this<Ring> {
 public:
  /// Makes a ring of the kind that the interface supports. Errors: those of the device.
  /// @param capture  gets copies of all packets; null: none
  static Result<std::shared_ptr<Ring>> create(std::shared_ptr<Interface> interface, const RingSettings& settings,
                                              std::unique_ptr<RingCounters> counters,
                                              std::unique_ptr<PacketCapture> capture = nullptr);
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  virtual ~Ring() = default;

  [[nodiscard]] Interface& interface() const { return *interface_; }

  // -- receiving
  /// Directs the packets that `tuple` describes to this ring, and to `sink` (sink_table.h). Packets that the ring
  /// already has are delivered first, to the sinks that are there already. Errors: those of verbs::create_flow().
  Status attach(const verbs::FlowTuple& tuple, PacketSink& sink);
  /// Detaches a sink. Packets that the ring already has are delivered first: no later sink gets them.
  void detach(const verbs::FlowTuple& tuple, PacketSink& sink);
  /// The result of a poll.
  enum class Look {
    nothing,
    some,
    busy,  ///< another thread is polling; it tells the watchers of the sockets that receive something
  };
  /// Takes at most a batch of packets and delivers them to their sockets.
  /// @param waiting  a call that may be served at once, which ends the batch; null: none
  virtual Look poll(WaitingCall* waiting) = 0;
  /// The same, but waits while another thread is polling.
  Look poll_in_turn(WaitingCall* waiting = nullptr);
  /// The number of batches that empties a full ring.
  [[nodiscard]] unsigned most_batches() const { return settings_.receive_entries / settings_.batch + 1; }
  /// Has fd() become readable when a packet arrives after this call.
  void arm();
  [[nodiscard]] int fd() const { return channel_->fd; }
  /// From now on arrivals have a time, if the device knows it. Costs a few nanoseconds per packet.
  void want_times() { wants_times_.store(true, std::memory_order_relaxed); }
  /// Called after fd() was readable: clears it, takes packets, and arms again for other threads that sleep on it.
  void woken();

  /// Has threads that fd() wakes wait for a period, so that more packets have come when they look; zero: they do not
  /// wait. At most 65,535 us, as for cards.
  void moderate(Moderation moderation);
  /// Calls `use(SinkTable&)` while nothing is delivered.
  template <class Use>
  auto with_sinks(Use use) {
    const std::lock_guard guard(receive_lock_);
    return use(sinks_);
  }

  /// Updates the counters that the device keeps, and moderation that follows them.
  void refresh_statistics();

  // -- sending
  /// Sends one datagram. `room` contains its headers, from Ethernet to UDP, with the sum of the pseudo header as UDP
  /// checksum. Returns 0 or an errno value of ibv_post_send() for raw packet queue pairs.
  virtual int send(soft::DatagramRoom& room, std::size_t header_bytes, std::span<const iovec> payload) = 0;
  /// Does what send() does, up to the point at which the device would be given the datagram: for the caches. Returns 0
  /// or an errno value.
  virtual int rehearse(soft::DatagramRoom& room, std::size_t header_bytes, std::span<const iovec> payload) = 0;
  /// Sends several datagrams by one request: each has `headers` in front of `segment_bytes` of the payload. Lengths and
  /// checksums are filled in. The interface segments_udp(). Returns 0 or an errno value, as send() does.
  int send_segments(std::span<std::byte> headers, std::span<const iovec> payload, std::uint16_t segment_bytes);
  /// Sends as send() does, with headers that need no identification and `payload_bytes` in all. May keep a copy, to
  /// send it together with further ones (bursts.h). Returns 0 even when the datagram is lost later, which is counted,
  /// or an errno value when it was not taken.
  int send_in_burst(std::span<std::byte> headers, std::span<const iovec> payload, std::size_t payload_bytes);
  // -- for Bursts
  /// Sends what send_in_burst() has kept. Returns the number of datagrams.
  std::size_t send_train();
  /// The same for a process that is about to end. Returns false when another thread has the lock.
  bool try_send_train() noexcept;
  /// Sends the train if it was begun before `limit`. Otherwise returns the time when it must leave at the latest, or
  /// Nanos::max() when there is no train.
  Nanos send_train_before(Nanos limit);

 protected:
  static constexpr std::size_t kBatch = 16;

  Ring(std::shared_ptr<Interface> interface, const RingSettings& settings, std::unique_ptr<RingCounters> counters);
  /// Must be called first in the destructors of derived classes: sends the train, and sets the queue pair to the error
  /// state, so that posted requests come back.
  void stop();

  /// Called after the queues have been made.
  virtual Status start() = 0;
  /// Takes at most a batch of packets and delivers them to their sinks. Once the call is served, packets in the
  /// device's ring stay there; packets that are in buffers already are still delivered. Returns the number of packets.
  /// receive_lock_ held.
  virtual unsigned take(Told& told, WaitingCall* waiting) = 0;
  /// The number of buffers that are posted, or about to be. receive_lock_ held.
  [[nodiscard]] virtual std::size_t posted_buffers() const { return 0; }
  /// Returns 0 or an errno value. send_lock_ held.
  virtual int post_to_device(ibv_send_wr& request);
  /// Called when the device has sent `count` of the oldest requests. send_lock_ held.
  virtual void note_sent(unsigned /*count*/) {}

  /// Implements poll() of a derived class, so that its take() is inlined.
  template <class Take>
  [[gnu::always_inline]] Look poll_by(Take take_some) {
    Told told;
    {
      const std::unique_lock guard(receive_lock_, std::try_to_lock);
      if (!guard) return Look::busy;
      const unsigned count = take_some(told);
      if (count == 0) return Look::nothing;
      counters_->raise(RingCount::drained_max, count);
    }
    told.tell();
    return Look::some;
  }

  /// Posts a request behind the train. Returns 0 or an errno value.
  int post(ibv_send_wr& request);

  const std::shared_ptr<Interface> interface_;
  const RingSettings settings_;
  // Parents first: destroyed in reverse order.
  verbs::CompChannel channel_;
  verbs::Cq receive_cq_;
  verbs::Cq send_cq_;
  verbs::Qp qp_;
  std::uint32_t inline_bytes_ = 0;
  std::uint32_t most_pieces_ = 0;

  std::atomic<bool> wants_times_{false};
  BiasedMutex receive_lock_;
  SinkTable sinks_;
  SpareBuffers spares_;
  const std::unique_ptr<RingCounters> counters_;
  std::unique_ptr<PacketCapture> capture_;  ///< set before the ring is used

  /// Returns whether a train waits, or is about to leave.
  [[nodiscard]] bool has_train() const { return train_began_.load(std::memory_order_relaxed) != Nanos::zero(); }

 private:
  /// Most batches that woken() takes, because packets may come faster than they are taken.
  static constexpr unsigned kBatchesPerWakeUp = 64;

  Status make_queues();
  // Called with receive_lock_ held:
  bool take_batch(Told& told, WaitingCall* waiting = nullptr);
  void take_what_has_come(Told& told);
  // Called with send_lock_ held:
  int post_locked(ibv_send_wr& request);
  void reap_sends();
  // ring_trains.cc; called with send_lock_ held
  bool begin_train(std::span<const std::byte> header, std::size_t payload_bytes);
  void limit_train(Nanos now);
  std::size_t send_train_locked();

  const bool makes_trains_;
  BiasedMutex send_lock_;
  Train train_;
  std::atomic<Nanos> train_began_{};  ///< zero: there is no train
  Nanos last_train_began_{};
  bool train_was_late_ = false;  ///< the service thread had to send the last one
  std::uint64_t lost_ = 0;       ///< datagrams of trains that were lost
  Nanos no_trains_until_{};      ///< the line is slower than the sender
  unsigned unsignalled_ = 0;
  unsigned under_way_ = 0;
  std::atomic<Nanos> moderation_{Nanos::zero()};  ///< moderate()
  AdaptiveModeration adaptive_;                   ///< receive_lock_
};

}  // namespace ringsock::ethernet
