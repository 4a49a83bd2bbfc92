#include "core/device/shm/names/sock_diag.h"

#include <linux/inet_diag.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/tcp.h>
#include <netlink/errno.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>

#include "core/base/no_cancellation.h"

namespace ringsock::soft {
namespace {

using verbs::PortSpace;

constexpr std::uint32_t kListenState = 1u << TCP_LISTEN;
constexpr std::uint32_t kClosedState = 1u << TCP_CLOSE;
constexpr std::uint32_t kBoundInactiveState = 1u << 13;  // TCP_BOUND_INACTIVE, since Linux 6.8; ignored before

struct FreeSocket {
  void operator()(nl_sock* socket) const { ::nl_socket_free(socket); }
};
struct FreeMessage {
  void operator()(nl_msg* message) const { ::nlmsg_free(message); }
};

/// Returns false to stop.
using Visit = std::function<bool(nlmsghdr*)>;
using VisitOne = std::function<void(nlmsghdr*)>;

int run_visit(nl_msg* message, void* visit) {
  return (*static_cast<const Visit*>(visit))(::nlmsg_hdr(message)) ? NL_OK : NL_STOP;
}

/// Translates libnl's error numbers.
int to_errno(int nl_error) {
  switch (nl_error < 0 ? -nl_error : nl_error) {
    case NLE_NOMEM: return ENOMEM;
    case NLE_PERM:
    case NLE_NOACCESS: return EPERM;
    case NLE_OBJ_NOTFOUND: return ENOENT;
    case NLE_AGAIN: return ETIMEDOUT;
    default: return EIO;
  }
}

/// Sends one request and visits each answer. Error: E2BIG when there are more than `most`.
/// @param flags  NLM_F_DUMP, or 0 for a request about one socket
template <class Request>
Status ask(int flags, Request request, const VisitOne& visit_one, std::size_t most = SIZE_MAX) {
  std::size_t seen = 0;
  const Visit visit = [&](nlmsghdr* header) {
    if (++seen <= most) visit_one(header);
    return seen <= most;
  };
  const NoCancellation until_it_is_freed;
  const std::unique_ptr<nl_sock, FreeSocket> socket(::nl_socket_alloc());
  const std::unique_ptr<nl_msg, FreeMessage> message(::nlmsg_alloc_simple(SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | flags));
  if (!socket || !message) return Error{ENOMEM, "sock_diag"};
  if (const int error = ::nl_connect(socket.get(), NETLINK_SOCK_DIAG); error < 0) {
    return Error{to_errno(error), "sock_diag: connect"};
  }
  // The kernel answers within the call; the time-out is a precaution.
  const timeval patience{1, 0};
  ::setsockopt(::nl_socket_get_fd(socket.get()), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (::nlmsg_append(message.get(), &request, sizeof request, NLMSG_ALIGNTO) < 0) return Error{ENOMEM, "sock_diag"};
  ::nl_socket_modify_cb(socket.get(), NL_CB_VALID, NL_CB_CUSTOM, run_visit, const_cast<Visit*>(&visit));
  if (const int error = ::nl_send_auto(socket.get(), message.get()); error < 0) {
    return Error{to_errno(error), "sock_diag: send"};
  }
  if (const int error = ::nl_recvmsgs_default(socket.get()); error < 0) {
    return Error{to_errno(error), "sock_diag: receive"};
  }
  if (seen > most) return Error{E2BIG, "sock_diag: too many sockets"};
  return ok();
}

SocketAddress local_address(const inet_diag_msg& entry) {
  const std::uint16_t port = ntohs(entry.id.idiag_sport);
  if (entry.idiag_family == AF_INET) return SocketAddress::v4(ntohl(entry.id.idiag_src[0]), port);
  in6_addr host{};
  std::memcpy(&host, entry.id.idiag_src, sizeof host);
  return SocketAddress::v6(host, port, entry.id.idiag_if);
}

/// Writes an address as sock_diag(7) has it.
void put_address(const SocketAddress& address, __be32 (&host)[4], __be16& port) {
  port = htons(address.port());
  if (address.family() == AF_INET) {
    std::memcpy(host, &address.in4().sin_addr, sizeof(in_addr));
  } else {
    std::memcpy(host, &address.in6().sin6_addr, sizeof(in6_addr));
  }
}

std::optional<PortHolder> read_inet(nlmsghdr* header, PortSpace space) {
  if (!::nlmsg_valid_hdr(header, sizeof(inet_diag_msg))) return std::nullopt;
  inet_diag_msg entry;
  std::memcpy(&entry, ::nlmsg_data(header), sizeof entry);
  PortHolder out{{space, canonical_address(local_address(entry)), false}, entry.idiag_uid};
  nlattr* v6_only = ::nlmsg_find_attr(header, sizeof entry, INET_DIAG_SKV6ONLY);
  if (v6_only != nullptr && ::nla_len(v6_only) >= 1) {
    out.binding.v6_only = *static_cast<const std::uint8_t*>(::nla_data(v6_only)) != 0;
  }
  return out;
}

/// Returns whether the socket holds its name. An accepted connection shows the name of its listener, which may be gone,
/// and holds no port by it.
bool holds_name(std::uint8_t state, PortRole role) { return role != PortRole::listening || state != TCP_ESTABLISHED; }

std::optional<NamedHolder> read_unix(nlmsghdr* header) {
  if (!::nlmsg_valid_hdr(header, sizeof(unix_diag_msg))) return std::nullopt;
  unix_diag_msg entry;
  std::memcpy(&entry, ::nlmsg_data(header), sizeof entry);
  nlattr* name = ::nlmsg_find_attr(header, sizeof entry, UNIX_DIAG_NAME);
  nlattr* uid = ::nlmsg_find_attr(header, sizeof entry, UNIX_DIAG_UID);
  if (name == nullptr || uid == nullptr || ::nla_len(name) < 2) return std::nullopt;
  const std::string_view text(static_cast<const char*>(::nla_data(name)), static_cast<std::size_t>(::nla_len(name)));
  if (text[0] != '\0') return std::nullopt;
  const auto parsed = parse_port_name(text.substr(1));
  if (!parsed || !holds_name(entry.udiag_state, parsed->role)) return std::nullopt;
  return NamedHolder{*parsed, std::string(text.substr(1)), ::nla_get_u32(uid)};
}

}  // namespace

Result<std::vector<PortHolder>> kernel_holders(PortSpace space, std::uint16_t port) {
  std::vector<PortHolder> out;
  const VisitOne visit = [&](nlmsghdr* header) {
    const auto holder = read_inet(header, space);
    if (holder && holder->binding.address.port() == port) out.push_back(*holder);
  };
  for (const int family : {AF_INET, AF_INET6}) {
    inet_diag_req_v2 request{};
    request.sdiag_family = static_cast<std::uint8_t>(family);
    request.sdiag_protocol = space == PortSpace::tcp ? IPPROTO_TCP : IPPROTO_UDP;
    // The kernel lists an unconnected UDP socket as closed.
    request.idiag_states = space == PortSpace::tcp ? kListenState | kBoundInactiveState : kClosedState;
    request.id.idiag_sport = htons(port);
    if (Status done = ask(NLM_F_DUMP, request, visit); !done) return done.error();
  }
  return out;
}

Result<uid_t> udp_port_owner(const SocketAddress& local, const SocketAddress& remote) {
  inet_diag_req_v2 request{};
  request.sdiag_family = static_cast<std::uint8_t>(local.family());
  request.sdiag_protocol = IPPROTO_UDP;
  request.idiag_states = ~0u;
  // The source is that of the packets.
  put_address(remote, request.id.idiag_src, request.id.idiag_sport);
  put_address(local, request.id.idiag_dst, request.id.idiag_dport);
  if (local.family() == AF_INET6) request.id.idiag_if = local.in6().sin6_scope_id;
  request.id.idiag_cookie[0] = request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  std::optional<uid_t> owner;
  const VisitOne visit = [&](nlmsghdr* header) {
    if (!::nlmsg_valid_hdr(header, sizeof(inet_diag_msg))) return;
    inet_diag_msg entry;
    std::memcpy(&entry, ::nlmsg_data(header), sizeof entry);
    owner = entry.idiag_uid;
  };
  if (Status done = ask(0, request, visit); !done) return done.error();
  if (!owner) return Error{ENOENT, "sock_diag: no socket"};
  return *owner;
}

Result<std::vector<NamedHolder>> named_holders(PortSpace space, std::uint16_t port, std::size_t most_sockets) {
  std::vector<NamedHolder> out;
  const VisitOne visit = [&](nlmsghdr* header) {
    auto holder = read_unix(header);
    if (!holder) return;
    const PortBinding& binding = holder->name.binding;
    if (binding.space == space && binding.address.port() == port) out.push_back(std::move(*holder));
  };
  unix_diag_req request{};
  request.sdiag_family = AF_UNIX;
  request.udiag_states = ~0u;
  request.udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_UID;
  if (Status done = ask(NLM_F_DUMP, request, visit, most_sockets); !done) return done.error();
  return out;
}

}  // namespace ringsock::soft
