// Flows that netfilter rules may concern are left to the kernel, because the rules never see what rings carry.
#include <mutex>

#include "core/ethernet/interface.h"
#include "libvmacompat/udp_socket.h"

namespace ringsock::vma {

void UdpSocket::all_follow_netfilter() {
  for_each_socket([](UdpSocket& socket) { socket.follow_netfilter(); });
}

/// Senders look up their path again by themselves, since the network's generation has grown.
void UdpSocket::follow_netfilter() {
  const RingNews news(*this);
  const std::lock_guard guard(setup_lock_);
  if (!ethernet_ || kernel_only_.load(std::memory_order_relaxed)) return;
  statistics_.set(runtime::VmaSocketLevel::left_to_netfilter, 0);
  detach_where([this](const Attachment& one) {
    return !one.is_group() && is_left_to_netfilter(one.tuple.destination.family(), one.ring->interface().ifindex());
  });
  kernel_hint_.store(true, std::memory_order_relaxed);
  attach_all();
  describe();
}

bool UdpSocket::is_left_to_netfilter(int family, int ifindex) {
  if (!ethernet_->is_left_to_netfilter(family, ifindex)) return false;
  note_left_to_netfilter();
  return true;
}

void UdpSocket::note_left_to_netfilter() { statistics_.set(runtime::VmaSocketLevel::left_to_netfilter, 1); }

}  // namespace ringsock::vma
