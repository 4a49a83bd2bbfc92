#include "librsocket/connection_listing.h"

#include <mutex>

#include "librsocket/connection.h"

namespace ringsock::rs {

Listing ConnectionListing::list_at(const std::shared_ptr<ReadyMap>& map, std::uint32_t place) noexcept {
  const std::lock_guard guard(core_.poll_lock);
  if (core_.is_suspended()) return {};
  return core_.device.rc().list_at(*core_.qp, map, place);
}

bool ConnectionListing::has_unread() const noexcept {
  return core_.is_suspended() || core_.ends.has_peer_ended() || core_.ends.failure() != 0 || receiving_.readable() > 0;
}

void ConnectionListing::unlist() noexcept {
  const std::lock_guard guard(core_.poll_lock);
  if (!core_.is_suspended()) core_.device.rc().unlist(*core_.qp);
}

void ConnectionListing::add_hot_lines(HotLines& lines) const noexcept { connection_.add_hot_lines(lines); }

}  // namespace ringsock::rs
