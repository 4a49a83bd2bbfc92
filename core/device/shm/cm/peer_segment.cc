#include "core/device/shm/cm/peer_segment.h"

#include <algorithm>
#include <cerrno>

#include "core/base/refusals.h"
#include "core/device/shm/memory/segment_cache.h"

namespace ringsock::soft {

namespace {

std::uint64_t limit_for_peer(bool same_user, std::uint64_t own_bytes) {
  return same_user ? std::max(own_bytes, kMaxBytesOfOwnUser) : own_bytes + kMaxExtraBytes;
}

/// Returns the bytes of a peer's segment that count: all but quiet memory, which the peer cannot make us touch. The
/// peer's inbox is counted by itself, too, because the room for our own may overlap it.
std::uint64_t reachable_bytes(std::uint64_t bytes, const QueuePairOffer& offer, PeerSegment::OwnNeeds own) {
  const std::uint64_t peers_quiet = std::min(quiet_bytes_of(offer), kMaxQuietBytes);
  const bool has_ours = offer.spare.bytes >= own.bytes / 2 + own.quiet;
  const std::uint64_t all = bytes - std::min(bytes, peers_quiet + (has_ours ? own.quiet : 0));
  const std::uint64_t inbox = std::min(bytes, offer.inbox.bytes);
  return std::max(all, inbox - std::min(inbox, peers_quiet) + own.bytes / 2);
}

}  // namespace

Status PeerSegment::charge(const PeerIdentity& peer, std::uint64_t bytes, std::uint64_t own_bytes) {
  if (bytes > limit_for_peer(peer.same_user, own_bytes)) {
    count_refusal(Refusal::segment_size);
    return Error{ENOMEM, "peer's memory: larger than needed"};
  }
  if (peer.same_user || bytes <= own_bytes) return ok();
  auto charge = UserCharge::take(peer.uid, bytes - own_bytes);
  if (!charge) return Error{ENOMEM, "peer's memory: more than its user may have"};
  charge_.emplace(*std::move(charge));
  return ok();
}

/// The memory is charged before it is mapped, because with mlockall(2) a mapping allocates its memory at once.
Status PeerSegment::map(UniqueFd memfd, const PeerIdentity& peer, const QueuePairOffer& offer, OwnNeeds own,
                        std::optional<PeerProcess> maker) {
  const auto bytes = check_peer_memfd(memfd.get(), offer.memory);
  if (!bytes) return bytes.error();
  if (Status charged = charge(peer, reachable_bytes(*bytes, offer, own), own.bytes); !charged) return charged;
  const std::uint32_t parts = parts_of(offer);
  if (parts > 1 && (!peer.same_user || !maker)) return Error{EPROTO, "peer's memfd: parts"};
  auto mapped = parts > 1 ? segment_cache().map_part(std::move(memfd), offer.memory, *maker, part_of(offer), parts)
                          : segment_cache().map(std::move(memfd), offer.memory, *bytes, maker);
  if (!mapped) return mapped.error();
  segment_ = *std::move(mapped);
  segment_->tell_first_inbox(offer.inbox);
  return ok();
}

Status PeerSegment::take(const PeerIdentity& peer, const QueuePairOffer& offer, OwnNeeds own) {
  if (segment_) {
    segment_->tell_first_inbox(offer.inbox);
    return charge(peer, reachable_bytes(segment_->bytes(), offer, own), own.bytes);
  }
  return map(std::move(memfd_), peer, offer, own, kept_for(peer));
}

}  // namespace ringsock::soft
