// Who may take part in a connection: the rule of ARCHITECTURE.md, "Who may connect to whom".
#pragma once

#include <sys/types.h>

#include <optional>

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
/// The process that segments may be kept for: it must be of our user, and the kernel must have a number for it (it has
/// none for processes of other PID namespaces).
std::optional<PeerProcess> kept_for(const PeerIdentity& peer);
/// SO_PEERCRED: on the connecting side that is the process that called listen(), on the accepting side the one that
/// called connect().
Result<PeerIdentity> identify_peer(int socket);

/// Whether at least one kernel socket holds the port on an address that `where` overlaps, and all that do belong to
/// `uid`. False when the kernel cannot be asked.
bool owns_port(uid_t uid, const PortBinding& where);

/// Whether `uid` surely is this process's effective user. In a user namespace the kernel shows every unmapped user as
/// the overflow uid, so there that number names nobody.
bool is_own_uid(uid_t uid);

/// Whether this process may talk to `peer`, who claims to hold the port `where`.
bool is_trusted_on_port(const PeerIdentity& peer, const PortBinding& where);

}  // namespace ringsock::soft
