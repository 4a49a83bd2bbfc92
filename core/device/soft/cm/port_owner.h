// Who may take part in a connection: the rule of ARCHITECTURE.md, "Who may connect to whom".
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <optional>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/device/soft/cm/port_name.h"
#include "core/device/soft/rc_wiring.h"

namespace ringsock::soft {

/// Who is at the other end of an AF_UNIX connection.
struct PeerIdentity {
  pid_t pid = 0;
  uid_t uid = 0;
  bool same_user = false;  ///< surely this process's effective user
};
/// The process that segments of its may be kept for: the kernel must have a number for it (it has none for processes of
/// other PID namespaces).
std::optional<PeerProcess> kept_for(const PeerIdentity& peer);
/// Who else may be offered a segment of ours that a connection with the owner of that listener had: only that process,
/// or, for one of our own user, any process of which the kernel says that it is our own user's, too (Link::sender()):
/// each of those could read the memory of the others anyway (ptrace(2)).
std::optional<PeerProcess> offered_to(const PeerIdentity& listener);
/// SO_PEERCRED: on the connecting side that is the process that called listen(), on the accepting side the one that
/// called connect().
Result<PeerIdentity> identify_peer(int socket);

/// Whether at least one kernel socket holds the port on an address that `where` overlaps, and all that do belong to
/// `uid`. False when the kernel cannot be asked.
bool owns_port(uid_t uid, const PortBinding& where);

/// Whether `uid` surely is this process's effective user. In a user namespace the kernel shows every unmapped user as
/// the overflow uid, so there that number names nobody.
bool is_own_uid(uid_t uid);

/// What a client without proof does.
enum class Unproven : bool {
  refuse,  ///< nobody: the kernel's TCP goes to the right one
  accept,  ///< where the kernel cannot be asked, a process of its own user will do: there is no other way
};
/// Whether a client may talk to `peer`, who has the name of the port `where`: the kernel's listener there, wildcards
/// and all, is of the peer's uid, this process's own one included. Where the kernel has none, a peer of the own user is
/// nobody's impostor; another one must own the port by a socket that is bound. Not a process of another PID namespace:
/// a container's root is root for the kernel's listener, too. The process that called listen(2) may have ended: who
/// answers in its place must be looked at, too (Link::sender()).
/// @param owner  what owner_by_kernel() says of `where`
bool is_trusted_on_port(const PeerIdentity& peer, const PortBinding& where, const Result<uid_t>& owner,
                        Unproven unproven);
/// The same of a user, of whom no process is known yet.
bool is_trusted_on_port(uid_t uid, const PortBinding& where, const Result<uid_t>& owner, Unproven unproven);

/// Which addresses a server believes its clients: this host's, and a source port that the kernel would let that user
/// bind. A client says them, nobody else does.
/// Threads: one at a time.
class ClientAddresses {
 public:
  /// Counts what it refuses.
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

  static constexpr Nanos kBelieved{1'000'000'000};  ///< how long an answer of the kernel is used
  std::array<Known, 4> known_{};
  std::size_t next_ = 0;
  std::uint16_t first_free_port_ = 0;
  Nanos ports_until_{};
};

}  // namespace ringsock::soft
