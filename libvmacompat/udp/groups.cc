#include "libvmacompat/udp/groups.h"

#include <netinet/in.h>

#include <algorithm>
#include <utility>

#include "libvmacompat/process/kernel_options.h"
#include "libvmacompat/udp/udp_options.h"

namespace ringsock::vma {

void Groups::learn(const net::IpAddress& group, const net::NetworkState& network) {
  std::erase_if(memberships_, [&](const Membership& one) { return one.group == group; });
  for (const net::Link& link : network.links()) {
    if (auto membership = membership_of(kernel_.fd(), group, link.index))
      memberships_.push_back(*std::move(membership));
  }
}

void Groups::learn_broadcast() { hears_broadcast_ = option_of(kernel_.fd(), SOL_SOCKET, SO_BROADCAST, 0) != 0; }

void Groups::set_interface(int family, MulticastInterface interface, const net::NetworkState* network) {
  if (interface.ifindex == 0 && !interface.address.is_unspecified() && network != nullptr) {
    const auto place = network->find_address(interface.address);
    interface.ifindex = place ? place->ifindex : 0;
  }
  interfaces_[family == AF_INET ? 0 : 1] = interface;
}

std::vector<Groups::Heard> Groups::heard(const net::NetworkState& network) const {
  std::vector<Heard> out;
  for (const Membership& one : memberships_) out.push_back({one.group, one.ifindex, net::multicast_mac(one.group)});
  if (!hears_broadcast_) return out;
  for (const net::InterfaceAddress& one : network.addresses()) {
    if (!one.address.is_v4() || one.broadcast.is_unspecified() || one.address.is_loopback()) continue;
    out.push_back({one.broadcast, one.ifindex, net::kBroadcastMac});
    out.push_back({net::IpAddress::v4(INADDR_BROADCAST), one.ifindex, net::kBroadcastMac});
  }
  return out;
}

Status Groups::refuse_copies(std::vector<soft::CopiedFlow> flows) {
  if (flows == refused_) return ok();
  const int fd = kernel_.fd();
  Status done = flows.empty() ? soft::accept_copies(fd) : soft::refuse_copies(fd, flows);
  if (!done) return done;
  if (!flows.empty()) kernel_.count_copies();
  refused_ = std::move(flows);
  return ok();
}

}  // namespace ringsock::vma
