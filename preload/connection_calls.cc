// Connecting sockets, and their names.
#include <netinet/tcp.h>

#include <cerrno>
#include <optional>

#include "core/extra_api/shared_rings.h"
#include "core/transports/kernel_calls.h"
#include "preload/checked_transfer.h"
#include "preload/kernels_opinion.h"
#include "preload/socket_ways.h"

namespace ringsock::preload {
namespace {

/// A listener of a way also accepts connections that the kernel makes, which another way may carry.
void has_accepted(int fd, int flags) {
  if (fd_table().holds(fd)) return vma::join_shared_ring(fd, false);
  take_accepted(fd, flags);
}

/// The same for connect(2).
void has_connected(Lookup& socket, int fd, const sockaddr* address, socklen_t length, const Status& connected) {
  const bool is_under_way = !connected && (connected.error().code == EINPROGRESS || connected.error().code == EINTR);
  if (!connected && !is_under_way) return;
  if (!fd_table().holds(fd)) {
    auto* const way = socket->way();
    if (way != nullptr) take_connecting(fd, address, length, static_cast<bool>(connected), way->kept_options);
    return;
  }
  if (connected || connected.error().code == EINPROGRESS) vma::join_shared_ring(fd, true);
}

template <class Libcs>
int accept_ours(int fd, sockaddr* address, socklen_t* length, int flags, Libcs libcs) {
  const CancellationPoint point;
  bool is_ours = false;
  const int out = route_pinned(
      fd,
      [&](Lookup& socket) -> Result<int> {
        if ((flags & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) != 0) return Error{EINVAL, "accept4: flags"};
        SocketAddress peer;
        auto accepted = runtime::accept(socket, peer, flags);
        is_ours = static_cast<bool>(accepted);
        if (accepted) has_accepted(*accepted, flags);
        if (!accepted || address == nullptr) return accepted;
        if (const Status room = check_room_for_address(address, length); !room) {
          intercepted_close(*accepted);
          return room.error();
        }
        peer.copy_to(address, length);
        return accepted;
      },
      [&] {
        const int accepted = libcs();
        drop_stale(accepted);
        take_accepted(accepted, flags);
        return accepted;
      });
  if (is_ours) hand_overs().has_accepted();
  return out;
}

Result<SocketAddress> local_name(Lookup& socket) { return socket->local_name(); }
Result<SocketAddress> peer_name(Lookup& socket) {
  if (became_kernels_elsewhere(socket)) return kAskKernel;  // and may have no peer there any more
  return socket->peer_name();
}

int name_of(int fd, sockaddr* address, socklen_t* length, Result<SocketAddress> (*name)(Lookup&),
            int (*libcs)(int, sockaddr*, socklen_t*)) {
  return route_pinned(
      fd,
      [&](Lookup& socket) -> Status {
        auto found = name(socket);
        if (!found) return found.error();
        if (const Status room = check_room_for_address(address, length); !room) return room;
        found->copy_to(address, length);
        return ok();
      },
      [&] { return libcs(fd, address, length); });
}

/// Answers bind(2) on a socket that cannot be bound again: what is wrong with the address comes first.
Status why_not_bound(Lookup& socket, const sockaddr* address, socklen_t length) {
  auto wanted = SocketAddress::from(address, length);
  if (wanted) wanted->set_port(0);  // whether the port is free does not matter
  const KernelsOpinion kernel(domain_of(socket));
  const int bound =
      wanted ? real.bind(kernel.fd(), wanted->get(), wanted->length()) : real.bind(kernel.fd(), address, length);
  return bound != 0 ? Error::last("bind") : Error{EINVAL, "bind: bound already"};
}

/// Answers bind(2) on a socket that is connected, or was: after the connection's end the kernel binds it anew.
Status bind_again(Lookup& socket, int fd, const sockaddr* address, socklen_t length) {
  if (!hand_overs().may_bind_again(*socket)) return why_not_bound(socket, address, length);
  if (Status alone = hand_overs().become_unconnected(*socket); !alone) return Error{EINVAL, "bind: shared"};
  return real.bind(fd, address, length) != 0 ? Status(Error::last("bind")) : ok();
}

/// Carries out connect(2) with AF_UNSPEC on a connection that other processes have, too. The kernel disconnects the
/// socket that stands for it in all of them.
Status disconnect_for_all(runtime::Endpoint& socket, int fd) {
  if (!hand_overs().become_kernels(runtime::Ref::share(socket))) return Error{EISCONN, "connect: shared"};
  const sockaddr nowhere{.sa_family = AF_UNSPEC, .sa_data = {}};
  return real.connect(fd, &nowhere, sizeof nowhere) != 0 ? Status(Error::last("connect")) : ok();
}

/// Carries out connect(2) with AF_UNSPEC on what is on a ring. Returns nothing where the socket does so itself.
std::optional<Status> disconnect_ours(runtime::Endpoint& socket, int fd) {
  auto* const chosen = socket.as_chosen_socket();
  if (chosen == nullptr && !hand_overs().is_connection(socket)) return std::nullopt;  // neither made nor accepted
  if (chosen != nullptr && chosen->choice().is_on_no_way_yet()) hand_overs().give_to_kernel(*chosen);
  if (chosen != nullptr && chosen->is_kernel_socket()) return std::nullopt;
  Status alone = hand_overs().become_unconnected(socket);
  return !alone && alone.error().code == EISCONN ? disconnect_for_all(socket, fd) : alone;
}

/// Returns whether a connect(2) tells that its connection was made, and has been reset since.
bool is_reset(const Status& connected) {
  if (connected) return false;
  const int code = connected.error().code;
  return code == ECONNRESET || code == ECONNABORTED || code == EPIPE;
}

/// Returns what has become of a connect(2) that the kernel makes now, and that must not wait. EINTR: it is under way.
Status answer_of_kernel(int fd, const sockaddr* address, socklen_t length) {
  if (transports::tcp_state(fd) == TCP_SYN_SENT) return Error{EINTR, "connect"};
  return real.connect(fd, address, length) != 0 && errno != EISCONN ? Status(Error::last("connect")) : ok();
}

/// Carries out a blocking connect(2), which no signal interrupts where the kernel's would not wait.
Status connect_uninterrupted(Lookup& socket, int fd, const sockaddr* address, socklen_t length) {
  Status connected = runtime::connect(socket, address, length);
  auto* const chosen = socket->as_chosen_socket();
  if (connected || connected.error().code != EINTR || chosen == nullptr) return connected;
  hand_overs().finish_connect(*chosen);
  if (chosen->is_kernel_socket()) return answer_of_kernel(fd, address, length);
  const Status finished = socket->connect(address, length);
  if (!finished && finished.error().code == EISCONN) return ok();
  return !finished && finished.error().code == EALREADY ? connected : finished;
}

int connect_ours(int fd, const sockaddr* address, socklen_t length) {
  const CancellationPoint point;
  bool is_repeated = false;  // after a handler with SA_RESTART; the connection may stand by then
  return route_pinned(
      fd,
      [&](Lookup& socket) -> Status {
        if (Status fine = check_address(address, length); !fine) return fine;
        if (length < sizeof address->sa_family) return Error{EINVAL, "connect: address"};
        if (became_kernels_elsewhere(socket)) return kAskKernel;
        if (address->sa_family == AF_UNSPEC) [[unlikely]] {
          if (const auto done = disconnect_ours(*socket, fd)) return *done;
        }
        const Status connected = connect_uninterrupted(socket, fd, address, length);
        if (is_reset(connected) && hand_overs().is_connection(*socket)) {
          // As in the kernel, the socket may connect again once the reset has been told.
          [[maybe_unused]] const Status may_connect = hand_overs().become_unconnected(*socket);
        }
        const bool stands = !connected && connected.error().code == EISCONN && is_repeated;
        is_repeated = true;
        has_connected(socket, fd, address, length, connected);
        return stands ? ok() : connected;
      },
      [&] { return real.connect(fd, address, length); });
}

}  // namespace
}  // namespace ringsock::preload

