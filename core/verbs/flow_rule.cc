#include "core/verbs/flow_rule.h"

#include <cstring>
#include <new>

namespace ringsock::verbs {

namespace {
/// Gives 5-tuples precedence over 3-tuples on devices that match in the order of priorities.
constexpr std::uint16_t kExactPriority = 0;
constexpr std::uint16_t kOpenPriority = 1;
constexpr std::uint16_t kAllBits = 0xffff;
}  // namespace

FlowRule::FlowRule(const FlowTuple& tuple) {
  auto* attr = new (bytes_) ibv_flow_attr{};
  attr->type = IBV_FLOW_ATTR_NORMAL;
  attr->size = sizeof(ibv_flow_attr);
  attr->priority = tuple.source.is_unspecified() ? kOpenPriority : kExactPriority;
  attr->port = 1;
  append_ethernet(tuple);
  append_ip(tuple);
  append_ports(tuple);
}

template <class Spec>
void FlowRule::append(Spec spec, ibv_flow_spec_type type) {
  spec.type = type;
  spec.size = sizeof spec;
  std::memcpy(bytes_ + attr().size, &spec, sizeof spec);
  attr().size = static_cast<std::uint16_t>(attr().size + sizeof spec);
  ++attr().num_of_specs;
}

void FlowRule::append_ethernet(const FlowTuple& tuple) {
  if (!tuple.vlan && !tuple.destination_mac) return;
  ibv_flow_spec_eth spec{};
  if (tuple.destination_mac) {
    std::memcpy(spec.val.dst_mac, tuple.destination_mac->data(), sizeof spec.val.dst_mac);
    std::memset(spec.mask.dst_mac, 0xff, sizeof spec.mask.dst_mac);
  }
  if (tuple.vlan) {
    spec.val.vlan_tag = htons(*tuple.vlan);
    spec.mask.vlan_tag = htons(0x0fff);
  }
  append(spec, IBV_FLOW_SPEC_ETH);
}

void FlowRule::append_ip(const FlowTuple& tuple) {
  const bool exact = !tuple.source.is_unspecified();
  if (tuple.destination.family() == AF_INET) {
    ibv_flow_spec_ipv4 spec{};
    spec.val.dst_ip = tuple.destination.in4().sin_addr.s_addr;
    spec.mask.dst_ip = UINT32_MAX;
    if (exact) {
      spec.val.src_ip = tuple.source.in4().sin_addr.s_addr;
      spec.mask.src_ip = UINT32_MAX;
    }
    append(spec, IBV_FLOW_SPEC_IPV4);
    return;
  }
  ibv_flow_spec_ipv6 spec{};
  std::memcpy(spec.val.dst_ip, &tuple.destination.in6().sin6_addr, sizeof spec.val.dst_ip);
  std::memset(spec.mask.dst_ip, 0xff, sizeof spec.mask.dst_ip);
  if (exact) {
    std::memcpy(spec.val.src_ip, &tuple.source.in6().sin6_addr, sizeof spec.val.src_ip);
    std::memset(spec.mask.src_ip, 0xff, sizeof spec.mask.src_ip);
  }
  append(spec, IBV_FLOW_SPEC_IPV6);
}

void FlowRule::append_ports(const FlowTuple& tuple) {
  ibv_flow_spec_tcp_udp spec{};
  spec.val.dst_port = htons(tuple.destination.port());
  spec.mask.dst_port = kAllBits;
  if (!tuple.source.is_unspecified()) {
    spec.val.src_port = htons(tuple.source.port());
    spec.mask.src_port = kAllBits;
  }
  append(spec, tuple.protocol == IPPROTO_TCP ? IBV_FLOW_SPEC_TCP : IBV_FLOW_SPEC_UDP);
}

}  // namespace ringsock::verbs
