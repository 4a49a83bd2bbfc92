// The kernel's information about network interfaces and their addresses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/net/ip_address.h"
#include "core/net/mac_address.h"

namespace ringsock::net {

/// The kind of a link, as far as it decides which packets may be sent through it.
enum class LinkKind : std::uint8_t {
  physical,  ///< a NIC, or a link without a kind, such as the loopback interface
  veth,
  vlan,
  bond,
  bridge,
  macvlan,  ///< also macvtap
  vrf,
  tun,    ///< tun and tap
  other,  ///< see kind_name
};

/// A VLAN interface's tag, with which its frames leave through Link::lower.
struct VlanTag {
  std::uint16_t id = 0;             ///< 0..4095
  std::uint16_t protocol = 0x8100;  ///< Ethernet type: 0x8100 (802.1Q), 0x88a8 (802.1ad)

  bool operator==(const VlanTag&) const = default;
};

/// A bonding interface; its members are the links whose `master` it is.
struct BondFacts {
  std::uint8_t mode = 0;         ///< as linux/if_bonding.h: 1 active-backup, 4 802.3ad, ...
  std::uint8_t xmit_policy = 0;  ///< transmit hash: 0 layer2, 1 layer3+4, ...
  int active_member = 0;         ///< interface index in active-backup mode; 0: none

  bool operator==(const BondFacts&) const = default;
};

/// A network interface, as one netlink message describes it.
struct Link {
  int index = 0;
  std::string name;
  LinkKind kind = LinkKind::physical;
  std::string kind_name;             ///< IFLA_INFO_KIND, e.g. "veth"; empty: none
  std::uint16_t type = 0;            ///< ARPHRD_*: 1 Ethernet, 772 loopback, 65534 none (tun)
  std::uint32_t flags = 0;           ///< IFF_*
  std::uint32_t mtu = 0;             ///< bytes of IP packet
  MacAddress mac{};                  ///< zeros unless the address has 6 bytes
  MacAddress broadcast{};            ///< zeros unless the address has 6 bytes
  int master = 0;                    ///< bridge, bond or VRF that it belongs to; 0: none
  int lower = 0;                     ///< a VLAN's or macvlan's device below, a veth's peer; 0: none
  bool lower_elsewhere = false;      ///< `lower` counts in another network namespace
  std::uint32_t macvlan_mode = 0;    ///< MACVLAN_MODE_*; 0: not a macvlan
  std::uint32_t ipv6_hop_limit = 0;  ///< of the interface (router advertisements set it); 0: unknown
  std::uint32_t ipv6_mtu = 0;        ///< of the interface, at most `mtu`; 0: unknown, or IPv6 is off
  std::optional<VlanTag> vlan;
  std::optional<BondFacts> bond;

  [[nodiscard]] bool is_up() const;        ///< IFF_UP: it is enabled
  [[nodiscard]] bool is_running() const;   ///< IFF_UP and IFF_LOWER_UP: it has a carrier and packets may pass
  [[nodiscard]] bool is_ethernet() const;  ///< frames begin with an Ethernet header
  [[nodiscard]] bool is_loopback() const;
  [[nodiscard]] bool needs_neighbours() const;  ///< neither IFF_NOARP nor IFF_LOOPBACK nor point to point

  bool operator==(const Link&) const = default;
};

/// An address of an interface.
struct InterfaceAddress {
  int ifindex = 0;
  IpAddress address;               ///< the local one
  IpAddress peer;                  ///< of a point-to-point link; equal to `address` elsewhere
  IpAddress broadcast;             ///< unspecified when there is none
  std::uint8_t prefix_length = 0;  ///< bits
  std::uint8_t scope = 0;          ///< RT_SCOPE_*: 0 universe, 253 link, 254 host
  std::uint32_t flags = 0;         ///< IFA_F_*

  [[nodiscard]] bool is_deprecated() const;  ///< not for new connections
  [[nodiscard]] bool is_tentative() const;   ///< being checked for duplicates, or a duplicate: not to be used

  bool operator==(const InterfaceAddress&) const = default;
};

}  // namespace ringsock::net
