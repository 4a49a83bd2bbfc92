#include "core/device/packet/steering/flow_table.h"

#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>

#include "core/device/packet/steering/libbpf.h"

namespace ringsock::soft {

namespace {

constexpr Error nonsense(const char* where) { return {EINVAL, where}; }
constexpr Error unsupported(const char* where) { return {EOPNOTSUPP, where}; }

enum class Mask { none, all, some };

Mask mask_of(const void* mask, std::size_t bytes) {
  const std::span bits(static_cast<const std::uint8_t*>(mask), bytes);
  if (std::ranges::all_of(bits, [](std::uint8_t byte) { return byte == 0xff; })) return Mask::all;
  return std::ranges::all_of(bits, [](std::uint8_t byte) { return byte == 0; }) ? Mask::none : Mask::some;
}

constexpr std::uint16_t kVlanIdMask = 0x0fff;

/// Reads the specifications of one rule.
class Parser {
 public:
  Status read(const std::byte* spec, ibv_flow_spec_type type, std::size_t size) {
    switch (type) {
      case IBV_FLOW_SPEC_ETH: return as<ibv_flow_spec_eth>(spec, size, [this](auto& eth) { return ethernet(eth); });
      case IBV_FLOW_SPEC_IPV4: return as<ibv_flow_spec_ipv4>(spec, size, [this](auto& ip) { return ipv4(ip); });
      case IBV_FLOW_SPEC_IPV6: return as<ibv_flow_spec_ipv6>(spec, size, [this](auto& ip) { return ipv6(ip); });
      case IBV_FLOW_SPEC_UDP:
      case IBV_FLOW_SPEC_TCP:
        match_.key.protocol = type == IBV_FLOW_SPEC_TCP ? IPPROTO_TCP : IPPROTO_UDP;
        return as<ibv_flow_spec_tcp_udp>(spec, size, [this](auto& ports) { return transport(ports); });
      default: return unsupported("create_flow: kind of specification");
    }
  }

  Result<FlowMatch> finish() {
    if (layer_ != Layer::transport) return unsupported("create_flow: no UDP or TCP");
    if (has_source_address_ != has_source_port_) return unsupported("create_flow: half a source");
    if (ether_type_ != 0 && ether_type_ != (match_.key.family == 4 ? kEtherTypeIpv4 : kEtherTypeIpv6))
      return nonsense("create_flow: ether type and IP version");
    return match_;
  }

 private:
  static constexpr std::uint16_t kEtherTypeIpv4 = 0x0800;
  static constexpr std::uint16_t kEtherTypeIpv6 = 0x86dd;
  enum class Layer { none, ethernet, ip, transport };

  template <class Spec, class Read>
  static Status as(const std::byte* bytes, std::size_t size, Read read) {
    if (size != sizeof(Spec)) return nonsense("create_flow: size of a specification");
    Spec spec;
    std::memcpy(&spec, bytes, sizeof spec);
    return read(spec);
  }

  /// Checks that each layer comes once, and in order from the outside.
  Status enter(Layer layer) {
    if (layer <= layer_ || (layer == Layer::transport && layer_ != Layer::ip))
      return nonsense("create_flow: order of specifications");
    layer_ = layer;
    return ok();
  }

  Status ethernet(const ibv_flow_spec_eth& eth) {
    if (Status entered = enter(Layer::ethernet); !entered) return entered;
    const Mask mac = mask_of(eth.mask.dst_mac, sizeof eth.mask.dst_mac);
    if (mac == Mask::some || mask_of(eth.mask.src_mac, sizeof eth.mask.src_mac) != Mask::none)
      return unsupported("create_flow: MAC addresses");
    if (mac == Mask::all && (eth.val.dst_mac[0] & 1) != 0) match_.is_group = true;
    if (eth.mask.ether_type != 0) ether_type_ = ntohs(eth.val.ether_type);
    const std::uint16_t tag = ntohs(eth.val.vlan_tag), mask = ntohs(eth.mask.vlan_tag);
    if (mask == 0) return ok();
    if ((mask & kVlanIdMask) != kVlanIdMask || (mask != kVlanIdMask && (tag & mask & ~kVlanIdMask) != 0))
      return unsupported("create_flow: part of a VLAN tag");
    match_.key.vlan = tag & kVlanIdMask;
    return match_.key.vlan == kVlanIdMask ? Status(nonsense("create_flow: VLAN id")) : ok();
  }

  Status ipv4(const ibv_flow_spec_ipv4& ip) {
    if (Status entered = enter(Layer::ip); !entered) return entered;
    match_.key.family = 4;
    const std::uint32_t destination = ntohl(ip.val.dst_ip);
    if (IN_MULTICAST(destination) || destination == INADDR_BROADCAST) match_.is_group = true;
    return addresses(&ip.val.dst_ip, &ip.mask.dst_ip, &ip.val.src_ip, &ip.mask.src_ip, sizeof ip.val.dst_ip);
  }

