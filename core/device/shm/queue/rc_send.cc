// The send side of an RC queue pair: posting, and carrying out SEND and WRITE.
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/device/common/scatter_gather.h"
#include "core/device/shm/queue/reliable_queue_pair.h"
#include "core/device/shm/queue/send_queue.h"
#include "core/device/shm/queue/send_steps.h"
#include "core/verbs/rc_extensions.h"

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

std::uint8_t entry_flags(const ibv_send_wr& wr) {
  std::uint8_t flags = 0;
  if ((wr.send_flags & IBV_SEND_SOLICITED) != 0) flags |= kEntrySolicited;
  if (wr.opcode == IBV_WR_SEND_WITH_IMM || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) flags |= kEntryHasImm;
  return flags;
}

}  // namespace

QueuedSend::QueuedSend(const ibv_send_wr& posted, const SendProgress& so_far) : wr(posted), progress(so_far) {
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

bool SendSteps::is_supported(const ibv_send_wr& wr) {
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

Step SendSteps::fail(SendProgress& progress, ibv_wc_status status) {
  progress.status = status;
  return Step::failed;
}

Step SendSteps::write(const ibv_send_wr& wr, SendProgress& progress) {
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
    const PeerRegions::Target target =
        regions_.find(wr.wr.rdma.rkey, wr.wr.rdma.remote_addr, length, IBV_ACCESS_REMOTE_WRITE);
    if (target.kind == PeerRegions::Target::Kind::arena) [[likely]] {
      if (with_imm) [[likely]] {
        gather(list, 0, length, target.memory);
      } else {
        place_in_order(list, length, target.memory);
      }
    } else {
      // A peer that has closed the connection has withdrawn its arena, and would have to help.
      step = write_elsewhere(wr, progress, target, length);
      if (step != Step::done) return with_imm && outbox_.has_rung_in_vain() ? Step::unheard : step;
    }
  }
  if (with_imm) {
    outbox_.use_receive();
    if (!outbox_.put(EntryType::write_imm, entry_flags(wr), wr.imm_data, length)) [[unlikely]]
      return Step::unheard;
  }
  return Step::done;
}

int SendSteps::write_at_once(const verbs::InlineWrite& write) {
  if (!outbox_.has_receive() || !outbox_.has_entry()) [[unlikely]]
    return EAGAIN;
  const PeerRegions::Target target =
      regions_.find(write.rkey, write.remote_address, write.length, IBV_ACCESS_REMOTE_WRITE);
  if (target.kind != PeerRegions::Target::Kind::arena) [[unlikely]]
    return EAGAIN;
  std::memcpy(target.memory, write.data, write.length);
  outbox_.use_receive();
  const bool is_heard = outbox_.put(EntryType::write_imm, kEntryHasImm, write.immediate, write.length);
  return is_heard ? 0 : verbs::kPostedUnheard;
}

int SendSteps::write_pair_at_once(const verbs::WritePair& pair) {
  if (!outbox_.has_room_for_two()) return EAGAIN;
  const auto find = [this](const verbs::WritePair::Part& part) {
    return regions_.find(part.rkey, part.remote_address, part.length, IBV_ACCESS_REMOTE_WRITE);
  };
  constexpr auto kArena = PeerRegions::Target::Kind::arena;
  const PeerRegions::Target first = find(pair.first), second = find(pair.second);
  if (first.kind != kArena || second.kind != kArena) return EAGAIN;
  gather(pair.list, 0, pair.first.length, first.memory);
  gather(pair.list, pair.first.length, pair.second.length, second.memory);
  const bool is_heard =
      outbox_.put_pair(EntryType::write_imm, kEntryHasImm,
                       {{{pair.first.immediate, pair.first.length}, {pair.second.immediate, pair.second.length}}});
  return is_heard ? 0 : verbs::kPostedUnheard;
}

Step SendSteps::send(const ibv_send_wr& wr, SendProgress& progress) {
  const auto list = sges_of(wr);
  const std::uint64_t length = length_of(list);
  Step step = Step::done;
  if (progress.offset == 0) {
    if (!may_send(progress, step)) return step;
    if (length > kMaxMessageBytes) return fail(progress, IBV_WC_LOC_LEN_ERR);
    if (!local_memory_ok(wr, 0)) return fail(progress, IBV_WC_LOC_PROT_ERR);
  }
  const bool wants_ack = outbox_.wants_ack(length);
  std::uint8_t flags = entry_flags(wr);
  if (wants_ack) flags |= kEntryWantsAck;
  do {
    const auto room = outbox_.take_piece(length - progress.offset);
    if (!room) return Step::stalled;
    gather(list, progress.offset, room->bytes, room->memory);
    progress.offset += room->bytes;
    if (progress.offset < length)
      outbox_.put(EntryType::send, kEntryMore, 0, room->bytes);
    else
      outbox_.put(EntryType::send, flags, wr.imm_data, room->bytes);
  } while (progress.offset < length);
  if (!outbox_.uses_srq()) outbox_.use_receive();
  if (!wants_ack) return Step::done;
  progress.ack = outbox_.want_ack();
  return Step::unacked;
}

bool SendSteps::local_memory_ok(const ibv_send_wr& wr, unsigned access) const {
  if ((wr.send_flags & IBV_SEND_INLINE) != 0) return true;
  for (const ibv_sge& sge : sges_of(wr)) {
    if (sge.length != 0 && !keys_.covers(sge.lkey, pd_, sge.addr, sge.length, access)) return false;
  }
  return true;
}

/// Returns whether a message that consumes a receive can be sent; otherwise `step` tells what happens to it.
bool SendSteps::may_send(SendProgress& progress, Step& step) {
  if (outbox_.has_receive()) [[likely]] {
    if (outbox_.has_entry()) [[likely]]
      return true;
    step = Step::stalled;
    return false;
  }
  step = Step::stalled;
  if (outbox_.is_closed()) {
    step = fail(progress, IBV_WC_RETRY_EXC_ERR);
  } else if (const auto patience = attributes_.patience_for_receive()) {
    const Nanos now = monotonic_now();
    if (progress.rnr_deadline == Nanos::zero()) progress.rnr_deadline = now + *patience;
    if (now >= progress.rnr_deadline) step = fail(progress, IBV_WC_RNR_RETRY_EXC_ERR);
  }
  return false;
}

int SendQueue::post(const ibv_send_wr& wr) {
  if (static_cast<std::uint32_t>(wr.num_sge) > max_sge_ || !SendSteps::is_supported(wr)) [[unlikely]]
    return EINVAL;
  SendProgress progress;
  if (!direct_) [[unlikely]]
    return post_queued(wr, progress, Step::stalled);
  const Step step = steps_.execute(wr, progress);
  if (step != Step::done) [[unlikely]]
    return post_queued(wr, progress, step);
  complete(wr, IBV_WC_SUCCESS);
  return 0;
}

int SendQueue::post_queued(const ibv_send_wr& wr, const SendProgress& so_far, Step step) {
  if (step == Step::unheard) {
    complete(wr, IBV_WC_SUCCESS);
    return verbs::kPostedUnheard;
  }
  switch (attributes_.state()) {
    case IBV_QPS_RTS:
    case IBV_QPS_SQD: break;
    case IBV_QPS_ERR:
    case IBV_QPS_SQE:
      complete(wr, std::exchange(gone_untold_, false) ? IBV_WC_RETRY_EXC_ERR : IBV_WC_WR_FLUSH_ERR);
      return 0;
    default: return EINVAL;
  }
  if (step == Step::failed) {
    complete(wr, so_far.status);
    fail(IBV_WC_WR_FLUSH_ERR);
    return 0;
  }
  if (queued() >= queue_pair_.init_attr().cap.max_send_wr) return ENOMEM;
  enqueue(QueuedSend(wr, so_far));
  if (step == Step::unacked) {
    ++started_;
  } else if (attributes_.state() == IBV_QPS_RTS) {
    progress();
  }
  return 0;
}

void SendQueue::complete(const ibv_send_wr& wr, ibv_wc_status status) {
  if (status == IBV_WC_SUCCESS && !signal_all_ && (wr.send_flags & IBV_SEND_SIGNALED) == 0) return;
  ibv_wc wc{};
  wc.wr_id = wr.wr_id;
  wc.status = status;
  wc.opcode = completion_opcode(wr.opcode);
  wc.byte_len = static_cast<std::uint32_t>(length_of(sges_of(wr)));
  wc.qp_num = queue_pair_.qp_num;
  queue_pair_.send_queue().push(wc);
}

// These are here, so that the steps of a send are inlined.

int ReliableQueuePair::write_at_once(const verbs::InlineWrite& write) {
  const std::lock_guard guard(send_lock_);
  return sends_.write_at_once(write);
}

int ReliableQueuePair::post_send(ibv_send_wr* wr, ibv_send_wr** bad) {
  const std::lock_guard guard(send_lock_);
  for (; wr != nullptr; wr = wr->next) {
    if (const int error = sends_.post(*wr)) [[unlikely]] {
      *bad = wr;
      return error;
    }
  }
  return 0;
}

}  // namespace ringsock::soft
