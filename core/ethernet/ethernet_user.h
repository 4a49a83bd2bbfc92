// The interface through which the rings of a process use the library that their sockets belong to.
#pragma once

#include <memory>

#include "core/ethernet/options.h"
#include "core/ethernet/packet_capture.h"
#include "core/ethernet/ring_counters.h"

namespace ringsock::ethernet {

/// There is one per process, which is never destroyed. Threads: any.
class EthernetUser {
 public:
  EthernetUser(const EthernetUser&) = delete;
  EthernetUser& operator=(const EthernetUser&) = delete;

  [[nodiscard]] virtual const EthernetOptions& options() const = 0;
  /// Makes the counters for a new ring. Called under locks of Ethernet.
  virtual std::unique_ptr<RingCounters> make_counters(int ifindex) = 0;
  /// Makes what gets copies of all packets of a new ring; null: nothing. Called as make_counters().
  virtual std::unique_ptr<PacketCapture> make_capture() { return nullptr; }
  /// Called for each namespace that begins to have rings, under locks of Ethernet.
  virtual void has_begun() = 0;

  // Called by the service thread, without locks:
  /// Addresses or interfaces have changed.
  virtual void addresses_have_changed() = 0;
  /// Netfilter rules have changed.
  virtual void filters_have_changed() = 0;

 protected:
  constexpr EthernetUser() = default;
  ~EthernetUser() = default;
};

}  // namespace ringsock::ethernet
