// Maps of ready connections (ready_map.h) in sealed memfds: our own, and those of other processes.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/process_state.h"
#include "core/base/ready_map.h"
#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/device/shm/link/peer_process.h"
#include "core/device/shm/memory/segment.h"

namespace ringsock::soft {

/// A map of this process, whose memory the processes at the other ends of its connections map, too. Threads: any.
class OwnReadyMap final : public ReadyMap {
 public:
  /// Errors: those of make_segment().
  static Result<std::shared_ptr<ReadyMap>> make();
  explicit OwnReadyMap(OwnSegment segment);
  ~OwnReadyMap() override;

  [[nodiscard]] const MemoryName& name() const { return name_; }
  /// Returns the memfd, -1 when the program has closed it.
  [[nodiscard]] int memfd() const;

 private:
  OwnSegment segment_;
  MemoryName name_;
};

/// The maps of other processes in which this process sets bits. Everything in a map is untrusted, and nothing is read
/// from it but whether its owner sleeps.
///
/// Limits: kMax maps, of which processes of one other user have at most kMaxOfAStranger. A map is given up when no
/// connection has used it for as long as others were added. Threads: any.
class PeerReadyMaps {
 public:
  static constexpr ProcessPart kPart = ProcessPart::ready_maps;
  static constexpr std::size_t kMax = 64;
  static constexpr std::size_t kMaxOfAStranger = 8;

  /// Returns the map of that name if it came from the same user, else null.
  std::shared_ptr<ReadyBits> find(const MemoryName& name, uid_t owner);
  /// Opens the map by the descriptor that `process` has of it, which the kernel permits among processes of one user.
  /// Errors: those of open_memory_of(); EPROTO no map; ENOSPC the limits.
  Result<std::shared_ptr<ReadyBits>> open(const MemoryName& name, PeerProcess process);
  /// Enters a map that a process of `owner` has passed. Errors: EPROTO no map of that name; ENOSPC; ENOMEM.
  Result<std::shared_ptr<ReadyBits>> add(UniqueFd memfd, const MemoryName& name, uid_t owner);
  /// Returns whether the caller may try to get the map of that name now: one connection at a time does, and the others
  /// find it afterwards.
  bool may_try(const MemoryName& name, Nanos now);
  /// Keeps its lock across fork(2). Only for an object that is never destroyed.
  void survive_fork();

 private:
  struct Known {
    std::uint64_t device;
    std::uint64_t inode;
    uid_t owner;
    std::shared_ptr<ReadyBits> bits;
  };
  bool make_room(uid_t owner, std::list<Known>& dropped);

  Mutex lock_;
  std::list<Known> known_;  ///< the last found in front
  struct Tried {
    std::uint64_t inode;
    Nanos at;
  };
  std::list<Tried> tried_;  ///< the latest in front, at most kMax
};

/// The maps of this process.
inline PeerReadyMaps& peer_ready_maps() { return process_state<PeerReadyMaps>(); }

}  // namespace ringsock::soft
