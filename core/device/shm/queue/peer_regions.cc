#include "core/device/shm/queue/peer_regions.h"

#include <sys/uio.h>

#include <span>

#include "core/device/common/scatter_gather.h"
#include "core/device/shm/queue/queue_limits.h"

namespace ringsock::soft {

std::size_t row_of(std::uint32_t rkey) {
  // The index of the key, without its generation, selects a row behind the arena's.
  return 1 + (rkey >> 8) % (kMrRows - 1);
}

void PeerRegions::attach(const InboxView& peer, pid_t memory_of, std::uint64_t quiet_bytes) {
  peer_ = peer;
  quiet_bytes_ = quiet_bytes;
  space_.set_process(memory_of);
}

std::byte* PeerRegions::memory(std::uint32_t rkey, std::uint64_t address, std::uint64_t length) const {
  const Target target = find_in(peer_.arena_bytes, rkey, address, length, IBV_ACCESS_REMOTE_WRITE);
  return target.kind == Target::Kind::arena ? target.memory : nullptr;
}

PeerRegions::Target PeerRegions::find_in(std::uint64_t arena_bytes, std::uint32_t rkey, std::uint64_t address,
                                         std::uint64_t length, unsigned access) const {
  MrRow* row = &peer_.rows()[0];
  if (row->rkey.load(std::memory_order_acquire) != rkey) {
    row = &peer_.rows()[row_of(rkey)];
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
    return {space_.has_process() ? Target::Kind::process : Target::Kind::assisted, nullptr, row};
  const std::uint64_t base = row->arena_offset.load(std::memory_order_relaxed);
  if (base > arena_bytes || skip > arena_bytes - base || length > arena_bytes - base - skip) {
    return {Target::Kind::denied};
  }
  return {Target::Kind::arena, peer_.arena() + base + skip};
}

bool PeerRegions::copy(const ibv_send_wr& wr, MrRow& row, bool to_peer) {
  std::atomic<std::uint32_t>& lease = peer_.producer().lease;
  const std::uint32_t before = lease.load(std::memory_order_relaxed) & ~1U;
  // Made odd before the key is loaded again: dereg_mr first clears the key and then waits for an even lease.
  lease.store(before + 1, std::memory_order_relaxed);
  fences_.behind_store();
  bool copied = false;
  if (row.rkey.load(std::memory_order_acquire) == wr.wr.rdma.rkey) {
    SpaceMark mark;
    mark.token = peer_.consumer().mark_token.load(std::memory_order_acquire);
    mark.address = peer_.consumer().mark_address.load(std::memory_order_relaxed);
    copied = mark.token != 0 && (copy_shared(wr, row, mark, to_peer) || copy_of_process(wr, mark, to_peer));
  }
  lease.store(before + 2, std::memory_order_release);
  return copied;
}

bool PeerRegions::copy_shared(const ibv_send_wr& wr, const MrRow& row, const SpaceMark& mark, bool to_peer) {
  const auto list = sges_of(wr);
  const std::uint64_t length = length_of(list);
  const SharedPlace place{
      row.shared_start.load(std::memory_order_relaxed), row.shared_bytes.load(std::memory_order_relaxed),
      row.shared_inode.load(std::memory_order_relaxed), row.shared_fd.load(std::memory_order_relaxed)};
  if (place.inode == 0) return false;
  if (!shared_) shared_ = std::make_unique<std::array<PeerMemory, kMrRows>>();
  PeerMemory& known = (*shared_)[static_cast<std::size_t>(&row - peer_.rows())];
  std::byte* memory = known.find(space_, mark, place, wr.wr.rdma.remote_addr, length);
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

bool PeerRegions::copy_of_process(const ibv_send_wr& wr, const SpaceMark& mark, bool to_peer) {
  std::array<iovec, kMaxSendSge + 1> parts;  // the first is PeerSpace's
  std::size_t count = 1;
  const std::uint64_t length = length_of(sges_of(wr));
  for_each_part(sges_of(wr), 0, length, [&](std::byte* part, std::size_t bytes) { parts[count++] = {part, bytes}; });
  const std::span local(parts.data(), count);
  return to_peer ? space_.write(mark, local, wr.wr.rdma.remote_addr, length)
                 : space_.read(mark, local, wr.wr.rdma.remote_addr, length);
}

}  // namespace ringsock::soft
