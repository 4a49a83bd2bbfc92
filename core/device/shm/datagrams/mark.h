// The place in the kernel's stream of datagrams behind which a ring begins.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>

namespace ringsock::soft {

// The kernel carries a sender's first datagrams. The last of these, behind which its ring begins, has a hop limit that
// no other datagram of the sender has: the receiver reads it as control data, and the application does not see it. On
// its way within the host nothing looks at it.

/// Marks are the hop limits kFirstMark ... kFirstMark + kMarks - 1: a sender's next mark is another one.
inline constexpr int kFirstMark = 128;
inline constexpr int kMarks = 64;
/// Returns the mark behind `mark`; the first one for 0. Pure.
constexpr int mark_behind(int mark) { return kFirstMark + (mark == 0 ? 0 : (mark - kFirstMark + 1) % kMarks); }

/// sendmsg(2) without waiting, of a datagram that has no control data. Returns -1 and sets errno as that does; EINVAL:
/// perhaps a system that sends no marks. Threads: any.
/// @param family  of the destination, of a SocketAddress::unmapped()
ssize_t send_with_mark(int fd, const msghdr& message, int flags, int family, int mark);

/// Makes the socket tell the marks of what it receives from now on, or not any more. Threads: any.
/// @param domain  of the socket
void tell_marks(int fd, int domain, bool on);
/// Room for a mark in msghdr::msg_control, of an IPv6 socket, which tells both kinds.
inline constexpr std::size_t kMarkRoom = 2 * CMSG_SPACE(sizeof(int));
/// Returns the mark of a received datagram, 0: it has none. Pure.
int mark_of(const msghdr& message);

}  // namespace ringsock::soft
