// One ring: a raw packet queue pair, its completion queues and buffers, and the sockets whose flows lead to it.
#pragma once

#include <infiniband/verbs.h>
#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "core/base/biased_mutex.h"
#include "core/base/result.h"
#include "core/runtime/service_thread.h"
#include "core/runtime/vma_statistics.h"
#include "core/verbs/buffer.h"
#include "core/verbs/device.h"
#include "core/verbs/flow_rule.h"
#include "core/verbs/handles.h"
#include "libvmacompat/flow_table.h"
#include "libvmacompat/incoming.h"
#include "libvmacompat/spare_buffers.h"
#include "libvmacompat/train.h"

namespace ringsock::soft {
class DatagramRoom;
class PacketQueuePair;
}  // namespace ringsock::soft

namespace ringsock::vma {

class Interface;
class Told;

struct RingSettings {
  unsigned receive_entries = 4096;  ///< posted receives
  unsigned send_entries = 256;
  unsigned sends_per_completion = 64;  ///< VMA_TX_WRE_BATCHING
  unsigned batch = 16;                 ///< packets taken at a time, at most 16; VMA_CQ_POLL_BATCH_MAX
  bool makes_trains = true;            ///< VMA_TX_BURSTS
  /// Most packets that the service thread takes at a time when nobody else takes any; 0: it takes none.
  /// VMA_PROGRESS_ENGINE_WCE_MAX
  unsigned most_drained = 10000;
};
/// What a queue can have at most.
inline constexpr unsigned kMostRingEntries = 16384;

/// Threads: every function from any thread. Whoever polls delivers for all sockets of the ring.
class Ring : public std::enable_shared_from_this<Ring> {
 public:
  /// Errors: those of the device.
  static Result<std::shared_ptr<Ring>> create(std::shared_ptr<Interface> interface, const RingSettings& settings);
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring();

  [[nodiscard]] Interface& interface() const { return *interface_; }

  // -- receiving
  /// From now on what `tuple` describes comes here, and to `sink` (flow_table.h). Errors: those of
  /// verbs::create_flow().
  Status attach(const verbs::FlowTuple& tuple, DatagramSink& sink);
  void detach(const verbs::FlowTuple& tuple, DatagramSink& sink);
  /// The same for one that receives elsewhere from now on: what the ring has by then is delivered first.
  void leave(const verbs::FlowTuple& tuple, DatagramSink& sink);
  /// What a look has found.
  enum class Look {
    nothing,
    some,
    busy,  ///< another thread is at it: that one tells the watchers of those for whom something comes
  };
  /// Takes what has come, a batch at most, and gives it to its sockets.
  /// @param waiting  what may be served at once, which ends the batch; null: nothing
  Look poll(WaitingCall* waiting = nullptr);
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
  int send(soft::DatagramRoom& room, std::size_t header_bytes, std::span<const iovec> payload);
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

 private:
  static constexpr std::size_t kBatch = 16;
  /// What woken() takes at most: somebody may send faster than we take.
  static constexpr unsigned kBatchesPerWakeUp = 64;

  Ring(std::shared_ptr<Interface> interface, const RingSettings& settings);
  Status make_queues();
  void watch_alarms();
  void drain();
  bool take_batch(Told& told, WaitingCall* waiting = nullptr);
  unsigned take_packets(Told& told, WaitingCall* waiting);
  int post_datagram(std::span<std::byte> headers, std::span<const iovec> payload);
  int post(ibv_send_wr& request);
  int post_locked(ibv_send_wr& request);
  // ring_trains.cc, with send_lock_
  int post_held(ibv_send_wr& request);
  bool begin_train(std::span<const std::byte> header, std::size_t payload_bytes);
  void limit_train(Nanos now);
  std::size_t send_train_locked();
  void reap_sends();
  // ring_card.cc: for devices that are no embedded ones, with posted receives, and what they do not do
  struct Batch;
  Status post_first_receives();
  void post_receives(std::span<verbs::BufferRef> buffers);
  void replace(verbs::BufferRef buffer);
  unsigned take_completions(Told& told, WaitingCall* waiting);
  void poll_with_times(Batch& batch);
  bool take(const ibv_wc& completion, verbs::BufferRef& buffer, Nanos time, Told& told, WaitingCall* waiting);
  void collect_flushed();
  [[nodiscard]] bool has_right_checksums(const ibv_wc& completion, std::span<const std::byte> bytes) const;
  /// Makes a request for a frame one that the device can carry out. 0 or an errno value.
  int adapt(ibv_send_wr& request, verbs::BufferRef& copy, ibv_sge& whole) const;

  const std::shared_ptr<Interface> interface_;
  const RingSettings settings_;
  const bool makes_trains_;
  // Parents first: destroyed in reverse.
  verbs::CompChannel channel_;
  verbs::Cq receive_cq_;
  verbs::Cq send_cq_;
  verbs::Qp qp_;
  soft::PacketQueuePair* packets_ = nullptr;  ///< the same, if the device is an embedded one

  ibv_cq_ex* timed_cq_ = nullptr;  ///< receive_cq_, if it tells times
  std::atomic<bool> wants_times_{false};

  std::array<runtime::ServiceThread::Id, 2> alarm_watches_{};

  BiasedMutex receive_lock_;
  FlowTable flows_;
  SpareBuffers spares_;
  std::size_t posted_ = 0;                    ///< receives
  std::array<verbs::BufferRef, kBatch> due_;  ///< in place of those that were delivered: to be posted all at once
  std::size_t due_count_ = 0;
  runtime::VmaRingStatistics statistics_;

  BiasedMutex send_lock_;
  Train train_;
  std::atomic<Nanos> train_began_{};  ///< zero: there is none
  Nanos last_train_began_{};
  bool train_was_late_ = false;  ///< the last one waited until nobody else would have sent it
  std::uint64_t lost_ = 0;       ///< datagrams of trains
  Nanos no_trains_until_{};      ///< the line is slower than we are
  unsigned unsignalled_ = 0;
  unsigned under_way_ = 0;
  std::uint32_t inline_bytes_ = 0;
  std::uint32_t most_pieces_ = 0;
  std::deque<verbs::BufferRef> copies_;  ///< of each under way, where the device is no embedded one; null: inline
};

}  // namespace ringsock::vma
