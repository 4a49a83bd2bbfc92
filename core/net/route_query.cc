#include "core/net/route_query.h"

#include <arpa/inet.h>
#include <linux/rtnetlink.h>
#include <netlink/attr.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/net/netlink_messages.h"

namespace ringsock::net {

namespace {

constexpr std::uint8_t kDscpMask = 0xfc;
constexpr std::chrono::milliseconds kKernelTick{10};  // USER_HZ, which rta_expires counts in

bool has_source(const PathQuery& query) {
  return query.source.family() == query.destination.family() && !query.source.is_wildcard();
}

bool put_address(nl_msg* message, int type, const IpAddress& address) {
  const auto bytes = address.bytes();
  return nla_put(message, type, static_cast<int>(bytes.size()), bytes.data()) == 0;
}

bool put_number(nl_msg* message, int type, std::uint32_t value) {
  return value == 0 || nla_put_u32(message, type, value) == 0;
}

bool put_port(nl_msg* message, int type, std::uint16_t port) {
  return port == 0 || nla_put_u16(message, type, htons(port)) == 0;
}

/// The kernel takes ports only together with a protocol that has them.
bool put_ports(nl_msg* message, const PathQuery& query) {
  if (query.protocol != IPPROTO_UDP && query.protocol != IPPROTO_TCP) return true;
  return nla_put_u8(message, RTA_IP_PROTO, query.protocol) == 0 && put_port(message, RTA_SPORT, query.source_port) &&
         put_port(message, RTA_DPORT, query.destination_port);
}

PathType type_of(unsigned char route_type) {
  switch (route_type) {
    case RTN_UNICAST: return PathType::unicast;
    case RTN_LOCAL:
    case RTN_ANYCAST: return PathType::local;
    case RTN_BROADCAST: return PathType::broadcast;
    case RTN_MULTICAST: return PathType::multicast;
    default: return PathType::unreachable;
  }
}

/// Returns the errno of a send for routes that refuse. Source: fib_props of the kernel, route(8).
int errno_of(unsigned char route_type) {
  switch (route_type) {
    case RTN_BLACKHOLE: return EINVAL;
    case RTN_PROHIBIT: return EACCES;
    case RTN_UNREACHABLE: return EHOSTUNREACH;
    default: return ENETUNREACH;
  }
}

/// A gateway of another family: RTA_VIA has the family in its first two bytes.
IpAddress via(const nlattr* attribute) {
  std::uint16_t family = 0;
  if (attribute == nullptr || nla_len(attribute) < static_cast<int>(sizeof family)) return {};
  std::memcpy(&family, nla_data(attribute), sizeof family);
  const std::span bytes(static_cast<const std::byte*>(nla_data(attribute)),
                        static_cast<std::size_t>(nla_len(attribute)));
  return IpAddress::from_bytes(family, bytes.subspan(sizeof family)).value_or(IpAddress{});
}

void read_metrics(nlattr* nest, Path& path) {
  std::array<nlattr*, RTAX_MAX + 1> attributes{};
  if (nest == nullptr || nla_parse_nested(attributes.data(), RTAX_MAX, nest, nullptr) != 0) return;
  const auto metric = [&attributes](std::size_t which) {
    const nlattr* attribute = attributes[which];
    return attribute != nullptr && nla_len(attribute) == 4 ? nla_get_u32(attribute) : 0;
  };
  path.mtu = metric(RTAX_MTU);
  path.mtu_locked = (metric(RTAX_LOCK) & (1U << RTAX_MTU)) != 0;
  path.hop_limit = static_cast<std::uint8_t>(std::min(metric(RTAX_HOPLIMIT), 255U));
  path.tcp = {metric(RTAX_ADVMSS),  metric(RTAX_WINDOW),   metric(RTAX_INITCWND),     metric(RTAX_INITRWND),
              metric(RTAX_RTO_MIN), metric(RTAX_FEATURES), metric(RTAX_QUICKACK) != 0};
}

Nanos validity(const nlattr* attribute) {
  rta_cacheinfo info{};
  if (attribute == nullptr || nla_len(attribute) < static_cast<int>(sizeof info)) return {};
  std::memcpy(&info, nla_data(attribute), sizeof info);
  // The kernel rounds down, and a route with less than a tick left looks as if it never expired. The ticks added here
  // are for that.
  return info.rta_expires > 0 ? (info.rta_expires + 2) * Nanos(kKernelTick) : Nanos{};
}

}  // namespace

NetlinkMessage make_route_query(const PathQuery& query) {
  rtmsg header{};
  header.rtm_family = static_cast<unsigned char>(query.destination.family());
  header.rtm_dst_len = static_cast<unsigned char>(query.destination.bytes().size() * 8);
  header.rtm_tos = query.tos & kDscpMask;
  header.rtm_src_len = has_source(query) ? header.rtm_dst_len : 0;
  NetlinkMessage message = make_message(RTM_GETROUTE, 0, header);
  if (!message) return message;
  const bool complete = !query.destination.is_unspecified() && put_address(message.get(), RTA_DST, query.destination) &&
                        (!has_source(query) || put_address(message.get(), RTA_SRC, query.source)) &&
                        put_number(message.get(), RTA_OIF, static_cast<std::uint32_t>(query.oif)) &&
                        put_number(message.get(), RTA_MARK, query.mark) &&
                        (!query.uid || nla_put_u32(message.get(), RTA_UID, *query.uid) == 0) &&
                        put_ports(message.get(), query);
  if (!complete) message.reset();
  return message;
}

std::optional<PathAnswer> parse_route(const nlmsghdr& message, const PathQuery& query) {
  if (message.nlmsg_type != RTM_NEWROUTE || nlmsg_valid_hdr(&message, sizeof(rtmsg)) == 0) return std::nullopt;
  const auto& header = *static_cast<const rtmsg*>(nlmsg_data(&message));
  std::array<nlattr*, RTA_MAX + 1> attributes{};
  if (header.rtm_family != query.destination.family() ||
      nlmsg_parse(const_cast<nlmsghdr*>(&message), sizeof header, attributes.data(), RTA_MAX, nullptr) != 0) {
    return std::nullopt;
  }
  PathAnswer out;
  Path& path = out.path;
  path.type = type_of(header.rtm_type);
  // IPv6 kernels before 5.9 call the route of a group unicast.
  if (path.type == PathType::unicast && query.destination.is_multicast()) path.type = PathType::multicast;
  if (path.type == PathType::unreachable) {
    path.error = errno_of(header.rtm_type);
    return out;
  }
  if (const nlattr* oif = attributes[RTA_OIF]; oif != nullptr && nla_len(oif) == 4) {
    path.oif = static_cast<int>(nla_get_u32(oif));
  }
  path.source = has_source(query) ? query.source : address_of(header.rtm_family, attributes[RTA_PREFSRC]);
  path.next_hop = address_of(header.rtm_family, attributes[RTA_GATEWAY]);
  if (path.next_hop.is_unspecified()) path.next_hop = via(attributes[RTA_VIA]);
  path.has_gateway = !path.next_hop.is_unspecified();
  if (!path.has_gateway) path.next_hop = query.destination;
  path.kernel_only = attributes[RTA_ENCAP_TYPE] != nullptr;
  read_metrics(attributes[RTA_METRICS], path);
  out.valid_for = validity(attributes[RTA_CACHEINFO]);
  return out;
}

namespace {

Result<PathAnswer> ask_once(const PathQuery& query, const Ask& ask) {
  if (query.destination.is_unspecified()) return Error{EINVAL, "path: no destination"};
  const NetlinkMessage message = make_route_query(query);
  std::optional<PathAnswer> answer;
  const auto take = [&](const nlmsghdr& header) { answer = parse_route(header, query); };
  const Status status = ask(message.get(), take);
  if (answer) return *answer;
  if (status) return Error{EPROTO, "path: no answer"};
  const Error error = status.error();
  if (error.code == ENOMEM || error.code == ENOBUFS || error.code == EPROTO) return error;
  PathAnswer unreachable;
  unreachable.path.error = error.code;
  return unreachable;
}

}  // namespace

Result<PathAnswer> ask_path(const PathQuery& query, const Ask& ask) {
  auto answer = ask_once(query, ask);
  // In an IPv6 question with a source address the interface is only preferred, unless the question comes from a socket
  // that is bound to it, as a sender's socket is. Without the source the interface is mandatory.
  const bool elsewhere = answer && query.oif != 0 && answer->path.oif != query.oif;
  if (!elsewhere || !query.destination.is_v6() || !has_source(query)) return answer;
  PathQuery strict = query;
  strict.source = {};
  answer = ask_once(strict, ask);
  if (answer && answer->path.type != PathType::unreachable) answer->path.source = query.source;
  return answer;
}

}  // namespace ringsock::net
