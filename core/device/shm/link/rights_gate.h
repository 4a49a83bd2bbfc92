// Controls whether peers may pass descriptors over a socket: SO_PASSRIGHTS of Linux 6.16.
#pragma once

namespace ringsock::soft {

/// Makes sendmsg(2) with descriptors (SCM_RIGHTS) to this AF_UNIX socket fail with EPERM, and also to connections in
/// its backlog or accepted from it. Packets that are queued already stay. Returns false when the kernel has no such
/// option.
bool shut_rights_gate(int socket);
/// Lets peers pass descriptors, as on a new socket.
void open_rights_gate(int socket);
/// Returns the result of the last shut_rights_gate() of this process.
bool has_rights_gate();
/// Returns whether the gate of this socket is shut.
bool is_rights_gate_shut(int socket);

}  // namespace ringsock::soft
