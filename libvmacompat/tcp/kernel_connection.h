// Established TCP connections of the kernel: taken out of it, and put back (TCP_REPAIR).
#pragma once

#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/engine/tcp/established.h"

namespace ringsock::vma {

// A connection moves within its socket, so the descriptor, its copies, its options and its owner stay. While the
// connection is in user space the socket is a *placeholder*: it keeps both addresses and ports, it has no bytes in its
// queues and no timers, and it is frozen. A placeholder that is closed says nothing to the peer.
//
// The order that loses nothing: a rule brings the peer's segments to a ring; take_out(); the ring's segments go to the
// engine. Back: put_back(); the rule goes; go_on(); the rest of the ring's segments go to the kernel.
//
// All of this needs CAP_NET_ADMIN in the user namespace that owns the socket's network namespace.

/// Takes the connection of `fd` out of the kernel and leaves a placeholder. After an error the kernel goes on with the
/// connection as if nothing had been tried. Segments that had arrived out of order are forgotten; the peer repeats
/// them. Threads: the caller keeps other threads from using the socket. Errors: EPERM no CAP_NET_ADMIN; ENOTCONN the
/// socket is not in the state ESTABLISHED, or an error waits in it (the application has to see it); EOPNOTSUPP the
/// connection cannot move: urgent data, Fast Open data, an own MD5 key, a filter of packets. ECONNABORTED the
/// placeholder could not be made: the connection is lost, which only a lack of memory explains.
Result<engine::tcp::Established> take_out(int fd);

/// Puts a connection back into its placeholder, or into a new socket of the same family, which gets `local` and `peer`.
/// The socket stays frozen until go_on(). The bytes that were sent and not acknowledged, and those that nobody has read
/// are in its queues then; unsent ones are not.
/// Errors: EOPNOTSUPP `state` has `peer_closed`; EADDRINUSE another socket has the connection's addresses and ports;
/// ENOMEM the queues do not fit; EPERM. The socket is closed for the network then (TCP_CLOSE).
Status put_back(int fd, const SocketAddress& local, const SocketAddress& peer, const engine::tcp::Established& state);

/// Ends the freeze: the kernel tells the peer where the connection stands, which brings the peer's window, and sends
/// the bytes that `state` has as unsent. Errors: those of send(2); ENOBUFS the send queue did not take all of the
/// unsent bytes.
Status go_on(int fd, const engine::tcp::Established& state);

}  // namespace ringsock::vma
