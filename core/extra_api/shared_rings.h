// The rings of a process for sockets that have memory of their own, and which socket has which ring.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/process_state.h"
#include "core/base/result.h"
#include "core/extra_api/shared_ring.h"
#include "core/runtime/endpoint.h"
#include "core/runtime/ring_choice.h"

namespace ringsock::vma {

/// Rings are found by keys, as Ethernet rings are. A ring whose key does not last ends with its last socket, unless the
/// program has yet to learn by it what the kernel has got. The descriptors of rings that have ended are closed when the
/// next ring is made, or the next descriptor. A forked child makes rings of its own. Threads: any.
class SharedRings {
 public:
  static constexpr ProcessPart kPart = ProcessPart::shared_rings;
  SharedRings();

  /// Returns the ring of that key, which has one user more; at the limit of rings the one with the fewest. Errors:
  /// those of EpollSet::create_unnamed().
  Result<SharedRing*> enter(const runtime::RingKey& key, std::size_t most_rings);
  /// The ring has one user more. It has one at least.
  void enter_again(SharedRing& ring) noexcept;
  /// The ring has one user less.
  void leave(SharedRing& ring) noexcept;
  /// Returns the descriptor of a ring that has a user; makes it at the first call. Errors: EMFILE, ENFILE; those of
  /// FdTable::insert().
  Result<int> descriptor(SharedRing& ring);
  /// Returns true at the first call in a forked child.
  bool begins_in_child() noexcept;

 private:
  SharedRing* find_locked(const runtime::RingKey& key, std::size_t most_rings);
  SharedRing* take_ended_locked();
  void end_unused_locked();
  bool end_if_unused_locked(SharedRing& ring) noexcept;
  void close_ended();
  [[nodiscard]] static std::optional<int> descriptor_locked(const SharedRing& ring);

  Mutex lock_;  ///< a leaf but for the locks of rings. So what it guards is made, and destroyed, without it
  std::vector<std::unique_ptr<SharedRing>> all_;
  std::map<runtime::RingKey, SharedRing*> known_;
  std::vector<SharedRing*> ended_;  ///< has room for all
  unsigned generation_;
  unsigned begun_in_;  ///< the generation of begins_in_child()
};

SharedRings& shared_rings();

/// Returns whether sockets have such rings: VMA_SOCKETXTREME is set.
bool are_shared_rings_wanted() noexcept;
/// Returns a descriptor that stands for the ring of the socket. In a forked child all sockets have rings then. Not
/// inside a read-side section. Errors: EINVAL it has none; EMFILE, ENFILE, ENOMEM.
Result<int> shared_ring_descriptor(int fd);

/// Called after listen(2), connect(2) or accept(2) on a descriptor: its socket gets its ring. Costs little unless
/// are_shared_rings_wanted(). Not inside a read-side section, and without locks.
void join_shared_ring(int fd, bool has_called_connect) noexcept;
/// The same for a connection that the poll of a ring has accepted: it has its listener's ring.
void join_listeners_ring(SharedRing& ring, int fd) noexcept;

}  // namespace ringsock::vma
