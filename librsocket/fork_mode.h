// Fork mode, as in rdma-core's librspreload: TCP connections move to a ring when they are first used, so that a server
// may accept, fork, and use the connection in the child.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "core/base/clock.h"
#include "core/base/socket_address.h"
#include "core/base/unique_fd.h"
#include "core/verbs/connection_manager.h"

namespace ringsock::rs {

/// Returns whether RDMAV_FORK_SAFE is a number other than 0. Fork mode concerns devices whose connections do not
/// survive fork(2). Both ends must be in it.
bool is_fork_mode();
/// In fork mode, prepares what descendants share (ForkSection). Call it before the process forks for the first time.
void prepare_fork_mode();

/// Lets one process at a time wait for its client on a port. It covers the process that loaded the library and its
/// descendants, whatever users they have become. It is a record lock (fcntl(2)) on one byte per port of memory without
/// a name: a stranger can neither find, take nor truncate it, and the kernel unlocks it when the holder dies. The lock
/// only makes processes take turns. Unrelated processes, and sockets of one process, wait for the port itself
/// (EADDRINUSE).
class ForkSection {
 public:
  ForkSection() = default;
  ForkSection(const ForkSection&) = delete;
  ForkSection& operator=(const ForkSection&) = delete;
  ~ForkSection() { leave(); }
  /// Returns whether this object is in the section now. Enters without a lock when none can be had.
  bool try_enter(std::uint16_t port);
  void enter_anyway() { inside_ = true; }
  void leave();
  /// For a forked child, which is not in the section.
  void forget() {
    inside_ = false;
    locked_.reset();
  }

 private:
  bool inside_ = false;
  std::optional<std::uint16_t> locked_;
};

/// How far a connection has moved. Guarded by its socket's lock.
///
/// The passive end, which accepted the connection, enters the ForkSection, listens by RDMA on the same port, sends four
/// zero bytes by TCP and waits for the client. The active end looks at the zeros without taking them, and then
/// connects.
struct Migration {
  enum class Step {
    zeros,       ///< active: waits for the zeros
    connecting,  ///< active: connects on the ring
    grace,       ///< passive: waits to see whether the client talks by TCP, and so is not in fork mode
    turn,        ///< passive: waits to enter the section and for the port
    client,      ///< passive: has sent the zeros, waits for the client on the ring
  };
  Step step = Step::zeros;
  SocketAddress where;         ///< active: the peer's address, as the application named it; passive: the local address
  Nanos until = Nanos::max();  ///< the end of the step's time
  bool used = false;           ///< whether a call that moves bytes has been made
  bool lost = false;           ///< another process was moving the connection at a fork
  UniqueFd tcp;                ///< keeps the TCP connection while its number changes hands
  ForkSection section;
  std::unique_ptr<verbs::ConnectionId> listener;
};

}  // namespace ringsock::rs
