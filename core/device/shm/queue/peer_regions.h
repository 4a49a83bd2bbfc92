// The peer's registered memory: finding it by key and address, and accessing it directly.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/device/shm/memory/peer_memory.h"
#include "core/device/shm/memory/peer_space.h"
#include "core/device/shm/memory/segment.h"
#include "core/device/shm/queue/fences.h"

namespace ringsock::soft {

/// Returns the row of the table for a region with this key. Row 0 is the arena's.
std::size_t row_of(std::uint32_t rkey);

/// The table of regions in the peer's inbox, which is untrusted. Threads: one at a time.
class PeerRegions {
 public:
  /// The destination of a remote address.
  struct Target {
    enum class Kind {
      denied,
      arena,
      process,  ///< memory of the peer's process, which may be accessed
      assisted  ///< with the help of the peer's progress
    } kind;
    std::byte* memory = nullptr;  ///< arena
    MrRow* row = nullptr;         ///< process
  };

  explicit PeerRegions(const Fences& fences) : fences_(fences) {}
  /// @param memory_of    RcWiring::Peer::memory_of
  /// @param quiet_bytes  the end of the arena that work requests do not reach, at most all of it (ArenaBytes)
  void attach(const InboxView& peer, pid_t memory_of, std::uint64_t quiet_bytes = 0);
  /// Returns whether the memory of the peer's process may be accessed.
  [[nodiscard]] bool has_process() const { return space_.has_process(); }

  [[nodiscard]] Target find(std::uint32_t rkey, std::uint64_t address, std::uint64_t length, unsigned access) const {
    return find_in(peer_.arena_bytes - quiet_bytes_, rkey, address, length, access);
  }
  /// verbs::RcExtensions::peer_memory(): also in the quiet end of the arena.
  [[nodiscard]] std::byte* memory(std::uint32_t rkey, std::uint64_t address, std::uint64_t length) const;
  /// Copies between the local memory of a request and a region of the peer's process.
  /// @return false when the kernel does not permit it, or the region is gone or does not match its row.
  bool copy(const ibv_send_wr& wr, MrRow& row, bool to_peer);

 private:
  [[nodiscard]] Target find_in(std::uint64_t arena_bytes, std::uint32_t rkey, std::uint64_t address,
                               std::uint64_t length, unsigned access) const;
  bool copy_shared(const ibv_send_wr& wr, const MrRow& row, const SpaceMark& mark, bool to_peer);
  bool copy_of_process(const ibv_send_wr& wr, const SpaceMark& mark, bool to_peer);

  InboxView peer_;
  std::uint64_t quiet_bytes_ = 0;
  const Fences& fences_;
  PeerSpace space_;
  /// Behind the rows of the table, once one of them is in shared memory.
  std::unique_ptr<std::array<PeerMemory, kMrRows>> shared_;
};

}  // namespace ringsock::soft
