// The send side of an RC queue pair: accesses to the peer's memory other than plain writes to its arena.
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "core/device/common/device_context.h"
#include "core/device/common/scatter_gather.h"
#include "core/device/shm/queue/queue_limits.h"
#include "core/device/shm/queue/reliable_queue_pair.h"

namespace ringsock::soft {

std::size_t row_of(std::uint32_t rkey) {
  // The index of the key, without its generation, selects a row behind the arena's.
  return 1 + (rkey >> 8) % (kMrRows - 1);
}

ReliableQueuePair::Target ReliableQueuePair::find_target(std::uint32_t rkey, std::uint64_t address,
                                                         std::uint64_t length, unsigned access) {
  MrRow* row = &peer_.rows[0];
  if (row->rkey.load(std::memory_order_acquire) != rkey) {
    row = &peer_.rows[row_of(rkey)];
    // A region without a row is known to its owner only.
    if (rkey == 0 || row->rkey.load(std::memory_order_acquire) != rkey) return {Target::Kind::assisted};
  }
  const std::uint64_t start = row->address.load(std::memory_order_relaxed);
  const std::uint64_t size = row->length.load(std::memory_order_relaxed);
  const std::uint32_t granted = row->access.load(std::memory_order_relaxed);
  const std::uint64_t skip = address - start;
  if ((granted & access) != access || address < start || length > size || skip > size - length) {
    return {Target::Kind::denied};
  }
  if ((granted & kRowInArena) == 0)
    return {peer_space_.has_process() ? Target::Kind::process : Target::Kind::assisted, nullptr, row};
  const std::uint64_t base = row->arena_offset.load(std::memory_order_relaxed);
  if (base > peer_.arena_bytes || skip > peer_.arena_bytes - base || length > peer_.arena_bytes - base - skip) {
    return {Target::Kind::denied};
  }
  return {Target::Kind::arena, peer_.arena + base + skip};
}

std::byte* ReliableQueuePair::peer_memory(std::uint32_t rkey, std::uint64_t address, std::uint64_t length) {
  const std::lock_guard guard(send_lock_);
  if (!wired_) return nullptr;
  // Work requests do not reach the quiet end of the arena.
  peer_.arena_bytes += peer_quiet_bytes_;
  const Target target = find_target(rkey, address, length, IBV_ACCESS_REMOTE_WRITE);
  peer_.arena_bytes -= peer_quiet_bytes_;
  return target.kind == Target::Kind::arena ? target.memory : nullptr;
}

bool ReliableQueuePair::has_sent_all() {
  const std::lock_guard guard(send_lock_);
  return direct_;
}

void ReliableQueuePair::leaves_traces() {
  segment_->forget_peer();
  if (peer_segment_) peer_segment_->forget_peer();
}

ReliableQueuePair::Step ReliableQueuePair::write_elsewhere(const ibv_send_wr& wr, SendProgress& progress,
                                                           const Target& target, std::uint64_t length) {
  if (target.kind == Target::Kind::denied) return fail(progress, IBV_WC_REM_ACCESS_ERR);
  if (progress.offset == 0 && !progress.piece_out && target.kind == Target::Kind::process &&
      copy_elsewhere(wr, *target.row, true)) {
    return Step::done;
  }
  return assist(wr, progress, AssistKind::write, length);
}

ReliableQueuePair::Step ReliableQueuePair::read(const ibv_send_wr& wr, SendProgress& progress) {
  const auto list = sges_of(wr);
  const std::uint64_t length = length_of(list);
  if (length == 0) return Step::done;
  if (!local_memory_ok(wr, IBV_ACCESS_LOCAL_WRITE)) return fail(progress, IBV_WC_LOC_PROT_ERR);
  const Target target = find_target(wr.wr.rdma.rkey, wr.wr.rdma.remote_addr, length, IBV_ACCESS_REMOTE_READ);
  if (target.kind == Target::Kind::denied) return fail(progress, IBV_WC_REM_ACCESS_ERR);
  if (target.kind == Target::Kind::arena) {
    scatter(target.memory, list, 0, length);
    return Step::done;
  }
  if (progress.offset == 0 && !progress.piece_out && target.kind == Target::Kind::process &&
      copy_elsewhere(wr, *target.row, false)) {
    return Step::done;
  }
  return assist(wr, progress, AssistKind::read, length);
}

ReliableQueuePair::Step ReliableQueuePair::atomic(const ibv_send_wr& wr, SendProgress& progress) {
  const auto list = sges_of(wr);
  constexpr std::uint64_t kOperandBytes = sizeof(std::uint64_t);
  if (length_of(list) != kOperandBytes) return fail(progress, IBV_WC_LOC_LEN_ERR);
  if (!local_memory_ok(wr, IBV_ACCESS_LOCAL_WRITE)) return fail(progress, IBV_WC_LOC_PROT_ERR);
  if (wr.wr.atomic.remote_addr % kOperandBytes != 0) return fail(progress, IBV_WC_REM_INV_REQ_ERR);
  const bool swap = wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
  const Target target =
      find_target(wr.wr.atomic.rkey, wr.wr.atomic.remote_addr, kOperandBytes, IBV_ACCESS_REMOTE_ATOMIC);
  if (target.kind == Target::Kind::denied) return fail(progress, IBV_WC_REM_ACCESS_ERR);
  if (target.kind != Target::Kind::arena) {
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

std::uint64_t compare_and_swap(std::byte* memory, std::uint64_t expected, std::uint64_t desired) {
  std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(memory)).compare_exchange_strong(expected, desired);
  return expected;
}

std::uint64_t fetch_and_add(std::byte* memory, std::uint64_t addend) {
  return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(memory)).fetch_add(addend);
}

/// Carries out an operation with the help of the peer's progress, one piece of the payload ring at a time. The answer
/// to a read or an atomic operation is stored in the same place.
ReliableQueuePair::Step ReliableQueuePair::assist(const ibv_send_wr& wr, SendProgress& progress, AssistKind kind,
                                                  std::uint64_t length) {
  const auto list = sges_of(wr);
  const bool is_atomic = kind == AssistKind::compare_swap || kind == AssistKind::fetch_add;
  while (progress.offset < length) {
    if (progress.piece_out) {
      if (!has_reached(acks_seen_, progress.ack)) return Step::stalled;
      progress.piece_out = false;
      const std::byte* room = peer_.payload + progress.room;
      if (is_atomic) scatter(room + offsetof(AssistHeader, original), list, 0, length);
      if (kind == AssistKind::read) scatter(room + sizeof(AssistHeader), list, progress.offset, progress.piece_bytes);
      progress.offset += progress.piece_bytes;
      continue;
    }
    const auto piece = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(length - progress.offset, peer_.payload_bytes / 4 - sizeof(AssistHeader)));
    const std::uint32_t data_bytes = is_atomic ? 0 : piece;
    if (!reserve_room(progress, static_cast<std::uint32_t>(sizeof(AssistHeader)) + data_bytes)) return Step::stalled;
    AssistHeader header{};
    header.kind = static_cast<std::uint32_t>(kind);
    header.rkey = is_atomic ? wr.wr.atomic.rkey : wr.wr.rdma.rkey;
    header.address = (is_atomic ? wr.wr.atomic.remote_addr : wr.wr.rdma.remote_addr) + progress.offset;
    header.length = piece;
    if (is_atomic) {
      header.compare_add = wr.wr.atomic.compare_add;
      header.swap = wr.wr.atomic.swap;
    }
    std::byte* room = peer_.payload + progress.room;
    std::memcpy(room, &header, sizeof header);
    if (kind == AssistKind::write) gather(list, progress.offset, piece, room + sizeof header);
    progress.piece_bytes = piece;
    progress.piece_out = true;
    progress.ack = ++acks_wanted_;
    put_entry(EntryType::assist, kEntryWantsAck, 0, sizeof header + data_bytes);
  }
  return Step::done;
}

