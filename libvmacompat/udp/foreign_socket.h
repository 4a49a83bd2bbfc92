// AF_UNIX sockets to which other processes can send.
#pragma once

#include "core/base/unique_fd.h"

namespace ringsock::vma {

/// From now on no descriptors can be passed through the socket or the connections that it accepts: SO_PASSRIGHTS, Linux
/// 6.16. Does nothing on older kernels.
void refuse_descriptors(int socket);
/// Closes a connection or a listener. Closing frees the descriptors that wait in it. If a TCP socket with SO_LINGER is
/// among them, close(2) takes as long as the sender wants. So a socket that has not refused descriptors from the
/// beginning is closed by close_elsewhere().
void close_foreign_socket(UniqueFd socket);

}  // namespace ringsock::vma
