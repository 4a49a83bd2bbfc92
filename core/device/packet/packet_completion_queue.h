// A completion queue of raw packet queue pairs: an ibv_cq and an ibv_cq_ex in one.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/biased_mutex.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/device/common/completion_channel.h"

namespace ringsock::soft {

class PacketQueuePair;

/// The completion of one work request. Members have no initialisers, because most polls fill none of the places that
/// they have.
struct PacketCompletion {
  std::uint64_t wr_id;
  std::uint64_t wallclock_ns;
  std::uint32_t byte_len;
  std::uint32_t qp_num;
  ibv_wc_status status;
  ibv_wc_opcode opcode;
  std::uint32_t vendor_err;
  unsigned wc_flags;
};

/// Receives are completed by poll() itself, directly from the rings. Sends complete when they are posted, and are
/// queued here. Lock order: poll_lock_, then the device's list of queue pairs, then the innermost locks (local_lock_,
/// the channel's).
class PacketCompletionQueue final : public ibv_cq_ex {
 public:
  PacketCompletionQueue(ibv_context& context, int cqe, void* user, CompletionChannel* channel);
  static PacketCompletionQueue& of(ibv_cq& cq) {
    return *static_cast<PacketCompletionQueue*>(reinterpret_cast<ibv_cq_ex*>(&cq));
  }
  ibv_cq& cq() { return *ibv_cq_ex_to_cq(this); }

  /// ibv_poll_cq(3).
  int poll(int count, ibv_wc* wc);
  // ibv_start_poll(3) and its companions.
  int start_poll();
  int next_poll();
  void end_poll() { poll_lock_.unlock(); }
  [[nodiscard]] const PacketCompletion& current() const { return current_; }

  /// Called after a poll for received packets that has found `count`. Neither concurrent with itself nor with arm().
  void note_poll(int count) {
    if (count == 0) return idle();
    empty_polls_ = 0;
    if (is_watched_) [[unlikely]]
      note_received(count);
  }

  /// ibv_req_notify_cq(3). With `solicited_only` only errors raise the event, because no packet is solicited.
  void arm(bool solicited_only);
  /// Adds a completion that does not come from poll(). When the queue is full the completion is lost, and false is
  /// returned: the queue is in error. Threads: any.
  bool push(const PacketCompletion& completion);
  /// Disarms the queue and raises the event. Does nothing when it is not armed.
  void fire();

  void attach(PacketQueuePair& queue_pair);
  /// Returns when no poll() uses the queue pair any more.
  void detach(PacketQueuePair& queue_pair);
  void use(int change) { users_.fetch_add(change, std::memory_order_relaxed); }
  [[nodiscard]] bool in_use() const { return users_.load(std::memory_order_relaxed) != 0; }
  [[nodiscard]] CompletionChannel* completion_channel() const { return channel_; }
  void count_event_taken();
  void count_acks(unsigned count);
  /// Waits until the program has acknowledged all events that it has taken, then drops the pending ones
  /// (ibv_destroy_cq(3)).
  void wait_for_acks();

 private:
  void set_ex_operations();
  int take(int count, PacketCompletion* out);
  int take_local(int count, PacketCompletion* out);
  void idle();
  void note_received(int count);

  BiasedMutex poll_lock_;
  std::vector<PacketQueuePair*> receivers_;
  std::size_t next_receiver_ = 0;
  std::uint32_t empty_polls_ = 0;
  int received_armed_ = 0;   ///< since it was armed
  bool is_watched_ = false;  ///< the sockets may still tell the channel of packets
  Nanos next_look_{0};
  PacketCompletion current_{};

  std::atomic<int> armed_{0};
  std::atomic<std::uint32_t> local_count_{0};
  BiasedMutex local_lock_;
  std::uint32_t local_head_ = 0;
  const std::uint32_t local_capacity_;
  /// Not initialised, so that the pages of a large queue are touched only when used.
  std::unique_ptr<PacketCompletion[]> local_;

  CompletionChannel* const channel_;
  std::atomic<int> users_{0};
  std::mutex ack_lock_;
  std::condition_variable acked_;
  std::uint32_t events_taken_ = 0;
};

}  // namespace ringsock::soft
