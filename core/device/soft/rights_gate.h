// Whether peers may pass descriptors over a socket: SO_PASSRIGHTS of Linux 6.16.
#pragma once

namespace ringsock::soft {

/// From now on sendmsg(2) with descriptors (SCM_RIGHTS) to this AF_UNIX socket fails with EPERM, and so does one to a
/// connection that waits in its backlog or was accepted from it. What is queued already stays. False: the kernel has no
/// such option, and peers go on passing what they like.
bool shut_rights_gate(int socket);
/// Peers may pass descriptors, as they may on a new socket.
void open_rights_gate(int socket);
/// What the last shut_rights_gate() of this process found.
bool has_rights_gate();
/// Whether this socket's is shut.
bool is_rights_gate_shut(int socket);

}  // namespace ringsock::soft
