// What a socket that uses rings is told about the network.
#pragma once

namespace ringsock::vma {

/// Played by endpoints in the table of descriptors. Called by the service thread, without locks.
class RingUser {
 public:
  /// Addresses of this host have changed.
  virtual void follow_addresses() = 0;
  /// Netfilter rules have changed.
  virtual void follow_netfilter() = 0;

 protected:
  RingUser() = default;
  RingUser(const RingUser&) = default;
  RingUser& operator=(const RingUser&) = default;
  ~RingUser() = default;
};

}  // namespace ringsock::vma
