#include "librsocket/hand_over/waiting_clients.h"

#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/base/log.h"
#include "core/base/raised_limit.h"
#include "core/poll/socket_calls.h"
#include "core/runtime/fd_table.h"
#include "librsocket/hand_over/kernel_pair.h"
#include "librsocket/hand_over/start_relay.h"

namespace ringsock::rs {

using runtime::fd_table;
using runtime::Ref;

namespace {

/// Makes a kernel connection to the listener, from the client's address to the address that it connected to. The
/// connection waits in the kernel's backlog.
Result<UniqueFd> connect_as(StreamSocket& client, const SocketAddress& peer) {
  const auto local = client.local_name();
  if (!local) return local.error();
  const RaisedLimit beyond_full_table;
  UniqueFd relays = tcp_socket(local->family(), SOCK_NONBLOCK);
  if (!relays) return Error::last("hand-over: socket");
  if (Status bound = bind_as(relays.get(), peer); !bound) return bound.error();
  if (::connect(relays.get(), local->get(), local->length()) != 0 && errno != EINPROGRESS)
    return Error::last("hand-over: connect");
  set_option(relays.get(), IPPROTO_TCP, TCP_NODELAY);
  return relays;
}

}  // namespace

void WaitingClients::take_from(StreamSocket& listener) {
  SocketAddress peer;
  while (const auto ring = listener.listener().accept_waiting(peer, SOCK_CLOEXEC)) {
    const Ref client = fd_table().get(*ring);
    auto connected = client ? connect_as(stream_of(*client), peer) : Error{EBADF, "hand-over"};
    if (!connected) {
      log_warn("a client that nobody has accepted is lost: %s", connected.error().where);
      static_cast<void>(runtime::close_descriptor(*ring, runtime::WaitingCalls::end));
      continue;
    }
    relayed_.push_back({*ring, connected->get(), true, -1, ::getpid()});
    relays_.push_back(*std::move(connected));
  }
}
void WaitingClients::hand_over() {
  if (relayed_.empty()) return;
  if (Status started = start_relay(relayed_); !started)
    log_warn("clients that nobody has accepted are lost: %s", started.error().where);
  for (const RelayedConnection& one : relayed_)
    static_cast<void>(runtime::close_descriptor(one.ring, runtime::WaitingCalls::end));
}

}  // namespace ringsock::rs
