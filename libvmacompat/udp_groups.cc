// Multicast and broadcast by rings. The kernel's socket is the member of groups; a filter makes it refuse its copies of
// datagrams that rings receive.
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "core/base/log.h"
#include "core/ethernet/interface.h"
#include "libvmacompat/socket_options.h"
#include "libvmacompat/udp_socket.h"

namespace ringsock::vma {

/// Asks the kernel for the membership again, after a socket option has changed it. setup_lock_ held.
void UdpSocket::learn_membership(const net::IpAddress& group) {
  std::erase_if(memberships_, [&](const Membership& one) { return one.group == group; });
  if (ethernet() == nullptr) return;
  for (const net::Link& link : ethernet_->network().links()) {
    if (auto membership = membership_of(fd(), group, link.index)) memberships_.push_back(*std::move(membership));
  }
  {
    const std::lock_guard receiving(receive_lock_);
    source_filters_.clear();
    std::copy_if(memberships_.begin(), memberships_.end(), std::back_inserter(source_filters_),
                 [](const Membership& one) { return !one.wants_all(); });
  }
  attach_all();
}

void UdpSocket::learn_multicast_interface(int level, MulticastInterface interface) {
  if (interface.ifindex == 0 && !interface.address.is_unspecified() && ethernet() != nullptr) {
    const auto place = ethernet_->network().find_address(interface.address);
    interface.ifindex = place ? place->ifindex : 0;
  }
  multicast_interfaces_[level == IPPROTO_IPV6 ? 1 : 0] = interface;
  options_generation_.fetch_add(1, std::memory_order_relaxed);
}

/// Attaches and detaches the rings' flows of groups as needed. The kernel's copy of a datagram is refused only if a
/// ring has received it, so no datagram comes twice or is lost while flows change.
void UdpSocket::attach_groups() {
  const std::vector<Attachment> wanted = wanted_groups();
  detach_where([&](const Attachment& one) {
    return one.is_group() && std::find(wanted.begin(), wanted.end(), one) == wanted.end();
  });
  if (!refuse_copies_of(wanted)) return;
  for (const Attachment& one : wanted) attach(one.ring, one.tuple);
  std::vector<Attachment> attached;
  std::copy_if(attachments_.begin(), attachments_.end(), std::back_inserter(attached),
               [](const Attachment& one) { return one.is_group(); });
  static_cast<void>(refuse_copies_of(attached));  // the kernel receives where a ring could not be attached
}

/// Returns false when the copies cannot be refused: then the kernel receives all groups.
bool UdpSocket::refuse_copies_of(const std::vector<Attachment>& groups) {
  std::vector<soft::CopiedFlow> flows;
  flows.reserve(groups.size());
  for (const Attachment& one : groups) {
    flows.push_back({one.ring->interface().ifindex(), net::IpAddress::of(one.tuple.destination)});
  }
  if (flows == refused_) return true;
  const Status done = flows.empty() ? soft::accept_copies(fd()) : soft::refuse_copies(fd(), flows);
  if (done) {
    if (!flows.empty()) kernel_counts_copies_.store(true, std::memory_order_relaxed);
    refused_ = std::move(flows);
    return true;
  }
  log_info("multicast is received by the kernel: %s: %s", done.error().where, std::strerror(done.error().code));
  detach_where([](const Attachment& one) { return one.is_group(); });
  return false;
}

std::vector<UdpSocket::Attachment> UdpSocket::wanted_groups() {
  std::vector<Attachment> out;
  const SocketAddress local = local_.unmapped();
  const net::IpAddress bound = net::IpAddress::of(local);
  const bool v4_too = domain_ == AF_INET || !is_v6_only(fd());
  const auto add = [&](const net::IpAddress& group, int ifindex, const net::MacAddress& mac) {
    const bool fits = group.is_v4() ? v4_too : domain_ == AF_INET6;
    const bool is_heard = local.is_wildcard() ? fits : bound == group;
    if (!is_heard || (bound_interface_ != 0 && bound_interface_ != ifindex)) return;
    if (is_left_to_netfilter(group.family(), ifindex)) return;
    auto ring = ring_of_group(group.with_port(local.port()), ifindex);
    if (!ring || !(*ring)->interface().device().marks_copies()) return;
    Attachment one{*std::move(ring),
                   {.protocol = IPPROTO_UDP, .destination = group.with_port(local.port()), .destination_mac = mac}};
    if (std::find(out.begin(), out.end(), one) == out.end()) out.push_back(std::move(one));
  };
  for (const Membership& one : memberships_) add(one.group, one.ifindex, net::multicast_mac(one.group));
  if (!hears_broadcast_) return out;
  for (const net::InterfaceAddress& one : ethernet_->network().addresses()) {
    if (!one.address.is_v4() || one.broadcast.is_unspecified() || one.address.is_loopback()) continue;
    add(one.broadcast, one.ifindex, net::kBroadcastMac);
    add(net::IpAddress::v4(INADDR_BROADCAST), one.ifindex, net::kBroadcastMac);
  }
  return out;
}

/// Returns whether the membership does not accept the datagram's sender. receive_lock_ held.
bool UdpSocket::is_filtered(const ethernet::Packet& datagram) const {
  const auto group = net::IpAddress::of(wire::destination_of(datagram.headers, datagram.layout, 0));
  const auto is_it = [&](const Membership& one) { return one.ifindex == datagram.ifindex && one.group == group; };
  const auto filter = std::find_if(source_filters_.begin(), source_filters_.end(), is_it);
  return filter != source_filters_.end() &&
         !filter->wants_from(net::IpAddress::of(wire::source_of(datagram.headers, datagram.layout, 0)));
}

}  // namespace ringsock::vma
