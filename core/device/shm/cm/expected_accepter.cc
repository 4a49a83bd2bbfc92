#include "core/device/shm/cm/expected_accepter.h"

#include "core/device/shm/memory/segment_cache.h"

namespace ringsock::soft {

void ExpectedAccepter::expect(const PeerIdentity& listener) {
  listener_ = kept_for(listener);
  if (!listener_) return;
  accepters_ = segment_cache().accepters_of(*listener_, offered_to(listener));
  opens_memory_ = segment_cache().do_open(*listener_);
}

std::optional<SegmentPeer> ExpectedAccepter::segment_peer() const {
  return accepters_ ? std::optional(SegmentPeer(*accepters_, opens_memory_)) : std::nullopt;
}

void ExpectedAccepter::refused_part() {
  if (listener_ && accepters_) segment_cache().part_refused(*listener_, *accepters_);
}

void ExpectedAccepter::opens_memory(bool does) {
  if (listener_ && accepters_ && does != opens_memory_) segment_cache().learn_opening(*listener_, *accepters_, does);
}

bool ExpectedAccepter::is_other(const PeerIdentity& listener) const {
  return accepters_ && kept_for(listener) != listener_;
}

bool ExpectedAccepter::meets(const PeerIdentity& listener, const std::optional<ucred>& sender,
                             bool from_listening_process) {
  if (!listener_) return true;
  std::optional<PeerProcess> accepters;
  if (from_listening_process && (sender ? sender->uid == listener.uid : !listener.same_user)) {
    accepters = offered_to(listener);
  } else if (sender) {
    accepters = PeerProcess{kAnyProcess, sender->uid};
  }
  if (accepters == accepters_) return true;
  segment_cache().learn_accepters(*listener_, accepters, monotonic_now());
  return false;
}

void ExpectedAccepter::refused() {
  segment_cache().forget(*accepters_);
  segment_cache().accepters_refused(*listener_, monotonic_now());
}

}  // namespace ringsock::soft
