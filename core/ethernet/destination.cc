#include "core/ethernet/destination.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <bit>
#include <cstring>

#include "core/wire/emit.h"
#include "core/wire/ethernet_frame.h"
#include "core/wire/ip.h"
#include "core/wire/udp.h"

namespace ringsock::ethernet {

namespace {

wire::Ipv6Address bytes_of(const in6_addr& address) { return std::bit_cast<wire::Ipv6Address>(address); }
wire::Be32 word_of(const in_addr& address) { return std::bit_cast<wire::Be32>(address.s_addr); }

}  // namespace

HeaderTemplate::HeaderTemplate(const net::MacAddress& source_mac, const net::MacAddress& destination_mac,
                               const SocketAddress& source, const SocketAddress& destination,
                               const SendOptions& options, std::uint8_t hop_limit, std::uint8_t protocol,
                               engine::IdentificationNumbers& numbers)
    : is_v4_(destination.family() == AF_INET),
      may_be_cut_(is_v4_ && !options.forbids_fragments),
      protocol_(protocol),
      numbers_(&numbers) {
  const std::uint16_t type = is_v4_ ? wire::kEtherTypeIpv4 : wire::kEtherTypeIpv6;
  auto rest =
      wire::emit(std::span<std::byte>(data_), wire::EthernetHeader{destination_mac, source_mac, wire::Be16(type)});
  if (is_v4_) {
    auto ip = wire::make_ipv4_header({.tos = options.traffic_class,
                                      .payload_bytes = 0,
                                      .fragment = may_be_cut_ ? std::uint16_t{0} : wire::kIpv4DontFragment,
                                      .ttl = hop_limit,
                                      .protocol = protocol,
                                      .source = word_of(source.in4().sin_addr),
                                      .destination = word_of(destination.in4().sin_addr)});
    ip.total_bytes = ip.checksum = {};
    ip_sum_.add(std::as_bytes(std::span(&ip, 1)));
    pseudo_sum_ = wire::pseudo_header_sum(ip.source, ip.destination, protocol, 0);
    rest = wire::emit(rest, ip);
  } else {
    const auto ip = wire::make_ipv6_header({.traffic_class = options.traffic_class,
                                            .payload_bytes = 0,
                                            .next_header = protocol,
                                            .hop_limit = hop_limit,
                                            .source = bytes_of(source.in6().sin6_addr),
                                            .destination = bytes_of(destination.in6().sin6_addr)});
    pseudo_sum_ = wire::pseudo_header_sum(ip.source, ip.destination, protocol, 0);
    rest = wire::emit(rest, ip);
  }
  if (protocol == wire::kIpProtocolUdp)
    rest = wire::emit(rest, wire::make_udp_header(wire::Be16(source.port()), wire::Be16(destination.port()), 0));
  bytes_ = static_cast<std::uint8_t>(data_.size() - rest.size());
}

namespace {

void put(std::byte* header, std::size_t field, wire::Be16 value) { std::memcpy(header + field, &value, sizeof value); }

}  // namespace

void HeaderTemplate::set_lengths(std::size_t payload) {
  payload_bytes_ = payload;
  const std::size_t network_bytes =
      sizeof(wire::EthernetHeader) + (is_v4_ ? sizeof(wire::Ipv4Header) : sizeof(wire::Ipv6Header));
  const auto transport_bytes = wire::Be16(static_cast<std::uint16_t>(bytes_ - network_bytes + payload));
  std::byte* const ip = data_.data() + sizeof(wire::EthernetHeader);
  if (is_v4_) {
    const auto total = wire::Be16(static_cast<std::uint16_t>(transport_bytes.host() + sizeof(wire::Ipv4Header)));
    put(ip, offsetof(wire::Ipv4Header, total_bytes), total);
    put(ip, offsetof(wire::Ipv4Header, checksum), wire::InternetSum(ip_sum_).add(total).checksum());
  } else {
    put(ip, offsetof(wire::Ipv6Header, payload_bytes), transport_bytes);
  }
  if (protocol_ != wire::kIpProtocolUdp) return;
  std::byte* const udp = data_.data() + network_bytes;
  put(udp, offsetof(wire::UdpHeader, bytes), transport_bytes);
  put(udp, offsetof(wire::UdpHeader, checksum), pseudo_sum(transport_bytes.host()).folded());
}

/// Sets the identification of an IPv4 header that has none yet.
void HeaderTemplate::set_number(std::byte* ip) const {
  wire::Ipv4Header header;
  std::memcpy(&header, ip, sizeof header);
  header.identification = wire::Be16(numbers_->next(header.source, header.destination, protocol_));
  header.checksum = wire::update_checksum(header.checksum, wire::Be16(), header.identification);
  std::memcpy(ip, &header, sizeof header);
}

/// Completes the query for a path with source and interface. Returns false when only the kernel knows the answer.
bool Destination::choose_way(const net::NetworkState& network, const SocketAddress& bound, const SendOptions& options,
                             net::PathQuery& query) const {
  const net::IpAddress own = net::IpAddress::of(bound);
  // A socket that is bound to a group sends from the interface's address.
  if (!bound.is_wildcard() && !own.is_multicast() && own.family() == query.destination.family()) query.source = own;
  query.oif = options.bound_interface;
  const auto go_by = [&](int ifindex) {
    if (ifindex == 0 || ifindex == query.oif) return true;
    if (query.oif != 0) return false;  // two different interfaces are requested
    query.oif = ifindex;
    return true;
  };
  if (address_.family() == AF_INET6 && !go_by(static_cast<int>(address_.in6().sin6_scope_id))) return false;
  if (control_) {
    if (!go_by(control_->ifindex)) return false;
    if (!control_->source.is_unspecified()) query.source = control_->source;
  }
  if (query.destination.is_multicast()) {
    if (options.loops_multicast) return false;  // the kernel delivers to members on this host
    if (query.oif == 0) query.oif = options.multicast_interface;
    if (query.source.is_unspecified()) query.source = options.multicast_source;
  }
  return query.source.is_unspecified() || network.find_address(query.source).has_value();
}

void Destination::leave_to_kernel(const Ethernet& ethernet, std::uint32_t options_generation) {
  generation_ = ethernet.network().generation();
  options_generation_ = options_generation;
  ring_.reset();
  is_left_to_netfilter_ = false;
}

bool Destination::shares_way_with(const Destination& other) const {
  if (ring_ == nullptr || depends_on_port_ || protocol_ != IPPROTO_UDP || other.protocol_ != protocol_) return false;
  SocketAddress host = other.address_;
  host.set_port(address_.port());
  return host == address_ && control_ == other.control_;
}

void Destination::take_way_of(const Destination& other) {
  generation_ = other.generation_;
  options_generation_ = other.options_generation_;
  ring_ = other.ring_;
  neighbour_ = other.neighbour_;
  max_payload_ = other.max_payload_;
  is_left_to_netfilter_ = false;
  depends_on_port_ = false;
  source_ = other.source_;
  header_ = other.header_;
  header_.set_destination_port(address_.port());
}

void Destination::find_way(Ethernet& ethernet, const SocketAddress& local, const SendOptions& options,
                           std::uint32_t options_generation, runtime::RingChoice& choice) {
  leave_to_kernel(ethernet, options_generation);
  net::NetworkState& network = ethernet.network();
  const SocketAddress destination = address_.unmapped();
  const SocketAddress bound = local.unmapped();
  net::PathQuery query;
  query.destination = net::IpAddress::of(destination);
  if (options.wants_times || !choose_way(network, bound, options, query)) return;
  query.mark = options.mark;
  SendOptions headers = options;
  const bool is_group = query.destination.is_multicast();
  if (is_group) headers.hop_limit = headers.multicast_hop_limit;
  if (control_ && control_->traffic_class >= 0)
    headers.traffic_class = static_cast<std::uint8_t>(control_->traffic_class);
  if (control_ && control_->hop_limit >= 0) headers.hop_limit = control_->hop_limit;
  if (is_group && headers.hop_limit == 0) return;  // such packets do not leave this host
  query.tos = headers.traffic_class;
  query.protocol = protocol_;
  query.source_port = local.port();
  query.destination_port = destination.port();

  const auto path = network.path_to(query);
  if (!path || path->kernel_only) return;
  if (path->type != net::PathType::unicast && path->type != net::PathType::multicast) return;
  is_left_to_netfilter_ = ethernet.is_left_to_netfilter(query.destination.family(), path->oif);
  if (is_left_to_netfilter_) return;
  auto neighbour = network.neighbour(*path);
  const net::NeighbourFacts facts = neighbour->facts();
  const auto link = network.link(path->oif);
  if (!facts.is_usable() || !link || !link->is_running()) return;  // the kernel resolves, or waits
  auto ring = ethernet.ring_on(path->oif, choice.key(path->source.with_port(0)));
  if (!ring) return;

  source_ = path->source.with_port(local.port());
  depends_on_port_ = path->depends_on_ports;
  headers.forbids_fragments = headers.forbids_fragments && !path->mtu_locked;
  header_ = HeaderTemplate(link->mac, facts.mac, source_, destination, headers,
                           headers.hop_limit >= 0 ? static_cast<std::uint8_t>(headers.hop_limit) : path->hop_limit,
                           protocol_, ethernet.identification_numbers());
  const std::size_t header_bytes = header_.bytes() - sizeof(wire::EthernetHeader);
  const std::size_t longest = ethernet.longest_packet(path->mtu);
  max_payload_ = longest > header_bytes ? longest - header_bytes : 0;
  neighbour_ = std::move(neighbour);
  ring_ = *std::move(ring);
}

}  // namespace ringsock::ethernet
