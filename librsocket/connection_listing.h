// A connection's place in a map of ready connections.
#pragma once

#include <cstdint>
#include <memory>

#include "core/runtime/listable.h"
#include "librsocket/connection_core.h"
#include "librsocket/message_receiver.h"

namespace ringsock::rs {

class Connection;

/// While the connection is suspended there is no listing. Threads: any.
class ConnectionListing final : public runtime::Listable {
 public:
  ConnectionListing(const Connection& connection, ConnectionCore& core, const MessageReceiver& receiving)
      : core_(core), receiving_(receiving), connection_(connection) {}

  std::uint64_t peer_group() noexcept override { return core_.device.rc().peer_group(*core_.qp); }
  Result<std::shared_ptr<ReadyMap>> make_ready_map() noexcept override { return core_.device.rc().make_ready_map(); }
  Listing list_at(const std::shared_ptr<ReadyMap>& map, std::uint32_t place) noexcept override;
  [[nodiscard]] bool has_unread() const noexcept override;
  void unlist() noexcept override;
  void add_hot_lines(HotLines& lines) const noexcept override;

 private:
  ConnectionCore& core_;
  const MessageReceiver& receiving_;
  const Connection& connection_;
};

}  // namespace ringsock::rs
