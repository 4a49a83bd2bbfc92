#include "core/net/link_table.h"

#include <algorithm>

namespace ringsock::net {

namespace {

/// Returns whether both are the same entry. IPv4 can have an address twice on an interface, with different prefixes.
bool is_same_address(const InterfaceAddress& a, const InterfaceAddress& b) {
  return a.ifindex == b.ifindex && a.address == b.address && a.prefix_length == b.prefix_length && a.peer == b.peer;
}

}  // namespace

bool LinkTable::apply(const LinkEvent& event) {
  ++events_;
  const int index = event.link.index;
  if (event.gone) {
    std::erase_if(addresses_, [index](const InterfaceAddress& address) { return address.ifindex == index; });
    return links_.erase(index) > 0;
  }
  Link link = event.link;
  const auto found = links_.find(index);
  if (found == links_.end()) {
    links_.emplace(index, std::move(link));
    return true;
  }
  // Some messages leave the IPv6 settings out.
  if (link.ipv6_hop_limit == 0) link.ipv6_hop_limit = found->second.ipv6_hop_limit;
  if (link.ipv6_mtu == 0) link.ipv6_mtu = found->second.ipv6_mtu;
  // The message of a new MTU comes just before IPv6 takes it over.
  if (link.ipv6_mtu != 0 && link.mtu != found->second.mtu) link.ipv6_mtu = link.mtu;
  if (found->second == link) return false;
  found->second = std::move(link);
  return true;
}

bool LinkTable::apply(const Inet6LinkEvent& event) {
  ++events_;
  const auto found = links_.find(event.ifindex);
  if (found == links_.end()) return false;
  Link& link = found->second;
  if (link.ipv6_hop_limit == event.hop_limit && link.ipv6_mtu == event.mtu) return false;
  link.ipv6_hop_limit = event.hop_limit;
  link.ipv6_mtu = event.mtu;
  return true;
}

bool LinkTable::apply(const AddressEvent& event) {
  ++events_;
  const auto found = std::ranges::find_if(
      addresses_, [&](const InterfaceAddress& address) { return is_same_address(address, event.address); });
  if (event.gone) {
    if (found == addresses_.end()) return false;
    addresses_.erase(found);
    return true;
  }
  if (found == addresses_.end()) {
    addresses_.push_back(event.address);
    return true;
  }
  if (*found == event.address) return false;
  *found = event.address;
  return true;
}

void LinkTable::clear() {
  links_.clear();
  addresses_.clear();
}

const Link* LinkTable::find(int ifindex) const {
  const auto found = links_.find(ifindex);
  return found == links_.end() ? nullptr : &found->second;
}

const Link* LinkTable::find(std::string_view name) const {
  const auto found = std::ranges::find_if(links_, [name](const auto& entry) { return entry.second.name == name; });
  return found == links_.end() ? nullptr : &found->second;
}

std::vector<Link> LinkTable::links() const {
  std::vector<Link> out;
  for (const auto& [index, link] : links_) out.push_back(link);
  return out;
}

std::vector<Link> LinkTable::members_of(int ifindex) const {
  std::vector<Link> out;
  for (const auto& [index, link] : links_) {
    if (ifindex != 0 && link.master == ifindex) out.push_back(link);
  }
  return out;
}

std::vector<InterfaceAddress> LinkTable::addresses(int ifindex) const {
  std::vector<InterfaceAddress> out;
  std::ranges::copy_if(addresses_, std::back_inserter(out),
                       [ifindex](const InterfaceAddress& a) { return ifindex == 0 || a.ifindex == ifindex; });
  return out;
}

std::optional<InterfaceAddress> LinkTable::find_address(const IpAddress& address, int ifindex) const {
  const auto found = std::ranges::find_if(addresses_, [&](const InterfaceAddress& a) {
    return a.address == address && (ifindex == 0 || a.ifindex == ifindex);
  });
  if (found == addresses_.end()) return std::nullopt;
  return *found;
}

}  // namespace ringsock::net
