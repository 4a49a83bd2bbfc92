// The rules of ibv_create_flow(3) that a socket needs.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/base/socket_address.h"

namespace ringsock::verbs {

/// Selects packets of one protocol to one address and port, from any source (a 3-tuple) or from one address and port (a
/// 5-tuple, which takes precedence over 3-tuples).
struct FlowTuple {
  std::uint8_t protocol;                ///< IPPROTO_UDP or IPPROTO_TCP
  SocketAddress destination;            ///< a local, multicast or broadcast address, and the port
  SocketAddress source{};               ///< unspecified: any source
  std::optional<std::uint16_t> vlan{};  ///< VLAN id of tagged packets; absent: packets without tag
  /// The destination address of the frames. Real devices require it; it identifies the broadcast address of a subnet.
  /// Absent: any.
  std::optional<std::array<std::uint8_t, 6>> destination_mac{};
};

/// A rule in the memory layout of ibv_create_flow(3): the attributes followed by the specifications.
class FlowRule {
 public:
  /// `tuple` must have an IPv4 or IPv6 destination; its source, if any, has the same family.
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
