// Descriptors of endpoints that are sent to other processes or given to posix_spawn(3).
#pragma once

#include <sys/socket.h>

#include <functional>
#include <vector>

namespace ringsock::preload {

/// Carry out sendmsg(2) and sendmmsg(2) on a kernel socket. Connections on a way in the control data move to the kernel
/// first. Error: EOPNOTSUPP when that fails.
ssize_t send_with_control(int fd, const msghdr& message, int flags);
int send_many_with_control(int fd, mmsghdr* messages, unsigned count, int flags);

/// Carries out a posix_spawn(3) that gives connections on a way to the new program (`numbers`). While `spawn()` runs,
/// these numbers are the kernel sockets that stand for the connections. Returns an errno value.
int spawn_with(const std::vector<int>& numbers, const std::function<int()>& spawn);

}  // namespace ringsock::preload
