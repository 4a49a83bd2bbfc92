// The send side of an RC queue pair: accesses to the peer's memory other than plain writes to its arena.
#include <cstring>

#include "core/device/common/scatter_gather.h"
#include "core/device/shm/queue/send_steps.h"

namespace ringsock::soft {

using Kind = PeerRegions::Target::Kind;

Step SendSteps::write_elsewhere(const ibv_send_wr& wr, SendProgress& progress, const PeerRegions::Target& target,
                                std::uint64_t length) {
  if (target.kind == Kind::denied) return fail(progress, IBV_WC_REM_ACCESS_ERR);
  if (progress.offset == 0 && !progress.piece_out && target.kind == Kind::process &&
      regions_.copy(wr, *target.row, true)) {
    return Step::done;
  }
  return assist(wr, progress, AssistKind::write, length);
}

Step SendSteps::read(const ibv_send_wr& wr, SendProgress& progress) {
  const auto list = sges_of(wr);
  const std::uint64_t length = length_of(list);
  if (length == 0) return Step::done;
  if (!local_memory_ok(wr, IBV_ACCESS_LOCAL_WRITE)) return fail(progress, IBV_WC_LOC_PROT_ERR);
  const PeerRegions::Target target =
      regions_.find(wr.wr.rdma.rkey, wr.wr.rdma.remote_addr, length, IBV_ACCESS_REMOTE_READ);
  if (target.kind == Kind::denied) return fail(progress, IBV_WC_REM_ACCESS_ERR);
  if (target.kind == Kind::arena) {
    scatter(target.memory, list, 0, length);
    return Step::done;
  }
  if (progress.offset == 0 && !progress.piece_out && target.kind == Kind::process &&
      regions_.copy(wr, *target.row, false)) {
    return Step::done;
  }
  return assist(wr, progress, AssistKind::read, length);
}

Step SendSteps::atomic(const ibv_send_wr& wr, SendProgress& progress) {
  const auto list = sges_of(wr);
  constexpr std::uint64_t kOperandBytes = sizeof(std::uint64_t);
  if (length_of(list) != kOperandBytes) return fail(progress, IBV_WC_LOC_LEN_ERR);
  if (!local_memory_ok(wr, IBV_ACCESS_LOCAL_WRITE)) return fail(progress, IBV_WC_LOC_PROT_ERR);
  if (wr.wr.atomic.remote_addr % kOperandBytes != 0) return fail(progress, IBV_WC_REM_INV_REQ_ERR);
  const bool swap = wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
  const PeerRegions::Target target =
      regions_.find(wr.wr.atomic.rkey, wr.wr.atomic.remote_addr, kOperandBytes, IBV_ACCESS_REMOTE_ATOMIC);
  if (target.kind == Kind::denied) return fail(progress, IBV_WC_REM_ACCESS_ERR);
  if (target.kind != Kind::arena) {
    return assist(wr, progress, swap ? AssistKind::compare_swap : AssistKind::fetch_add, kOperandBytes);
  }
  // The peer wrote the row's numbers, so the address in the arena may be misaligned.
  if (reinterpret_cast<std::uintptr_t>(target.memory) % kOperandBytes != 0) {
    return fail(progress, IBV_WC_REM_INV_REQ_ERR);
  }
  const std::uint64_t original = swap ? compare_and_swap(target.memory, wr.wr.atomic.compare_add, wr.wr.atomic.swap)
                                      : fetch_and_add(target.memory, wr.wr.atomic.compare_add);
  scatter(reinterpret_cast<const std::byte*>(&original), list, 0, kOperandBytes);
  return Step::done;
}

/// Carries out an operation with the help of the peer's progress, one piece of the payload ring at a time. The answer
/// to a read or an atomic operation is stored in the same place.
Step SendSteps::assist(const ibv_send_wr& wr, SendProgress& progress, AssistKind kind, std::uint64_t length) {
  while (progress.offset < length) {
    if (progress.piece_out) {
      if (!outbox_.has_ack(progress.ack)) return Step::stalled;
      take_answer(wr, progress, kind, length);
    } else if (!ask_for_piece(wr, progress, kind, length)) {
      return Step::stalled;
    }
  }
  return Step::done;
}

bool SendSteps::ask_for_piece(const ibv_send_wr& wr, SendProgress& progress, AssistKind kind, std::uint64_t length) {
  const auto piece = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(length - progress.offset, outbox_.largest_piece() - sizeof(AssistHeader)));
  const std::uint32_t data_bytes = is_atomic(kind) ? 0 : piece;
  const auto place = outbox_.take_contiguous(static_cast<std::uint32_t>(sizeof(AssistHeader)) + data_bytes);
  if (!place) return false;
  progress.room = *place;
  AssistHeader header{};
  header.kind = static_cast<std::uint32_t>(kind);
  header.rkey = is_atomic(kind) ? wr.wr.atomic.rkey : wr.wr.rdma.rkey;
  header.address = (is_atomic(kind) ? wr.wr.atomic.remote_addr : wr.wr.rdma.remote_addr) + progress.offset;
  header.length = piece;
  if (is_atomic(kind)) {
    header.compare_add = wr.wr.atomic.compare_add;
    header.swap = wr.wr.atomic.swap;
  }
  std::byte* room = outbox_.at(progress.room);
  std::memcpy(room, &header, sizeof header);
  if (kind == AssistKind::write) gather(sges_of(wr), progress.offset, piece, room + sizeof header);
  progress.piece_bytes = piece;
  progress.piece_out = true;
  progress.ack = outbox_.want_ack();
  outbox_.put(EntryType::assist, kEntryWantsAck, 0, sizeof header + data_bytes);
  return true;
}

void SendSteps::take_answer(const ibv_send_wr& wr, SendProgress& progress, AssistKind kind, std::uint64_t length) {
  const auto list = sges_of(wr);
  const std::byte* room = outbox_.at(progress.room);
  if (is_atomic(kind)) scatter(room + offsetof(AssistHeader, original), list, 0, length);
  if (kind == AssistKind::read) scatter(room + sizeof(AssistHeader), list, progress.offset, progress.piece_bytes);
  progress.piece_out = false;
  progress.offset += progress.piece_bytes;
}

}  // namespace ringsock::soft
