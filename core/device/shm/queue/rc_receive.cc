// The receive side of an RC queue pair: from the inbox to completions.
#include <algorithm>
#include <cstring>

#include "core/base/user_memory.h"
#include "core/device/common/device_context.h"
#include "core/device/common/scatter_gather.h"
#include "core/device/shm/memory/guarded_copy.h"
#include "core/device/shm/queue/reliable_queue_pair.h"

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

int ReliableQueuePair::post_receive(ibv_recv_wr* wr, ibv_recv_wr** bad) {
  std::lock_guard guard(receive_lock_);
  const bool uses_srq = srq != nullptr;
  const ibv_qp_state now = state_.load(std::memory_order_relaxed);
  int error = now == IBV_QPS_RESET || uses_srq ? EINVAL : 0;
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
  // Stored first: a peer that sees the receive also sees its possible size.
  inbox_.consumer->receive_bytes.store(smallest_receive_, std::memory_order_relaxed);
  inbox_.consumer->receives_posted.store(receives_.posted(), std::memory_order_release);
  ring_if_waiting();
  if (now == IBV_QPS_ERR) [[unlikely]]
    receive_queue().fire();
  return error;
}

int ReliableQueuePair::poll_receives(int count, ibv_wc* wc) {
  int got = 0;
  // Read first: what the peer sent before its end is in the ring when another thread has seen the end.
  const bool was_flushing = flushing_.load(std::memory_order_acquire);
  // Written only if needed, because ten thousand idle queue pairs may be polled in a round.
  if (left_over_) [[unlikely]]
    left_over_ = false;
  for (int silent = 0; got < count;) {
    Entry& entry = inbox_.entry(index_);
    const std::uint64_t head = entry.head.load(std::memory_order_acquire);
    if (head >> 48 != inbox_.lap(index_) || inbox_broken_) break;
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
  if (got < count && (was_flushing || (inbox_broken_ && flushing_.load(std::memory_order_relaxed)))) [[unlikely]]
    got += flush_receives(count - got, wc + got);
  return got;
}

bool ReliableQueuePair::has_waiting(bool (*is_wanted)(std::uint32_t)) const {
  for (std::uint32_t index = index_; index - index_ < inbox_.ring_entries; ++index) {
    const std::uint64_t head = inbox_.entry(index).head.load(std::memory_order_acquire);
    if (head >> 48 != inbox_.lap(index)) return false;
    if ((flags_of(head) & kEntryHasImm) != 0 && is_wanted(static_cast<std::uint32_t>(head))) return true;
  }
  return false;
}

/// Takes the next receive into receive_. False when there is none: with a shared queue the message waits, otherwise the
/// peer has sent more than was permitted.
bool ReliableQueuePair::take_receive() {
  if (srq != nullptr) return static_cast<SharedReceiveQueue*>(srq)->take(receive_, srq_sges_);
  if (receives_.empty()) [[unlikely]] {
    peer_broke_rules();
    return false;
  }
  receive_ = receives_.front();
  return true;
}

void ReliableQueuePair::finish_receive() {
  if (srq == nullptr) receives_.pop();
}

void ReliableQueuePair::fill_receive(ibv_wc& wc, std::uint64_t head, std::uint64_t body) const {
  const bool has_imm = (flags_of(head) & kEntryHasImm) != 0;
  wc.wr_id = receive_.wr_id;
  wc.status = IBV_WC_SUCCESS;
  wc.opcode = type_of(head) == EntryType::write_imm ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
  wc.vendor_err = static_cast<std::uint32_t>(body >> 32);
  wc.byte_len = static_cast<std::uint32_t>(body);
  wc.imm_data = static_cast<std::uint32_t>(head);
  wc.qp_num = qp_num;
  wc.src_qp = peer_qp_num_.load(std::memory_order_relaxed);
  wc.wc_flags = has_imm ? IBV_WC_WITH_IMM : 0;
  wc.pkey_index = 0;
  wc.slid = 0;
  wc.sl = 0;
  wc.dlid_path_bits = 0;
}

/// Handles an entry other than a write with immediate. False when it must stay, for now or for ever.
bool ReliableQueuePair::consume(std::uint64_t head, std::uint64_t body, ibv_wc* wc, int& got) {
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

bool ReliableQueuePair::consume_send(std::uint64_t head, std::uint64_t body, ibv_wc* wc, int& got) {
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
  const ibv_wc_status status = scatter_piece(inbox_.payload + at, length);
  payload_ += round_up_8(length);
  const bool more = (flags_of(head) & kEntryMore) != 0;
  if (status == IBV_WC_SUCCESS && more) {
    message_bytes_ += length;
    // A message larger than the payload ring needs the space of its earlier pieces to become free meanwhile.
    if (payload_ - payload_published_ >= inbox_.payload_bytes / 4) publish_consumed();
    return true;
  }
  in_message_ = false;
  fill_receive(wc[got], head, body + message_bytes_);
  if (status != IBV_WC_SUCCESS) wc[got].vendor_err = 0;
  wc[got++].status = status;
  finish_receive();
  if (status != IBV_WC_SUCCESS) {
    refuse(status == IBV_WC_LOC_LEN_ERR ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR);
    return false;
  }
  if (payload_ - payload_published_ >= inbox_.payload_bytes / 4) publish_consumed();
  if ((flags_of(head) & kEntryWantsAck) != 0) acknowledge();
  return true;
}

ibv_wc_status ReliableQueuePair::scatter_piece(const std::byte* from, std::uint32_t length) {
  if (length == 0) return IBV_WC_SUCCESS;
  const std::span<const ibv_sge> list(receive_.sges, receive_.sge_count);
  const std::uint64_t capacity = length_of(list);
  if (message_bytes_ > capacity || length > capacity - message_bytes_) return IBV_WC_LOC_LEN_ERR;
  for (const ibv_sge& sge : list) {
    if (sge.length != 0 && !device_.keys().covers(sge.lkey, pd, sge.addr, sge.length, IBV_ACCESS_LOCAL_WRITE)) {
      return IBV_WC_LOC_PROT_ERR;
    }
  }
  scatter(from, list, message_bytes_, length);
  return IBV_WC_SUCCESS;
}

bool ReliableQueuePair::consume_assist(std::uint32_t room) {
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
  std::memcpy(&request, inbox_.payload + at, sizeof request);
  const ibv_wc_status status =
      carry_out(request, inbox_.payload + at, room - static_cast<std::uint32_t>(sizeof request));
  payload_ += round_up_8(room);
  if (status != IBV_WC_SUCCESS) {
    refuse(status);
    return false;
  }
  if (payload_ - payload_published_ >= inbox_.payload_bytes / 4) publish_consumed();
  acknowledge();
  return true;
}

/// Accesses our memory for the peer. Memory that the application has unmapped or protected is treated as not
/// registered. `place` is the place of the request, where its data follows and the answer is stored.
ibv_wc_status ReliableQueuePair::carry_out(const AssistHeader& request, std::byte* place, std::uint32_t data_bytes) {
  const auto kind = static_cast<AssistKind>(request.kind);
  const bool is_atomic = kind == AssistKind::compare_swap || kind == AssistKind::fetch_add;
  const unsigned access = kind == AssistKind::write  ? IBV_ACCESS_REMOTE_WRITE
                          : kind == AssistKind::read ? IBV_ACCESS_REMOTE_READ
                                                     : IBV_ACCESS_REMOTE_ATOMIC;
  if (request.kind < 1 || request.kind > 4) return IBV_WC_REM_INV_REQ_ERR;
  if (is_atomic ? request.length != 8 || request.address % 8 != 0 : request.length > data_bytes) {
    return IBV_WC_REM_INV_REQ_ERR;
  }
  // The lock keeps dereg_mr from returning while the region's memory is accessed.
  std::lock_guard guard(domain().access_lock());
  if (!device_.keys().covers(request.rkey, pd, request.address, request.length, access)) return IBV_WC_REM_ACCESS_ERR;
  auto* memory = reinterpret_cast<std::byte*>(request.address);
  std::byte* data = place + sizeof request;
  if (kind == AssistKind::write) {
    if (!guarded_write(memory, data, request.length)) return IBV_WC_REM_ACCESS_ERR;
  } else if (kind == AssistKind::read) {
    if (!guarded_read(data, memory, request.length)) return IBV_WC_REM_ACCESS_ERR;
  } else {
    if (!is_word_writable(memory)) return IBV_WC_REM_ACCESS_ERR;
    const std::uint64_t original = kind == AssistKind::compare_swap
                                       ? compare_and_swap(memory, request.compare_add, request.swap)
                                       : fetch_and_add(memory, request.compare_add);
    std::memcpy(place + offsetof(AssistHeader, original), &original, sizeof original);
  }
  return IBV_WC_SUCCESS;
}

void ReliableQueuePair::acknowledge() {
  inbox_.consumer->acked.store(++acked_, std::memory_order_release);
  ring_if_waiting();
}

/// Refuses the malformed message at the head of the inbox: reports the reason to its sender and ends the connection.
void ReliableQueuePair::refuse(ibv_wc_status status_for_peer) {
  inbox_.consumer->fault.store(status_for_peer, std::memory_order_release);
  inbox_broken_ = true;
  std::lock_guard guard(send_lock_);
  enter_error(IBV_WC_WR_FLUSH_ERR);
}

void ReliableQueuePair::peer_broke_rules() {
  refuse(IBV_WC_REM_INV_REQ_ERR);
  ibv_async_event event{};
  event.element.qp = this;
  event.event_type = IBV_EVENT_QP_FATAL;
  device_.async_events().raise(event);
}

int ReliableQueuePair::flush_receives(int count, ibv_wc* wc) {
  int got = 0;
  const auto flush_one = [&] {
    wc[got] = {};
    wc[got].wr_id = receive_.wr_id;
    wc[got].status = IBV_WC_WR_FLUSH_ERR;
    wc[got].opcode = IBV_WC_RECV;
    wc[got].vendor_err = peer_ended_.load(std::memory_order_relaxed) ? verbs::kVendorErrPeerEnded : 0;
    wc[got++].qp_num = qp_num;
  };
  if (srq != nullptr) {
    // Only a receive that a message had begun to use belongs to this queue pair; the others stay in the shared queue.
    if (in_message_) flush_one();
  } else {
    while (got < count && !receives_.empty()) {
      receive_ = receives_.front();
      flush_one();
      receives_.pop();
    }
  }
  in_message_ = false;
  return got;
}

void ReliableQueuePair::ask_for_stamps() { inbox_.doorbell->wants_stamps.store(1, std::memory_order_relaxed); }

/// Tells the peer what it may use again. Called for a quarter of a ring at a time: a producer that finds a ring full
/// has so much in it that its consumer comes here before it has taken everything.
void ReliableQueuePair::publish_consumed() {
  index_published_ = index_;
  payload_published_ = payload_;
  inbox_.consumer->entries_consumed.store(index_, std::memory_order_release);
  inbox_.consumer->payload_consumed.store(payload_, std::memory_order_release);
  withdraw_fence_wish();
  ring_if_waiting();
}

/// Called when a thread is about to sleep. After repeated sleeps with few messages in between it asks the peer for
/// fences.
void ReliableQueuePair::note_arming() {
  constexpr std::uint32_t kFewEntries = 64;
  withdraw_fence_wish();
  const std::uint32_t entries = index_ - std::exchange(index_at_arming_, index_);
  if (entries < kFewEntries && ++frequent_armings_ == kManyArmings)
    inbox_.doorbell->wants_fences.store(1, std::memory_order_relaxed);
}

/// Withdraws the request after many messages without a sleep, when fences cost more than barriers would.
void ReliableQueuePair::withdraw_fence_wish() {
  if (frequent_armings_ == 0 || index_ - index_at_arming_ < kManyEntriesAwake) [[likely]]
    return;
  frequent_armings_ = 0;
  inbox_.doorbell->wants_fences.store(0, std::memory_order_relaxed);
}

/// Call it after anything that may let the peer's stalled sends continue.
void ReliableQueuePair::ring_if_waiting() {
  barrier_light();
  if (inbox_.producer->waiting.load(std::memory_order_relaxed) == 0) [[likely]]
    return;
  Link* link = ringing_.load(std::memory_order_acquire);
  if (link != nullptr && inbox_.producer->waiting.exchange(0) != 0) link->ring();
}

}  // namespace ringsock::soft
