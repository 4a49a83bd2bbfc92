#include "core/net/netlink_link.h"

#include <arpa/inet.h>
#include <linux/if_link.h>
#include <linux/ipv6.h>
#include <linux/rtnetlink.h>
#include <netlink/msg.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <string_view>

namespace ringsock::net {

namespace {

/// Returns the attributes within another one, or none when it is absent or malformed.
template <std::size_t Size>
std::array<nlattr*, Size> nested(const nlattr* outer) {
  std::array<nlattr*, Size> out{};
  if (outer == nullptr ||
      nla_parse_nested(out.data(), static_cast<int>(Size) - 1, const_cast<nlattr*>(outer), nullptr) != 0) {
    out = {};
  }
  return out;
}

/// Returns a number in the host's byte order, or 0 when it is absent or of another size.
template <class T>
T number(const nlattr* attribute) {
  T value = 0;
  if (attribute != nullptr && nla_len(attribute) == static_cast<int>(sizeof value)) {
    std::memcpy(&value, nla_data(attribute), sizeof value);
  }
  return value;
}

int index_in(const nlattr* attribute) { return static_cast<int>(number<std::uint32_t>(attribute)); }

std::string text(const nlattr* attribute) {
  if (attribute == nullptr) return {};
  const auto* begin = static_cast<const char*>(nla_data(attribute));
  return {begin, ::strnlen(begin, static_cast<std::size_t>(nla_len(attribute)))};
}

LinkKind kind_of(std::string_view name) {
  struct Row {
    std::string_view name;
    LinkKind kind;
  };
  static constexpr std::array kRows = {
      Row{"", LinkKind::physical},       Row{"veth", LinkKind::veth},     Row{"vlan", LinkKind::vlan},
      Row{"bond", LinkKind::bond},       Row{"bridge", LinkKind::bridge}, Row{"macvlan", LinkKind::macvlan},
      Row{"macvtap", LinkKind::macvlan}, Row{"vrf", LinkKind::vrf},       Row{"tun", LinkKind::tun},
  };
  for (const Row& row : kRows) {
    if (row.name == name) return row.kind;
  }
  return LinkKind::other;
}

VlanTag vlan_tag(const nlattr* data) {
  const auto attributes = nested<IFLA_VLAN_MAX + 1>(data);
  VlanTag tag;
  tag.id = number<std::uint16_t>(attributes[IFLA_VLAN_ID]);
  if (const auto protocol = number<std::uint16_t>(attributes[IFLA_VLAN_PROTOCOL]); protocol != 0) {
    tag.protocol = ntohs(protocol);
  }
  return tag;
}

BondFacts bond_facts(const nlattr* data) {
  const auto attributes = nested<IFLA_BOND_MAX + 1>(data);
  return {number<std::uint8_t>(attributes[IFLA_BOND_MODE]),
          number<std::uint8_t>(attributes[IFLA_BOND_XMIT_HASH_POLICY]), index_in(attributes[IFLA_BOND_ACTIVE_SLAVE])};
}

void read_kind(const nlattr* link_info, Link& link) {
  const auto attributes = nested<IFLA_INFO_MAX + 1>(link_info);
  const nlattr* data = attributes[IFLA_INFO_DATA];
  link.kind_name = text(attributes[IFLA_INFO_KIND]);
  link.kind = kind_of(link.kind_name);
  if (link.kind == LinkKind::vlan) link.vlan = vlan_tag(data);
  if (link.kind == LinkKind::bond) link.bond = bond_facts(data);
  if (link.kind == LinkKind::macvlan) {
    link.macvlan_mode = number<std::uint32_t>(nested<IFLA_MACVLAN_MAX + 1>(data)[IFLA_MACVLAN_MODE]);
  }
}

/// The interface's IPv6 settings: an array of numbers by DEVCONF_*.
Inet6LinkEvent inet6_settings(int ifindex, const nlattr* inet6) {
  const nlattr* settings = nested<IFLA_INET6_MAX + 1>(inet6)[IFLA_INET6_CONF];
  const auto setting = [settings](std::size_t which) -> std::uint32_t {
    std::int32_t value = 0;
    if (settings == nullptr || nla_len(settings) < static_cast<int>((which + 1) * sizeof value)) return 0;
    std::memcpy(&value, static_cast<const std::byte*>(nla_data(settings)) + which * sizeof value, sizeof value);
    return value > 0 ? static_cast<std::uint32_t>(value) : 0;
  };
  return {ifindex, setting(DEVCONF_HOPLIMIT), setting(DEVCONF_MTU6)};
}

using LinkAttributes = std::array<nlattr*, IFLA_MAX + 1>;

Link link_facts(const ifinfomsg& header, const LinkAttributes& attributes) {
  Link link;
  link.index = header.ifi_index;
  link.name = text(attributes[IFLA_IFNAME]);
  link.type = header.ifi_type;
  link.flags = header.ifi_flags;
  link.mtu = number<std::uint32_t>(attributes[IFLA_MTU]);
  link.mac = mac_of(attributes[IFLA_ADDRESS]).value_or(MacAddress{});
  link.broadcast = mac_of(attributes[IFLA_BROADCAST]).value_or(MacAddress{});
  link.master = index_in(attributes[IFLA_MASTER]);
  link.lower = index_in(attributes[IFLA_LINK]);
  link.lower_elsewhere = attributes[IFLA_LINK_NETNSID] != nullptr;
  read_kind(attributes[IFLA_LINKINFO], link);
  const auto families = nested<AF_INET6 + 1>(attributes[IFLA_AF_SPEC]);
  const Inet6LinkEvent inet6 = inet6_settings(link.index, families[AF_INET6]);
  link.ipv6_hop_limit = inet6.hop_limit;
  link.ipv6_mtu = inet6.mtu;
  return link;
}

}  // namespace

std::optional<MacAddress> mac_of(const nlattr* attribute) {
  MacAddress mac{};
  if (attribute == nullptr || nla_len(attribute) != static_cast<int>(mac.size())) return std::nullopt;
  std::memcpy(mac.data(), nla_data(attribute), mac.size());
  return mac;
}

std::optional<KernelEvent> parse_link(const nlmsghdr& message) {
  if (nlmsg_valid_hdr(&message, sizeof(ifinfomsg)) == 0) return std::nullopt;
  const auto& header = *static_cast<const ifinfomsg*>(nlmsg_data(&message));
  LinkAttributes attributes{};
  if (nlmsg_parse(const_cast<nlmsghdr*>(&message), sizeof header, attributes.data(), IFLA_MAX, nullptr) != 0) {
    return std::nullopt;
  }
  if (header.ifi_family == AF_INET6 && message.nlmsg_type == RTM_NEWLINK && attributes[IFLA_PROTINFO] != nullptr) {
    return inet6_settings(header.ifi_index, attributes[IFLA_PROTINFO]);
  }
  if (header.ifi_family != AF_UNSPEC) return std::nullopt;
  return LinkEvent{link_facts(header, attributes), message.nlmsg_type == RTM_DELLINK};
}

}  // namespace ringsock::net
