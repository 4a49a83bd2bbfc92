// What the next program gets of this process's sockets (execve(2)).
#pragma once

#include "core/base/result.h"
#include "core/transports/chosen_socket.h"

namespace ringsock::rs {

/// Called before FD_CLOEXEC of `fd` is cleared. When a forked child does that to a listener, the child's next program
/// is to accept, and the ring must end for all processes (prepare_exec()). It ends now, because a program that closes
/// all other descriptors before exec(2), as Python does, closes the ring's, too.
void listener_is_prepared(transports::ChosenSocket& socket, int fd);
/// Prepares sockets for exec(2): those that the program inherits become kernel sockets where possible, and the kernel's
/// flags become those that the application set. Errors: EMFILE, ENFILE, ENOMEM for a connection that is meant for the
/// program.
Status prepare_exec();

}  // namespace ringsock::rs
