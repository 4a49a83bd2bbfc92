// Connections on a ring for programs that do not know it: after exec(2), or of descriptors that are sent elsewhere.
#pragma once

#include <sys/socket.h>

#include <functional>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "librsocket/stream_socket.h"
#include "preload/dual_socket.h"

namespace ringsock::preload {

struct HandOver {
  int fd;        ///< one descriptor of the connection
  bool at_once;  ///< the other program may use it although this process, or another one, has it open
};

/// The ring connection behind a descriptor of ours, or null: it is the kernel's, or no connection.
rs::StreamSocket* ring_connection(runtime::Endpoint& endpoint);

/// Kernel sockets, close-on-exec, that stand for these connections, in their order: a process of its own (relay.h)
/// keeps the rings and moves the bytes. Here the connections stay open; whoever wants that process to begin closes
/// them. Errors: those of socket(2), fork(2); then nothing has changed.
Result<std::vector<UniqueFd>> hand_over(std::span<const HandOver> connections);

/// sendmsg(2) and sendmmsg(2) on a kernel socket: connections of ours in the control data become the kernel's first.
/// Error: EOPNOTSUPP when that fails.
ssize_t send_with_control(int fd, const msghdr& message, int flags);
int send_many_with_control(int fd, mmsghdr* messages, unsigned count, int flags);

/// posix_spawn(3) for which connections of ours become descriptors of the new program (`numbers`): while `spawn()` runs
/// these numbers are the kernel's sockets that stand for them. An errno value.
int spawn_with(const std::vector<int>& numbers, const std::function<int()>& spawn);

/// These connections on a ring become the kernel's, under the same numbers and in the same epoll sets. One that another
/// process uses since a fork becomes what it is there (door.h). The kernel sockets of those that were handed over, in
/// their order. Errors: those of hand_over() and of follow().
Result<std::vector<UniqueFd>> hand_over_for_good(std::span<const runtime::Ref> connections);
/// A socket that is on no ring yet becomes the kernel's, with O_NONBLOCK as the application set it. Of a listener the
/// ring ends in all processes that have it; clients that have been answered wait in the kernel's backlog afterwards.
/// Not inside a read-side section.
void give_to_kernel(DualSocket& socket);
/// Whatever a socket of ours is, its descriptors are the kernel's from now on: for what a ring cannot do. False: they
/// are not, and nothing has changed.
bool become_kernels(const runtime::Ref& endpoint);
/// hand_over_for_good() with all that there are: before a filter, say, that rings cannot live with.
void hand_over_everything();

/// Before exec(2): what the application keeps becomes what it may keep. Also sets the kernel's flags to what the
/// application asked for.
void prepare_exec();

}  // namespace ringsock::preload
