#include "core/device/shm/queue/outbox.h"

#include "core/base/clock.h"
#include "core/device/shm/queue/queue_limits.h"

namespace ringsock::soft {

void Outbox::attach(const InboxView& peer, bool uses_srq, PeerProcess process, Link& link) {
  peer_ = peer;
  entries_used_ = entries_freed_ = peer.first_entry();
  uses_srq_ = uses_srq;
  link_ = &link;
  map_.attach(peer.doorbell(), process, link);
}

bool Outbox::look_for_receives() {
  const std::uint32_t posted = peer_.consumer().receives_posted.load(std::memory_order_acquire);
  // More than a queue can hold, or fewer than before, is invalid and treated as none.
  if (posted - receives_used_ > kMaxQueueEntries) return false;
  receives_known_ = posted;
  peer_receive_bytes_ = peer_.consumer().receive_bytes.load(std::memory_order_relaxed);
  return receives_used_ != receives_known_;
}

bool Outbox::look_for_entries() {
  const std::uint32_t consumed = peer_.consumer().entries_consumed.load(std::memory_order_acquire);
  if (entries_used_ - consumed > peer_.ring_entries) return false;
  entries_freed_ = consumed;
  return entries_used_ - entries_freed_ < peer_.ring_entries;
}

std::uint32_t Outbox::payload_room() const {
  const std::uint32_t used = payload_used_ - peer_.consumer().payload_consumed.load(std::memory_order_acquire);
  return used <= peer_.payload_bytes ? peer_.payload_bytes - used : 0;
}

std::optional<Outbox::Room> Outbox::take_piece(std::uint64_t left) {
  const std::uint32_t at = payload_used_ & (peer_.payload_bytes - 1);
  const auto piece =
      static_cast<std::uint32_t>(std::min<std::uint64_t>({left, peer_.payload_bytes - at, largest_piece()}));
  if (!has_entry() || payload_room() < piece) return std::nullopt;
  payload_used_ += round_up_8(piece);
  return Room{peer_.payload() + at, piece};
}

std::optional<std::uint32_t> Outbox::take_contiguous(std::uint32_t bytes) {
  const std::uint32_t at = payload_used_ & (peer_.payload_bytes - 1);
  const std::uint32_t skip = peer_.payload_bytes - at < bytes ? peer_.payload_bytes - at : 0;
  if (!has_entry() || payload_room() < skip + bytes) return std::nullopt;
  payload_used_ += skip;
  const std::uint32_t place = payload_used_ & (peer_.payload_bytes - 1);
  payload_used_ += round_up_8(bytes);
  return place;
}

bool Outbox::has_room_for_two() {
  if (uses_srq_) return false;
  if (receives_known_ - receives_used_ < 2) static_cast<void>(look_for_receives());
  if (peer_.ring_entries - (entries_used_ - entries_freed_) < 2) static_cast<void>(look_for_entries());
  return receives_known_ - receives_used_ >= 2 && peer_.ring_entries - (entries_used_ - entries_freed_) >= 2;
}

bool Outbox::put(EntryType type, std::uint8_t flags, std::uint32_t imm, std::uint64_t length) {
  store(entries_used_, type, flags, {imm, length});
  ++entries_used_;
  return tell(type, flags);
}

bool Outbox::put_pair(EntryType type, std::uint8_t flags, const std::array<Message, 2>& messages) {
  // The peer reads entries in order, so the second one is not seen before the first one.
  store(entries_used_ + 1, type, flags, messages[1]);
  store(entries_used_, type, flags, messages[0]);
  entries_used_ += 2;
  receives_used_ += 2;
  return tell(type, flags);
}

/// Stores an entry, which the peer sees at once.
[[gnu::always_inline]] inline void Outbox::store(std::uint32_t index, EntryType type, std::uint8_t flags,
                                                 const Message& message) {
  Entry& entry = peer_.entry(index);
  // Loaded before the entry is stored, so that a peer that asks when its connection is new gets the stamp of the first
  // entry.
  if (!stamps_) stamps_ = peer_.doorbell().wants_stamps.load(std::memory_order_relaxed) != 0;
  const std::uint64_t stamp = stamps_ ? order_stamp() : 0;
  entry.body.store(stamp << 32 | message.length,
                   std::memory_order_relaxed);  // below 2^32: the limit of a message is 2^31
  entry.head.store(peer_.lap(index) << 48 | std::uint64_t{static_cast<std::uint8_t>(type)} << 40 |
                       std::uint64_t{flags} << 32 | message.imm,
                   std::memory_order_release);
}

/// Rings for the entries that were stored if the peer wants that. Returns put()'s result.
[[gnu::always_inline]] inline bool Outbox::tell(EntryType type, std::uint8_t flags) {
  fences_.behind_store();
  const std::uint32_t armed = peer_.doorbell().armed.load(std::memory_order_relaxed);
  fences_.follow(peer_.doorbell().wants_fences.load(std::memory_order_relaxed) != 0, entries_used_);
  if (armed == 0) [[likely]]
    return true;
  if ((armed & kListed) != 0 && map_.note(armed)) return !map_.has_rung_in_vain();
  const bool counts = (flags & (kEntrySolicited | kEntryMore)) != 0 || type == EntryType::assist;
  if ((armed != kArmedForSolicited || counts) && take_arming()) ring();
  return !has_rung_in_vain_;
}

bool Outbox::take_arming() {
  const std::uint32_t taken = peer_.doorbell().armed.exchange(0);
  if (taken == kArmedForGood) peer_.doorbell().armed.store(taken);
  return taken != 0;
}

void Outbox::ring() { has_rung_in_vain_ = !link_->ring() || has_rung_in_vain_; }

void Outbox::save(verbs::SavedQueuePair& to) const {
  to.entries_used = entries_used_;
  to.receives_used = receives_used_;
  to.payload_used = payload_used_;
  to.acks_wanted = acks_wanted_;
}

void Outbox::restore(const verbs::SavedQueuePair& from) {
  entries_used_ = from.entries_used;
  entries_freed_ = entries_used_ - peer_.ring_entries;
  receives_used_ = receives_known_ = from.receives_used;
  payload_used_ = from.payload_used;
  acks_wanted_ = acks_seen_ = from.acks_wanted;
  fences_.begin_again();
}

/// The place of the next entry holds the one of the lap before, or 0 where there was none: a connection need not begin
/// with the first place (InboxView::first_entry()).
bool Outbox::is_untouched_since(const verbs::SavedQueuePair& saved) const {
  const std::uint64_t there = peer_.entry(saved.entries_used).head.load(std::memory_order_acquire);
  return there == 0 || there >> 48 == peer_.lap(saved.entries_used - peer_.ring_entries);
}

void Outbox::look_for_acks() {
  const std::uint32_t acked = peer_.consumer().acked.load(std::memory_order_acquire);
  if (acks_wanted_ - acked <= acks_wanted_ - acks_seen_) acks_seen_ = acked;
}

}  // namespace ringsock::soft
