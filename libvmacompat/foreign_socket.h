// AF_UNIX sockets that somebody else can put something into.
#pragma once

#include "core/base/unique_fd.h"

namespace ringsock::vma {

/// Nobody can pass descriptors by the socket, or by those that it accepts, from now on: SO_PASSRIGHTS, Linux 6.16.
void refuse_descriptors(int socket);
/// Closing frees the descriptors that wait in a socket, and a TCP socket with SO_LINGER among them takes as long as its
/// sender likes: such a socket is closed by a thread that nobody waits for.
void close_foreign_socket(UniqueFd socket);
/// The same for a listener and the connections that wait in it. Non-blocking.
void close_foreign_listener(UniqueFd listener);

}  // namespace ringsock::vma
