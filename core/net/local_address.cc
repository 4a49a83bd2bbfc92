#include "core/net/local_address.h"

#include <linux/rtnetlink.h>
#include <netlink/errno.h>
#include <netlink/handlers.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>
#include <netlink/socket.h>

#include <memory>
#include <span>

namespace ringsock::net {

namespace {

using NetlinkSocket = std::unique_ptr<nl_sock, decltype(&nl_socket_free)>;
using NetlinkMessage = std::unique_ptr<nl_msg, decltype(&nlmsg_free)>;

/// libnl numbers its errors itself; the kernel's "no route" comes back as one of them.
int errno_of(int netlink_error) {
  switch (-netlink_error) {
    case NLE_NOMEM: return ENOMEM;
    case NLE_PERM: return EPERM;
    case NLE_NOACCESS: return EACCES;
    default: return EIO;
  }
}

/// The bytes of the address as a route attribute holds them.
std::span<const std::byte> address_bytes(const SocketAddress& address) {
  if (address.family() == AF_INET) return std::as_bytes(std::span(&address.in4().sin_addr, 1));
  return std::as_bytes(std::span(&address.in6().sin6_addr, 1));
}

NetlinkMessage route_query(const SocketAddress& address) {
  NetlinkMessage message(nlmsg_alloc_simple(RTM_GETROUTE, NLM_F_REQUEST), &nlmsg_free);
  if (!message) return message;
  const std::span<const std::byte> destination = address_bytes(address);
  rtmsg header{};
  header.rtm_family = static_cast<unsigned char>(address.family());
  header.rtm_dst_len = static_cast<unsigned char>(destination.size() * 8);
  const bool complete =
      nlmsg_append(message.get(), &header, sizeof header, NLMSG_ALIGNTO) == 0 &&
      nla_put(message.get(), RTA_DST, static_cast<int>(destination.size()), destination.data()) == 0 &&
      // A link-local address means something only together with its interface.
      (address.family() != AF_INET6 || address.in6().sin6_scope_id == 0 ||
       nla_put_u32(message.get(), RTA_OIF, address.in6().sin6_scope_id) == 0);
  if (!complete) message.reset();
  return message;
}

int note_route_type(nl_msg* message, void* is_local) {
  const nlmsghdr* header = nlmsg_hdr(message);
  if (header->nlmsg_type != RTM_NEWROUTE || !nlmsg_valid_hdr(header, sizeof(rtmsg))) return NL_SKIP;
  *static_cast<bool*>(is_local) = static_cast<const rtmsg*>(nlmsg_data(header))->rtm_type == RTN_LOCAL;
  return NL_STOP;
}

/// Errors of the look-up itself mean "no such route": not local.
bool is_look_up_failure(int netlink_error) {
  const int code = -netlink_error;
  return code != NLE_NOMEM && code != NLE_PERM && code != NLE_NOACCESS && code != NLE_BAD_SOCK;
}

Result<bool> ask_kernel(const SocketAddress& address) {
  // A socket per question: it stays right across fork(2) and setns(2), and costs little.
  const NetlinkSocket socket(nl_socket_alloc(), &nl_socket_free);
  const NetlinkMessage query = route_query(address);
  if (!socket || !query) return Error{ENOMEM, "netlink"};
  errno = 0;
  if (const int error = nl_connect(socket.get(), NETLINK_ROUTE); error < 0) {
    // libnl has no number for EMFILE and the like; errno still does.
    return Error{errno != 0 ? errno : errno_of(error), "netlink: socket"};
  }
  bool is_local = false;
  nl_socket_modify_cb(socket.get(), NL_CB_VALID, NL_CB_CUSTOM, &note_route_type, &is_local);
  if (const int error = nl_send_auto(socket.get(), query.get()); error < 0) {
    return Error{errno_of(error), "netlink: RTM_GETROUTE"};
  }
  if (const int error = nl_recvmsgs_default(socket.get()); error < 0 && !is_look_up_failure(error)) {
    return Error{errno_of(error), "netlink: RTM_GETROUTE"};
  }
  return is_local;
}

}  // namespace

Result<bool> is_local_address(const SocketAddress& address) {
  const SocketAddress plain = address.unmapped();
  if (plain.is_unspecified() || plain.is_infiniband() || plain.is_wildcard()) return false;
  if (plain.is_loopback()) return true;
  return ask_kernel(plain);
}

}  // namespace ringsock::net