/// Reserves `bytes` contiguous bytes of the payload ring. Skips the end of the ring when they do not fit there.
bool ReliableQueuePair::reserve_room(SendProgress& progress, std::uint32_t bytes) {
  const std::uint32_t at = payload_used_ & (peer_.payload_bytes - 1);
  const std::uint32_t skip = peer_.payload_bytes - at < bytes ? peer_.payload_bytes - at : 0;
  if (!has_entry() || payload_room() < skip + bytes) return false;
  payload_used_ += skip;
  progress.room = payload_used_ & (peer_.payload_bytes - 1);
  payload_used_ += (bytes + 7) & ~7U;
  return true;
}

/// Copies between local memory and a region of the peer's process.
/// @return false when the kernel does not permit it, or the region is gone or does not match its row.
bool ReliableQueuePair::copy_elsewhere(const ibv_send_wr& wr, MrRow& row, bool to_peer) {
  std::atomic<std::uint32_t>& lease = peer_.producer->lease;
  const std::uint32_t before = lease.load(std::memory_order_relaxed) & ~1U;
  // Made odd before the key is loaded again: dereg_mr first clears the key and then waits for an even lease.
  lease.store(before + 1, std::memory_order_relaxed);
  barrier_light();
  bool copied = false;
  if (row.rkey.load(std::memory_order_acquire) == wr.wr.rdma.rkey) {
    SpaceMark mark;
    mark.token = peer_.consumer->mark_token.load(std::memory_order_acquire);
    mark.address = peer_.consumer->mark_address.load(std::memory_order_relaxed);
    copied = mark.token != 0 && (shared_copy(wr, row, mark, to_peer) || process_copy(wr, mark, to_peer));
  }
  lease.store(before + 2, std::memory_order_release);
  return copied;
}

