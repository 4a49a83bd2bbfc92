// The processes that a connecting id expects to have its segment.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <optional>

#include "core/device/shm/link/peer_process.h"
#include "core/device/shm/names/port_owner.h"

namespace ringsock::soft {

/// A kept segment is offered only to the processes that may have had it (SegmentCache). On the active side the kernel
/// names the process that listens; a worker of another user may accept instead, which is known from earlier
/// connections. Threads: one at a time.
class ExpectedAccepter {
 public:
  /// The listener is known, and a queue pair is made for it.
  void expect(const PeerIdentity& listener);
  /// Returns the processes that the queue pair's segment is kept for.
  [[nodiscard]] std::optional<PeerProcess> processes() const { return accepters_; }
  [[nodiscard]] std::optional<SegmentPeer> segment_peer() const;
  /// Returns whether the listener is another process than the one that was expected.
  [[nodiscard]] bool is_other(const PeerIdentity& listener) const;

  /// Compares with the process that has answered, and so has the segment now, and learns who accepts.
  /// @param sender  of the answer, as the kernel names it
  /// @return whether the segment was kept for that process
  bool meets(const PeerIdentity& listener, const std::optional<ucred>& sender, bool from_listening_process);
  /// A kept segment was refused: another program runs under that process number, or another process accepts.
  void refused();
  /// The accepter, for whom the segment was made, has answered, and has not asked for the memory, or has.
  void opens_memory(bool does);
  /// The accepter has refused a part of a memfd, which it must open itself.
  void refused_part();

 private:
  std::optional<PeerProcess> listener_;
  std::optional<PeerProcess> accepters_;
  bool opens_memory_ = false;
};

}  // namespace ringsock::soft
