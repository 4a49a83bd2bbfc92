// What each send of a UDP socket looks at and others change.
#pragma once

#include <atomic>
#include <cstdint>

namespace ringsock::vma {

/// Lies beside the sender's own fields, so that a look costs one load and no register. Locks: none. Threads: any.
struct SendConditions {
  std::atomic<bool> kernel_only{false};      ///< because of an option, a rule or another process
  std::atomic<bool> has_new_rings{false};    ///< threads that sleep on the socket do not know rings yet
  std::atomic<std::uint32_t> generation{1};  ///< grows with each change that concerns senders
};

}  // namespace ringsock::vma
