// The role of an endpoint whose peer can note its news in a map that many connections share.
#pragma once

#include <cstdint>
#include <memory>

#include "core/base/hot_lines.h"
#include "core/base/ready_map.h"
#include "core/base/result.h"

namespace ringsock::runtime {

/// Endpoint::listable(). Threads: all functions from any thread. The caller holds no lock of the endpoint.
class Listable {
 public:
  /// Returns a number that is the same for all endpoints whose peers may share a map, 0 when this endpoint cannot be
  /// listed now.
  virtual std::uint64_t peer_group() noexcept = 0;
  /// Makes a map for the peers of its group. Errors: ENOTCONN, EOPNOTSUPP; EMFILE, ENOMEM and the like.
  virtual Result<std::shared_ptr<ReadyMap>> make_ready_map() noexcept = 0;
  /// Makes the peer set `place` of `map`, which an endpoint of this group has made, at each arrival, until the endpoint
  /// is armed again. Call it after Endpoint::arm(), when the descriptors of arm() are watched: by them the peer rings a
  /// sleeping consumer (ReadyBits::set()), and a peer that cannot use the map rings as after arm().
  /// @return the listing, which does not last if the peer has rung meanwhile
  virtual Listing list_at(const std::shared_ptr<ReadyMap>& map, std::uint32_t place) noexcept = 0;
  /// Returns whether bytes, the end or an error that Readiness::ready() has found wait for a reader. Does not look for
  /// more, which a listed peer notes in the map. Costs a fraction of ready().
  [[nodiscard]] virtual bool has_unread() const noexcept = 0;
  /// Ends the listing: the peer stays silent until the next arm().
  virtual void unlist() noexcept = 0;
  /// Adds the cache lines that a message of the connection needs, but for its own.
  virtual void add_hot_lines(HotLines& lines) const noexcept = 0;

 protected:
  ~Listable() = default;
};

}  // namespace ringsock::runtime
