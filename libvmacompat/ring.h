// One ring: a raw packet queue pair, its completion queues and buffers, and the sockets whose flows lead to it.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "core/base/biased_mutex.h"
#include "core/base/result.h"
#include "core/runtime/vma_statistics.h"
#include "core/verbs/buffer.h"
#include "core/verbs/device.h"
#include "core/verbs/flow_rule.h"
#include "core/verbs/handles.h"
#include "libvmacompat/flow_table.h"

namespace ringsock::vma {

class Interface;

struct RingSettings {
  unsigned receive_entries = 1024;  ///< posted receives
  unsigned send_entries = 256;
  unsigned sends_per_completion = 64;  ///< VMA_TX_WRE_BATCHING
  unsigned batch = 16;                 ///< packets taken at a time, at most 16; VMA_CQ_POLL_BATCH_MAX
};
/// What a queue can have at most.
inline constexpr unsigned kMostRingEntries = 16384;

/// Threads: every function from any thread. Whoever polls delivers for all sockets of the ring.
class Ring {
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
  /// Takes what has come, a batch at most, and gives it to its sockets. True when there was any. Does nothing while
  /// another thread is at it: that one tells the watchers of those for whom something came.
  bool poll();
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
  /// Posts one frame of pieces of memory. 0 or an errno value: those of ibv_post_send() of raw packet queue pairs.
  int send(std::span<ibv_sge> pieces, unsigned send_flags);
  /// Posts what becomes several datagrams: `header` (Ethernet to UDP) in front of each `segment_bytes` of the pieces.
  /// Lengths and checksums are filled in. 0 or an errno value, as send().
  int send_segments(std::span<std::byte> header, std::span<ibv_sge> pieces, std::uint16_t segment_bytes);
  /// Whether the device does that for UDP.
  [[nodiscard]] bool segments_udp() const;

 private:
  static constexpr std::size_t kBatch = 16;
  /// What woken() takes at most: somebody may send faster than we take.
  static constexpr unsigned kBatchesPerWakeUp = 64;
  /// Endpoints to be told of a batch.
  class Told;

  Ring(std::shared_ptr<Interface> interface, const RingSettings& settings);
  Status make_queues();
  Status post_first_receives();
  /// Receives for `buffers`, which become the device's.
  void post_receives(std::span<verbs::BufferRef> buffers);
  bool refill_spares();
  struct Batch;
  bool take_batch(Told& told);
  void poll_with_times(Batch& batch);
  void take(Batch& batch, Told& told);
  bool take(verbs::BufferRef& buffer, std::uint32_t byte_len, Nanos time, Told& told);
  int post(ibv_send_wr& request);
  void reap_sends();
  // ring_card.cc: what devices do not do that are no embedded ones
  void collect_flushed();
  [[nodiscard]] bool has_right_checksums(const ibv_wc& completion, std::span<const std::byte> bytes) const;
  /// Makes a request for a frame one that the device can carry out. 0 or an errno value.
  int adapt(ibv_send_wr& request, verbs::BufferRef& copy, ibv_sge& whole) const;

  const std::shared_ptr<Interface> interface_;
  const RingSettings settings_;
  // Parents first: destroyed in reverse.
  verbs::CompChannel channel_;
  verbs::Cq receive_cq_;
  verbs::Cq send_cq_;
  verbs::Qp qp_;

  ibv_cq_ex* timed_cq_ = nullptr;  ///< receive_cq_, if it tells times
  std::atomic<bool> wants_times_{false};

  BiasedMutex receive_lock_;
  FlowTable flows_;
  std::size_t posted_ = 0;                       ///< receives
  std::array<verbs::BufferRef, kBatch> spares_;  ///< to be posted in the places of those that are delivered
  std::size_t spare_count_ = 0;
  std::size_t due_ = 0;  ///< of the spares, the first ones, whose time has come: all are posted at once
  runtime::VmaRingStatistics statistics_;

  BiasedMutex send_lock_;
  unsigned unsignalled_ = 0;
  unsigned under_way_ = 0;
  std::uint32_t inline_bytes_ = 0;
  std::uint32_t most_pieces_ = 0;
  std::deque<verbs::BufferRef> copies_;  ///< of each under way, where the device is no embedded one; null: inline
};

}  // namespace ringsock::vma
