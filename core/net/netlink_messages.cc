#include "core/net/netlink_messages.h"

#include <linux/fib_rules.h>
#include <linux/if_addr.h>
#include <linux/neighbour.h>
#include <linux/netconf.h>
#include <linux/nexthop.h>
#include <linux/rtnetlink.h>
#include <netlink/msg.h>
#include <sys/socket.h>

#include <array>
#include <span>

#include "core/net/netlink_link.h"

namespace ringsock::net {

namespace {

/// Returns the fixed part of a message, or null when the message is too short.
template <class Header>
const Header* header_of(const nlmsghdr& message) {
  if (nlmsg_valid_hdr(&message, sizeof(Header)) == 0) return nullptr;
  return static_cast<const Header*>(nlmsg_data(&message));
}

template <std::size_t Size>
bool parse_attributes(const nlmsghdr& message, std::size_t header_length, std::array<nlattr*, Size>& out) {
  return nlmsg_parse(const_cast<nlmsghdr*>(&message), static_cast<int>(header_length), out.data(),
                     static_cast<int>(Size) - 1, nullptr) == 0;
}

bool is_ip(int family) { return family == AF_INET || family == AF_INET6; }

std::optional<KernelEvent> address_event(const nlmsghdr& message) {
  const auto* header = header_of<ifaddrmsg>(message);
  std::array<nlattr*, IFA_MAX + 1> attributes{};
  if (header == nullptr || !is_ip(header->ifa_family) || !parse_attributes(message, sizeof *header, attributes)) {
    return std::nullopt;
  }
  InterfaceAddress out;
  out.ifindex = static_cast<int>(header->ifa_index);
  out.peer = address_of(header->ifa_family, attributes[IFA_ADDRESS]);
  out.address = address_of(header->ifa_family, attributes[IFA_LOCAL]);
  if (out.address.is_unspecified()) out.address = out.peer;
  if (out.address.is_unspecified()) return std::nullopt;
  out.broadcast = address_of(header->ifa_family, attributes[IFA_BROADCAST]);
  out.prefix_length = header->ifa_prefixlen;
  out.scope = header->ifa_scope;
  const nlattr* flags = attributes[IFA_FLAGS];
  out.flags = flags != nullptr && nla_len(flags) >= 4 ? nla_get_u32(flags) : header->ifa_flags;
  return AddressEvent{out, message.nlmsg_type == RTM_DELADDR};
}

std::optional<KernelEvent> route_event(const nlmsghdr& message) {
  const auto* header = header_of<rtmsg>(message);
  std::array<nlattr*, RTA_MAX + 1> attributes{};
  if (header == nullptr || !is_ip(header->rtm_family) || !parse_attributes(message, sizeof *header, attributes)) {
    return std::nullopt;
  }
  IpAddress destination = address_of(header->rtm_family, attributes[RTA_DST]);
  if (destination.is_unspecified()) destination = IpAddress::wildcard(header->rtm_family);
  return RouteEvent{{destination, header->rtm_dst_len}};
}

NeighbourState state_of(std::uint16_t nud) {
  switch (nud) {
    case NUD_INCOMPLETE: return NeighbourState::incomplete;
    case NUD_REACHABLE: return NeighbourState::reachable;
    case NUD_STALE: return NeighbourState::stale;
    case NUD_DELAY: return NeighbourState::delay;
    case NUD_PROBE: return NeighbourState::probe;
    case NUD_FAILED: return NeighbourState::failed;
    case NUD_NOARP: return NeighbourState::no_arp;
    case NUD_PERMANENT: return NeighbourState::permanent;
    default: return NeighbourState::none;
  }
}

std::optional<KernelEvent> neighbour_event(const nlmsghdr& message) {
  const auto* header = header_of<ndmsg>(message);
  std::array<nlattr*, NDA_MAX + 1> attributes{};
  if (header == nullptr || !is_ip(header->ndm_family) || (header->ndm_flags & NTF_PROXY) != 0 ||
      !parse_attributes(message, sizeof *header, attributes)) {
    return std::nullopt;
  }
  NeighbourEvent out{header->ndm_ifindex, address_of(header->ndm_family, attributes[NDA_DST]), {}};
  if (out.address.is_unspecified()) return std::nullopt;
  if (message.nlmsg_type == RTM_DELNEIGH) return out;
  const auto mac = mac_of(attributes[NDA_LLADDR]);
  out.facts = {state_of(header->ndm_state), mac.value_or(MacAddress{})};
  // A link layer without Ethernet addresses, for which no sender here can use the entry.
  if (out.facts.is_usable() && !mac) out.facts = {};
  return out;
}

std::optional<KernelEvent> rule_event(const nlmsghdr& message) {
  const auto* header = header_of<fib_rule_hdr>(message);
  if (header == nullptr || !is_ip(header->family)) return std::nullopt;
  return RoutingEvent{header->family};
}

std::optional<KernelEvent> setting_event(const nlmsghdr& message) {
  const auto* header = header_of<netconfmsg>(message);
  if (header == nullptr || !is_ip(header->ncm_family)) return std::nullopt;
  return RoutingEvent{header->ncm_family};
}

}  // namespace

IpAddress address_of(int family, const nlattr* attribute) {
  if (attribute == nullptr) return {};
  const std::span bytes(static_cast<const std::byte*>(nla_data(attribute)),
                        static_cast<std::size_t>(nla_len(attribute)));
  return IpAddress::from_bytes(family, bytes).value_or(IpAddress{});
}

bool is_rule_on_ports(const nlmsghdr& message) {
  constexpr int kFlowLabelMask = 27;  // FRA_FLOWLABEL_MASK, Linux 6.14
  const auto* header = header_of<fib_rule_hdr>(message);
  if (header == nullptr || message.nlmsg_type != RTM_NEWRULE) return false;
  int left = nlmsg_attrlen(&message, sizeof *header);
  for (const nlattr* one = nlmsg_attrdata(&message, sizeof *header); nla_ok(one, left); one = nla_next(one, &left)) {
    const int type = nla_type(one);
    if (type == FRA_SPORT_RANGE || type == FRA_DPORT_RANGE || type > kFlowLabelMask) return true;
  }
  return false;
}

std::optional<KernelEvent> parse_event(const nlmsghdr& message) {
  switch (message.nlmsg_type) {
    case RTM_NEWLINK:
    case RTM_DELLINK: return parse_link(message);
    case RTM_NEWADDR:
    case RTM_DELADDR: return address_event(message);
    case RTM_NEWROUTE:
    case RTM_DELROUTE: return route_event(message);
    case RTM_NEWNEIGH:
    case RTM_DELNEIGH: return neighbour_event(message);
    case RTM_NEWRULE:
    case RTM_DELRULE: return rule_event(message);
    case RTM_NEWNEXTHOP:
    case RTM_DELNEXTHOP: return RoutingEvent{AF_UNSPEC};
    case RTM_NEWNETCONF:
    case RTM_DELNETCONF: return setting_event(message);
    default: return std::nullopt;
  }
}

}  // namespace ringsock::net
