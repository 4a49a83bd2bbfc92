// A completion queue of raw packet queue pairs: an ibv_cq and an ibv_cq_ex at once.
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

/// What completion queues tell of one work request. Without initialisers: most polls find nothing for the places that
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

/// Receives are completed by poll() itself, straight from the rings; sends complete when they are posted and wait here.
/// Lock order: poll_lock_, then the device's list of queue pairs, then the leaves (local_lock_, the channel's).
class PacketCompletionQueue final : public ibv_cq_ex {
 public:
  PacketCompletionQueue(ibv_context& context, int cqe, void* user, CompletionChannel* channel);
  static PacketCompletionQueue& of(ibv_cq& cq) {
    return *static_cast<PacketCompletionQueue*>(reinterpret_cast<ibv_cq_ex*>(&cq));
  }
  ibv_cq& cq() { return *ibv_cq_ex_to_cq(this); }

  /// ibv_poll_cq(3).
  int poll(int count, ibv_wc* wc);
  // ibv_start_poll(3) and the like.
  int start_poll();
  int next_poll();
  void end_poll() { poll_lock_.unlock(); }
  [[nodiscard]] const PacketCompletion& current() const { return current_; }

  /// A look for what has been received has found so many. Not two at a time, nor during arm().
  void note_poll(int count) {
    if (count == 0) return idle();
    empty_polls_ = 0;
    if (armed_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      note_received(count);
  }

  /// ibv_req_notify_cq(3). `solicited_only`: no packet is; only errors count.
  void arm(bool solicited_only);
  /// A completion that has arisen outside of poll(). Any thread. In a full queue it is lost, and the queue in error.
  /// @return false then.
  bool push(const PacketCompletion& completion);
  /// Takes the arming and raises the event; nothing when not armed.
  void fire();

  void attach(PacketQueuePair& queue_pair);
  /// Returns when no poll() uses it any more.
  void detach(PacketQueuePair& queue_pair);
  void use(int change) { users_.fetch_add(change, std::memory_order_relaxed); }
  [[nodiscard]] bool in_use() const { return users_.load(std::memory_order_relaxed) != 0; }
  [[nodiscard]] CompletionChannel* completion_channel() const { return channel_; }
  void count_event_taken();
  void count_acks(unsigned count);
  /// Waits until the program has acknowledged every event it took, then forgets the pending ones (ibv_destroy_cq(3)).
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
  int received_armed_ = 0;  ///< since it was armed
  Nanos next_look_{0};
  PacketCompletion current_{};

  std::atomic<int> armed_{0};
  std::atomic<std::uint32_t> local_count_{0};
  BiasedMutex local_lock_;
  std::uint32_t local_head_ = 0;
  const std::uint32_t local_capacity_;
  /// Not initialised: pages of a large queue are touched when used.
  std::unique_ptr<PacketCompletion[]> local_;

  CompletionChannel* const channel_;
  std::atomic<int> users_{0};
  std::mutex ack_lock_;
  std::condition_variable acked_;
  std::uint32_t events_taken_ = 0;
};

}  // namespace ringsock::soft
