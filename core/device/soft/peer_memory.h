// Application memory of the peer, mapped here.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/base/result.h"
#include "core/device/soft/peer_space.h"
#include "core/device/soft/segment.h"

namespace ringsock::soft {

/// Where memory of another process lies in a memfd of its own, as that process says: [start, start + bytes) of its
/// address space is [0, bytes) of the file behind its descriptor `fd`.
struct SharedPlace {
  std::uint64_t start = 0;
  std::uint64_t bytes = 0;
  std::uint64_t inode = 0;  ///< 0: not shared
  std::uint32_t fd = 0;
  bool operator==(const SharedPlace&) const = default;
};

/// Maps it, all of `place` checked: a file that is sealed against shrinking, of ordinary pages, large enough, so that
/// no access faults. The kernel allows that where it allows to look into the process (ptrace(2), "PTRACE_MODE_READ").
/// Errors: EPROTO not such a file; EACCES, ENOENT not allowed, or gone; ENOMEM.
Result<std::unique_ptr<MappedSegment>> map_memory_of(pid_t process, const SharedPlace& place);

/// What is known of one row of the peer's table.
class PeerMemory {
 public:
  /// [address, address + length) of the process whose memory has the mark; nullptr when it is not in shared memory, or
  /// cannot be mapped. Maps it when it has not been tried before.
  std::byte* find(PeerSpace& space, const SpaceMark& mark, const SharedPlace& place, std::uint64_t address,
                  std::uint64_t length);

 private:
  void map(PeerSpace& space);

  SpaceMark mark_;
  SharedPlace place_;
  std::unique_ptr<MappedSegment> mapping_;
};

}  // namespace ringsock::soft
