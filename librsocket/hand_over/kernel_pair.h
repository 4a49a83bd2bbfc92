// The kernel sockets that stand for connections on rings.
#pragma once

#include <sys/socket.h>

#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/base/unique_fd.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

/// The other program's end, and the relay's end.
struct SocketPair {
  UniqueFd theirs;
  UniqueFd relays;
};

/// Makes the two ends: a TCP connection, or UNIX-domain sockets where TCP does not work. They get numbers above the
/// limit where the program has used all others.
Result<SocketPair> make_pair(StreamSocket& socket);
/// Gives the kernel socket the flags and options of the application's open file description.
void dress(StreamSocket& socket, int theirs);
/// Copies the options that the application has set and the kernel socket has, too.
void copy_options(StreamSocket& socket, int theirs);
/// Carries the ends of shutdown(2) over. Only to a relay that starts at once: another one takes the end for the
/// program's, which has closed the socket without using it.
void shut_as_before(StreamSocket& socket, int theirs);

/// Returns a TCP socket, close-on-exec, with a number that the program does not use. Empty with errno on errors.
UniqueFd tcp_socket(int domain, int flags = 0);
bool bind_to(int fd, const SocketAddress& address);
/// Binds the relay's end to the peer's address, and to its port if the kernel allows that: getpeername(2) then returns
/// the same as before.
Status bind_as(int relays, const SocketAddress& peer);
/// Sets an option to 1.
void set_option(int fd, int level, int name);
/// Returns what getsockname(2) or getpeername(2) says.
Result<SocketAddress> name_of(int (*call)(int, sockaddr*, socklen_t*), int fd);

}  // namespace ringsock::rs
