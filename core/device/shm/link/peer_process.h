// Processes, as SO_PEERCRED names them.
#pragma once

#include <sys/types.h>

namespace ringsock::soft {

inline constexpr pid_t kAnyProcess = 0;

/// A process, or kAnyProcess of a user, for which segments may be kept (segment_cache.h), as reported by SO_PEERCRED.
struct PeerProcess {
  pid_t pid;
  uid_t uid;
  bool operator==(const PeerProcess&) const = default;
};

/// The processes for which a segment is made.
struct SegmentPeer {
  SegmentPeer(PeerProcess which, bool opens = false) : process(which), opens_memory(opens) {}
  PeerProcess process;
  bool opens_memory;  ///< they have got memory of this process by opening it (open_memory.h)
};

}  // namespace ringsock::soft
