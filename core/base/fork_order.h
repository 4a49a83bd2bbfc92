// The order in which the parts of the library prepare for fork(2) and go on after it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringsock {

/// The parts that have handlers around fork(2), see at_fork(). Before a fork they run from the last to the first, so
/// that a part is prepared while those that it uses (above it in this list) still work; afterwards, in both processes,
/// from the first to the last. A part whose `before` handler takes a lock keeps it until its handler after the fork:
/// so this list is also the order of those locks, the last one outermost. Leaf locks (hold_across_fork()) are taken
/// after all of these.
enum class ForkStep : std::uint8_t {
  thread_ids,        ///< core/base: in the child only
  networks,          ///< core/net: lock. The child reads the kernel's tables anew
  segments,          ///< core/device/shm/memory, SegmentCache: no kept segment crosses a fork
  shared_pages,      ///< core/device/shm/memory, SharedPages: its lock, and pages that become the child's own
  descriptor_table,  ///< core/runtime: the table's lock, then liburcu's readers
  service_thread,    ///< core/runtime: lock. The child has no such thread until it needs one
  epoll_sets,        ///< core/poll: in the child only
  statistics,        ///< core/statistics: the child gets a page of its own
  bursts,            ///< core/ethernet: in the child only
  interfaces,        ///< core/ethernet: the lock of each interface's rings
  devices,           ///< librsocket: no device is opened meanwhile
  door,              ///< preload: the child gets a door of its own
  port_claims,       ///< libvmacompat: which process has a port
  vma_statistics,    ///< libvmacompat: in the child only
  endpoints,         ///< core/runtime, ForkRegistry: sockets are prepared one by one, with the help of all parts above
  hand_overs,        ///< preload: no connection is half moved to the kernel
  fork_pipe,         ///< libvmacompat: the child waits until its parent has finished with shared sockets
};
inline constexpr std::size_t kForkSteps = static_cast<std::size_t>(ForkStep::fork_pipe) + 1;

}  // namespace ringsock
