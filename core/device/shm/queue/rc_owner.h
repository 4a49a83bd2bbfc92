// What the parts of an RC queue pair ask of it.
#pragma once

#include <infiniband/verbs.h>

#include <memory>

namespace ringsock::soft {

class Link;

/// Implemented by the queue pair, in tests by a fake. All functions take the send lock. Threads: any.
class RcOwner {
 public:
  /// Returns the link of the connection, null: not connected.
  virtual std::shared_ptr<Link> link() = 0;
  /// Returns whether the peer may map memory of this process.
  [[nodiscard]] virtual bool may_peer_map() = 0;
  /// Ends the connection: the oldest queued send fails with that status, the others are flushed.
  virtual void fail(ibv_wc_status first) = 0;

 protected:
  ~RcOwner() = default;
};

}  // namespace ringsock::soft
