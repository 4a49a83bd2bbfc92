// Decides which processes may take part in a connection: the rules of core/device/shm/README.md, "names".
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <optional>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/device/shm/link/peer_process.h"
#include "core/device/shm/names/port_name.h"

namespace ringsock::soft {

/// The process at the other end of an AF_UNIX connection.
struct PeerIdentity {
  pid_t pid = 0;
  uid_t uid = 0;
  bool same_user = false;  ///< surely this process's effective user
};
/// Returns the process for which segments of its connections may be kept. The kernel must have a number for it, which
/// it has not for processes of other PID namespaces.
std::optional<PeerProcess> kept_for(const PeerIdentity& peer);
/// Returns the processes that may be offered a segment that a connection to that listener's owner had: only that
/// process, or, if it belongs to our own user, any process of our user according to the kernel (Link::sender()),
/// because these could read each other's memory anyway (ptrace(2)).
std::optional<PeerProcess> offered_to(const PeerIdentity& listener);
/// Returns SO_PEERCRED: on the connecting side the process that called listen(), on the accepting side the one that
/// called connect().
Result<PeerIdentity> identify_peer(int socket);

/// Returns whether at least one kernel socket holds the port on an address that `where` overlaps, and all that do
/// belong to `uid`. False when the kernel cannot be asked.
bool owns_port(uid_t uid, const PortBinding& where);

/// Reads the uid map while /proc is available, so that a process that later changes its root directory and user still
/// recognises its own uid.
void look_at_uid_map();
/// Returns whether `uid` surely is this process's effective user. In a user namespace the kernel shows every unmapped
/// user as the overflow uid, which therefore identifies no user there.
bool is_own_uid(uid_t uid);

/// What a client does without proof of the peer's ownership.
enum class Unproven : bool {
  refuse,  ///< refuse every peer: kernel TCP reaches the right one
  accept,  ///< accept a process of the same user where the kernel cannot be asked, because there is no other way
};
/// Returns whether a client may connect to `peer`, which has the name of the port `where`. The kernel's listener of the
/// port, on the address or a wildcard, must have the peer's uid, also if that is our own uid. Without such a listener a
/// peer of our own user is trusted; another peer must own the port by a bound socket. A process of another PID
/// namespace is not trusted, because root of a container has the same uid as root. The process that called listen(2)
/// may have ended: the process that answers in its place must be checked, too (Link::sender()).
/// @param owner the result of owner_by_kernel() for `where`
bool is_trusted_on_port(const PeerIdentity& peer, const PortBinding& where, const Result<uid_t>& owner,
                        Unproven unproven);
/// The same for a user of which no process is known yet.
bool is_trusted_on_port(uid_t uid, const PortBinding& where, const Result<uid_t>& owner, Unproven unproven);

/// Checks the addresses that clients claim: they must belong to this host, with a source port that the kernel would let
/// that user bind.
/// Threads: one at a time.
class ClientAddresses {
 public:
  /// Returns whether the claimed addresses are permitted. Counts refusals.
  /// @param network_of  a socket of the network namespace in question
  bool are_true(const PeerIdentity& peer, const SocketAddress& source, const SocketAddress& destination, int network_of,
                Nanos now);

 private:
  struct Known {
    SocketAddress host;  ///< port 0
    Nanos until{};
  };
  bool is_ours(SocketAddress host, int network_of, Nanos now);
  bool may_bind(const PeerIdentity& peer, std::uint16_t port, Nanos now);

  static constexpr Nanos kBelieved{1'000'000'000};  ///< how long an answer of the kernel is reused
  std::array<Known, 4> known_{};
  std::size_t next_ = 0;
  std::uint16_t first_free_port_ = 0;
  Nanos ports_until_{};
};

}  // namespace ringsock::soft
