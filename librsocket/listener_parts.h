// The parts of an inherited listener that only one process has.
#pragma once

#include <vector>

#include "librsocket/stream_core.h"

namespace ringsock::rs {

/// A listener on several devices after fork(2): the child gets it without the parts on real devices
/// (verbs::ConnectionId::unshareable_parts()), which the parent's service thread serves until the child listens.
class ListenerParts final : public StreamPart {
 public:
  enum class Outcome { ended, full, room };
  ListenerParts(StreamSocket& socket, StreamCore& core) : StreamPart(socket, core) {}

  /// Keeps what the child may have, in the child. Returns false when no part works there.
  bool keep_shareable() noexcept;
  /// Tells the parent that this process listens, so that clients that it would take do not wait in the parent for ever.
  /// Threads: any.
  void tell_that_child_listens() noexcept;
  /// Returns whether clients may have come by parts that other processes do not have. setup_lock must be held.
  [[nodiscard]] bool may_keep_clients_from_others() const;
  /// Returns the descriptors of the parts that no other process has. Takes setup_lock.
  std::vector<int> descriptors();
  /// Serves these parts: takes their clients if `take_in`, or ends the parts once another process listens. Called on
  /// the service thread, without locks.
  Outcome serve(bool take_in);

 private:
  void end();
  [[nodiscard]] bool does_child_listen() const;

  bool lacks_parts_ = false;  ///< an ancestor had more parts
};

}  // namespace ringsock::rs
