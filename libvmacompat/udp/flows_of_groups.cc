// The flows of groups: multicast and broadcast.
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "core/base/log.h"
#include "core/ethernet/interface.h"
#include "libvmacompat/udp/flows.h"
#include "libvmacompat/udp/udp_options.h"

namespace ringsock::vma {

/// Attaches and detaches the rings' flows of groups as needed. The kernel's copy of a datagram is refused only if a
/// ring has received it, so no datagram comes twice or is lost while flows change.
void Flows::attach_groups() {
  const std::vector<Attachment> wanted = wanted_groups();
  attached_.detach_where([&](const Attachment& one) {
    return one.is_group() && std::find(wanted.begin(), wanted.end(), one) == wanted.end();
  });
  if (!refuse_copies_of(wanted)) return;
  for (const Attachment& one : wanted) attached_.attach(one.ring, one.tuple);
  static_cast<void>(refuse_copies_of(attached_.groups()));  // the kernel receives where a ring could not be attached
}

/// Returns false when the copies cannot be refused: then the kernel receives all groups.
bool Flows::refuse_copies_of(const std::vector<Attachment>& groups) {
  std::vector<soft::CopiedFlow> flows;
  flows.reserve(groups.size());
  for (const Attachment& one : groups) {
    flows.push_back({one.ring->interface().ifindex(), net::IpAddress::of(one.tuple.destination)});
  }
  const Status done = groups_.refuse_copies(std::move(flows));
  if (done) return true;
  log_info("multicast is received by the kernel: %s: %s", done.error().where, std::strerror(done.error().code));
  attached_.detach_where([](const Attachment& one) { return one.is_group(); });
  return false;
}

std::vector<Attachment> Flows::wanted_groups() {
  std::vector<Attachment> out;
  const SocketAddress local = names_.local.unmapped();
  const net::IpAddress bound = net::IpAddress::of(local);
  const bool v4_too = kernel_.domain() == AF_INET || !is_v6_only(kernel_.fd());
  const auto is_heard = [&](const Groups::Heard& one) {
    const bool fits = one.group.is_v4() ? v4_too : kernel_.domain() == AF_INET6;
    return (local.is_wildcard() ? fits : bound == one.group) &&
           (names_.bound_interface == 0 || names_.bound_interface == one.ifindex) &&
           !is_left_to_netfilter(one.group.family(), one.ifindex);
  };
  for (const Groups::Heard& heard : groups_.heard(ethernet_->network())) {
    if (!is_heard(heard)) continue;
    const SocketAddress destination = heard.group.with_port(local.port());
    auto ring = ring_of_group(destination, heard.ifindex);
    if (!ring || !(*ring)->interface().device().traits().marks_copies) continue;
    Attachment one{*std::move(ring),
                   {.protocol = IPPROTO_UDP, .destination = destination, .destination_mac = heard.mac}};
    if (std::find(out.begin(), out.end(), one) == out.end()) out.push_back(std::move(one));
  }
  return out;
}

/// Returns the ring that the group already comes by, if there is one: during a move it would not be known which copies
/// of a datagram the ring has received.
Result<std::shared_ptr<ethernet::Ring>> Flows::ring_of_group(const SocketAddress& group, int ifindex) {
  if (auto known = attached_.ring_of_group(group, ifindex)) return known;
  return ethernet_->ring_on(ifindex, queue_.key(group));
}

}  // namespace ringsock::vma
