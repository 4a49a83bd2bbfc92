// Who may take part in a connection: the rule of ARCHITECTURE.md, "Who may connect to whom".
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include "core/base/result.h"
#include "core/device/soft/cm/port_name.h"

namespace ringsock::soft {

/// SO_PEERCRED of a connected AF_UNIX socket: on the connecting side the credentials are those of the process that
/// called listen(), on the accepting side those of the process that called connect().
Result<ucred> peer_credentials(int socket);

/// Whether at least one kernel socket holds the port on an address that `where` overlaps, and all that do belong to
/// `uid`. False when the kernel cannot be asked.
bool owns_port(uid_t uid, const PortBinding& where);

/// Whether `uid` surely is this process's effective user. In a user namespace the kernel shows every unmapped user as
/// the overflow uid, so there that number names nobody.
bool is_own_uid(uid_t uid);

/// Whether this process may talk to `peer`, who claims to hold the port `where`.
bool is_trusted_on_port(uid_t peer, const PortBinding& where);

}  // namespace ringsock::soft
