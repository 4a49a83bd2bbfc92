#include "libvmacompat/udp/memberships.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "core/base/socket_address.h"

namespace ringsock::vma {

namespace {

/// Room for sources that is tried first; most sockets have few.
constexpr std::uint32_t kUsualSources = 16;

std::optional<net::IpAddress> address_of(const sockaddr_storage& name) {
  const auto address = SocketAddress::from(reinterpret_cast<const sockaddr*>(&name), sizeof name);
  if (!address) return std::nullopt;
  return net::IpAddress::of(*address);
}

/// Returns the field at `offset` of a setsockopt(2) value, if the value is long enough.
template <class Field>
std::optional<Field> field_at(const void* value, socklen_t length, std::size_t offset) {
  Field field;
  if (value == nullptr || length < offset + sizeof field) return std::nullopt;
  std::memcpy(&field, static_cast<const std::byte*>(value) + offset, sizeof field);
  return field;
}

std::optional<net::IpAddress> v4_at(const void* value, socklen_t length, std::size_t offset) {
  const auto address = field_at<in_addr>(value, length, offset);
  return address ? std::optional(net::IpAddress::v4(*address)) : std::nullopt;
}

std::optional<net::IpAddress> of_protocol_independent(int name, const void* value, socklen_t length) {
  std::size_t offset = 0;
  switch (name) {
    case MCAST_JOIN_GROUP:
    case MCAST_LEAVE_GROUP: offset = offsetof(group_req, gr_group); break;
    case MCAST_JOIN_SOURCE_GROUP:
    case MCAST_LEAVE_SOURCE_GROUP:
    case MCAST_BLOCK_SOURCE:
    case MCAST_UNBLOCK_SOURCE: offset = offsetof(group_source_req, gsr_group); break;
    case MCAST_MSFILTER: offset = offsetof(group_filter, gf_group); break;
    default: return std::nullopt;
  }
  const auto address = field_at<sockaddr_storage>(value, length, offset);
  return address ? address_of(*address) : std::nullopt;
}

/// A buffer for struct group_filter with its variable part.
struct FilterBuffer {
  explicit FilterBuffer(std::uint32_t sources) : bytes(GROUP_FILTER_SIZE(sources)) {}
  group_filter& filter() { return *reinterpret_cast<group_filter*>(bytes.data()); }
  std::vector<std::byte> bytes;
};

/// Asks the kernel for the filter, with room for `room` sources. The answer's gf_numsrc is the number of all sources,
/// even when they have no room.
std::optional<FilterBuffer> ask_filter(int fd, const net::IpAddress& group, int ifindex, std::uint32_t room) {
  FilterBuffer buffer(room);
  const SocketAddress name = group.with_port(0);
  buffer.filter().gf_interface = static_cast<std::uint32_t>(ifindex);
  std::memcpy(&buffer.filter().gf_group, name.get(), name.length());
  buffer.filter().gf_numsrc = room;
  auto length = static_cast<socklen_t>(buffer.bytes.size());
  const int level = group.is_v4() ? IPPROTO_IP : IPPROTO_IPV6;
  if (::getsockopt(fd, level, MCAST_MSFILTER, buffer.bytes.data(), &length) != 0) return std::nullopt;
  return buffer;
}

}  // namespace

bool Membership::wants_from(const net::IpAddress& source) const {
  const bool is_named = std::find(sources.begin(), sources.end(), source) != sources.end();
  return is_named != excludes;
}

std::optional<net::IpAddress> group_of_option(int level, int name, const void* value, socklen_t length) {
  if (level == IPPROTO_IP) {
    switch (name) {
      case IP_ADD_MEMBERSHIP:
      case IP_DROP_MEMBERSHIP: return v4_at(value, length, offsetof(ip_mreq, imr_multiaddr));
      case IP_ADD_SOURCE_MEMBERSHIP:
      case IP_DROP_SOURCE_MEMBERSHIP:
      case IP_BLOCK_SOURCE:
      case IP_UNBLOCK_SOURCE: return v4_at(value, length, offsetof(ip_mreq_source, imr_multiaddr));
      case IP_MSFILTER: return v4_at(value, length, offsetof(ip_msfilter, imsf_multiaddr));
      default: return of_protocol_independent(name, value, length);
    }
  }
  if (level != IPPROTO_IPV6) return std::nullopt;
  if (name != IPV6_JOIN_GROUP && name != IPV6_LEAVE_GROUP) return of_protocol_independent(name, value, length);
  const auto address = field_at<in6_addr>(value, length, offsetof(ipv6_mreq, ipv6mr_multiaddr));
  return address ? std::optional(net::IpAddress::v6(*address)) : std::nullopt;
}

std::optional<MulticastInterface> multicast_interface_of_option(int level, int name, const void* value,
                                                                socklen_t length) {
  MulticastInterface out;
  if (level == IPPROTO_IPV6 && name == IPV6_MULTICAST_IF) {
    out.ifindex = field_at<int>(value, length, 0).value_or(0);
    return out;
  }
  if (level != IPPROTO_IP || name != IP_MULTICAST_IF) return std::nullopt;
  // ip(7): the value is a struct ip_mreqn, the older struct ip_mreq, or an address.
  out.ifindex = field_at<int>(value, length, offsetof(ip_mreqn, imr_ifindex)).value_or(0);
  const std::size_t offset = length >= sizeof(ip_mreq) ? offsetof(ip_mreqn, imr_address) : 0;
  const auto address = v4_at(value, length, offset);
  if (address && !address->is_wildcard()) out.address = *address;
  return out;
}

std::optional<Membership> membership_of(int fd, const net::IpAddress& group, int ifindex) {
  std::uint32_t room = kUsualSources;
  auto answer = ask_filter(fd, group, ifindex, room);
  while (answer && answer->filter().gf_numsrc > room) {
    room = answer->filter().gf_numsrc;
    answer = ask_filter(fd, group, ifindex, room);
  }
  if (!answer) return std::nullopt;
  const group_filter& filter = answer->filter();
  Membership out{.group = group, .ifindex = ifindex, .excludes = filter.gf_fmode == MCAST_EXCLUDE, .sources = {}};
  for (std::uint32_t i = 0; i < filter.gf_numsrc; ++i) {
    if (const auto source = address_of(filter.gf_slist[i])) out.sources.push_back(*source);
  }
  return out;
}

}  // namespace ringsock::vma
