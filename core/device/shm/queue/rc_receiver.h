// The receive side of an RC queue pair: from the inbox to completions.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/biased_mutex.h"
#include "core/device/common/receive_queue.h"
#include "core/device/shm/memory/segment.h"
#include "core/device/shm/queue/fences.h"
#include "core/device/shm/queue/queue_pair.h"
#include "core/device/shm/queue/rc_attributes.h"
#include "core/device/shm/queue/rc_owner.h"
#include "core/device/shm/queue/receive_end.h"
#include "core/verbs/saved_queue_pair.h"

namespace ringsock::soft {

/// Reads the entries of our inbox, which are untrusted. Threads: post() and ask_for_stamps() from any thread, the
/// others under the receive queue's poll lock.
class RcReceiver {
 public:
  RcReceiver(QueuePair& queue_pair, RcOwner& owner, const RcAttributes& attributes, const InboxView& inbox,
             StalledPeer& peer, ReceiveEnd& end);

  /// ibv_post_recv(3). Returns 0 or an errno value.
  int post(ibv_recv_wr* wr, ibv_recv_wr** bad);
  /// verbs::RcExtensions::post_counted().
  int post_counted(std::uint64_t wr_id, std::uint32_t count);
  /// QueuePair::poll_receives() and has_left_over().
  int poll(int count, ibv_wc* wc);
  [[nodiscard]] bool has_left_over() const { return left_over_; }
  /// verbs::ConnectionId::has_waiting().
  [[nodiscard]] bool has_waiting(bool (*is_wanted)(std::uint32_t)) const;
  /// verbs::RcExtensions::ask_for_stamps().
  void ask_for_stamps() { inbox_.doorbell().wants_stamps.store(1, std::memory_order_relaxed); }

  /// The connection begins.
  void attach(std::uint32_t peer_qp_num);
  // verbs::RcExtensions::save() and restore(). The caller is the only user of the queue pair.
  [[nodiscard]] bool can_be_saved() const;
  void save(verbs::SavedQueuePair& to) const;
  /// Errors: EINVAL part of a message has arrived; EPROTO impossible counts.
  Status restore(const verbs::SavedQueuePair& from);
  [[nodiscard]] bool is_untouched_since(const verbs::SavedQueuePair& saved) const;
  /// Returns the first of the members that each poll uses.
  [[nodiscard]] const void* hot_members() const { return &inbox_; }
  /// A thread is about to sleep.
  void note_arming() { fence_wish_.note_arming(index_); }
  /// Drops posted receives without completions and reads the inbox no more. No thread may poll meanwhile.
  void reset();

 private:
  [[nodiscard]] int may_post(ibv_qp_state now) const { return now == IBV_QPS_RESET || srq_ != nullptr ? EINVAL : 0; }
  void tell_posted(ibv_qp_state before);
  bool consume(std::uint64_t head, std::uint64_t body, ibv_wc* wc, int& got);
  bool consume_send(std::uint64_t head, std::uint64_t body, ibv_wc* wc, int& got);
  bool complete_send(std::uint64_t head, std::uint64_t body, ibv_wc_status status, ibv_wc& wc);
  bool consume_assist(std::uint32_t room);
  ibv_wc_status scatter_piece(const std::byte* from, std::uint32_t length);
  bool take_receive();
  void finish_receive();
  void fill_receive(ibv_wc& wc, std::uint64_t head, std::uint64_t body) const;
  void acknowledge();
  void refuse(ibv_wc_status status_for_peer);
  void peer_broke_rules();
  int flush(int count, ibv_wc* wc);
  void flush_one(ibv_wc& wc) const;
  void publish_consumed();
  void publish_payload();

  // Posting.
  BiasedMutex post_lock_;
  std::uint32_t smallest_receive_ = 0;

  QueuePair& queue_pair_;
  RcOwner& owner_;
  const RcAttributes& attributes_;
  StalledPeer& peer_;
  std::uint32_t payload_ = 0, payload_published_ = 0;
  std::uint32_t acked_ = 0;
  std::uint32_t message_bytes_ = 0;
  std::vector<ibv_sge> srq_sges_;
  FenceWish fence_wish_;

  // What each message uses has two cache lines.
  alignas(kLineBytes) const InboxView inbox_;
  std::uint32_t index_, index_published_;
  const std::uint32_t qp_num_;
  std::atomic<std::uint32_t> peer_qp_num_{0};
  bool in_message_ = false;        ///< part of a SEND has arrived, into receive_
  bool left_over_ = false;         ///< the last poll stopped although there may be more
  bool broken_ = false;            ///< the inbox is no longer read
  SharedReceiveQueue* const srq_;  ///< null: receives_
  ReceiveEnd& end_;
  PostedReceive receive_;
  ReceiveQueue receives_;
};

}  // namespace ringsock::soft
