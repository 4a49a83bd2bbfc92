// The send queue of an RC queue pair: the order of sends, and their completion.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/device/shm/queue/outbox.h"
#include "core/device/shm/queue/queue_pair.h"
#include "core/device/shm/queue/rc_attributes.h"
#include "core/device/shm/queue/receive_end.h"
#include "core/device/shm/queue/send_steps.h"

namespace ringsock::soft {

/// A send that could not be carried out at once. Owns copies of the list and of inline data, which the caller may
/// reuse.
struct QueuedSend {
  QueuedSend(const ibv_send_wr& posted, const SendProgress& so_far);
  ibv_send_wr wr;
  SendProgress progress;
  std::vector<ibv_sge> sges;
  std::vector<std::byte> inline_data;
};

/// Carries sends out at once while nothing speaks against it, otherwise queues them. Threads: one at a time, except for
/// has_queued().
class SendQueue {
 public:
  SendQueue(const QueuePair& queue_pair, RcAttributes& attributes, ReceiveEnd& receive_end);

  [[nodiscard]] Outbox& outbox() { return steps_.outbox(); }
  [[nodiscard]] PeerRegions& regions() { return steps_.regions(); }

  /// Returns 0 or an errno value.
  int post(const ibv_send_wr& wr);
  /// verbs::RcExtensions::write_at_once().
  int write_at_once(const verbs::InlineWrite& write) {
    return direct_ && !signal_all_ ? steps_.write_at_once(write) : EAGAIN;
  }
  int write_pair_at_once(const verbs::WritePair& pair) {
    return direct_ && !signal_all_ ? steps_.write_pair_at_once(pair) : EAGAIN;
  }
  [[nodiscard]] bool has_queued() const { return has_queued_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool is_empty() const { return queued() == 0; }
  /// Returns whether the next send may be carried out at once: connected, and nothing is queued.
  [[nodiscard]] bool is_direct() const { return direct_; }

  /// The queue pair is connected.
  void note_wired();
  [[nodiscard]] bool is_wired() const { return wired_; }
  /// The state has changed, to one other than error or reset.
  void follow_state();
  /// Continues queued sends.
  void progress();
  /// Moves the queue pair to the error state. The oldest queued send fails with that status, the others are flushed.
  void fail(ibv_wc_status first);
  /// The peer has gone: a posted send fails for it, the next one if none is queued.
  void fail_for_peer();
  /// Drops queued sends without completions.
  void clear();
  /// The queue pair is used anew.
  void reset();

 private:
  // rc_send.cc
  int post_queued(const ibv_send_wr& wr, const SendProgress& progress, Step step);
  void complete(const ibv_send_wr& wr, ibv_wc_status status);
  // rc_progress.cc
  void retire_acked();
  [[nodiscard]] std::size_t queued() const { return queued_ ? queued_->size() : 0; }
  void enqueue(QueuedSend&& send);
  void pop();
  void fail_queued(ibv_wc_status first);
  [[nodiscard]] bool may_be_direct() const { return attributes_.state() == IBV_QPS_RTS && wired_ && is_empty(); }

  bool direct_ = false;  ///< in RTS, connected, no queued sends: a send may be carried out at once
  const bool signal_all_;
  bool wired_ = false;
  bool gone_untold_ = false;  ///< the peer has gone and no send has failed for it yet
  const std::uint32_t max_sge_;
  const QueuePair& queue_pair_;
  RcAttributes& attributes_;
  ReceiveEnd& receive_end_;
  SendSteps steps_;
  std::size_t started_ = 0;  ///< number of queued_ that only wait for their acknowledgement
  /// Null until a send is queued: an empty deque has half a KiB of memory.
  std::unique_ptr<std::deque<QueuedSend>> queued_;
  std::atomic<bool> has_queued_{false};
};

}  // namespace ringsock::soft
