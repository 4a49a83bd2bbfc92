// The rules of ibv_create_flow(3) that a socket needs.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/base/socket_address.h"

namespace ringsock::verbs {

/// Packets of one protocol to one address and port, from anybody (a 3-tuple) or from one address and port (a 5-tuple,
/// which goes before the 3-tuples).
struct FlowTuple {
  std::uint8_t protocol;      ///< IPPROTO_UDP or IPPROTO_TCP
  SocketAddress destination;  ///< of the packets: a local address, or a multicast or broadcast address; and port
  SocketAddress source{};     ///< unspecified: anybody
  std::optional<std::uint16_t> vlan{};  ///< id, of tagged packets; absent: packets without tag
  /// Of the frames. Real devices want it; a broadcast address of a subnet is known by it. Absent: not looked at.
  std::optional<std::array<std::uint8_t, 6>> destination_mac{};
};

/// A rule as it is written down for ibv_create_flow(3): the attributes and the specifications behind them.
class FlowRule {
 public:
  /// `tuple` has an IPv4 or IPv6 destination; its source has the same family, if there is one.
  explicit FlowRule(const FlowTuple& tuple);
  FlowRule(const FlowRule&) = delete;
  FlowRule& operator=(const FlowRule&) = delete;

  [[nodiscard]] ibv_flow_attr& attr() { return *reinterpret_cast<ibv_flow_attr*>(bytes_); }

 private:
  template <class Spec>
  void append(Spec spec, ibv_flow_spec_type type);
  void append_ethernet(const FlowTuple& tuple);
  void append_ip(const FlowTuple& tuple);
  void append_ports(const FlowTuple& tuple);

  alignas(8) std::byte bytes_[sizeof(ibv_flow_attr) + sizeof(ibv_flow_spec_eth) + sizeof(ibv_flow_spec_ipv6) +
                              sizeof(ibv_flow_spec_tcp_udp)]{};
};

}  // namespace ringsock::verbs
