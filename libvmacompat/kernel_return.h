// Datagrams that a ring has taken, for the kernel's sockets after all.
#pragma once

#include "core/base/unique_fd.h"
#include "core/ethernet/arrival.h"

namespace ringsock::vma {

/// Sends packets to this host itself, with the sender's address: the kernel gives them to whichever socket they are
/// for, as coming from the loopback interface. Threads: one at a time.
class KernelReturn {
 public:
  /// `arrival` must be for an address of this host, not a group: else it would travel. False: raw sockets are not
  /// permitted, or the kernel refuses.
  bool give(const ethernet::Arrival& arrival);

 private:
  int raw_socket(int family);
  UniqueFd v4_;
  UniqueFd v6_;
};

}  // namespace ringsock::vma
