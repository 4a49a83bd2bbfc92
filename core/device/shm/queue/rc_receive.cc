#include <algorithm>
#include <cstring>

#include "core/device/common/device_context.h"
#include "core/device/common/scatter_gather.h"
#include "core/device/shm/queue/assist.h"
#include "core/device/shm/queue/rc_receiver.h"

namespace ringsock::soft {

namespace {

constexpr std::uint8_t flags_of(std::uint64_t head) { return static_cast<std::uint8_t>(head >> 32); }
constexpr EntryType type_of(std::uint64_t head) {
  return static_cast<EntryType>(static_cast<std::uint8_t>(head >> 40));
}

/// The number of entries without a completion (work for the peer, pieces of a message) that one poll handles, so that a
/// peer that sends them without end cannot hold it.
constexpr int kMaxSilentEntries = 64;

}  // namespace

RcReceiver::RcReceiver(QueuePair& queue_pair, RcOwner& owner, const RcAttributes& attributes, const InboxView& inbox,
                       StalledPeer& peer, ReceiveEnd& end)
    : queue_pair_(queue_pair),
      owner_(owner),
      attributes_(attributes),
      peer_(peer),
      fence_wish_(inbox.doorbell()),
      inbox_(inbox),
      index_(inbox.first_entry()),
      index_published_(index_),
      qp_num_(queue_pair.qp_num),
      srq_(static_cast<SharedReceiveQueue*>(queue_pair.init_attr().srq)),
      end_(end),
      receives_(queue_pair.init_attr().cap.max_recv_wr, queue_pair.init_attr().cap.max_recv_sge) {
  // A producer that another process restores reads where we begin.
  inbox_.consumer().entries_consumed.store(index_, std::memory_order_relaxed);
}

int RcReceiver::post(ibv_recv_wr* wr, ibv_recv_wr** bad) {
  const std::lock_guard guard(post_lock_);
  const ibv_qp_state now = attributes_.state_now();
  int error = may_post(now);
  if (error == 0 && wr != nullptr && wr->num_sge == 0) [[likely]] {
    wr = receives_.post_counted(wr);
    smallest_receive_ = 0;
  }
  for (; wr != nullptr && error == 0; wr = wr->next) {
    const std::uint32_t bytes = total_length(wr->sg_list, static_cast<std::size_t>(std::max(wr->num_sge, 0)));
    error = receives_.post(*wr);
    if (error != 0) break;
    smallest_receive_ = receives_.posted() == 1 ? bytes : std::min(smallest_receive_, bytes);
  }
  if (error != 0) *bad = wr;
  tell_posted(now);
  return error;
}

int RcReceiver::post_counted(std::uint64_t wr_id, std::uint32_t count) {
  const std::lock_guard guard(post_lock_);
  const ibv_qp_state now = attributes_.state_now();
  int error = may_post(now);
  if (error == 0 && count != 0) {
    error = receives_.post_counted(wr_id, count);
    smallest_receive_ = 0;
  }
  tell_posted(now);
  return error;
}

/// @param before  the state in which the receives were posted
void RcReceiver::tell_posted(ibv_qp_state before) {
  // Stored first: a peer that sees the receive also sees its possible size.
  inbox_.consumer().receive_bytes.store(smallest_receive_, std::memory_order_relaxed);
  inbox_.consumer().receives_posted.store(receives_.posted(), std::memory_order_release);
  peer_.ring_if_waiting();
  if (before == IBV_QPS_ERR) [[unlikely]]
    queue_pair_.receive_queue().fire();
}

int RcReceiver::poll(int count, ibv_wc* wc) {
  int got = 0;
  // Read first: what the peer sent before its end is in the ring when another thread has seen the end.
  const bool was_flushing = end_.has_come();
  // Written only if needed, because ten thousand idle queue pairs may be polled in a round.
  if (left_over_) [[unlikely]]
    left_over_ = false;
  for (int silent = 0; got < count;) {
    Entry& entry = inbox_.entry(index_);
    const std::uint64_t head = entry.head.load(std::memory_order_acquire);
    if (head >> 48 != inbox_.lap(index_) || broken_) break;
    const std::uint64_t body = entry.body.load(std::memory_order_relaxed);
    if (type_of(head) == EntryType::write_imm) [[likely]] {
      if (!take_receive()) [[unlikely]]
        break;
      fill_receive(wc[got++], head, body);
      finish_receive();
    } else if (const int before = got; !consume(head, body, wc, got)) {
      break;
    } else if (got == before && ++silent == kMaxSilentEntries) {
      left_over_ = true;
      count = got;
    }
    ++index_;
    if (index_ - index_published_ >= inbox_.ring_entries / 4) [[unlikely]]
      publish_consumed();
  }
  if (got < count && (was_flushing || (broken_ && end_.has_come()))) [[unlikely]]
    got += flush(count - got, wc + got);
  return got;
}

bool RcReceiver::has_waiting(bool (*is_wanted)(std::uint32_t)) const {
  for (std::uint32_t index = index_; index - index_ < inbox_.ring_entries; ++index) {
    const std::uint64_t head = inbox_.entry(index).head.load(std::memory_order_acquire);
    if (head >> 48 != inbox_.lap(index)) return false;
    if ((flags_of(head) & kEntryHasImm) != 0 && is_wanted(static_cast<std::uint32_t>(head))) return true;
  }
  return false;
}

/// Takes the next receive into receive_. False when there is none: with a shared queue the message waits, otherwise the
/// peer has sent more than was permitted.
bool RcReceiver::take_receive() {
  if (srq_ != nullptr) return srq_->take(receive_, srq_sges_);
  if (receives_.empty()) [[unlikely]] {
    peer_broke_rules();
    return false;
  }
  receive_ = receives_.front();
  return true;
}

void RcReceiver::finish_receive() {
  if (srq_ == nullptr) receives_.pop();
}

void RcReceiver::fill_receive(ibv_wc& wc, std::uint64_t head, std::uint64_t body) const {
  const bool has_imm = (flags_of(head) & kEntryHasImm) != 0;
  wc.wr_id = receive_.wr_id;
  wc.status = IBV_WC_SUCCESS;
  wc.opcode = type_of(head) == EntryType::write_imm ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
  wc.vendor_err = static_cast<std::uint32_t>(body >> 32);
  wc.byte_len = static_cast<std::uint32_t>(body);
  wc.imm_data = static_cast<std::uint32_t>(head);
  wc.qp_num = qp_num_;
  wc.src_qp = peer_qp_num_.load(std::memory_order_relaxed);
  wc.wc_flags = has_imm ? IBV_WC_WITH_IMM : 0;
  wc.pkey_index = 0;
  wc.slid = 0;
  wc.sl = 0;
  wc.dlid_path_bits = 0;
}

/// Handles an entry other than a write with immediate. False when it must stay, for now or for ever.
bool RcReceiver::consume(std::uint64_t head, std::uint64_t body, ibv_wc* wc, int& got) {
  const auto length = static_cast<std::uint32_t>(body);
  if (length > inbox_.payload_bytes) {
    peer_broke_rules();
    return false;
  }
  switch (type_of(head)) {
    case EntryType::send: return consume_send(head, body, wc, got);
    case EntryType::assist: return consume_assist(length);
    default: peer_broke_rules(); return false;
  }
}

bool RcReceiver::consume_send(std::uint64_t head, std::uint64_t body, ibv_wc* wc, int& got) {
  const auto length = static_cast<std::uint32_t>(body);
  const std::uint32_t at = payload_ & (inbox_.payload_bytes - 1);
  if (length > inbox_.payload_bytes - at) {
    peer_broke_rules();
    return false;
  }
  if (!in_message_) {
    if (!take_receive()) return false;
    in_message_ = true;
    message_bytes_ = 0;
  }
  const ibv_wc_status status = scatter_piece(inbox_.payload() + at, length);
  payload_ += round_up_8(length);
  const bool more = (flags_of(head) & kEntryMore) != 0;
  if (status == IBV_WC_SUCCESS && more) {
    message_bytes_ += length;
    // A message larger than the payload ring needs the space of its earlier pieces to become free meanwhile.
    publish_payload();
    return true;
  }
  in_message_ = false;
  return complete_send(head, body + message_bytes_, status, wc[got++]);
}

bool RcReceiver::complete_send(std::uint64_t head, std::uint64_t body, ibv_wc_status status, ibv_wc& wc) {
  fill_receive(wc, head, body);
  wc.status = status;
  finish_receive();
  if (status != IBV_WC_SUCCESS) {
    wc.vendor_err = 0;
    refuse(status == IBV_WC_LOC_LEN_ERR ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR);
    return false;
  }
  publish_payload();
  if ((flags_of(head) & kEntryWantsAck) != 0) acknowledge();
  return true;
}

ibv_wc_status RcReceiver::scatter_piece(const std::byte* from, std::uint32_t length) {
  if (length == 0) return IBV_WC_SUCCESS;
  const std::span<const ibv_sge> list(receive_.sges, receive_.sge_count);
  const std::uint64_t capacity = length_of(list);
  if (message_bytes_ > capacity || length > capacity - message_bytes_) return IBV_WC_LOC_LEN_ERR;
  const KeyTable& keys = queue_pair_.device().keys();
  for (const ibv_sge& sge : list) {
    if (sge.length != 0 && !keys.covers(sge.lkey, queue_pair_.pd, sge.addr, sge.length, IBV_ACCESS_LOCAL_WRITE)) {
      return IBV_WC_LOC_PROT_ERR;
    }
  }
  scatter(from, list, message_bytes_, length);
  return IBV_WC_SUCCESS;
}

bool RcReceiver::consume_assist(std::uint32_t room) {
  std::uint32_t at = payload_ & (inbox_.payload_bytes - 1);
  const std::uint32_t to_end = inbox_.payload_bytes - at;
  if (to_end < room) {
    payload_ += to_end;
    at = 0;
  }
  AssistHeader request{};
  if (room < sizeof request || in_message_) {
    peer_broke_rules();
    return false;
  }
  std::memcpy(&request, inbox_.payload() + at, sizeof request);
  const ibv_wc_status status =
      carry_out(request, inbox_.payload() + at, room - static_cast<std::uint32_t>(sizeof request), queue_pair_.domain(),
                queue_pair_.device().keys());
  payload_ += round_up_8(room);
  if (status != IBV_WC_SUCCESS) {
    refuse(status);
    return false;
  }
  publish_payload();
  acknowledge();
  return true;
}

void RcReceiver::acknowledge() {
  inbox_.consumer().acked.store(++acked_, std::memory_order_release);
  peer_.ring_if_waiting();
}

/// Refuses the malformed message at the head of the inbox: reports the reason to its sender and ends the connection.
void RcReceiver::refuse(ibv_wc_status status_for_peer) {
  inbox_.consumer().fault.store(status_for_peer, std::memory_order_release);
  broken_ = true;
  owner_.fail(IBV_WC_WR_FLUSH_ERR);
}

void RcReceiver::peer_broke_rules() {
  refuse(IBV_WC_REM_INV_REQ_ERR);
  ibv_async_event event{};
  event.element.qp = &queue_pair_;
  event.event_type = IBV_EVENT_QP_FATAL;
  queue_pair_.device().async_events().raise(event);
}

void RcReceiver::flush_one(ibv_wc& wc) const {
  wc = {};
  wc.wr_id = receive_.wr_id;
  wc.status = IBV_WC_WR_FLUSH_ERR;
  wc.opcode = IBV_WC_RECV;
  wc.vendor_err = end_.cause();
  wc.qp_num = qp_num_;
}

int RcReceiver::flush(int count, ibv_wc* wc) {
  int got = 0;
  if (srq_ != nullptr) {
    // Only a receive that a message had begun to use belongs to this queue pair; the others stay in the shared queue.
    if (in_message_) flush_one(wc[got++]);
  } else {
    while (got < count && !receives_.empty()) {
      receive_ = receives_.front();
      flush_one(wc[got++]);
      receives_.pop();
    }
  }
  in_message_ = false;
  return got;
}

/// Tells the peer what it may use again. Called for a quarter of a ring at a time: a producer that finds a ring full
/// has so much in it that its consumer comes here before it has taken everything.
void RcReceiver::publish_consumed() {
  index_published_ = index_;
  payload_published_ = payload_;
  inbox_.consumer().entries_consumed.store(index_, std::memory_order_release);
  inbox_.consumer().payload_consumed.store(payload_, std::memory_order_release);
  fence_wish_.note_consumed(index_);
  peer_.ring_if_waiting();
}

void RcReceiver::publish_payload() {
  if (payload_ - payload_published_ >= inbox_.payload_bytes / 4) publish_consumed();
}

void RcReceiver::attach(std::uint32_t peer_qp_num) {
  peer_qp_num_ = peer_qp_num;
  fence_wish_.begin(index_);
}

bool RcReceiver::can_be_saved() const { return !in_message_ && srq_ == nullptr && receives_.is_only_counted(); }

void RcReceiver::save(verbs::SavedQueuePair& to) const {
  to.index = index_;
  to.index_published = index_published_;
  to.payload = payload_;
  to.payload_published = payload_published_;
  to.acked = acked_;
  to.receives_posted = receives_.posted();
  to.receives_taken = receives_.posted() - receives_.size();
  to.is_broken = broken_;
}

Status RcReceiver::restore(const verbs::SavedQueuePair& from) {
  if (in_message_ || srq_ != nullptr) return Error{EINVAL, "restore: state"};
  if (!receives_.restore_counts(from.receives_taken, from.receives_posted)) return Error{EPROTO, "restore: receives"};
  index_ = from.index;
  index_published_ = from.index_published;
  payload_ = from.payload;
  payload_published_ = from.payload_published;
  acked_ = from.acked;
  broken_ = broken_ || from.is_broken != 0;
  fence_wish_.begin(index_);
  return ok();
}

bool RcReceiver::is_untouched_since(const verbs::SavedQueuePair& saved) const {
  const ConsumerLine& told = inbox_.consumer();
  // What was told of the entries that the saved state knows as read changes nothing for a process that goes on from it.
  const std::uint32_t entries = told.entries_consumed.load(std::memory_order_acquire);
  const std::uint32_t payload = told.payload_consumed.load(std::memory_order_acquire);
  return entries - saved.index_published <= saved.index - saved.index_published &&
         payload - saved.payload_published <= saved.payload - saved.payload_published &&
         told.receives_posted.load(std::memory_order_acquire) == saved.receives_posted &&
         told.acked.load(std::memory_order_acquire) == saved.acked &&
         (told.closed.load(std::memory_order_acquire) != 0) == (saved.failed != 0);
}

void RcReceiver::reset() {
  {
    const std::lock_guard guard(post_lock_);
    while (!receives_.empty()) receives_.pop();
  }
  in_message_ = false;
  broken_ = true;
}

}  // namespace ringsock::soft
