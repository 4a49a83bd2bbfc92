// Watches whether IPsec policies exist in the network namespace: only the kernel can send and receive what they cover.
#pragma once

#include <atomic>

#include "core/net/netlink_socket.h"

namespace ringsock::net {

/// Threads: any_policies() any, the rest one at a time.
class IpsecWatch {
 public:
  /// Starts to watch the calling thread's network namespace. Sees no policies where the kernel has no XFRM, or without
  /// CAP_NET_ADMIN.
  void open();

  [[nodiscard]] int fd() const { return events_.fd(); }  ///< readable when policies change; -1: none
  [[nodiscard]] bool any_policies() const { return any_.load(std::memory_order_relaxed); }
  /// Reads the changes, without waiting. @return whether any_policies() has changed
  bool read();

 private:
  bool count_policies();

  NetlinkSocket questions_;
  NetlinkSocket events_;
  std::atomic<bool> any_{false};
};

}  // namespace ringsock::net
