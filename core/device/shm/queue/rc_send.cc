// The send side of an RC queue pair: posting, and carrying out SEND and WRITE.
#include "core/device/common/device_context.h"
#include "core/device/common/scatter_gather.h"
#include "core/device/shm/queue/queue_limits.h"
#include "core/device/shm/queue/reliable_queue_pair.h"

namespace ringsock::soft {

namespace {

constexpr std::uint64_t kMaxMessageBytes = std::uint64_t{1} << 31;

ibv_wc_opcode completion_opcode(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM: return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ: return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP: return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD: return IBV_WC_FETCH_ADD;
    default: return IBV_WC_SEND;
  }
}

bool is_supported(const ibv_send_wr& wr) {
  switch (wr.opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM: return true;
    case IBV_WR_RDMA_READ:
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD: return (wr.send_flags & IBV_SEND_INLINE) == 0;
    default: return false;
  }
}

std::uint8_t entry_flags(const ibv_send_wr& wr) {
  std::uint8_t flags = 0;
  if ((wr.send_flags & IBV_SEND_SOLICITED) != 0) flags |= kEntrySolicited;
  if (wr.opcode == IBV_WR_SEND_WITH_IMM || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) flags |= kEntryHasImm;
  return flags;
}

/// ibv_qp_attr.min_rnr_timer: the codes of the InfiniBand specification.
Nanos rnr_delay(std::uint8_t code) {
  static constexpr std::uint32_t kHundredthsOfMs[32] = {
      65536, 1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,   192,
      256,   384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return Nanos(std::uint64_t{kHundredthsOfMs[code & 31]} * 10'000);
}

}  // namespace

ReliableQueuePair::QueuedSend::QueuedSend(const ibv_send_wr& posted, const SendProgress& so_far)
    : wr(posted), progress(so_far) {
  const auto list = sges_of(posted);
  if ((posted.send_flags & IBV_SEND_INLINE) != 0) {
    inline_data.resize(length_of(list));
    gather(list, 0, inline_data.size(), inline_data.data());
    sges.push_back(
        {reinterpret_cast<std::uint64_t>(inline_data.data()), static_cast<std::uint32_t>(inline_data.size()), 0});
  } else {
    sges.assign(list.begin(), list.end());
  }
  wr.next = nullptr;
  wr.sg_list = sges.data();
  wr.num_sge = static_cast<int>(sges.size());
}

int ReliableQueuePair::post_send(ibv_send_wr* wr, ibv_send_wr** bad) {
  std::lock_guard guard(send_lock_);
  for (; wr != nullptr; wr = wr->next) {
    if (const int error = post_one(*wr)) [[unlikely]] {
      *bad = wr;
      return error;
    }
  }
  return 0;
}

int ReliableQueuePair::post_one(const ibv_send_wr& wr) {
  if (static_cast<std::uint32_t>(wr.num_sge) > max_send_sge_ || !is_supported(wr)) [[unlikely]]
    return EINVAL;
  SendProgress progress;
  if (!direct_) [[unlikely]]
    return post_queued(wr, progress, Step::stalled);
  const Step step = execute(wr, progress);
  if (step != Step::done) [[unlikely]]
    return post_queued(wr, progress, step);
  complete(wr, IBV_WC_SUCCESS);
  return 0;
}

int ReliableQueuePair::post_queued(const ibv_send_wr& wr, const SendProgress& progress, Step step) {
  switch (state) {
    case IBV_QPS_RTS:
    case IBV_QPS_SQD: break;
    case IBV_QPS_ERR:
    case IBV_QPS_SQE:
      complete(wr, std::exchange(gone_untold_, false) ? IBV_WC_RETRY_EXC_ERR : IBV_WC_WR_FLUSH_ERR);
      return 0;
    default: return EINVAL;
  }
  if (step == Step::failed) {
    complete(wr, progress.status);
    enter_error(IBV_WC_WR_FLUSH_ERR);
    return 0;
  }
  if (queued_.size() >= init_attr_.cap.max_send_wr) return ENOMEM;
  enqueue(QueuedSend(wr, progress));
  if (step == Step::unacked) {
    ++started_;
  } else if (state == IBV_QPS_RTS) {
    progress_sends();
  }
  return 0;
}

inline ReliableQueuePair::Step ReliableQueuePair::execute(const ibv_send_wr& wr, SendProgress& progress) {
  switch (wr.opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM: return write(wr, progress);
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM: return send(wr, progress);
    case IBV_WR_RDMA_READ: return read(wr, progress);
    default: return atomic(wr, progress);
  }
}

ReliableQueuePair::Step ReliableQueuePair::carry_on(QueuedSend& send) { return execute(send.wr, send.progress); }

ReliableQueuePair::Step ReliableQueuePair::fail(SendProgress& progress, ibv_wc_status status) {
  progress.status = status;
  return Step::failed;
}

ReliableQueuePair::Step ReliableQueuePair::write(const ibv_send_wr& wr, SendProgress& progress) {
  const auto list = sges_of(wr);
  const std::uint64_t length = length_of(list);
  const bool with_imm = wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  Step step = Step::done;
  // Checked before the copy, so that a stalled message is not copied twice.
  if (with_imm && !may_send(progress, step)) [[unlikely]]
    return step;
  // A write of 0 bytes accesses no memory, so its address and key are not checked.
  if (length != 0) {
    if (length > kMaxMessageBytes) return fail(progress, IBV_WC_LOC_LEN_ERR);
    if (!local_memory_ok(wr, 0)) return fail(progress, IBV_WC_LOC_PROT_ERR);
    const Target target = find_target(wr.wr.rdma.rkey, wr.wr.rdma.remote_addr, length, IBV_ACCESS_REMOTE_WRITE);
    if (target.kind == Target::Kind::arena) [[likely]] {
      if (with_imm) [[likely]] {
        gather(list, 0, length, target.memory);
      } else {
        place_in_order(list, length, target.memory);
      }
    } else {
      step = write_elsewhere(wr, progress, target, length);
      if (step != Step::done) return step;
    }
  }
  if (with_imm) {
    ++receives_used_;
    put_entry(EntryType::write_imm, entry_flags(wr), wr.imm_data, length);
  }
  return Step::done;
}

ReliableQueuePair::Step ReliableQueuePair::send(const ibv_send_wr& wr, SendProgress& progress) {
  const auto list = sges_of(wr);
  const std::uint64_t length = length_of(list);
  Step step = Step::done;
  if (progress.offset == 0) {
    if (!may_send(progress, step)) return step;
    if (length > kMaxMessageBytes) return fail(progress, IBV_WC_LOC_LEN_ERR);
    if (!local_memory_ok(wr, 0)) return fail(progress, IBV_WC_LOC_PROT_ERR);
  }
  const bool wants_ack = peer_uses_srq_ || length > peer_receive_bytes_;
  std::uint8_t flags = entry_flags(wr);
  if (wants_ack) flags |= kEntryWantsAck;
  do {
    const std::uint32_t at = payload_used_ & (peer_.payload_bytes - 1);
    const auto piece = static_cast<std::uint32_t>(
        std::min<std::uint64_t>({length - progress.offset, peer_.payload_bytes - at, peer_.payload_bytes / 4}));
    if (!has_entry() || payload_room() < piece) return Step::stalled;
    gather(list, progress.offset, piece, peer_.payload + at);
    payload_used_ += round_up_8(piece);
    progress.offset += piece;
    if (progress.offset < length)
      put_entry(EntryType::send, kEntryMore, 0, piece);
    else
      put_entry(EntryType::send, flags, wr.imm_data, piece);
  } while (progress.offset < length);
  if (!peer_uses_srq_) ++receives_used_;
  if (!wants_ack) return Step::done;
  progress.ack = ++acks_wanted_;
  return Step::unacked;
}

bool ReliableQueuePair::local_memory_ok(const ibv_send_wr& wr, unsigned access) const {
  if ((wr.send_flags & IBV_SEND_INLINE) != 0) return true;
  for (const ibv_sge& sge : sges_of(wr)) {
    if (sge.length != 0 && !device_.keys().covers(sge.lkey, pd, sge.addr, sge.length, access)) return false;
  }
  return true;
}

/// Returns whether a message that consumes a receive can be sent; otherwise `step` tells what happens to it.
bool ReliableQueuePair::may_send(SendProgress& progress, Step& step) {
  if (has_receive()) [[likely]] {
    if (has_entry()) [[likely]]
      return true;
    step = Step::stalled;
    return false;
  }
  constexpr std::uint8_t kForEver = 7;
  step = Step::stalled;
  if (peer_closed()) {
    step = fail(progress, IBV_WC_RETRY_EXC_ERR);
  } else if (rnr_retry_ != kForEver) {
    const Nanos now = monotonic_now();
    if (progress.rnr_deadline == Nanos::zero()) progress.rnr_deadline = now + rnr_retry_ * rnr_delay(min_rnr_timer_);
    if (now >= progress.rnr_deadline) step = fail(progress, IBV_WC_RNR_RETRY_EXC_ERR);
  }
  return false;
}

bool ReliableQueuePair::has_receive() {
  if (receives_used_ != receives_known_ || peer_uses_srq_) [[likely]]
    return true;
  const std::uint32_t posted = peer_.consumer->receives_posted.load(std::memory_order_acquire);
  // More than a queue can hold, or fewer than before, is invalid and treated as none.
  if (posted - receives_used_ > kMaxQueueEntries) return false;
  receives_known_ = posted;
  peer_receive_bytes_ = peer_.consumer->receive_bytes.load(std::memory_order_relaxed);
  return receives_used_ != receives_known_;
}

bool ReliableQueuePair::has_entry() {
  if (entries_used_ - entries_freed_ < peer_.ring_entries) [[likely]]
    return true;
  const std::uint32_t consumed = peer_.consumer->entries_consumed.load(std::memory_order_acquire);
  if (entries_used_ - consumed > peer_.ring_entries) return false;
  entries_freed_ = consumed;
  return entries_used_ - entries_freed_ < peer_.ring_entries;
}

bool ReliableQueuePair::peer_closed() const { return peer_.consumer->closed.load(std::memory_order_acquire) != 0; }

std::uint32_t ReliableQueuePair::payload_room() {
  const std::uint32_t used = payload_used_ - peer_.consumer->payload_consumed.load(std::memory_order_acquire);
  return used <= peer_.payload_bytes ? peer_.payload_bytes - used : 0;
}

void ReliableQueuePair::put_entry(EntryType type, std::uint8_t flags, std::uint32_t imm, std::uint64_t length) {
  Entry& entry = peer_.entry(entries_used_);
  // Loaded before the entry is stored, so that a peer that asks when its connection is new gets the stamp of the first
  // entry.
  if (!stamps_entries_) stamps_entries_ = peer_.doorbell->wants_stamps.load(std::memory_order_relaxed) != 0;
  const std::uint64_t stamp = stamps_entries_ ? order_stamp() : 0;
  entry.body.store(stamp << 32 | length, std::memory_order_relaxed);  // at most kMaxMessageBytes
  entry.head.store(peer_.lap(entries_used_) << 48 | std::uint64_t{static_cast<std::uint8_t>(type)} << 40 |
                       std::uint64_t{flags} << 32 | imm,
                   std::memory_order_release);
  ++entries_used_;
  barrier_light();
  const std::uint32_t armed = peer_.doorbell->armed.load(std::memory_order_relaxed);
  const bool wants_fences = peer_.doorbell->wants_fences.load(std::memory_order_relaxed) != 0;
  if (wants_fences != follows_fence_wish_) [[unlikely]]
    follow_fence_wish(wants_fences);
  if (armed == 0) [[likely]]
    return;
  if ((armed & kListed) != 0 && note_in_map(armed)) return;
  const bool counts = (flags & (kEntrySolicited | kEntryMore)) != 0 || type == EntryType::assist;
  if ((armed != kArmedForSolicited || counts) && peer_.doorbell->armed.exchange(0) != 0) link_->ring();
}

/// Follows the peer's wish for fences, which it has while it arms before nearly every message. Its barrier costs it up
/// to 10 us and interrupts us; a fence behind each of our entries costs us 5-100 ns.
void ReliableQueuePair::follow_fence_wish(bool fences) {
  // Going back costs a barrier of our own, so a peer cannot ask for it after every message.
  if (!fences && entries_used_ - entries_at_fence_wish_ < kManyEntriesAwake) return;
  follows_fence_wish_ = fences;
  entries_at_fence_wish_ = entries_used_;
  if (needs_full_fence_) return;
  if (fences) {
    full_fence_.store(true, std::memory_order_relaxed);
    // Stored with release, so that a peer that sees this value and looks at the ring sees all earlier entries.
    peer_.producer->fences.store(1, std::memory_order_release);
    return;
  }
  peer_.producer->fences.store(0, std::memory_order_relaxed);
  // After this barrier we see the arming of a peer that read 1. A peer that arms later reads 0.
  AsymmetricBarrier::heavy_now();
  full_fence_.store(false, std::memory_order_relaxed);
}

void ReliableQueuePair::complete(const ibv_send_wr& wr, ibv_wc_status status) {
  if (status == IBV_WC_SUCCESS && !signal_all_ && (wr.send_flags & IBV_SEND_SIGNALED) == 0) return;
  ibv_wc wc{};
  wc.wr_id = wr.wr_id;
  wc.status = status;
  wc.opcode = completion_opcode(wr.opcode);
  wc.byte_len = static_cast<std::uint32_t>(length_of(sges_of(wr)));
  wc.qp_num = qp_num;
  send_queue().push(wc);
}

}  // namespace ringsock::soft