bool ReliableQueuePair::shared_copy(const ibv_send_wr& wr, const MrRow& row, const SpaceMark& mark, bool to_peer) {
  const auto list = sges_of(wr);
  const std::uint64_t length = length_of(list);
  const SharedPlace place{
      row.shared_start.load(std::memory_order_relaxed), row.shared_bytes.load(std::memory_order_relaxed),
      row.shared_inode.load(std::memory_order_relaxed), row.shared_fd.load(std::memory_order_relaxed)};
  if (place.inode == 0) return false;
  if (!peer_memory_) peer_memory_ = std::make_unique<std::array<PeerMemory, kMrRows>>();
  PeerMemory& known = (*peer_memory_)[static_cast<std::size_t>(&row - peer_.rows)];
  std::byte* memory = known.find(peer_space_, mark, place, wr.wr.rdma.remote_addr, length);
  if (memory == nullptr) return false;
  if (!to_peer) {
    scatter(memory, list, 0, length);
  } else if (wr.opcode == IBV_WR_RDMA_WRITE) {
    place_in_order(list, length, memory);
  } else {
    gather(list, 0, length, memory);
  }
  return true;
}

bool ReliableQueuePair::process_copy(const ibv_send_wr& wr, const SpaceMark& mark, bool to_peer) {
  std::array<iovec, kMaxSendSge + 1> parts;  // the first is PeerSpace's
  std::size_t count = 1;
  const std::uint64_t length = length_of(sges_of(wr));
  for_each_part(sges_of(wr), 0, length, [&](std::byte* part, std::size_t bytes) { parts[count++] = {part, bytes}; });
  const std::span local(parts.data(), count);
  return to_peer ? peer_space_.write(mark, local, wr.wr.rdma.remote_addr, length)
                 : peer_space_.read(mark, local, wr.wr.rdma.remote_addr, length);
}

}  // namespace ringsock::soft
