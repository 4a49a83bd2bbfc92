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
#include "core/base/hot_lines.h"
#include "core/device/common/completion_channel.h"
#include "core/device/shm/memory/segment.h"

namespace ringsock::soft {

class QueuePair;
class Link;
class DeviceContext;

/// The kind of notification that ibv_req_notify_cq() requested. The numbers are those of DoorbellLine::armed.
enum class ArmKind : std::uint32_t { any = kArmedForAny, solicited = kArmedForSolicited };

/// Lock order: Link's lock, then poll_lock_, then a queue pair's send lock, then the leaves (local_lock_,
/// Arming::lock_, the channel's). So nothing that drains a link may run under a lock of this class.
class CompletionQueue final : public ibv_cq {
 public:
  CompletionQueue(DeviceContext& device, int cqe, void* context, CompletionChannel* channel);
  ~CompletionQueue();

  /// ibv_poll_cq(3).
  int poll(int count, ibv_wc* wc);

  /// Adds a completion of this side. Only wr_id, status, opcode, byte_len, vendor_err and qp_num are kept. Threads:
  /// any; its lock is a leaf. On overflow the completion is lost and the queue goes to error (IBV_EVENT_CQ_ERR).
  void push(const ibv_wc& wc);
  /// Drops the completions of this side that nobody has polled, of one queue pair. Threads: any; its lock is a leaf.
  void forget_completions(std::uint32_t qp_num);
  // ibv_req_notify_cq(3) in two steps, so that many queues share one barrier: call arm() on each, then the heavy
  // barrier if one of them asks for it, then after_barrier() on each.
  bool arm(ArmKind kind);
  /// Returns whether a poll stopped before the end (QueuePair::has_left_over()) and there is no channel to signal that.
  bool must_be_polled_again();
  void after_barrier();
  [[nodiscard]] bool is_armed() const { return armed_.load(std::memory_order_relaxed) != 0; }
  /// Consumes the arming and raises the event. Does nothing when not armed.
  void fire();
  /// Consumes the arming without raising the event, which the caller raises later with raise_owed().
  bool take_arming() { return armed_.exchange(0, std::memory_order_relaxed) != 0; }
  void raise_owed();
  void count_event_taken();
  void count_acks(unsigned count);

  /// Attaches a queue pair that completes receives, sends or both here. detach() returns when no poll() is using it any
  /// more.
  void attach(QueuePair& queue_pair, bool receives);
  void detach(QueuePair& queue_pair);
  /// Counts queue pairs with queued sends that poll() must push: +1 when one has such sends, -1 when it no longer has.
  void add_stalled(int change) { stalled_.fetch_add(change, std::memory_order_relaxed); }

  /// Adds what each poll uses.
  void add_hot_lines(HotLines& lines) const { lines.add(static_cast<const ibv_cq*>(this), &next_receiver_); }

  [[nodiscard]] CompletionChannel* completion_channel() const { return channel_; }
  [[nodiscard]] bool in_use();
  /// Waits until the program has acknowledged every event it took, then forgets the pending ones (ibv_destroy_cq(3)).
  void wait_for_acks();

 private:
  struct Local;
  [[nodiscard]] bool has_left_over_locked() const;
  int take_all(int count, ibv_wc* wc);
  int take_from_all(int count, ibv_wc* wc);
  int take_local(int count, ibv_wc* wc);
  int look_closer(std::unique_lock<BiasedMutex>& guard, int count, ibv_wc* wc);
  /// Looks at some links now and then. @return whether a link has news, so that the caller must look again.
  bool idle(std::unique_lock<BiasedMutex>& guard);
  int arm_again(std::unique_lock<BiasedMutex>& guard, int count, ibv_wc* wc);
  void note_receivers();
  bool grow_local();
  void overrun();
  void push_stalled();

  // The members that every poll accesses come first, in one cache line if there is one queue pair.
  alignas(kLineBytes) BiasedMutex poll_lock_;
  std::atomic<std::uint32_t> local_count_{0};
  std::atomic<int> stalled_{0};
  std::atomic<std::uint32_t> armed_{0};
  std::uint32_t empty_polls_ = 0;
  QueuePair* sole_receiver_ = nullptr;  ///< that of receivers_, if it is one
  std::vector<QueuePair*> receivers_;
  std::size_t next_receiver_ = 0;

  BiasedMutex local_lock_;
  std::uint32_t local_head_ = 0;
  std::uint32_t local_capacity_ = 0;  ///< at most cqe; grows as it is used
  std::unique_ptr<Local[]> local_;

  DeviceContext& device_;
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
