// A ring: a raw packet queue pair, its completion queues and buffers, and the sockets whose flows lead to it. There are
// rings of packets (packet_ring.h) and of network cards (card_ring.h); whoever uses them need not know which.
#pragma once

#include <infiniband/verbs.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "core/base/biased_mutex.h"
#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/ethernet/incoming.h"
#include "core/ethernet/options.h"
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

/// Threads: every function from any thread. Whoever polls delivers for all sockets of the ring.
class Ring : public std::enable_shared_from_this<Ring> {
 public:
  /// Of the kind that the interface has. Errors: those of the device.
  static Result<std::shared_ptr<Ring>> create(std::shared_ptr<Interface> interface, const RingSettings& settings,
                                              std::unique_ptr<RingCounters> counters);
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  virtual ~Ring() = default;

  [[nodiscard]] Interface& interface() const { return *interface_; }

  // -- receiving
  /// From now on what `tuple` describes comes here, and to `sink` (sink_table.h). Errors: those of
  /// verbs::create_flow().
  Status attach(const verbs::FlowTuple& tuple, PacketSink& sink);
  void detach(const verbs::FlowTuple& tuple, PacketSink& sink);
  /// The same for one that receives elsewhere from now on: what the ring has by then is delivered first.
  void leave(const verbs::FlowTuple& tuple, PacketSink& sink);
  /// What a look has found.
  enum class Look {
    nothing,
    some,
    busy,  ///< another thread is at it: that one tells the watchers of those for whom something comes
  };
  /// Takes what has come, a batch at most, and gives it to its sockets.
  /// @param waiting  what may be served at once, which ends the batch; null: nothing
  virtual Look poll(WaitingCall* waiting) = 0;
  Look poll() { return poll(nullptr); }
  /// The same, after another thread.
  Look poll_in_turn(WaitingCall* waiting = nullptr);
  /// After so many batches a ring that was full is empty.
  [[nodiscard]] unsigned most_batches() const { return settings_.receive_entries / settings_.batch + 1; }
  /// fd() becomes readable when something comes after this.
  void arm();
  [[nodiscard]] int fd() const { return channel_->fd; }
  /// From now on arrivals tell when they came, where the device knows. Costs a few nanoseconds each.
  void want_times() { wants_times_.store(true, std::memory_order_relaxed); }
  /// After fd() was readable: makes it quiet, takes what came, and arms again on behalf of others who sleep on it.
  void woken();

  /// Brings up to date what the device counts.
  void refresh_statistics();

  // -- sending
  /// Sends one datagram. In `room` its headers: Ethernet to UDP, with the sum of the pseudo header in place of UDP's
  /// checksum. 0 or an errno value: those of ibv_post_send() of raw packet queue pairs.
  virtual int send(soft::DatagramRoom& room, std::size_t header_bytes, std::span<const iovec> payload) = 0;
  /// Posts what becomes several datagrams: such `headers` in front of each `segment_bytes` of the payload. Lengths and
  /// checksums are filled in. 0 or an errno value, as send().
  int send_segments(std::span<std::byte> headers, std::span<const iovec> payload, std::uint16_t segment_bytes);
  /// Whether the device does that for UDP.
  [[nodiscard]] bool segments_udp() const;
  /// As send(), of headers without a number of their own and `payload_bytes` in all: may keep a copy for the next ones
  /// (bursts.h). 0, also when it is lost later, which is counted; or an errno value: it was not taken.
  int send_in_burst(std::span<std::byte> headers, std::span<const iovec> payload, std::size_t payload_bytes);
  // -- for Bursts
  /// What send_in_burst() has kept. @return how many datagrams.
  std::size_t send_train();
  /// The same for one that is about to end. False: another thread has the lock.
  bool try_send_train() noexcept;
  /// If the train was begun before `limit`. @return when it should leave at the latest, Nanos::max() when there is
  /// none.
  Nanos send_train_before(Nanos limit);

 protected:
  static constexpr std::size_t kBatch = 16;

  Ring(std::shared_ptr<Interface> interface, const RingSettings& settings, std::unique_ptr<RingCounters> counters);
  /// To be called by the destructors of the kinds, first: trains leave, and the queue pair goes to error, so that what
  /// is posted comes back.
  void stop();

  /// After the queues are made.
  virtual Status start() = 0;
  /// Takes what has come, a batch at most, and gives it to its sinks. Packets that lie in the device's ring stay there
  /// once the call is served; those that are in buffers go on to their sinks.
  /// With receive_lock_. @return how many packets
  virtual unsigned take(Told& told, WaitingCall* waiting) = 0;
  /// Buffers that are posted, or about to be. With receive_lock_.
  [[nodiscard]] virtual std::size_t posted_buffers() const { return 0; }
  /// With send_lock_. 0 or an errno value.
  virtual int post_to_device(ibv_send_wr& request);
  /// The device has sent so many of the oldest requests. With send_lock_.
  virtual void note_sent(unsigned /*count*/) {}

  /// poll() of a kind, in one function with its take().
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

  /// Posts a request, behind the train. 0 or an errno value.
  int post(ibv_send_wr& request);

  const std::shared_ptr<Interface> interface_;
  const RingSettings settings_;
  // Parents first: destroyed in reverse.
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

  /// A train waits, or is about to leave.
  [[nodiscard]] bool has_train() const { return train_began_.load(std::memory_order_relaxed) != Nanos::zero(); }

 private:
  /// What woken() takes at most: somebody may send faster than we take.
  static constexpr unsigned kBatchesPerWakeUp = 64;

  Status make_queues();
  bool take_batch(Told& told, WaitingCall* waiting = nullptr);
  // With send_lock_:
  int post_locked(ibv_send_wr& request);
  void reap_sends();
  // ring_trains.cc, with send_lock_
  bool begin_train(std::span<const std::byte> header, std::size_t payload_bytes);
  void limit_train(Nanos now);
  std::size_t send_train_locked();

  const bool makes_trains_;
  BiasedMutex send_lock_;
  Train train_;
  std::atomic<Nanos> train_began_{};  ///< zero: there is none
  Nanos last_train_began_{};
  bool train_was_late_ = false;  ///< the last one waited until nobody else would have sent it
  std::uint64_t lost_ = 0;       ///< datagrams of trains
  Nanos no_trains_until_{};      ///< the line is slower than we are
  unsigned unsignalled_ = 0;
  unsigned under_way_ = 0;
};

}  // namespace ringsock::ethernet
