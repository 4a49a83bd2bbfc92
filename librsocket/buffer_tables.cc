#include "librsocket/buffer_tables.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "librsocket/saved_connection.h"
#include "librsocket/work_requests.h"

namespace ringsock::rs {

void BufferTables::begin(std::byte* own) {
  own_ = own;
  own_iomap_.resize(core_.settings.iomap_entries);
}

Status BufferTables::start(const wire::RsConnect& peer) {
  peer_sgl_entries_ = peer.target_sgl.length.host();
  if (peer_sgl_entries_ == 0) return Error{EPROTO, "rsocket: the peer has no table for buffers"};
  peer_address_ = peer.target_sgl.addr.host();
  peer_key_ = peer.target_sgl.key.host();
  peer_sgl_next_ = 1 % peer_sgl_entries_;
  peer_iomap_entries_ = (peer.flags & wire::kRsHasIomap) != 0 ? wire::decode_iomap_size(peer.iomap_size_scaled) : 0;
  swap_for_peer_ = (peer.flags & wire::kRsBigEndianHost) != wire::kRsLocalOrderFlag;
  return ok();
}

Status BufferTables::announce(unsigned slot, std::uint32_t limit, const std::optional<wire::PeerSge>& buffer) {
  ibv_send_wr request{};
  ibv_sge piece{};
  wire::PeerSge entry{};
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.imm_data = word_in_network_order({wire::RsOpcode::sgl, limit});
  if (buffer) {
    entry = swap_for_peer_ ? wire::swap_bytes(*buffer) : *buffer;
    piece = {address_of(&entry), sizeof entry, 0};
    request.sg_list = &piece;
    request.num_sge = 1;
    request.wr.rdma.remote_addr = peer_address_ + sizeof entry * peer_sgl_next_;
    request.wr.rdma.rkey = peer_key_;
    peer_sgl_next_ = (peer_sgl_next_ + 1) % peer_sgl_entries_;
  }
  return requests_.post_in_control_slot(request, slot);
}

Status BufferTables::send_iomap(std::uint32_t index, const wire::PeerIomap& entry) {
  wire::PeerIomap ordered = swap_for_peer_ ? wire::swap_bytes(entry) : entry;
  ibv_sge piece{address_of(&ordered), sizeof ordered, 0};
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.imm_data = word_in_network_order({wire::RsOpcode::iomap_sgl, index});
  request.sg_list = &piece;
  request.num_sge = 1;
  request.wr.rdma.remote_addr =
      peer_address_ + sizeof(wire::PeerSge) * peer_sgl_entries_ + sizeof ordered * std::uint64_t{index};
  request.wr.rdma.rkey = peer_key_;
  return requests_.post_control(request);
}

Status BufferTables::send_keepalive() {
  // The lock keeps fork(2) out.
  const std::lock_guard guard(core_.poll_lock);
  if (core_.is_suspended() || requests_.is_held()) return ok();
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE;
  // No byte is written, but some devices check the key nevertheless.
  request.wr.rdma.remote_addr = peer_address_;
  request.wr.rdma.rkey = peer_key_;
  return requests_.post_control(request);
}

std::optional<wire::PeerSge> BufferTables::take_announced() {
  // The peer may write here at any time, so the length is read once before the entry is taken.
  std::byte* slot = own_ + own_sgl_next_ * sizeof(wire::PeerSge);
  std::atomic_ref length(reinterpret_cast<wire::PeerSge*>(slot)->length);
  if (length.load(std::memory_order_acquire) == 0) return std::nullopt;  // credits only
  wire::PeerSge entry;
  std::memcpy(&entry, slot, sizeof entry);
  length.store(0, std::memory_order_relaxed);
  if (entry.length == 0) return std::nullopt;
  own_sgl_next_ = (own_sgl_next_ + 1) % kSglEntries;
  return entry;
}

void BufferTables::take_iomap(std::uint32_t index) {
  if (index >= own_iomap_.size()) return;  // no slot of ours: ignored like an unknown control value
  std::memcpy(&own_iomap_[index], own_ + kSglBytes + index * sizeof(wire::PeerIomap), sizeof(wire::PeerIomap));
}

std::optional<wire::PeerIomap> BufferTables::find_iomap(std::uint64_t offset) {
  const std::lock_guard guard(core_.poll_lock);
  for (const wire::PeerIomap& entry : own_iomap_) {
    if (offset >= entry.offset && offset - entry.offset < entry.sge.length) return entry;
  }
  return std::nullopt;
}

void BufferTables::save(SavedConnection& saved) const {
  saved.peer_sgl_next = peer_sgl_next_;
  saved.own_sgl_next = own_sgl_next_;
}

bool BufferTables::is_possible(const SavedConnection& saved) const {
  return saved.peer_sgl_next < peer_sgl_entries_ && saved.own_sgl_next < kSglEntries;
}

void BufferTables::restore(const SavedConnection& saved) {
  peer_sgl_next_ = saved.peer_sgl_next;
  own_sgl_next_ = saved.own_sgl_next;
}

}  // namespace ringsock::rs
