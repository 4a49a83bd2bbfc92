// The peer's map of ready connections, as its producer uses it (core/base/ready_map.h).
#pragma once

#include <cstdint>
#include <memory>

#include "core/base/close_elsewhere.h"
#include "core/base/ready_map.h"
#include "core/device/shm/link/link.h"
#include "core/device/shm/link/peer_process.h"
#include "core/device/shm/memory/segment.h"

namespace ringsock::soft {

/// Finds the map in which the peer has listed a connection, and sets its bit there. Threads: note() one at a time;
/// enter() from any thread once attached.
class PeerMap {
 public:
  void attach(const DoorbellLine& doorbell, PeerProcess process, Link& link);
  [[nodiscard]] PeerProcess process() const { return process_; }

  /// Sets our bit in the map, and rings if the peer sleeps.
  /// @param armed  DoorbellLine::armed, with kListed
  /// @return false when the map cannot be used: the peer must be rung for
  bool note(std::uint32_t armed);
  /// Returns whether the peer slept, and was rung for after its end.
  [[nodiscard]] bool has_rung_in_vain() const { return has_rung_in_vain_; }
  /// Enters the map that the peer has passed on the link (LinkPacket::ready_map).
  void enter(PassedFd memory) const;

 private:
  [[nodiscard]] MemoryName name() const;
  bool find();

  const DoorbellLine* doorbell_ = nullptr;
  Link* link_ = nullptr;
  PeerProcess process_{};  ///< as SO_PEERCRED names it
  std::shared_ptr<ReadyBits> map_;
  std::uint64_t inode_ = 0;  ///< of map_
  ReadyBits::RungFor rung_for_ = 0;
  unsigned tried_ = 0;
  bool has_rung_in_vain_ = false;
};

}  // namespace ringsock::soft
