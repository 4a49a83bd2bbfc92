// What the rings of a process need of the library whose sockets use them.
#pragma once

#include <memory>

#include "core/ethernet/options.h"
#include "core/ethernet/ring_counters.h"

namespace ringsock::ethernet {

/// One per process, never destroyed. Threads: any.
class EthernetUser {
 public:
  EthernetUser(const EthernetUser&) = delete;
  EthernetUser& operator=(const EthernetUser&) = delete;

  [[nodiscard]] virtual const EthernetOptions& options() const = 0;
  /// For a new ring on that interface. Called under locks of Ethernet.
  virtual std::unique_ptr<RingCounters> make_counters(int ifindex) = 0;
  /// There is a namespace with rings. Called under locks of Ethernet, for each namespace.
  virtual void has_begun() = 0;

  // By the service thread, without locks:
  /// Addresses or interfaces have come or gone.
  virtual void addresses_have_changed() = 0;
  /// Rules of netfilter have.
  virtual void filters_have_changed() = 0;

 protected:
  constexpr EthernetUser() = default;
  ~EthernetUser() = default;
};

}  // namespace ringsock::ethernet
