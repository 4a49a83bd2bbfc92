// A UDP socket before, during and after fork(2), exec(2), and SCM_RIGHTS.
//
// When several processes have a socket, only the kernel knows which of them gets a datagram. So the kernel receives for
// the socket as long as several processes have it. Datagrams that rings have received and the program has not read are
// returned to the kernel. The last process that has the socket uses rings again.
#include <fcntl.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "core/base/log.h"
#include "core/ethernet/bursts.h"
#include "core/runtime/fork_registry.h"
#include "libvmacompat/kernel_return.h"
#include "libvmacompat/udp_socket.h"

namespace ringsock::vma {

namespace {
/// The time between two looks whether other processes still have the socket.
constexpr Nanos kFirstLook = std::chrono::milliseconds(20);
constexpr Nanos kLongestPause = std::chrono::seconds(1);

/// Empties an object without destroying its contents: threads that do not exist here may have locked them, and the
/// parent still uses them.
template <class T>
void abandon(T& object) {
  new T(std::move(object));
  object = T();
}

}  // namespace

void UdpSocket::add_fork_locks(runtime::ForkLocks& locks) {
  ethernet::bursts().send_all();
  // This runs before the fork locks are taken, because a delivery to this socket may have to finish first.
  {
    const std::lock_guard guard(setup_lock_);
    leave_to_family();
    if (family_) family_->before_fork();
  }
  locks.add_outer(setup_lock_);
  locks.add_biased(0, send_lock_);
  locks.add_biased(1, receive_lock_);
  Endpoint::add_fork_locks(locks);
}

/// setup_lock_ held.
void UdpSocket::leave_to_family() noexcept {
  if (is_inherited_.load(std::memory_order_relaxed)) return;
  if (!family_) family_ = SocketFamily::create();
  if (!family_) log_warn("descriptor %d stays with the kernel: no memory", fd());
  was_kernel_only_ = kernel_only_.load(std::memory_order_relaxed) || !family_;
  is_inherited_.store(true, std::memory_order_relaxed);
  look_pause_ = kFirstLook;
  next_look_ = monotonic_now() + look_pause_;
  give_up_rings();  // no more datagrams come by rings after this
  return_arrivals();
}

/// Returns unread datagrams to the kernel. Those to groups stay, because other members would receive them twice.
void UdpSocket::return_arrivals() noexcept {
  if (!ethernet_ || !has_arrivals_.load(std::memory_order_relaxed)) return;
  KernelReturn kernel;
  const std::lock_guard guard(receive_lock_);
  for (std::size_t left = arrivals_.count(); left > 0; --left) {
    ethernet::Arrival arrival = arrivals_.front();
    arrivals_.pop();
    const auto to = wire::destination_of(arrival.bytes(), arrival.layout, 0);
    const bool is_ours = ethernet_->network().find_address(net::IpAddress::of(to)).has_value();
    if (!is_ours || !kernel.give(arrival)) arrivals_.push(std::move(arrival));
  }
  show_queue();
  has_arrivals_.store(!arrivals_.empty(), std::memory_order_relaxed);
  kernel_hint_.store(true, std::memory_order_relaxed);
}

/// The rings are the parent's: a child has only the kernel's socket.
void UdpSocket::after_fork(ForkSide side) noexcept {
  Endpoint::after_fork(side);
  if (side == ForkSide::parent) return;
  abandon(attachments_);
  abandon(rings_);
  abandon(ethernet_);
  abandon(destinations_);
  abandon(arrivals_);
  refused_.clear();
  claimed_port_ = 0;
  ring_count_.store(0, std::memory_order_relaxed);
  polled_.store(0, std::memory_order_relaxed);
  has_arrivals_.store(false, std::memory_order_relaxed);
  kernel_only_.store(true, std::memory_order_relaxed);
  bell_.reset();
  if (side == ForkSide::child && family_) family_->enter_child();
}

/// Called often; it is cheap as long as the process has not forked.
void UdpSocket::look_for_family() noexcept {
  const RingNews news(*this);
  const std::unique_lock guard(setup_lock_, std::try_to_lock);
  if (guard) come_back_when_alone();
}

/// setup_lock_ held.
void UdpSocket::come_back_when_alone() noexcept {
  if (!is_inherited_.load(std::memory_order_relaxed) || is_closed()) return;
  const Nanos now = monotonic_now();
  if (now < next_look_) return;
  look_pause_ = std::min(2 * look_pause_, kLongestPause);
  next_look_ = now + look_pause_;
  if (!family_ || !family_->is_alone()) return;
  const std::unique_lock sending(send_lock_, std::try_to_lock);
  if (!sending) return;
  family_.reset();
  is_inherited_.store(false, std::memory_order_relaxed);
  kernel_only_.store(was_kernel_only_, std::memory_order_relaxed);
  learn_names();  // another process may have bound or connected it
  attach_all();
}

void UdpSocket::before_exec() noexcept {
  const std::lock_guard guard(setup_lock_);
  const int flags = ::fcntl(fd(), F_GETFD);
  if (flags >= 0 && (flags & FD_CLOEXEC) == 0) leave_to_family();
}

void UdpSocket::passed_on() noexcept {
  const std::lock_guard guard(setup_lock_);
  leave_to_family();
  if (family_) family_->add_stranger();
}

void UdpSocket::process_ends() noexcept {
  ethernet::bursts().send_last();
  const int flags = ::fcntl(fd(), F_GETFD);
  if (family_ && (flags & FD_CLOEXEC) != 0) family_->leave();
}

}  // namespace ringsock::vma
