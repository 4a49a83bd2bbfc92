// A completion queue: completions of this side in a private ring, completions of the peers' messages straight from the
// inboxes.
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
#include "core/device/soft/completion_channel.h"
#include "core/device/soft/segment.h"

namespace ringsock::soft {

class QueuePair;
class Link;
class SoftDevice;

/// What ibv_req_notify_cq() asked for. The numbers are those of DoorbellLine::armed.
enum class ArmKind : std::uint32_t { any = kArmedForAny, solicited = kArmedForSolicited };

/// Lock order: Link's lock, then poll_lock_, then a queue pair's send lock, then the leaves (local_lock_, arm_lock_,
/// the channel's). So nothing that drains a link may run under a lock of this class.
class CompletionQueue final : public ibv_cq {
 public:
  CompletionQueue(SoftDevice& device, int cqe, void* context, CompletionChannel* channel);
  ~CompletionQueue();

  /// ibv_poll_cq(3).
  int poll(int count, ibv_wc* wc);

  /// A completion that arose on this side. Only wr_id, status, opcode, byte_len, vendor_err and qp_num are kept.
  /// Any thread; a leaf. When the queue is full it is in error: IBV_EVENT_CQ_ERR, the completion is lost.
  void push(const ibv_wc& wc);
  // Arming (ibv_req_notify_cq(3)) in two steps, so that many queues share one barrier: arm() each, then the heavy
  // barrier if one of them asks for it, then after_barrier() each.
  bool arm(ArmKind kind);
  /// A poll stopped before the end (QueuePair::has_left_over()), and there is no channel to tell that by.
  bool must_be_polled_again();
  void after_barrier();
  [[nodiscard]] bool is_armed() const { return armed_.load(std::memory_order_relaxed) != 0; }
  /// Takes the arming and raises the event; nothing when not armed.
  void fire();
  /// Takes the arming without raising: the caller raises the event later with raise_owed().
  bool take_arming() { return armed_.exchange(0, std::memory_order_relaxed) != 0; }
  void raise_owed();
  void count_event_taken();
  void count_acks(unsigned count);

  /// A queue pair that completes receives, sends or both here. detach() returns when no poll() is using it any more.
  void attach(QueuePair& queue_pair, bool receives);
  void detach(QueuePair& queue_pair);
  /// A queue pair attached here has (+1), or no longer has (-1), queued sends that poll() must push on.
  void add_stalled(int change) { stalled_.fetch_add(change, std::memory_order_relaxed); }

  [[nodiscard]] CompletionChannel* completion_channel() const { return channel_; }
  [[nodiscard]] bool in_use();
  /// Waits until the program has acknowledged every event it took, then forgets the pending ones (ibv_destroy_cq(3)).
  void wait_for_acks();

 private:
  struct Local;
  [[nodiscard]] bool has_left_over_locked() const;
  int take_all(int count, ibv_wc* wc);
  int take_local(int count, ibv_wc* wc);
  /// What a poll that found nothing does besides. @return whether a link has news: look again.
  bool idle(std::unique_lock<BiasedMutex>& guard);
  void overrun();
  void push_stalled();

  // First what every poll touches.
  BiasedMutex poll_lock_;
  std::atomic<std::uint32_t> local_count_{0};
  std::atomic<int> stalled_{0};
  std::atomic<std::uint32_t> armed_{0};
  std::uint32_t empty_polls_ = 0;
  std::vector<QueuePair*> receivers_;
  std::size_t next_receiver_ = 0;

  BiasedMutex local_lock_;
  std::uint32_t local_head_ = 0;
  std::uint32_t local_capacity_;
  std::unique_ptr<Local[]> local_;

  SoftDevice& device_;
  CompletionChannel* channel_;
  std::vector<QueuePair*> senders_;
  Nanos next_link_look_{0};
  std::size_t next_link_ = 0;
  bool overrun_ = false;

  std::mutex ack_lock_;
  std::condition_variable acked_;
  std::uint32_t events_taken_ = 0;
};

}  // namespace ringsock::soft