using namespace ringsock;
using namespace ringsock::preload;

RS_INTERCEPT int bind(int fd, const sockaddr* address, socklen_t length) {
  return route_pinned(
      fd,
      [&](Lookup& socket) -> Status {
        if (Status fine = check_address(address, length); !fine) return fine;
        const Status bound = socket->bind(address, length);
        const bool is_bound_already = !bound && is_kernel_unasked(*socket);
        return is_bound_already ? bind_again(socket, fd, address, length) : bound;
      },
      [&] { return real.bind(fd, address, length); });
}

RS_INTERCEPT int listen(int fd, int backlog) {
  return route_pinned(
      fd,
      [&](Lookup& socket) {
        const Status listening = socket->listen(backlog);
        if (listening) vma::join_shared_ring(fd, false);
        return listening;
      },
      [&] { return real.listen(fd, backlog); });
}

RS_INTERCEPT int accept(int fd, sockaddr* address, socklen_t* length) {
  return accept_ours(fd, address, length, 0, [=] { return real.accept(fd, address, length); });
}

RS_INTERCEPT int accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  return accept_ours(fd, address, length, flags, [=] { return real.accept4(fd, address, length, flags); });
}

RS_INTERCEPT int connect(int fd, const sockaddr* address, socklen_t length) {
  return connect_ours(fd, address, length);
}
RS_INTERCEPT int __connect(int fd, const sockaddr* address, socklen_t length) {
  return connect_ours(fd, address, length);
}

RS_INTERCEPT int shutdown(int fd, int how) {
  return route_pinned(
      fd, [&](Lookup& socket) { return socket->shutdown(how); }, [&] { return real.shutdown(fd, how); });
}

RS_INTERCEPT int getsockname(int fd, sockaddr* address, socklen_t* length) {
  return name_of(fd, address, length, local_name, real.getsockname);
}

RS_INTERCEPT int getpeername(int fd, sockaddr* address, socklen_t* length) {
  return name_of(fd, address, length, peer_name, real.getpeername);
}

RS_BY_NUMBER(bind);
RS_BY_NUMBER(listen);
RS_BY_NUMBER(accept);
RS_BY_NUMBER(accept4);
RS_BY_NUMBER(connect);
RS_BY_NUMBER(shutdown);
RS_BY_NUMBER(getsockname);
RS_BY_NUMBER(getpeername);
