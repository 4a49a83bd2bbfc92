// Whether IPsec policies exist in the network namespace: what they cover, only the kernel can send and receive.
#pragma once

#include <atomic>

#include "core/net/netlink_socket.h"

namespace ringsock::net {

/// Threads: any_policies() any, the rest one at a time.
class IpsecWatch {
 public:
  /// In the calling thread's network namespace. Sees none where the kernel has no XFRM, or without CAP_NET_ADMIN.
  void open();

  [[nodiscard]] int fd() const { return events_.fd(); }  ///< readable when policies change; -1: none
  [[nodiscard]] bool any_policies() const { return any_.load(std::memory_order_relaxed); }
  /// Takes what has changed, without waiting. @return whether any_policies() is another one now.
  bool read();

 private:
  bool count_policies();

  NetlinkSocket questions_;
  NetlinkSocket events_;
  std::atomic<bool> any_{false};
};

}  // namespace ringsock::net
