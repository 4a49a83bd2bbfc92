// Processes that have an RC queue pair by fork(2), and use it one after another.
#include "core/device/shm/queue/reliable_queue_pair.h"

namespace ringsock::soft {

/// The peer's values that are remembered here are not saved: they are read again.
std::optional<verbs::SavedQueuePair> save(ReliableQueuePair& queue_pair) {
  ReliableQueuePair& own = queue_pair;
  const std::lock_guard guard(own.send_lock_);
  const bool can_be = own.wired_ && own.queued_.empty() && !own.in_message_ && own.srq == nullptr &&
                      own.receives_.is_only_counted() && (own.state == IBV_QPS_RTS || own.state == IBV_QPS_ERR);
  if (!can_be) return std::nullopt;
  verbs::SavedQueuePair saved{};
  saved.entries_used = own.entries_used_;
  saved.receives_used = own.receives_used_;
  saved.payload_used = own.payload_used_;
  saved.acks_wanted = own.acks_wanted_;
  saved.index = own.index_;
  saved.index_published = own.index_published_;
  saved.payload = own.payload_;
  saved.payload_published = own.payload_published_;
  saved.acked = own.acked_;
  saved.receives_posted = own.receives_.posted();
  saved.receives_taken = own.receives_.posted() - own.receives_.size();
  saved.failed = own.state == IBV_QPS_ERR;
  saved.is_broken = own.inbox_broken_;
  return saved;
}

Status restore(ReliableQueuePair& queue_pair, const verbs::SavedQueuePair& saved) {
  ReliableQueuePair& own = queue_pair;
  const std::lock_guard guard(own.send_lock_);
  if (!own.wired_ || !own.queued_.empty() || own.in_message_ || own.srq != nullptr)
    return Error{EINVAL, "restore: state"};
  if (!own.receives_.restore_counts(saved.receives_taken, saved.receives_posted))
    return Error{EPROTO, "restore: receives"};
  own.entries_used_ = saved.entries_used;
  own.entries_freed_ = own.entries_used_ - own.peer_.ring_entries;
  own.receives_used_ = own.receives_known_ = saved.receives_used;
  own.payload_used_ = saved.payload_used;
  own.acks_wanted_ = own.acks_seen_ = saved.acks_wanted;
  own.index_ = own.index_at_arming_ = saved.index;
  own.index_published_ = saved.index_published;
  own.payload_ = saved.payload;
  own.payload_published_ = saved.payload_published;
  own.acked_ = saved.acked;
  own.inbox_broken_ = own.inbox_broken_ || saved.is_broken != 0;
  if (own.state == IBV_QPS_RTS) own.begin_with_fences();
  if (saved.failed != 0) own.enter_error(IBV_WC_WR_FLUSH_ERR);
  return ok();
}

}  // namespace ringsock::soft
