#include "libvmacompat/udp/flows.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/base/abandon.h"
#include "core/base/log.h"
#include "core/ethernet/interface.h"
#include "libvmacompat/process/kernel_options.h"
#include "libvmacompat/process/rings_of_process.h"
#include "libvmacompat/process/vma_process.h"
#include "libvmacompat/udp/port_claims.h"
#include "libvmacompat/udp/udp_options.h"
#include "libvmacompat/udp/udp_socket.h"

namespace ringsock::vma {

Flows::Flows(UdpSocket& socket, KernelSocket& kernel, PolledRings& rings, ReceiveQueue& queue,
             SendConditions& conditions, runtime::VmaSocketStatistics& statistics)
    : socket_(socket),
      kernel_(kernel),
      rings_(rings),
      queue_(queue),
      conditions_(conditions),
      statistics_(statistics),
      names_{.local = SocketAddress::wildcard(kernel.domain(), 0), .peer = {}},
      groups_(kernel),
      attached_(kernel, rings, queue) {}

void Flows::learn_names() {
  if (const auto local = name_by(::getsockname, kernel_.fd(), "getsockname")) names_.local = *local;
  const auto peer = name_by(::getpeername, kernel_.fd(), "getpeername");
  names_.peer = peer ? *peer : SocketAddress();
  queue_.set_peer(peer ? std::optional(wire::EndName::of(names_.peer)) : std::nullopt);
  note_change();
}

ethernet::Ethernet* Flows::ethernet() {
  if (!ethernet_ && !ethernet_failed_) {
    auto ethernet = ethernet::Ethernet::of_socket(kernel_.fd(), rings_of_process());
    if (ethernet) {
      ethernet_ = *std::move(ethernet);
    } else {
      ethernet_failed_ = true;
      log_info("UDP sockets stay with the kernel: %s: %s", ethernet.error().where,
               std::strerror(ethernet.error().code));
      process().cannot_start(ethernet.error());
    }
  }
  return ethernet_.get();
}

// -- attaching -----------------------------------------------------------------------------------------

void Flows::attach_all() {
  if (!receives_ || is_kernel_only() || names_.local.port() == 0) return;
  if (net::IpAddress::of(names_.local).is_loopback() || ethernet() == nullptr) return;
  const auto generation = ethernet_->address_generation();  // read first: later changes are looked at again
  // When several processes have a port, only the kernel knows which of them gets a datagram. But what comes from a
  // connected socket's peer is for that socket.
  if (queue_.is_connected() || is_port_ours()) attach_own_addresses();
  attach_groups();
  attached_generation_.store(generation, std::memory_order_relaxed);
}

/// Returns whether no other process has a socket that receives from the port.
bool Flows::is_port_ours() {
  if (queue_.shares_port() || is_port_elsewhere_.load(std::memory_order_relaxed)) return false;
  if (option_of(kernel_.fd(), SOL_SOCKET, SO_REUSEADDR, 0) == 0) return true;
  const PortPlace place{names_.local, kernel_.domain() == AF_INET6 && is_v6_only(kernel_.fd()), names_.bound_interface};
  if (port_claims().enter(place, socket_)) {
    claimed_port_ = names_.local.port();
    return true;
  }
  is_port_elsewhere_.store(true, std::memory_order_relaxed);
  return false;
}

void Flows::detach_own_addresses() {
  attached_.detach_where([](const Attachment& one) { return !one.is_group(); });
  kernel_.expect_datagram();
}

void Flows::attach_own_addresses() {
  for_each_place(names_.local, names_.is_bound,
                 [this](const SocketAddress& address, int ifindex) { attach_at(address, ifindex); });
}

std::vector<std::shared_ptr<ethernet::Ring>> Flows::open_rings(const SocketAddress& local) {
  std::vector<std::shared_ptr<ethernet::Ring>> opened;
  const bool is_kernels = is_kernel_only() || net::IpAddress::of(local.unmapped()).is_loopback();
  if (is_kernels || ethernet() == nullptr) return opened;
  for_each_place(local, true, [&](const SocketAddress& address, int ifindex) {
    auto ring = ethernet_->ring_on(ifindex, queue_.key(address));
    if (ring) {
      opened.push_back(*std::move(ring));
    } else {
      process().cannot_start(ring.error());
    }
  });
  return opened;
}

/// Calls `visit(address, interface index)` for each address of this host that `name` stands for.
template <class Visit>
void Flows::for_each_place(const SocketAddress& name, bool is_bound, Visit visit) {
  const SocketAddress local = name.unmapped();
  net::NetworkState& network = ethernet_->network();
  if (!local.is_wildcard()) {
    const int scope =
        kernel_.domain() == AF_INET6 && name.family() == AF_INET6 ? static_cast<int>(name.in6().sin6_scope_id) : 0;
    const auto place = network.find_address(net::IpAddress::of(local), scope);
    if (!place) return;
    const int ifindex = names_.bound_interface != 0 ? names_.bound_interface : place->ifindex;
    if (!is_left_to_netfilter(local.family(), ifindex)) visit(local, ifindex);
  } else if (is_bound) {
    const bool v4_too = kernel_.domain() == AF_INET || !is_v6_only(kernel_.fd());
    for (const net::InterfaceAddress& one : network.addresses()) {
      const bool fits = one.address.is_v4() ? v4_too : kernel_.domain() == AF_INET6;
      if (!fits || one.address.is_loopback() || one.is_tentative()) continue;
      if (names_.bound_interface != 0 && names_.bound_interface != one.ifindex) continue;
      if (is_left_to_netfilter(one.address.family(), one.ifindex)) continue;
      visit(one.address.with_port(local.port()), one.ifindex);
    }
  }
}

void Flows::attach_at(const SocketAddress& local, int ifindex) {
  auto ring = ethernet_->ring_on(ifindex, queue_.key(local));
  if (!ring) return process().cannot_start(ring.error());
  verbs::FlowTuple tuple{.protocol = IPPROTO_UDP, .destination = local};
  const SocketAddress peer = names_.peer.unmapped();
  if (peer.family() == local.family() && peer.port() != 0) tuple.source = peer;
  attached_.attach(*ring, tuple);
}

void Flows::detach_all() {
  attached_.detach_where([](const Attachment&) { return true; });
  queue_.forget_place();
}

void Flows::give_up() {
  set_kernel_only(true);
  detach_all();
  static_cast<void>(refuse_copies_of({}));
  note_change();
}

void Flows::stop_receiving() {
  receives_ = false;
  detach_all();
  static_cast<void>(refuse_copies_of({}));
  kernel_.expect_datagram();
}

void Flows::attach_answers(const SocketAddress& local, int ifindex) {
  if (!receives_ || names_.is_bound || queue_.is_connected() || queue_.shares_port()) return;
  attach_at(local, ifindex);
  socket_.describe();
}

// -- following changes ---------------------------------------------------------------------------------

void Flows::follow_groups(const net::IpAddress& group) {
  if (ethernet() == nullptr) return;
  groups_.learn(group, ethernet_->network());
  queue_.set_source_filters(groups_.memberships());
  attach_all();
}

void Flows::follow_addresses() {
  if (!ethernet_ || !rings_.any() || !are_stale()) return;
  const auto generation = ethernet_->address_generation();
  attached_.detach_where([&](const Attachment& one) {
    return !one.is_group() && !ethernet_->network().find_address(net::IpAddress::of(one.tuple.destination)).has_value();
  });
  attach_all();
  attached_generation_.store(generation, std::memory_order_relaxed);
}

/// Senders look up their path again by themselves, since the network's generation has grown.
void Flows::follow_netfilter() {
  if (!ethernet_ || is_kernel_only()) return;
  statistics_.set(runtime::VmaSocketLevel::left_to_netfilter, 0);
  attached_.detach_where([this](const Attachment& one) {
    return !one.is_group() && is_left_to_netfilter(one.tuple.destination.family(), one.ring->interface().ifindex());
  });
  kernel_.expect_datagram();
  attach_all();
}

void Flows::follow_bound_interface() {
  names_.bound_interface = bound_interface_of(kernel_.fd());
  detach_all();
  attach_all();
  note_change();
}

void Flows::follow_shared_address() {
  if (attached_.any() && !queue_.is_connected() && !is_port_ours()) detach_own_addresses();
}

void Flows::leave_port_to_kernel() {
  const std::lock_guard guard(setup_lock_);
  is_port_elsewhere_.store(true, std::memory_order_relaxed);
  if (queue_.is_connected()) return;
  log_info("descriptor %d: another process has port %u, too: received by the kernel", kernel_.fd(),
           names_.local.port());
  detach_own_addresses();
}

bool Flows::is_left_to_netfilter(int family, int ifindex) {
  if (!ethernet_->is_left_to_netfilter(family, ifindex)) return false;
  note_left_to_netfilter();
  return true;
}

void Flows::note_left_to_netfilter() { statistics_.set(runtime::VmaSocketLevel::left_to_netfilter, 1); }

// -- the end -------------------------------------------------------------------------------------------

std::uint16_t Flows::end() {
  set_kernel_only(true);
  attached_.end();
  return std::exchange(claimed_port_, std::uint16_t{0});
}

void Flows::forget_after_fork() noexcept {
  attached_.forget_after_fork();
  abandon(ethernet_);
  groups_.forget_refused();
  claimed_port_ = 0;
  set_kernel_only(true);
}

}  // namespace ringsock::vma
