// Fork mode, as rdma-core's librspreload has it: TCP connections that move to a ring when they are first used, so that
// a server may accept, fork, and use the connection in the child.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "core/base/clock.h"
#include "core/base/socket_address.h"
#include "core/base/unique_fd.h"
#include "core/verbs/connection_manager.h"

namespace ringsock::preload {

/// Whether the process asked for it: RDMAV_FORK_SAFE is a number other than 0. It concerns devices whose connections do
/// not survive fork(2); on both ends.
bool is_fork_mode();

/// Lets one process at a time wait for its client on a port, among those that one fork(2) after the other made from the
/// process in which the library was loaded, whatever users they have become. It is a record lock (fcntl(2)) on a byte
/// per port of memory that has no name: a stranger cannot take, truncate or find it, and the kernel unlocks it when the
/// holder dies. It only keeps processes in turn. The port itself is what two of them cannot have: unrelated processes,
/// and sockets of one process, wait for that (EADDRINUSE).
class ForkSection {
 public:
  ForkSection() = default;
  ForkSection(const ForkSection&) = delete;
  ForkSection& operator=(const ForkSection&) = delete;
  ~ForkSection() { leave(); }
  /// True once inside, and at once where there is no lock to be had.
  bool try_enter(std::uint16_t port);
  void enter_anyway() { inside_ = true; }
  void leave();
  /// A forked child is not inside.
  void forget() {
    inside_ = false;
    locked_.reset();
  }

 private:
  bool inside_ = false;
  std::optional<std::uint16_t> locked_;
};

/// How far a connection has come. Under its socket's lock.
///
/// The passive end, which accepted it, takes its turn in the ForkSection, listens by RDMA on the same port, sends four
/// zero bytes by TCP and waits for the client. The active end looks at these, which stay where they are, and connects.
struct Migration {
  enum class Step {
    zeros,       ///< active: waits for them
    connecting,  ///< active
    grace,       ///< passive: a client that begins to talk by TCP is not in fork mode
    turn,        ///< passive: waits to enter the section and for the port
    client,      ///< passive: has sent the zeros
  };
  Step step = Step::zeros;
  SocketAddress where;         ///< active: the peer, as the application named it; passive: the local address
  Nanos until = Nanos::max();  ///< when the step must be over
  bool used = false;           ///< by a call that moves bytes
  bool lost = false;           ///< another process was in the middle of it at a fork
  UniqueFd tcp;                ///< the TCP connection while its number changes hands
  ForkSection section;
  std::unique_ptr<verbs::ConnectionId> listener;
};

}  // namespace ringsock::preload