  Status ipv6(const ibv_flow_spec_ipv6& ip) {
    if (Status entered = enter(Layer::ip); !entered) return entered;
    if (ip.mask.flow_label != 0 || ip.mask.next_hdr != 0 || ip.mask.traffic_class != 0 || ip.mask.hop_limit != 0)
      return unsupported("create_flow: fields of IPv6");
    match_.key.family = 6;
    if (ip.val.dst_ip[0] == 0xff) match_.is_group = true;
    return addresses(ip.val.dst_ip, ip.mask.dst_ip, ip.val.src_ip, ip.mask.src_ip, sizeof ip.val.dst_ip);
  }

  Status addresses(const void* destination, const void* destination_mask, const void* source, const void* source_mask,
                   std::size_t bytes) {
    if (mask_of(destination_mask, bytes) != Mask::all) return unsupported("create_flow: destination address");
    std::memcpy(match_.key.destination, destination, bytes);
    const Mask mask = mask_of(source_mask, bytes);
    if (mask == Mask::some) return unsupported("create_flow: source address");
    has_source_address_ = mask == Mask::all;
    if (has_source_address_) std::memcpy(match_.key.source, source, bytes);
    return ok();
  }

  Status transport(const ibv_flow_spec_tcp_udp& ports) {
    if (Status entered = enter(Layer::transport); !entered) return entered;
    if (ports.mask.dst_port != 0xffff || (ports.mask.src_port != 0 && ports.mask.src_port != 0xffff))
      return unsupported("create_flow: ports");
    if (ports.val.dst_port == 0) return nonsense("create_flow: port 0");
    match_.key.destination_port = ports.val.dst_port;
    has_source_port_ = ports.mask.src_port != 0;
    if (has_source_port_ && ports.val.src_port == 0) return nonsense("create_flow: source port 0");
    if (has_source_port_) match_.key.source_port = ports.val.src_port;
    return ok();
  }

  FlowMatch match_;
  Layer layer_ = Layer::none;
  std::uint16_t ether_type_ = 0;
  bool has_source_address_ = false;
  bool has_source_port_ = false;
};

bool has_source(const flow_key& key) { return key.source_port != 0; }

flow_key with_ring(const FlowMatch& match, unsigned ring) {
  flow_key key = match.key;
  if (match.is_group) key.ring = ring;
  return key;
}

}  // namespace

Result<FlowMatch> parse_flow(const ibv_flow_attr& attr) {
  if (attr.comp_mask != 0 || attr.size < sizeof attr) return nonsense("create_flow: attributes");
  if (attr.type != IBV_FLOW_ATTR_NORMAL || attr.flags != 0) return unsupported("create_flow: type or flags");
  if (attr.port != 1) return nonsense("create_flow: port number");
  struct Head {
    ibv_flow_spec_type type;
    std::uint16_t size;
  };
  const std::byte* at = reinterpret_cast<const std::byte*>(&attr) + sizeof attr;
  std::size_t left = attr.size - sizeof attr;
  Parser parser;
  for (unsigned i = 0; i < attr.num_of_specs; ++i) {
    Head head;
    if (left < sizeof head) return nonsense("create_flow: size");
    std::memcpy(&head, at, sizeof head);
    if (head.size < sizeof head || head.size > left) return nonsense("create_flow: size of a specification");
    if (Status read = parser.read(at, head.type, head.size); !read) return read.error();
    at += head.size;
    left -= head.size;
  }
  if (left != 0) return nonsense("create_flow: size");
  return parser.finish();
}

Status FlowTable::add(const FlowMatch& match, unsigned ring) {
  const flow_key key = with_ring(match, ring);
  std::lock_guard guard(lock_);
  // Counted before the rule is added, so that no look-up misses the rule.
  count_exact(key, 1);
  if (bpf_map_update_elem(flows_.get(), &key, &ring, BPF_NOEXIST) == 0) return ok();
  const int code = errno;
  count_exact(key, -1);
  return Error{code == E2BIG ? ENOSPC : code, "create_flow"};
}

void FlowTable::remove(const FlowMatch& match, unsigned ring) {
  const flow_key key = with_ring(match, ring);
  std::lock_guard guard(lock_);
  if (bpf_map_delete_elem(flows_.get(), &key) != 0) return;
  count_exact(key, -1);
  under_way_.wait_for(ring);
}

void FlowTable::count_exact(const flow_key& key, int change) {
  if (!has_source(key)) return;
  hint_.exact_flows += static_cast<unsigned>(change);
  const std::uint32_t only = 0;
  bpf_map_update_elem(hints_.get(), &only, &hint_, BPF_ANY);
}

void FlowTable::forget() {
  flows_.reset();
  hints_.reset();
  under_way_.forget();
}

}  // namespace ringsock::soft
