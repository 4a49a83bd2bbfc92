// Chooses the rings that a UDP socket receives from, and moves it to others.
#include <sys/epoll.h>

#include <algorithm>
#include <mutex>

#include "core/ethernet/interface.h"
#include "libvmacompat/ring_alloc_logic.h"
#include "libvmacompat/udp_socket.h"

namespace ringsock::vma {

ethernet::RingKey UdpSocket::receive_key(const SocketAddress& local) {
  const std::lock_guard guard(receive_lock_);
  return receive_choice_.key(local);
}

/// Returns the ring that the group already comes by, if there is one: during a move it would not be known which copies
/// of a datagram the ring has received.
Result<std::shared_ptr<ethernet::Ring>> UdpSocket::ring_of_group(const SocketAddress& group, int ifindex) {
  const auto is_it = [&](const Attachment& one) {
    return one.is_group() && one.tuple.destination == group && one.ring->interface().ifindex() == ifindex;
  };
  const auto known = std::find_if(attachments_.begin(), attachments_.end(), is_it);
  return known != attachments_.end() ? known->ring : ethernet_->ring_on(ifindex, receive_key(group));
}

void UdpSocket::tell_of_rings() {
  has_new_rings_.store(false, std::memory_order_relaxed);
  notify_watchers();
}

/// Returns false when the socket has too many rings.
bool UdpSocket::poll_ring(const std::shared_ptr<ethernet::Ring>& ring) {
  const std::size_t count = ring_count_.load(std::memory_order_relaxed);
  const auto begin = rings_.begin(), end = begin + static_cast<std::ptrdiff_t>(count);
  const auto place = static_cast<std::size_t>(std::find(begin, end, ring) - begin);
  if (place == kMostRings) return false;
  const std::uint32_t bit = std::uint32_t{1} << place;
  const std::uint32_t polled = polled_.load(std::memory_order_relaxed);
  if (place < count && (polled & bit) != 0) return true;
  epoll_event event{.events = EPOLLIN, .data = {}};
  if (bell_ && ::epoll_ctl(bell_.get(), EPOLL_CTL_ADD, ring->fd(), &event) != 0) return false;
  if (place == count) {
    rings_[place] = ring;
    ring_count_.store(count + 1, std::memory_order_release);
  }
  polled_.store(polled | bit, std::memory_order_release);
  has_new_rings_.store(true, std::memory_order_relaxed);
  return true;
}

/// Stops polling rings that no flow comes by any more. They stay in their places, because other threads may be looking
/// at them.
void UdpSocket::leave_unused_rings() {
  const std::size_t count = ring_count_.load(std::memory_order_relaxed);
  std::uint32_t polled = polled_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bit = std::uint32_t{1} << i;
    const bool is_used = std::any_of(attachments_.begin(), attachments_.end(),
                                     [&](const Attachment& one) { return one.ring == rings_[i]; });
    if (is_used || (polled & bit) == 0) continue;
    polled &= ~bit;
    if (bell_) ::epoll_ctl(bell_.get(), EPOLL_CTL_DEL, rings_[i]->fd(), nullptr);
  }
  polled_.store(polled, std::memory_order_release);
}

/// Moves to other rings after the thread, the CPU or the option has changed. The kernel's socket receives what arrives
/// between two rings.
void UdpSocket::move_rings() {
  const RingNews news(*this);
  const std::unique_lock guard(setup_lock_, std::try_to_lock);
  if (!guard) return;
  rings_are_due_.store(false, std::memory_order_relaxed);
  if (move_attachments()) statistics_.count(runtime::VmaSocketCount::rx_migrations);
}

/// Returns whether any flow was moved. setup_lock_ held.
bool UdpSocket::move_attachments() {
  bool any = false;
  for (const Attachment& one : std::vector(attachments_)) {
    const auto& [old_ring, tuple] = one;
    if (one.is_group()) continue;
    const auto ring = ethernet_->ring_on(old_ring->interface().ifindex(), receive_key(tuple.destination));
    if (!ring || *ring == old_ring) continue;
    old_ring->leave(tuple, *this);
    std::erase(attachments_, one);
    receive_arrivals_first();  // until the next attach() the kernel receives
    if (!attach(*ring, tuple)) attach(old_ring, tuple);
    any = true;
  }
  if (any) leave_unused_rings();
  return any;
}

Status UdpSocket::set_ring_logic(const void* value, socklen_t length) {
  const auto wish = parse_ring_alloc_logic(value, length);
  if (!wish) return wish.error();
  const RingNews news(*this);
  const std::lock_guard guard(setup_lock_);
  if (wish->for_sending) {
    const std::lock_guard sending(send_lock_);
    send_choice_.set(wish->logic, wish->user_id);
    options_generation_.fetch_add(1, std::memory_order_relaxed);
  }
  if (wish->for_receiving) {
    {
      const std::lock_guard receiving(receive_lock_);
      receive_choice_.set(wish->logic, wish->user_id);
    }
    move_attachments();
  }
  describe();
  return ok();
}

}  // namespace ringsock::vma
