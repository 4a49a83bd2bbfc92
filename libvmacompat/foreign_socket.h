// AF_UNIX sockets that somebody else can put something into.
#pragma once

#include "core/base/unique_fd.h"

namespace ringsock::vma {

/// Nobody can pass descriptors by the socket, or by those that it accepts, from now on: SO_PASSRIGHTS, Linux 6.16.
void refuse_descriptors(int socket);
/// Of a connection or a listener. Closing frees the descriptors that wait in it, and a TCP socket with SO_LINGER among
/// them takes as long as its sender likes: unless it has refused them from the beginning, it is closed by
/// close_elsewhere().
void close_foreign_socket(UniqueFd socket);

}  // namespace ringsock::vma
