// Application memory of the peer that is mapped in this process.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/base/result.h"
#include "core/device/shm/memory/peer_space.h"
#include "core/device/shm/memory/segment.h"

namespace ringsock::soft {

/// The place of another process's memory in a memfd, as claimed by that process: [start, start + bytes) of its address
/// space is [0, bytes) of the file behind its descriptor `fd`.
struct SharedPlace {
  std::uint64_t start = 0;
  std::uint64_t bytes = 0;
  std::uint64_t inode = 0;  ///< 0: not shared
  std::uint32_t fd = 0;
  bool operator==(const SharedPlace&) const = default;
};

/// Maps it after checking `place`: the file must be sealed against shrinking, have ordinary pages and be large enough,
/// so that no access faults. The kernel permits it where it permits reading the process (ptrace(2),
/// "PTRACE_MODE_READ").
/// Errors: EPROTO not such a file; EACCES, ENOENT not allowed, or gone; ENOMEM.
Result<std::unique_ptr<MappedSegment>> map_memory_of(pid_t process, const SharedPlace& place);

/// The state of one row of the peer's table.
class PeerMemory {
 public:
  /// Returns the mapping of [address, address + length) of the process whose memory has the mark, nullptr when it is
  /// not in shared memory or cannot be mapped. Maps it on first use.
  std::byte* find(PeerSpace& space, const SpaceMark& mark, const SharedPlace& place, std::uint64_t address,
                  std::uint64_t length);

 private:
  void map(PeerSpace& space);

  SpaceMark mark_;
  SharedPlace place_;
  std::unique_ptr<MappedSegment> mapping_;
};

}  // namespace ringsock::soft
