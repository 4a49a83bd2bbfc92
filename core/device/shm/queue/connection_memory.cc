#include "core/device/shm/queue/connection_memory.h"

#include <algorithm>
#include <utility>

#include "core/device/shm/memory/segment_cache.h"

namespace ringsock::soft {

namespace {

/// The size of the payload ring: SENDs are cut into pieces of a quarter of it. Unused pages cost nothing.
constexpr std::uint32_t kPayloadRingBytes = 128 << 10;
/// With a shared receive queue the ring itself limits the messages under way.
constexpr std::uint32_t kSrqRingEntries = 256;
constexpr std::uint32_t kRoomForAssists = 16;

/// Returns the size of the ring. The consumer publishes used entries a quarter of the ring at a time, so the ring has
/// that many more entries than receives, and does not hold up a sender.
std::uint32_t ring_entries_for(const ibv_qp_init_attr& attr) {
  if (attr.srq != nullptr) return kSrqRingEntries;
  return attr.cap.max_recv_wr + attr.cap.max_recv_wr / 4 + kRoomForAssists;
}

}  // namespace

Result<ConnectionMemory> ConnectionMemory::make(const ibv_qp_init_attr& attr, ArenaBytes arena, const SpareRoom* room,
                                                std::optional<SegmentPeer> peer) {
  if (arena.all > kMaxArenaBytes || arena.quiet > std::min<std::uint64_t>(arena.all, kMaxOfferedQuiet)) {
    return Error{ENOMEM, "create_qp: receive memory"};
  }
  ConnectionMemory memory;
  memory.layout_ = plan_inbox(0, ring_entries_for(attr), kPayloadRingBytes, arena.all);
  memory.quiet_bytes_ = arena.quiet / kPageBytes * kPageBytes;
  if (room != nullptr && room->segment && memory.layout_.bytes <= room->inbox.bytes &&
      check_inbox(room->inbox, room->segment->bytes())) {
    memory.layout_.offset = room->inbox.offset;
    memory.own_ = room->segment;
    return memory;
  }
  if (room == nullptr) {
    memory.spare_ = memory.layout_;
    memory.spare_.offset = memory.layout_.bytes;
  }
  auto own = segment_cache().make(memory.layout_.bytes + memory.spare_.bytes, room == nullptr ? peer : std::nullopt);
  if (!own) return own.error();
  memory.own_ = std::move(own->mapping);
  memory.own_->tell_first_inbox(memory.layout_);
  memory.memfd_ = std::move(own->memfd);
  memory.name_ = own->name;
  memory.part_flags_ = own->part << kOfferPartShift | (own->parts - 1) << kOfferPartsShift;
  if (own->reused) memory.kept_for_ = peer->process;
  return memory;
}

void ConnectionMemory::describe(QueuePairOffer& out) const {
  out.inbox = layout_;
  out.spare = spare_;
  out.flags |= static_cast<std::uint32_t>(quiet_bytes_ / kPageBytes) << kOfferQuietShift;
  if (memfd_) {
    out.flags |= kOfferHasMemfd | part_flags_;
    out.memory = name_;
  }
  if (kept_for_) {
    out.flags |= kOfferKeptSegment;
    out.memory.kept_for_uid = kept_for_->pid == kAnyProcess ? kept_for_->uid : kOneProcessOnly;
  }
}

Status ConnectionMemory::check_peers(const InboxLayout& layout, const MappedSegment* segment) const {
  if (segment != nullptr) return check_inbox(layout, segment->bytes());
  if (Status sane = check_inbox(layout, own_->bytes()); !sane) return sane;
  const bool inside = spare_.bytes >= layout.bytes && layout.offset >= spare_.offset &&
                      layout.offset - spare_.offset <= spare_.bytes - layout.bytes;
  if (!inside) return Error{EPROTO, "peer's inbox: outside the room it was given"};
  return ok();
}

InboxView ConnectionMemory::take_peers(const InboxLayout& layout, std::shared_ptr<MappedSegment> segment) {
  peers_ = std::move(segment);
  memfd_.reset();
  return {peers_ ? *peers_ : *own_, layout};
}

/// Only a segment with the inboxes of both sides is kept.
bool ConnectionMemory::keep_sparse(const verbs::SparseMemory& own, const verbs::SparseMemory& peers, bool is_read) {
  if (peers_ && peers_ != own_) return false;
  const auto place = [&](const verbs::SparseMemory& part) {
    if (part.all.empty()) return SparsePart{};
    return SparsePart{static_cast<std::size_t>(part.all.data() - own_->base()), part.all.size(), part.used};
  };
  return own_->keep_sparse({place(own), place(peers)}, is_read);
}

void ConnectionMemory::forget_peers() {
  own_->forget_peer();
  if (peers_) peers_->forget_peer();
}

void ConnectionMemory::abandon() {
  own_->abandon();
  if (peers_) peers_->abandon();
}

std::uint64_t own_segment_bytes(const ibv_qp_init_attr& attr, ArenaBytes arena) {
  if (arena.all > kMaxArenaBytes || arena.quiet > arena.all) return 0;
  return 2 * plan_inbox(0, ring_entries_for(attr), kPayloadRingBytes, arena.all - arena.quiet).bytes;
}

}  // namespace ringsock::soft
