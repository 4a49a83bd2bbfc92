// A connection's place in a map of ready connections.
#pragma once

#include <cstdint>
#include <memory>

#include "core/runtime/listable.h"
#include "librsocket/connection_core.h"

namespace ringsock::rs {

/// While the connection is suspended there is no listing. Threads: any.
class ConnectionListing final : public runtime::Listable {
 public:
  explicit ConnectionListing(ConnectionCore& core) : core_(core) {}

  std::uint64_t peer_group() noexcept override { return core_.device.rc().peer_group(*core_.qp); }
  Result<std::shared_ptr<ReadyMap>> make_ready_map() noexcept override { return core_.device.rc().make_ready_map(); }
  Listing list_at(const std::shared_ptr<ReadyMap>& map, std::uint32_t place) noexcept override;
  void unlist() noexcept override;

 private:
  ConnectionCore& core_;
};

}  // namespace ringsock::rs
