#include "core/net/local_address.h"

#include "core/net/ip_address.h"
#include "core/net/netlink_socket.h"
#include "core/net/route_query.h"

namespace ringsock::net {

Result<bool> is_local_address(const SocketAddress& address) {
  const SocketAddress plain = address.unmapped();
  if (plain.is_unspecified() || plain.is_infiniband() || plain.is_wildcard()) return false;
  if (plain.is_loopback()) return true;

  // Each question opens a socket, which stays correct across fork(2) and setns(2) and costs little.
  auto socket = NetlinkSocket::open(NETLINK_ROUTE);
  if (!socket) return socket.error();
  PathQuery query;
  query.destination = IpAddress::of(plain);
  // A link-local address means something only together with its interface.
  if (plain.family() == AF_INET6) query.oif = static_cast<int>(plain.in6().sin6_scope_id);
  const auto answer =
      ask_path(query, [&socket](nl_msg* question, const OnMessage& take) { return socket->ask(question, take); });
  if (!answer) return answer.error();
  return answer->path.type == PathType::local;
}

}  // namespace ringsock::net
